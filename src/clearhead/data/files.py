"""Data files: locate them, and read the text in them."""

from __future__ import annotations

import gzip
import zlib
from collections.abc import Sequence
from pathlib import Path

from ..errors import InputError, MissingFileError


class DataError(InputError):
    """A data file does not have the expected content; the message names the file, and the line where there is one."""


def check_root(root: Path | None) -> None:
    """Raise unless a data folder that the user gave exists."""
    if root is not None and not root.is_dir():
        raise MissingFileError(f"data={str(root)!r}: there is no such folder")


def locate(path: str | Path, root: Path | None = None) -> Path:
    """Return the file or folder `path`, or the one of that name in the data folder `root`."""
    check_root(root)
    direct = Path(path).expanduser()
    places = [direct] if root is None or direct.is_absolute() else [direct, root / direct]
    for place in places:
        if place.exists():
            return place
    raise MissingFileError(f"there is no file or folder {' or '.join(str(p.absolute()) for p in places)}")


def given_files(*options: str | Sequence[str] | None) -> tuple[str, ...]:
    """Return the files and folders that options name, each once; None names none."""
    names = [[] if one is None else [one] if isinstance(one, str) else one for one in options]
    return tuple(dict.fromkeys(name for some in names for name in some))


def read_text(path: Path, *, may_be_empty: bool = False) -> str:
    """Return the text of a UTF-8 file, plain or .gz; all characters are kept, line ends too."""
    if path.is_dir():
        raise DataError(f"{path} is a folder: expected a text file")
    try:
        data = gzip.decompress(path.read_bytes()) if path.suffix == ".gz" else path.read_bytes()
    except (EOFError, gzip.BadGzipFile, zlib.error) as error:
        raise DataError(f"{path} is not a complete gzip file: {error}") from error
    text = as_text(data, str(path))
    if not text and not may_be_empty:
        raise DataError(f"{path} is empty: expected text")
    return text


def as_text(data: bytes, name: str) -> str:
    """Decode UTF-8 bytes; the error message for other bytes begins with `name` and the line."""
    try:
        return data.decode("utf-8").removeprefix("\ufeff")  # some editors begin a file with a byte order mark
    except UnicodeDecodeError as error:
        line = data.count(b"\n", 0, error.start) + 1
        raise DataError(f"{name}:{line}: byte {error.start} is not UTF-8 text ({error.reason})") from error


def as_lines(text: str) -> list[str]:
    """Split a text into lines; only a line feed, or a carriage return and a line feed, ends a line."""
    lines = text.split("\n")
    if not lines[-1]:
        lines.pop()
    return [line.removesuffix("\r") for line in lines]


def as_line(text: str) -> str:
    """Return a text as one line: every character that some reader takes for the end of a line becomes a space."""
    return " ".join(text.splitlines())
