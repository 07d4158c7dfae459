"""Files of data: where they are, and the text in them."""

from __future__ import annotations

import gzip
import zlib
from pathlib import Path

from ..errors import InputError, MissingFileError


class DataError(InputError):
    """A file of data is not what it should be; the sentence names the file, and the line where there is one."""


def locate(path: str | Path, root: Path | None = None) -> Path:
    """The file or folder as named, or of that name in the data folder `root`."""
    asked = Path(path).expanduser()
    places = [asked] if root is None or asked.is_absolute() else [asked, root / asked]
    for place in places:
        if place.exists():
            return place
    raise MissingFileError(f"there is no file or folder {' or '.join(str(p.absolute()) for p in places)}")


def read_text(path: Path, *, may_be_empty: bool = False) -> str:
    """The text of a UTF-8 file, plain or .gz; characters are kept as they are, line ends too."""
    if path.is_dir():
        raise DataError(f"{path} is a folder: expected a text file")
    try:
        data = gzip.decompress(path.read_bytes()) if path.suffix == ".gz" else path.read_bytes()
    except (EOFError, gzip.BadGzipFile, zlib.error) as error:
        raise DataError(f"{path} is not a whole gzip file: {error}") from error
    text = as_text(data, str(path))
    if not text and not may_be_empty:
        raise DataError(f"{path} is empty: expected text")
    return text


def as_text(data: bytes, name: str) -> str:
    """UTF-8 bytes as text; what is none is told with its line in the file, or whatever `name` names."""
    try:
        return data.decode("utf-8").removeprefix("\ufeff")  # some editors begin a file with this mark
    except UnicodeDecodeError as error:
        line = data.count(b"\n", 0, error.start) + 1
        raise DataError(f"{name}:{line}: byte {error.start} is not UTF-8 text ({error.reason})") from error


def as_lines(text: str) -> list[str]:
    """The lines of a text: only a line feed, or both signs of Windows, end one."""
    lines = text.split("\n")
    if not lines[-1]:
        lines.pop()
    return [line.removesuffix("\r") for line in lines]


def as_line(text: str) -> str:
    """A text as one line of a file of many: whatever some reader takes for the end of one becomes a space."""
    return " ".join(text.splitlines())
