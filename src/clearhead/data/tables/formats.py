"""Tables whose columns are separated by a character: CSV with quotes, and TSV without.

Delimiter   of a .csv file: the one of , ; TAB | by which most of the first rows have as many columns as the first row
            a first line "sep=;", as spreadsheets write it, names it and is no row
Quotes      of a .csv file: a field in double quotes may have delimiters and line breaks in it, and "" for a quote;
            in other files a quote is a character like any other
Header      the first row has the names of the columns if the caller says so or names one of them; or if all of it looks
            like names, none of which is a value of its column below, and one of them is a usual name, or a column
            has only numbers below, or short labels that are there again and again, or all are codes of languages
"""

from __future__ import annotations

import csv
import json
import re
import shutil
import sys
import tempfile
from collections.abc import Callable, Collection, Iterator, Sequence
from contextlib import contextmanager
from itertools import chain, islice
from json import JSONDecodeError
from pathlib import Path
from typing import Any

from ...errors import MissingPackageError
from ..files import DataError
from ..splits import counted
from ..text_files import CHUNK, DECOMPRESSORS, LONGEST, TextFile, open_bytes
from .column_names import USUAL, is_language

DELIMITERS = {",": "comma", ";": "semicolon", "\t": "tab", "|": "bar"}
REPEATED = 5  # times that each label of a column is there, on average, at least
SAMPLE = 100  # rows by which delimiter and header are recognised
FIELD = 1 << 24  # largest number of characters in a field; csv's own limit is 131,072
NAME = re.compile(r"[^\W\d][\w .()/-]{0,39}")  # what the name of a column looks like
STATED = re.compile(r"sep=(.)\s*")  # a first line that names the delimiter
Fields = tuple[int, list[str]]  # the line on which a row begins, and its fields


def read_quoted(source: TextFile, delimiter: str) -> Iterator[Fields]:
    """Yield the rows of a CSV file; empty lines are left out."""
    # raised, never lowered: the limit is global, and others may need more
    csv.field_size_limit(max(csv.field_size_limit(), FIELD))
    reader = csv.reader(_table_lines(source), delimiter=delimiter, strict=True)
    while True:
        # the line before reading: a quoted field may run over several
        begins = reader.line_num + 1
        try:
            fields = next(reader)
        except StopIteration:
            return
        except csv.Error as error:
            raise DataError(
                f"{source.path}:{begins}: {_explained(str(error), delimiter)}"
            ) from error
        # csv returns [] for an empty line
        if fields:
            yield begins, [field.replace("\r\n", "\n") for field in fields]


def read_plain(source: TextFile, delimiter: str) -> Iterator[Fields]:
    """Yield the rows of a file without quotes, one per line; empty lines at the end are left out."""
    empty: list[int] = []  # lines that are left out if no other follows them
    for number, line in enumerate(source.lines(), 1):
        text = line.removesuffix("\n").removesuffix("\r")
        if not text:
            # kept for now: an empty line inside the file is a row with an empty field
            empty.append(number)
            continue
        yield from ((one, [""]) for one in empty)
        empty.clear()
        yield number, text.split(delimiter)


def _table_lines(source: TextFile) -> Iterator[str]:
    """Yield the lines of a CSV file; one that names the delimiter is empty instead."""
    lines = source.lines()
    first = next(lines, "")
    if STATED.fullmatch(first):
        # replaced, not removed: the numbers of lines in messages stay right
        first = "\n"
    return chain([first], lines)


def find_delimiter(source: TextFile) -> str:
    """Return the delimiter of a CSV file, by its first rows, or as its first line says."""
    stated = STATED.fullmatch(next(source.lines(), ""))
    if stated and stated[1] in DELIMITERS:
        return stated[1]

    def fit(delimiter: str) -> tuple[float, int]:
        # not strict here: a wrong delimiter often leaves quotes open
        reader = csv.reader(source.lines(), delimiter=delimiter)
        try:
            widths = [len(row) for row in islice(reader, SAMPLE) if row]
        except csv.Error:  # told when the file is read
            return 0.0, 0
        # a single column: the delimiter does not occur in the first row
        if not widths or widths[0] < 2:
            return 0.0, 0
        # (share of rows as wide as the first, width): of equal shares the wider wins
        return sum(width == widths[0] for width in widths) / len(widths), widths[0]

    csv.field_size_limit(max(csv.field_size_limit(), FIELD))
    return max(DELIMITERS, key=fit)


def has_header(rows: Sequence[Sequence[str]], named: Collection[str] = ()) -> bool:
    """Return whether the first of the first rows of a file has the names of the columns, as far as it can be told.

    `named` are names of columns that the caller expects.
    """
    first, below = [field.strip() for field in rows[0]], rows[1:]
    # "1" is the number of a column in a file without a header
    if any(name in first for name in named if not name.isdigit()):
        return True
    # by column; rows may be shorter than the first
    columns = [[row[i].strip() for row in below if i < len(row)] for i in range(len(first))]
    # not a header: a field that is no name, or a value that is there again below
    # some names may be empty: data frames write none above their index
    if not all(NAME.fullmatch(name) for name in first if name) or not any(first):
        return False
    if any(name in column for name, column in zip(first, columns, strict=True)):
        return False
    # a header: a usual name, languages only, or words above numbers or above labels
    if any(name.lower() in USUAL for name in first) or all(is_language(name) for name in first):
        return True
    if len(first) > 1 and any(column and all(map(_is_number, column)) for column in columns):
        return True
    return len(first) > 1 and any(map(looks_like_labels, columns)) and _shorter(first, columns)


def looks_like_labels(values: Sequence[str]) -> bool:
    """Return whether values are short names, each of which is there several times, as those of a column of classes."""
    # an empty value counts as a label of its own, which is then refused below
    different = set(values)
    # each label must occur REPEATED times on average
    if len(values) < REPEATED or len(different) > len(values) // REPEATED:
        return False
    return all(value and value[-1].isalnum() and len(value.split()) <= 3 for value in different)


def _shorter(first: Sequence[str], columns: Sequence[Sequence[str]]) -> bool:
    """Return whether names are shorter than the texts below them, in the columns that have no labels."""
    # labels may be as short as the name above them: they prove nothing
    others = [
        (name, column)
        for name, column in zip(first, columns, strict=True)
        if column and not looks_like_labels(column)
    ]
    return all(
        len(name.split()) < sum(len(text.split()) for text in column) / len(column)
        for name, column in others
    )


def named_columns(source: TextFile, line: int, header: Sequence[str]) -> tuple[str, ...]:
    """Return the names of the columns in a header; a column without a name is called by its number."""
    names = [name.strip() or str(i) for i, name in enumerate(header, 1)]
    for name in names:
        if names.count(name) > 1:
            places = [str(i) for i, other in enumerate(names, 1) if other == name]
            raise DataError(
                f"{source.path}:{line}: the columns {' and '.join(places)} are both called {name!r}: expected "
                "different names, or header = false if this is no header"
            )
    return tuple(names)


def read_fields(
    source: TextFile,
    read: Callable[[TextFile, str], Iterator[Fields]],
    delimiter: str,
    columns: tuple[str, ...],
    skip: int,
) -> Iterator[tuple[int, dict[str, str]]]:
    """Yield the rows after the header by column, each with its line; raises for one of another number of columns."""
    # `skip` is 1 below a header, otherwise 0
    for line, fields in islice(read(source, delimiter), skip, None):
        if len(fields) != len(columns):
            advice = ""
            # the usual cause in a CSV file: a delimiter inside an unquoted text
            if read is read_quoted:
                advice = f"; a text with a {DELIMITERS[delimiter]} in it must be in double quotes"
            elif any(field.startswith('"') for field in fields):
                advice = "; only a .csv file has quoted fields, whatever its delimiter"
            raise DataError(
                f"{source.path}:{line}: expected {counted(len(columns), 'column')}, as in the first row, got "
                f"{counted(len(fields), 'column')}: {delimiter.join(fields)[:60]!r}{advice}"
            )
        yield line, dict(zip(columns, fields, strict=True))


def _explained(problem: str, delimiter: str) -> str:
    """Return what a message of csv means."""
    if "unexpected end of data" in problem or "field larger" in problem:
        limit = ""
        if "larger" in problem:
            limit = f" within {FIELD:,} characters"
        return f'a double quote that is opened in this row is not closed{limit}: expected " at the end of the field'
    if "expected after" in problem:
        return (
            f"a quoted field of this row is followed by something else than a {DELIMITERS[delimiter]}: expected the "
            'quotes in a quoted field to be doubled, ""'
        )
    if "new-line character" in problem:
        return "a carriage return inside a line: expected lines that end with a line feed"
    return problem


def _is_number(value: str) -> bool:
    try:
        float(value)
    except ValueError:
        return False
    return True


# Rows of JSON files: one object per line, or a list of objects.


_SPACE = re.compile(r"[ \t\r\n]*")
Object = tuple[int, dict[str, Any]]  # the line on which an object begins, and its values
# By what was read last: the characters that may follow, and what a message expects.
_AFTER = {
    "the beginning": ("[{", "a list of objects, [{...}, {...}]"),
    "[": ("{]", "a list of objects, {...}"),
    ",": ("{", "an object, {...}, after the comma"),
    "an object": (",]", "a comma or ]"),
    "]": ("", "the end of the file, or one list of all objects"),
    "an object without a list": ("{", "another object, {...}, or the end of the file"),
}


def read_json_lines(source: TextFile) -> Iterator[Object]:
    """Yield the object of each line of a file; empty lines are left out."""
    for number, line in enumerate(source.lines(), 1):
        if line.strip():
            where = f"{source.path}:{number}"
            try:
                value = json.loads(line.rstrip())
            except JSONDecodeError as error:
                raise DataError(f"{where}: column {error.colno}: not JSON: {error.msg}") from error
            except (RecursionError, ValueError) as error:
                raise DataError(f"{where}: {_too_large(error)}") from error
            yield number, _object(value, where)


def read_json_list(source: TextFile) -> Iterator[Object]:
    """Yield the objects of a JSON list, or of a file of objects without one; only a part of it is in memory."""
    reading, last, listed = _Reading(source), "the beginning", False
    while True:
        found = reading.next_character()
        may_follow, expected = _AFTER[last]
        # the file may end after the list, or after objects without one
        if not found and last in ("]", "an object without a list"):
            return
        # the file ends inside the list
        if not found and (last != "the beginning" or listed):
            raise DataError(f"{source.path}: the list is not closed: expected ] at the end")
        if not found or found not in may_follow:
            given = reading.shown() if found else "nothing"
            # another character than the grammar of _AFTER allows
            raise DataError(f"{source.path}:{reading.line}: expected {expected}, got {given}")
        if found == "{":
            line, value = reading.value()
            yield line, _object(value, f"{source.path}:{line}")
            # without a list, objects follow each other without commas
            last = "an object" if listed else "an object without a list"
        else:
            # [ , and ] are single characters
            listed, last = True, found
            reading.at += 1


class _Reading:
    """A stream of JSON, of which a part is in memory: `buffer` from the place `at` on."""

    def __init__(self, source: TextFile) -> None:
        self.source, self.parts, self.decoder = source, source.text(), json.JSONDecoder()
        self.buffer, self.at, self.ended = "", 0, False
        # the line of the place `counted`, and the characters of it before the buffer
        self.line, self.column = 1, 0
        self.counted = 0

    def next_character(self) -> str:
        """Return the next character that is no white space, and stop before it; "" at the end of the file."""
        while True:
            # white space may end with the buffer: more is read until something else comes
            space = _SPACE.match(self.buffer, self.at)
            if space:
                self.at = space.end()
            if self.at < len(self.buffer) or self.ended:
                self._count(self.at)
                return self.buffer[self.at : self.at + 1]
            self._read(1)

    def value(self) -> tuple[int, Any]:
        """Return the value that begins here, and its line."""
        line, wanted = self.line, CHUNK
        while True:
            # a part of the value may be missing: JSON says so only by failing
            self._read(wanted)
            try:
                value, self.at = self.decoder.raw_decode(self.buffer, self.at)
                return line, value
            except JSONDecodeError as error:
                # twice as much at each attempt: all together cost about twice the last
                if not self.ended and len(self.buffer) - self.at < LONGEST:
                    wanted = 2 * (len(self.buffer) - self.at)
                    continue
                # the file has ended, or the value is longer than LONGEST: an error to report
                self._count(error.pos)
                column = error.pos - self.buffer.rfind("\n", 0, error.pos)
                if "\n" not in self.buffer[: error.pos]:  # the line begins before the buffer
                    column += self.column
                raise DataError(
                    f"{self.source.path}:{self.line}: column {column}: not JSON: {error.msg}"
                ) from error
            except (RecursionError, ValueError) as error:
                raise DataError(f"{self.source.path}:{line}: {_too_large(error)}") from error

    def shown(self) -> str:
        """Return what comes next, for a message."""
        return repr(self.buffer[self.at : self.at + 40])

    def _read(self, wanted: int) -> None:
        """Read until this many characters are in memory, or all are; those before `at` are dropped."""
        while not self.ended and len(self.buffer) - self.at < wanted:
            # lines and columns are counted before their characters are dropped
            self._count(self.at)
            feed = self.buffer.rfind("\n", 0, self.at)
            if feed >= 0:
                self.column = self.at - feed - 1
            else:
                self.column = self.column + self.at
            text = next(self.parts, "")
            self.buffer, self.at, self.counted, self.ended = (
                self.buffer[self.at :] + text,
                0,
                0,
                not text,
            )

    def _count(self, place: int) -> None:
        """Advance `line` to the line of a place in the buffer."""
        self.line += self.buffer.count("\n", self.counted, place)
        self.counted = place


def _too_large(error: Exception) -> str:
    """Return why a JSON value is too large for Python."""
    if isinstance(error, RecursionError):
        return "lists or objects are nested too deeply"
    return f"a number has more than {sys.get_int_max_str_digits():,} digits"


def _object(value: Any, where: str) -> dict[str, Any]:
    if not isinstance(value, dict):
        kind = {list: "a list", str: "a text", bool: "true or false", type(None): "null"}.get(
            type(value), "a number"
        )
        raise DataError(f'{where}: expected an object like {{"text": "..."}}, got {kind}')
    return value


# Rows of Parquet files, by the optional package pyarrow.


BATCH = 1024  # rows that are read at once


@contextmanager
def parquet_file(path: Path) -> Iterator[Any]:
    """Open a Parquet file; raises a sentence if pyarrow is not installed."""
    try:
        from pyarrow import ArrowException
        from pyarrow.parquet import ParquetFile
    except ModuleNotFoundError as cause:
        raise MissingPackageError(
            f'{path}: Parquet files need the package pyarrow: pip install "clearhead[parquet]"'
        ) from cause
    with open_bytes(path) as packed, tempfile.TemporaryFile() as unpacked:
        if path.suffix.lower() in DECOMPRESSORS:  # its end is read first
            shutil.copyfileobj(packed, unpacked)
        try:
            file = ParquetFile(unpacked if unpacked.tell() else packed)
        except (ArrowException, OSError) as error:
            raise DataError(f"{path} is not a Parquet file: {error}") from error
        try:
            yield file
        except (ArrowException, OSError) as error:  # a damaged page is noticed when it is read
            raise DataError(f"{path} is a damaged Parquet file: {error}") from error


def parquet_rows(path: Path) -> Iterator[tuple[int, dict[str, Any]]]:
    """Yield the rows of a Parquet file, each with its number from 1."""
    with parquet_file(path) as file:
        number = 0
        for batch in file.iter_batches(batch_size=BATCH):
            for values in batch.to_pylist():
                number += 1
                yield number, values
