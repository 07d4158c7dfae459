"""Texts from the command line: as given, the lines of files, a column of tables, or stdin, read bit by bit.

Memory is bounded: a file of any size is read in blocks, and a line that is too long is not kept. Lines of stdin are
passed on as soon as they have come. A line that cannot be read becomes an Item with a problem, and the others go on.
"""

from __future__ import annotations

import os
import warnings
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from itertools import groupby, islice
from pathlib import Path
from typing import Any

# a single word with such an ending is taken for a file name
FILES = (".txt", ".tsv", ".csv", ".jsonl", ".json", ".parquet", ".md", ".gz", ".bz2", ".xz")
ROWS = 64  # rows of a table that are read at a time


@dataclass(frozen=True, kw_only=True, slots=True)
class Item:
    """An input of a command: a line of a file or of stdin, a text given as an argument, or an image file."""

    text: str  # the text, or the path of the image
    place: str  # news.txt:3, stdin:3; text 2, for an argument
    size: float = 1  # bytes of the file that it takes
    problem: str = ""  # why it cannot be used, if so
    given: bool = False  # whether it is an argument, and not a line
    key: str = "input"  # its name in JSON


@dataclass(frozen=True, kw_only=True, slots=True)
class Column:
    """The column of a table that has the texts."""

    name: str | None = None  # None: the only one, or the first of the usual names
    usual: tuple[str, ...] = ()  # usual names of such a column, in lower case
    trained: str | None = None  # the column that the model was trained on

    def find(self, table: Any) -> str:
        """Return the name of the column in a table; raises with the names of all."""
        from ..data import DataError
        from ..errors import Notice

        if self.name is not None:
            return str(table.column(self.name))
        # Without --column, a usual name such as "text" is looked for.
        likely = table.usual(*self.usual)
        if likely is None and len(table.columns) == 1:
            likely = table.columns[0]
        # The column of the training comes before both, as in `evaluate`.
        if self.trained in table.columns:
            if self.trained != likely:
                warnings.warn(
                    f"{table.path}: the texts are those of the column {self.trained}, which the model was trained on; "
                    "--column takes another",
                    Notice,
                    stacklevel=2,
                )
            return str(self.trained)
        if likely is not None:
            return str(likely)
        raise DataError(
            f"{table.path} has the columns {', '.join(table.columns)}: expected --column with the one of the texts"
        )


def is_text(text: str) -> bool:
    """Return True if an argument is a text itself; False if it is a file, or - for stdin.

    A single word that names a folder, or has the ending of a text file that does not exist, raises.
    """
    from ..data import DataError

    if text == "-" or os.path.isfile(text):  # not Path.is_file, which raises for long texts
        return False
    # A text of one word is possible, but one that ends as a file name is more likely a typing
    # error.
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
    """Yield texts as given, the lines of text files, and the lines of stdin for "-", as soon as they can be read.

    Args:
        inputs: Texts and names of files.
        column: Which column of tables (.csv, .tsv, .jsonl, .json, .parquet) has the texts; None: tables are read as
            lines.
    """
    # Texts and files may be mixed: numbers count the texts only.
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
        # Tables are read as lines where a command has lines of its own format.
        for name in group:
            if column is None or not _has_columns(name):
                yield from _read_lines(name)
            else:
                yield from _read_rows(name, column)


def total_size(inputs: Sequence[str], column: Column | None = None) -> int | None:
    """Return the sum of the sizes of all items that `read_texts` yields; None if it is unknown before reading them."""
    total = 0
    for name in inputs:
        if is_text(name):
            total += 1
        # The length of stdin, and the rows of a table, are known only after reading.
        elif name == "-" or (column is not None and _has_columns(name)):
            return None
        else:
            total += os.path.getsize(name)
    return total


def text_or_stdin(text: str) -> str:
    """Return a text as given, or everything from stdin for "-"."""
    from ..data.text_files import stdin

    if text == "-":
        return "".join(stdin().text())
    return text


def _has_columns(name: str) -> bool:
    from ..data.tables.reading import is_table

    return name != "-" and is_table(Path(name))


def _read_rows(name: str, column: Column) -> Iterator[list[Item]]:
    """Yield the texts of a column of a table; a row without one has a problem."""
    from ..data import DataError
    from ..data.tables.reading import TableRow, open_table

    def item(row: TableRow) -> Item:
        value = row.values.get(chosen)
        # A row without a text keeps its place, so that answers and rows stay aligned.
        if value is None:
            return Item(text="", place=row.where)
        try:
            return Item(text=row.text(chosen), place=row.where)
        except DataError as error:
            # The item has its place in a field, and a message would repeat it.
            problem = str(error).removeprefix(f"{row.where}: ")
            return Item(text=str(value), place=row.where, problem=problem)

    named = [one for one in (column.name, column.trained) if one]
    table = open_table(Path(name), named=named)
    chosen = column.find(table)
    rows = table.rows()
    # Blocks of rows, not single ones: the model reads them in batches.
    while block := [item(row) for row in islice(rows, ROWS)]:
        yield block


def _read_lines(name: str) -> Iterator[list[Item]]:
    """Yield the lines of a text file, or of stdin for "-", as many at a time as are there."""
    from ..data.text_files import TextFile, stdin, too_long_line, without_problems

    if name == "-":
        name, file = "stdin", stdin()
    elif os.path.getsize(name):
        file = TextFile(Path(name))
    else:
        return
    number, position = 0, 0.0
    for lines, is_next_too_long in file.blocks(strict=False):
        # The bytes since the last block are divided among its lines, for the progress bar.
        size = (file.position - position) / (len(lines) + is_next_too_long)
        position = file.position
        items = []
        for line in lines:
            # Counted before anything else, so that a line with a problem keeps its number too.
            number += 1
            text, problem = line.removesuffix("\r"), ""
            found = file.problem(text)
            # The first character that cannot be decoded or printed, if there is one.
            if found is not None:
                column, sentence = found
                text, problem = without_problems(text), f"column {column + 1}: {sentence}"
            items.append(Item(text=text, place=f"{name}:{number}", size=size, problem=problem))
        # The line was never kept in memory, only its end was looked for.
        if is_next_too_long:
            number += 1
            items.append(
                Item(text="", place=f"{name}:{number}", size=size, problem=too_long_line())
            )
        yield items
