"""The documents of text files and tables, as a stream of pieces: a large file is never in memory as a whole.

a text file     one document, or several that a separator ends
a folder        all its text files, in the order of their names; or, if it has none, all its tables. Files that tell
                about the others, such as README.md, are read only if there is nothing else
a table         a document per row, in one column
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

from ..files import DataError, locate
from ..tables.column_names import TEXTS
from ..tables.reading import TableFile, is_table, open_table
from ..text_files import DECOMPRESSORS, TextFile, bare_suffix

PIECE = 1 << 16  # characters of a piece
REACH = 1 << 12  # characters in which a place between two words is searched
SUFFIXES = (".txt", ".text", ".md")  # of the text files in a folder, compressed or not
# about other files
ABOUT = ("readme", "license", "licence", "copying", "notice", "changelog", "citation", "authors")
COMPRESSED = 8  # a compressed file is taken to be this many times as large


@dataclass(frozen=True, slots=True)
class DocumentPart:
    """A part of a document."""

    text: str
    ends: bool  # whether the document ends with it


class Documents:
    """The documents of files, in order; each call of `pieces` reads them from the beginning."""

    def __init__(
        self,
        paths: Sequence[Path],
        *,
        separator: str | None = None,
        column: str | None = None,
        joined: bool = True,
        header: bool | None = None,
    ) -> None:
        self.files = tuple(file for path in paths for file in _files(path))
        self.separator, self.column, self.header = separator, column, header
        self.joined = joined  # keep the separator, and end each row of a table with a line feed
        self.empty = 0  # rows without text that the last reading left out
        self.share_read = 0.0  # share of the files that the current reading has read
        self._sizes = [file.stat().st_size for file in self.files]

    @property
    def bytes(self) -> int:
        """The size of all files; of compressed ones an estimate."""
        total = 0
        for file, size in zip(self.files, self._sizes, strict=True):
            # Parquet is compressed inside, whatever its name
            if file.suffix.lower() in DECOMPRESSORS or bare_suffix(file) == ".parquet":
                size *= COMPRESSED
            total += size
        return total

    def whole(self) -> Iterator[str]:
        """Yield the documents, each as a whole."""
        parts: list[str] = []
        for piece in self.pieces():
            # a document may come in several pieces
            parts.append(piece.text)
            if piece.ends:
                yield "".join(parts)
                parts.clear()

    def pieces(self) -> Iterator[DocumentPart]:
        """Yield the pieces of all documents; they are cut between two words, so that tokens stay whole."""
        # `or 1`: no division by 0 where all files are empty
        self.empty, before, total = 0, 0, sum(self._sizes) or 1
        for file, size in zip(self.files, self._sizes, strict=True):
            # both read a file as (piece, share of the file)
            read = self._rows if is_table(file) else self._text
            for piece, share in read(file):
                self.share_read = (before + share * size) / total
                yield piece
            # earlier files count as a whole
            before += size

    def _text(self, file: Path) -> Iterator[tuple[DocumentPart, float]]:
        source = TextFile(file)
        for piece in divided(source.text(), self.separator, joined=self.joined):
            yield piece, source.position / (source.size or 1)

    def _rows(self, file: Path) -> Iterator[tuple[DocumentPart, float]]:
        table, column = open_texts(file, self.column, header=self.header)
        for row in table.rows():
            if not row.has(column):
                # left out, and counted for the description
                self.empty += 1
                continue
            text = row.text(column)
            # rows become lines, as if the column had been a text file
            if self.joined:
                text += "\n"
            for piece in divided([text], None):
                yield piece, table.share_read()


def divided(
    texts: Iterable[str], separator: str | None, *, joined: bool = True
) -> Iterator[DocumentPart]:
    """Divide a streamed text into documents, and long documents into pieces."""
    rest = ""
    for text in texts:
        rest += text
        if separator is not None:
            # the last part may continue in the next text
            *whole, rest = rest.split(separator)
            for document in whole:
                if joined:
                    # split() has removed it
                    document += separator
                yield from _cut(document, ends=True)
        # at least two pieces: the last is never short, so that a word at its end is whole
        while len(rest) >= 2 * PIECE:
            at = _place(rest, PIECE)
            yield DocumentPart(rest[:at], ends=False)
            rest = rest[at:]
    if rest:
        # what follows the last separator, without one
        yield from _cut(rest, ends=True)


def _cut(document: str, *, ends: bool) -> Iterator[DocumentPart]:
    begin = 0
    while len(document) - begin >= 2 * PIECE:
        at = _place(document, begin + PIECE)
        yield DocumentPart(document[begin:at], ends=False)
        begin = at
    yield DocumentPart(document[begin:], ends=ends)


def _place(text: str, most: int) -> int:
    """The last place up to `most` where white space follows a word, at which no tokenizer has a token."""
    # only the last REACH characters: a text without spaces is cut anywhere
    for at in range(most, most - REACH, -1):
        if text[at].isspace() and text[at - 1].isalnum():
            return at
    return most


def open_texts(
    path: Path, column: str | None = None, *, header: bool | None = None
) -> tuple[TableFile, str]:
    """Open a table, and find the column of its texts: the one that is named, the only one, or one with a usual name."""
    table = open_table(path, header=header, named=[column] if column else [])
    if column is None and len(table.columns) == 1:
        return table, table.columns[0]
    return table, table.column(column, *TEXTS)


def find_files(path: str | Sequence[str], root: Path | None) -> list[Path]:
    """Locate one or several files or folders."""
    if isinstance(path, str):
        path = [path]
    return [locate(name, root) for name in path]


def _files(path: Path) -> list[Path]:
    """The file itself, or the files of a folder."""
    if not path.is_dir():
        return [path]
    # hidden files and folders are left out; the order is that of the names
    inside = sorted(
        file
        for file in path.rglob("*")
        if file.is_file() and not any(part.startswith(".") for part in file.relative_to(path).parts)
    )
    texts = [file for file in inside if bare_suffix(file) in SUFFIXES]
    # README and the like only where nothing else is there
    own = [file for file in texts if file.name.split(".")[0].lower() not in ABOUT]
    found = own or [file for file in inside if is_table(file)] or texts
    if not found:
        raise DataError(
            f"{path} has no text files ({', '.join(SUFFIXES)}, compressed or not) and no tables: expected one or more"
        )
    return found
