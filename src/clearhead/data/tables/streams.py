"""Files that are read as a stream: decompressed, decoded and divided into lines, with places in the error messages."""

from __future__ import annotations

import bz2
import codecs
import gzip
import lzma
import zlib
from collections.abc import Callable, Iterator
from io import BufferedIOBase
from itertools import chain
from pathlib import Path
from typing import Any, cast

from ..files import DataError

CHUNK = 1 << 20  # bytes that are read at once
LONGEST = 1 << 26  # largest number of characters in a line, so that memory is bounded
DECOMPRESSORS: dict[str, Callable[..., Any]] = {
    ".gz": gzip.open,
    ".bz2": bz2.open,
    ".xz": lzma.open,
}
NAMES = {".gz": "gzip", ".bz2": "bzip2", ".xz": "xz"}
# The longer marks first: that of UTF-32 begins with that of UTF-16.
MARKS = (
    (codecs.BOM_UTF8, "utf-8-sig"),
    (codecs.BOM_UTF32_LE, "utf-32"),
    (codecs.BOM_UTF32_BE, "utf-32"),
    (codecs.BOM_UTF16_LE, "utf-16"),
    (codecs.BOM_UTF16_BE, "utf-16"),
)


def open_bytes(path: Path) -> BufferedIOBase:
    """Open a file for reading, decompressed if its name ends in .gz, .bz2 or .xz."""
    if path.is_dir():
        raise DataError(f"{path} is a folder: expected a file")
    if path.exists() and not path.is_file():
        raise DataError(
            f"{path} is a pipe or a device, which can be read only once: expected a file"
        )
    return cast(BufferedIOBase, DECOMPRESSORS.get(path.suffix.lower(), open)(path, "rb"))


def bare_suffix(path: Path) -> str:
    """Return the suffix of a file's name in lower case, without that of its compression."""
    return Path(path.stem if path.suffix.lower() in DECOMPRESSORS else path.name).suffix.lower()


class Source:
    """A file that is read as a stream, from its beginning each time.

    A text is UTF-8, with or without a byte order mark, or UTF-16 or UTF-32 with one.
    """

    def __init__(self, path: Path) -> None:
        self.path = path
        # bytes of the file, as it is on disk, that have been read; of lines, those yielded so far
        self.position = 0.0
        with open_bytes(path):  # raises for a folder and a missing file
            self.size = path.stat().st_size
        begin = next(self.chunks(), b"")
        if not begin:
            raise DataError(f"{path} is empty: expected text")
        self.encoding = next((name for mark, name in MARKS if begin.startswith(mark)), "utf-8")

    def chunks(self) -> Iterator[bytes]:
        """Yield the decompressed bytes of the file, some at a time."""
        suffix = self.path.suffix.lower()
        try:
            with (
                self.path.open("rb") as raw,
                DECOMPRESSORS.get(suffix, lambda file, mode: file)(raw, "rb") as file,
            ):
                while data := file.read(CHUNK):
                    self.position = raw.tell()
                    yield data
        except (EOFError, gzip.BadGzipFile, zlib.error, lzma.LZMAError) as error:
            raise DataError(
                f"{self.path} is not a complete {NAMES[suffix]} file: {error}"
            ) from error
        except OSError as error:
            if error.errno is None and suffix in NAMES:  # bz2 raises it for what is no bzip2 file
                raise DataError(
                    f"{self.path} is not a complete {NAMES[suffix]} file: {error}"
                ) from error
            raise

    def text(self) -> Iterator[tuple[str, int]]:
        """Yield the text of the file, some at a time, each with the number of line feeds before it."""
        decoder = codecs.getincrementaldecoder(self.encoding)()
        feeds, column = 0, 0  # line feeds so far, and characters after the last of them
        for data in chain(self.chunks(), (b"",)):
            try:
                text = decoder.decode(data, final=not data)
            except UnicodeDecodeError as error:
                before = error.object[: error.start].decode(error.encoding, "replace")
                byte = error.object[error.start]
                raise DataError(
                    f"{self._place(before, feeds, column)}: the byte 0x{byte:02X} is not {self.encoding.upper()} text "
                    f"({error.reason}): expected a UTF-8 file; {_latin(byte)}"
                ) from error
            if "\0" in text:
                raise DataError(
                    f"{self._place(text[: text.index(chr(0))], feeds, column)}: a NUL character: expected text, in "
                    "UTF-8, or in UTF-16 with a byte order mark"
                )
            if text:
                yield text, feeds
            feeds += text.count("\n")
            if "\n" in text:
                column = len(text) - text.rfind("\n") - 1
            else:
                column = column + len(text)

    def lines(self) -> Iterator[str]:
        """Yield the lines of the file, each with its line feed; no other character ends a line."""
        rest: list[str] = []
        size, before = 0, 0.0  # characters of `rest`; the position before this part of the text
        for text, feeds in self.text():
            after = self.position
            first, *others = text.split("\n")
            rest.append(first)
            size += len(first)
            if others:
                self.position = before
                yield "".join(rest) + "\n"
                for number, line in enumerate(others[:-1], 1):
                    self.position = before + (after - before) * number / len(others)
                    yield line + "\n"
                self.position = after
                rest, size = [others[-1]], len(others[-1])
            before = after
            if size > LONGEST:
                raise DataError(
                    f"{self.path}:{feeds + len(others) + 1}: this line has more than {LONGEST:,} characters: "
                    "expected shorter ones"
                )
        if size:
            yield "".join(rest)

    def _place(self, before: str, feeds: int, column: int) -> str:
        """Return "file:line: column N" for what follows the text `before`, which begins in a line's column."""
        line = feeds + before.count("\n") + 1
        if "\n" in before:
            at = len(before) - before.rfind("\n")
        else:
            at = column + len(before) + 1
        return f"{self.path}:{line}: column {at}"


def read_lines(path: Path) -> Iterator[tuple[str, str]]:
    """Yield the lines of a text file, streamed, each after its place "file:line"; empty lines too."""
    for number, line in enumerate(Source(path).lines(), 1):
        yield f"{path}:{number}", line.removesuffix("\n").removesuffix("\r")


def _latin(byte: int) -> str:
    """Return advice for a byte that is not UTF-8."""
    letter = bytes([byte]).decode("cp1252", "replace")
    if letter != "\ufffd":
        known = f"as Windows-1252 it is {letter!r}; "
    else:
        known = ""
    return f"{known}iconv -f WINDOWS-1252 -t UTF-8 converts a file"
