"""Texts from the command line: as given, the lines of files, a column of tables, or stdin, read bit by bit.

Memory is bounded: a file of any size is read in blocks, and a line that is too long is not kept. Lines of stdin are
passed on as soon as they have come.
"""

from __future__ import annotations

import gzip
import os
import sys
import zlib
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from itertools import groupby, islice
from pathlib import Path
from typing import Any

FILES = (
    ".txt",
    ".tsv",
    ".csv",
    ".jsonl",
    ".json",
    ".parquet",
    ".md",
    ".gz",
)  # a single word with such an ending is taken for a file name
BLOCK = 1 << 16  # bytes that are read at a time
ROWS = 64  # rows of a table that are read at a time
LONGEST = 1 << 24  # bytes that a line may have
MARK = b"\xef\xbb\xbf"  # byte order mark: some editors begin a file with it


@dataclass(frozen=True, kw_only=True, slots=True)
class Item:
    """An input of a command: a line of a file or of stdin, a text given as an argument, or an image file."""

    text: str  # the text, or the path of the image
    place: str  # news.txt:3, stdin:3; text 2, for an argument
    size: int = 1  # bytes of the file that it takes
    problem: str = ""  # why it cannot be used, if so
    given: bool = False  # whether it is an argument, and not a line
    key: str = "input"  # its name in JSON


@dataclass(frozen=True, kw_only=True, slots=True)
class Column:
    """The column of a table that has the texts."""

    name: str | None = None  # None: the only one, or the first of the usual names
    usual: tuple[str, ...] = ()  # usual names of such a column, in lower case

    def find(self, table: Any) -> str:
        """The name of the column in a table; raises with the names of all."""
        from ..data.files import DataError

        by_name = {name.lower(): name for name in reversed(table.columns)}
        usual = next((by_name[name] for name in self.usual if name in by_name), None)
        if self.name is not None:
            return str(table.column(self.name))
        if len(table.columns) == 1 or usual is not None:
            return str(usual or table.columns[0])
        raise DataError(
            f"{table.path} has the columns {', '.join(table.columns)}: expected --column with the one of the texts"
        )


def is_text(text: str) -> bool:
    """True if an argument is a text itself; False if it is a file, or - for stdin.

    A single word that names a folder, or has the ending of a text file that does not exist, raises.
    """
    from ..data.files import DataError

    if text == "-" or os.path.isfile(text):  # not Path.is_file, which raises for long texts
        return False
    if len(text.split()) == 1 and (text.endswith(FILES) or os.path.isdir(text)):
        if os.path.isdir(text):
            problem = "this is a folder"
        else:
            problem = "there is no such file"
        raise DataError(
            f"{text}: {problem}; expected a text, a file with one text per line, or - for stdin"
        )
    return True


def read_texts(inputs: Sequence[str], column: Column | None = None) -> Iterator[list[Item]]:
    """Yield texts as given, the lines of text files, and the lines of stdin for "-", as many at a time as are there.

    Args:
        inputs: Texts and names of files.
        column: Which column of tables (.csv, .tsv, .jsonl, .json, .parquet) has the texts; None: tables are read as
            lines.
    """
    number = 0
    for given, group in groupby(inputs, is_text):
        if given:
            texts = list(group)
            yield [
                Item(text=text, place=f"text {number + i}", given=True)
                for i, text in enumerate(texts, 1)
            ]
            number += len(texts)
            continue
        for name in group:
            yield from (
                _read_lines(name)
                if column is None or not _has_columns(name)
                else _read_rows(name, column)
            )


def total_size(inputs: Sequence[str], column: Column | None = None) -> int | None:
    """The sum of the sizes of all items that `read_texts` yields; None if it is unknown before they are read."""
    files = [name for name in inputs if not is_text(name)]
    if any(name.endswith(".gz") or not Path(name).is_file() for name in files):
        return None
    if column is not None and any(map(_has_columns, files)):
        return None
    return sum(1 if is_text(name) else os.path.getsize(name) for name in inputs)


def text_or_stdin(text: str) -> str:
    """A text as given, or everything from stdin for "-"."""
    from ..data.files import as_text

    if text == "-":
        return as_text(sys.stdin.buffer.read(), "stdin")
    return text


def _has_columns(name: str) -> bool:
    from ..data.tables.reading import is_table

    return name != "-" and is_table(Path(name))


def _read_rows(name: str, column: Column) -> Iterator[list[Item]]:
    """Yield the texts of a column of a table; a row without one has a problem."""
    from ..data.files import DataError
    from ..data.tables.reading import Row, open_table

    def item(row: Row) -> Item:
        try:
            value = row.values.get(chosen)
            return Item(text="" if value is None else row.text(chosen), place=row.where)
        except DataError as problem:
            return Item(
                text=str(value),
                place=row.where,
                problem=str(problem).removeprefix(f"{row.where}: "),
            )

    table = open_table(Path(name), named=(column.name,) if column.name else ())
    chosen = column.find(table)
    rows = table.rows()
    while block := [item(row) for row in islice(rows, ROWS)]:
        yield block


def _read_lines(name: str) -> Iterator[list[Item]]:
    """Yield the lines of a file, plain or .gz, or of stdin."""
    from ..data.files import DataError

    if name == "-":
        yield from _split(sys.stdin.buffer, "stdin")
        return
    with gzip.open(name) if name.endswith(".gz") else open(name, "rb") as file:
        try:
            yield from _split(file, name)
        except (EOFError, gzip.BadGzipFile, zlib.error) as error:
            raise DataError(f"{name} is not a complete gzip file: {error}") from error


def _split(file: Any, name: str) -> Iterator[list[Item]]:
    """Yield the lines of each block of a file; only a line feed, or a carriage return and a line feed, ends a line."""
    # lines and bytes before the current line, and bytes of it that are not kept
    number = offset = dropped = 0
    rest = b""
    while True:
        block = file.read1(BLOCK)  # what is there: of a pipe or a terminal it may be less
        *whole, rest = (rest + block).split(b"\n")
        if not block and (dropped or (rest.removeprefix(MARK) if number == 0 else rest)):
            whole = [rest]
        lines = []
        for line in whole:
            number += 1
            lines.append(_line(line, f"{name}:{number}", number == 1, offset, dropped))
            offset, dropped = offset + lines[-1].size, 0
        if len(rest) > LONGEST:
            dropped, rest = dropped + len(rest), b""
        if lines:
            yield lines
        if not block:
            return


def _line(line: bytes, place: str, first: bool, offset: int, dropped: int) -> Item:
    """A line as an Item; `offset` is that of its first byte, for the message about a byte that is not UTF-8."""
    size, problem = len(line) + dropped + 1, ""
    start = len(MARK) if first and line.startswith(MARK) else 0
    if dropped:
        return Item(
            text="",
            place=place,
            size=size,
            problem=f"a line of {size - 1:,} bytes: expected {LONGEST:,} or less",
        )
    try:
        text = line[start:].decode("utf-8")
    except UnicodeDecodeError as error:
        at = offset + start + error.start
        problem = f"byte {at} is not UTF-8 text ({error.reason})"
        text = line[start:].decode("utf-8", errors="replace")
    return Item(text=text.removesuffix("\r"), place=place, size=size, problem=problem)
