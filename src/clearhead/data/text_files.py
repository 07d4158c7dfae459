"""Text files and stdin as a stream: decompressed, decoded and divided into lines, with places in the error messages.

One reader serves training data, evaluation and the command line, so that a file that trains can also be translated.
A text is UTF-8, with or without a byte order mark, or UTF-16 with one; a file may be compressed: .gz, .bz2 or .xz.
"""

from __future__ import annotations

import bz2
import codecs
import gzip
import lzma
import re
import sys
import zlib
from collections.abc import Callable, Iterator
from io import BufferedIOBase
from itertools import chain
from pathlib import Path
from typing import Any, cast

from .files import DataError

CHUNK = 1 << 16  # bytes that are read at once
LONGEST = 1 << 26  # largest number of characters in a line, so that memory is bounded
DECOMPRESSORS: dict[str, Callable[..., Any]] = {
    ".gz": gzip.open,
    ".bz2": bz2.open,
    ".xz": lzma.open,
}
NAMES = {".gz": "gzip", ".bz2": "bzip2", ".xz": "xz"}
MARKS = {
    codecs.BOM_UTF8: "utf-8-sig",
    codecs.BOM_UTF16_LE: "utf-16",
    codecs.BOM_UTF16_BE: "utf-16",
}
# A byte 0xNN that cannot be decoded becomes the lone surrogate U+DCNN, which no decoded text contains.
_UNDECODED = re.compile("[\udc00-\udcff]")


def _keep_byte(error: UnicodeError) -> tuple[str, int]:
    assert isinstance(error, UnicodeDecodeError)
    # the stand-in says which byte it was, for the message; decoding continues after it
    return chr(0xDC00 + error.object[error.start]), error.end


codecs.register_error("clearhead.keep_byte", _keep_byte)


def open_bytes(path: Path) -> BufferedIOBase:
    """Open a file for reading, decompressed if its name ends in .gz, .bz2 or .xz."""
    if path.is_dir():
        raise DataError(f"{path} is a folder: expected a file")
    if path.exists() and not path.is_file():
        raise DataError(
            f"{path} is a pipe or a device, which can be read only once: expected a file"
        )
    # other suffixes are opened as they are, by the builtin open
    return cast(BufferedIOBase, DECOMPRESSORS.get(path.suffix.lower(), open)(path, "rb"))


def bare_suffix(path: Path) -> str:
    """Return the suffix of a file's name in lower case, without that of its compression."""
    return Path(path.stem if path.suffix.lower() in DECOMPRESSORS else path.name).suffix.lower()


class TextFile:
    """A text file that is read as a stream, from its beginning each time; or an open stream such as stdin, read once.

    Examples:
        >>> path = tmp / "notes.txt"
        >>> _ = path.write_text("one\\ntwo", encoding="utf-16")
        >>> file = TextFile(path)
        >>> file.encoding, list(file.lines())
        ('utf-16', ['one\\n', 'two\\n'])
    """

    def __init__(self, path: Path, stream: BufferedIOBase | None = None) -> None:
        self.path = path  # of an open stream: its name in messages
        self.stream = stream
        # bytes that have been read of the file as it is on disk; while lines are read, those of the lines so far
        self.position = 0.0
        self.encoding = "utf-8"
        if stream is None:
            with open_bytes(path):  # raises for a folder and a missing file
                self.size = path.stat().st_size
            begin = next(self.chunks(), b"")
            if not begin:
                raise DataError(f"{path} is empty: expected text")
            self.encoding = _encoding(begin)

    def chunks(self) -> Iterator[bytes]:
        """Yield the decompressed bytes in chunks; an open stream yields whatever has arrived."""
        # read1 returns what has arrived, so that an interactive user is answered at once
        if self.stream is not None:
            while data := self.stream.read1(CHUNK):
                self.position += len(data)
                yield data
            return
        suffix = self.path.suffix.lower()
        # the raw file stays open beside its decompressed view: its position is the progress on disk
        try:
            with (
                self.path.open("rb") as raw,
                DECOMPRESSORS.get(suffix, lambda file, mode: file)(raw, "rb") as file,
            ):
                while data := file.read(CHUNK):
                    self.position = raw.tell()
                    yield data
        except (EOFError, gzip.BadGzipFile, zlib.error, lzma.LZMAError) as error:
            raise self._incomplete(error) from error
        except OSError as error:
            # bz2 raises it, without a number, for what is no bzip2 file
            if error.errno is None and suffix in NAMES:
                raise self._incomplete(error) from error
            raise

    def _incomplete(self, error: Exception) -> DataError:
        name = NAMES[self.path.suffix.lower()]
        return DataError(f"{self.path} is not a complete {name} file: {error}")

    def text(self, *, strict: bool = True) -> Iterator[str]:
        """Yield the decoded text in chunks.

        Args:
            strict: Raise for what is not text, with its place; otherwise it is kept, and `problem` finds it.
        """
        decoder: codecs.IncrementalDecoder | None = None
        begin = b""
        feeds, column = 0, 0  # line feeds so far, and characters after the last of them
        # the empty chunk at the end lets the decoder report a character that is cut
        for chunk in chain(self.chunks(), (b"",)):
            data = chunk
            if decoder is None:
                begin += chunk
                if chunk and any(mark.startswith(begin) and mark != begin for mark in MARKS):
                    continue  # a pipe has sent a part of a byte order mark
                data, self.encoding = begin, _encoding(begin)
                decoder = codecs.getincrementaldecoder(self.encoding)()
            try:
                text = decoder.decode(data, final=not chunk)
            except UnicodeDecodeError:
                # once more, with a stand-in for each byte, so that the place of the first is known
                decoder.errors = "clearhead.keep_byte"
                text = decoder.decode(data, final=not chunk)
                decoder.errors = "strict"
                if strict:
                    raise DataError(self._complaint(text, feeds, column)) from None
            # NUL is valid UTF-8, but a sign of UTF-16 without a mark or of binary data
            if strict and "\0" in text:
                raise DataError(self._complaint(text, feeds, column))
            if text:
                yield text
            feeds += text.count("\n")
            if "\n" in text:
                column = len(text) - text.rfind("\n") - 1
            else:
                column += len(text)

    def blocks(self, *, strict: bool = True) -> Iterator[tuple[list[str], bool]]:
        """Yield the lines that each chunk completes, without their line feeds; no other character ends a line.

        With each block, whether the next line has more than LONGEST characters; it is left out.
        """
        parts: list[str] = []  # of the line that is not complete
        size, dropping = 0, False  # characters of `parts`; whether the current line is too long
        for text in self.text(strict=strict):
            # the last piece is incomplete until the next chunk, or the end of the file
            *lines, rest = text.split("\n")
            # the first line began in earlier chunks
            if lines:
                lines[0] = "".join([*parts, lines[0]])
                if dropping:  # the end of a line that was too long
                    del lines[0]
                parts, size, dropping = [], 0, False
            parts.append(rest)
            size += len(rest)
            too_long = size > LONGEST
            # also when no line is complete: the reader must learn at once that one is too long
            if lines or (too_long and not dropping):
                yield lines, too_long
            # the rest of a long line is not kept, so that memory stays bounded
            if too_long or dropping:
                parts, size, dropping = [], 0, True
        # the last line need not end with a line feed
        if size:
            yield ["".join(parts)], False

    def lines(self) -> Iterator[str]:
        """Yield the lines, each with a line feed, the last one too; raises for one that is no text or too long."""
        number, before = 0, 0.0  # lines so far, and the position after them
        for lines, too_long in self.blocks():
            after = self.position
            for i, line in enumerate(lines, 1):
                # progress inside a chunk is spread evenly over its lines
                self.position = before + (after - before) * i / len(lines)
                yield line + "\n"
            number, before = number + len(lines), after
            self.position = after
            if too_long:
                raise DataError(f"{self.path}:{number + 1}: {too_long_line()}")

    def problem(self, text: str) -> tuple[int, str] | None:
        """Return the place in a text of the first character that is not text, and a sentence about it; or None."""
        # ASCII text cannot contain the stand-ins, which saves the search
        bad = None if text.isascii() else _UNDECODED.search(text)
        at = text.find("\0")
        # the first of both kinds is reported; at is -1 without a NUL
        if bad is not None and not 0 <= at < bad.start():
            byte = ord(bad[0]) - 0xDC00
            name = self.encoding.removesuffix("-sig").upper()
            return (
                bad.start(),
                f"the byte 0x{byte:02X} is not {name} text: expected a UTF-8 file; {_advice(byte)}",
            )
        if at >= 0:
            return (
                at,
                "a NUL character: expected text, in UTF-8, or in UTF-16 with a byte order mark",
            )
        return None

    def _complaint(self, text: str, feeds: int, column: int) -> str:
        """Return the message for the first problem in a part of a file after `feeds` lines and `column` characters."""
        found = self.problem(text)
        assert found is not None
        at, sentence = found
        line = feeds + text.count("\n", 0, at) + 1
        feed = text.rfind("\n", 0, at)
        if feed < 0:
            # the line began in an earlier part: its characters so far count as well
            place = column + at + 1
        else:
            place = at - feed
        return f"{self.path}:{line}: column {place}: {sentence}"


def too_long_line() -> str:
    """Return a sentence about a line that is not read."""
    return f"this line has more than {LONGEST:,} characters: expected shorter ones"


def stdin() -> TextFile:
    """Return the reader of the standard input."""
    return TextFile(Path("stdin"), cast(BufferedIOBase, sys.stdin.buffer))


def read_text(path: Path) -> str:
    """Return the whole text of a file; all characters are kept, line ends too."""
    return "".join(TextFile(path).text())


def read_lines(path: Path) -> Iterator[tuple[str, str]]:
    """Yield the lines of a text file, streamed, each after its place "file:line"; empty lines too."""
    for number, line in enumerate(TextFile(path).lines(), 1):
        yield f"{path}:{number}", line.removesuffix("\n").removesuffix("\r")


def without_problems(text: str) -> str:
    """Return a text in which each byte that is not text is the replacement character."""
    return _UNDECODED.sub("\ufffd", text)


def _encoding(begin: bytes) -> str:
    """Return the encoding of a text by its first bytes."""
    return next((name for mark, name in MARKS.items() if begin.startswith(mark)), "utf-8")


def _advice(byte: int) -> str:
    """Return advice for a byte that is not UTF-8."""
    # five bytes have no meaning in Windows-1252
    letter = bytes([byte]).decode("cp1252", "replace")
    if letter != "\ufffd":
        known = f"as Windows-1252 it is {letter!r}; "
    else:
        known = ""
    return f"{known}iconv -f WINDOWS-1252 -t UTF-8 converts a file"
