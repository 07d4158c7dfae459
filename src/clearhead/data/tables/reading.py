"""Tables as people have them: CSV, TSV, JSON and Parquet files, compressed or not, as a stream of rows with places.

.csv                a delimiter , ; TAB or |, quoted fields, with or without a header (formats.py)
.tsv, and others    columns separated by TABs, without quotes, with or without a header
.jsonl, .ndjson     an object per line              .json   a list of objects
                    of a value {"translation": {"en": ..., "de": ...}} the two texts are columns
.parquet            with the optional package pyarrow
a folder            of folders of text files: the name of each is the label of its texts
"""

from __future__ import annotations

import re
from collections.abc import Callable, Collection, Iterator, Mapping
from dataclasses import dataclass
from itertools import islice
from pathlib import Path
from typing import Any

from ...errors import nearest
from ..files import DataError
from ..text_files import TextFile, bare_suffix, read_text
from .column_names import LABELS, SOURCES, TARGETS, TEXTS, is_language
from .formats import (
    DELIMITERS,
    SAMPLE,
    find_delimiter,
    has_header,
    named_columns,
    parquet_file,
    parquet_rows,
    read_fields,
    read_json_lines,
    read_json_list,
    read_plain,
    read_quoted,
)

# Texts in a folder per class: pos/1.txt, pos/2.txt, neg/1.txt ..., as a table of texts and labels.


SUFFIXES = (".txt", ".text", ".md")


def class_folders(path: Path) -> dict[str, list[Path]]:
    """Return the text files of each folder in a folder, by its name; {} unless two or more have some with text."""
    found: dict[str, list[Path]] = {}
    for folder in sorted(path.iterdir()):
        # hidden folders, such as those of version control, hold no classes
        if folder.is_dir() and not folder.name.startswith("."):
            # sorted, since the order of a folder differs between file systems
            files = sorted(
                file
                for file in folder.iterdir()
                if file.is_file() and bare_suffix(file) in SUFFIXES
            )
            # empty files are no texts
            files = [file for file in files if file.stat().st_size]
            if files:
                found[folder.name] = files
    # a single folder with texts is no class
    return found if len(found) > 1 else {}


def labelled_texts(path: Path) -> Iterator[tuple[Path, dict[str, str]]]:
    """Yield the text of each file and the name of its folder as its label; raises if there are no such folders."""
    found = class_folders(path)
    if not found:
        raise DataError(
            f"{path} is a folder: expected a file, or folders inside with the texts of one class each"
        )
    for label, files in found.items():
        for file in files:
            yield file, {"text": read_text(file), "label": label}


_SURROGATE = re.compile("[\ud800-\udfff]")


FOLDED = "translation"  # a column of objects with a text per language


@dataclass(frozen=True, slots=True)
class TableRow:
    """A row of a table.

    Examples:
        >>> row = Row({"text": "Good.", "label": 1}, "reviews.jsonl:7")
        >>> row.text("text"), row.label("label")
        ('Good.', '1')
    """

    values: Mapping[str, Any]  # by column: a str, or what JSON or Parquet gives
    where: str  # "file.csv:12", the line on which the row begins; "file.parquet: row 12"

    def text(self, column: str) -> str:
        """Return a value that must be text."""
        value = self.values[column]
        if not isinstance(value, str):
            raise DataError(
                f"{self.where}: the column {column!r} is {_described(value)}: expected text"
            )
        return whole_characters(value, f"{self.where}: the column {column!r}")

    def has(self, column: str) -> bool:
        """Return whether there is a value in a column; a text of spaces alone is none."""
        value = self.values.get(column)
        # None, an empty list and white space are all missing values
        return not (value is None or value == [] or (isinstance(value, str) and not value.strip()))

    def label(self, column: str) -> str:
        """Return a value as the name of a class; a whole number, and true or false, become text."""
        value = self.values[column]
        # before int: True is an int in Python
        if isinstance(value, bool):
            return str(value).lower()
        # 1.0 is 1: data frames turn integers into floats where values are missing
        if isinstance(value, int) or (isinstance(value, float) and value.is_integer()):
            return str(int(value))
        if not isinstance(value, str):
            raise DataError(
                f"{self.where}: the column {column!r} is {_described(value)}: expected a label, a text or a whole "
                "number"
            )
        return whole_characters(value, f"{self.where}: the column {column!r}").strip()


@dataclass
class TableFile:
    """An opened file of rows; each call of `rows` reads it from its beginning, a part at a time.

    Examples:
        >>> path = tmp / "reviews.csv"
        >>> _ = path.write_text("Review;Stars\\nA fine film;5\\n")
        >>> table = open_table(path)
        >>> table.columns, table.delimiter, table.header, table.column(None, "text", "review")
        (('Review', 'Stars'), ';', True, 'Review')
        >>> [row.values for row in table.rows("Review")]
        [{'Review': 'A fine film', 'Stars': '5'}]
    """

    path: Path
    format: str  # csv, tsv, jsonl, json or parquet
    columns: tuple[str, ...]  # "1", "2" and so on without a header
    read: Callable[[], Iterator[TableRow]]  # reads all rows
    encoding: str | None = None  # None for Parquet
    delimiter: str | None = None  # None where there is none
    header: bool = True  # whether the columns have names of their own
    share_read: Callable[[], float] = lambda: 1.0  # the share of the file that has been read
    known_rows: int | None = None  # the number of rows, where the file says it

    def rows(self, *needed: str) -> Iterator[TableRow]:
        """Yield the rows; raises, with the place, for one that has no value in a needed column.

        Args:
            needed: Columns that must have a value; a text of spaces alone is none.
        """
        for row in self.read():
            for column in needed:
                # a JSON object may lack a key that others have
                if column not in row.values:
                    raise DataError(
                        f"{row.where}: there is no {column!r} in this row: it has {', '.join(map(str, row.values))}"
                        f"{nearest(column, map(str, row.values))}"
                    )
                if not row.has(column):
                    raise DataError(
                        f"{row.where}: the column {column!r} is empty: expected a value"
                    )
            yield row

    def usual(self, *names: str, taken: str | None = None) -> str | None:
        """Return the first column with one of these names, in lower case or not; None if there is none.

        Args:
            names: Usual names, in lower case, the most usual first.
            taken: A column that is not meant.
        """
        # reversed, so that the first of two columns that differ in capitals wins
        by_name = {name.lower(): name for name in reversed(self.columns) if name != taken}
        # the order is that of the usual names, not of the columns
        return next((by_name[name] for name in names if name in by_name), None)

    def column(self, wanted: str | None, *usual: str) -> str:
        """Return the name of a column.

        Args:
            wanted: Its name, or its number without a header; None: the first of the usual names that is there.
            usual: Usual names of such a column, in lower case; the first is also what the column is for.

        Raises:
            DataError: There is no such column; the message has the nearest one and all of them.
        """
        listed = ", ".join(self.columns)
        if wanted is not None:
            if wanted in self.columns:
                return wanted
            # without a header the first row, with its names, was taken for data
            if self.header:
                hint = ""
            else:
                hint = "; the first row was not taken for a header: header = true says that it is"
            raise DataError(
                f"{self.path}: there is no column {wanted!r}: expected one of {listed}{nearest(wanted, self.columns)}"
                f"{hint}"
            )
        if (found := self.usual(*usual)) is not None:
            return found
        raise DataError(
            f"{self.path}: none of the columns {listed} is called {' or '.join(usual[:4])}: expected "
            f'{usual[0]} = "NAME" with one of them'
        )


def open_table(path: Path, *, header: bool | None = None, named: Collection[str] = ()) -> TableFile:
    """Open a file of rows by its suffix; a file that has no suffix of a table has columns separated by TABs.

    Args:
        path: The file.
        header: Whether the first row of a CSV or TSV file has the names of the columns; None: it is recognised.
        named: Names of columns that the caller expects, which a header is recognised by.
    """
    if path.is_dir():
        return _class_folders(path)
    return _FORMATS.get(bare_suffix(path), _tsv)(path, header, named)


def is_table(path: Path) -> bool:
    """Return whether a file has the suffix of a table: .csv .tsv .jsonl .ndjson .json .parquet, compressed or not."""
    return bare_suffix(path) in _FORMATS


# Which two columns of a table are read: those that the user names, those with usual names, or the only two.


@dataclass(frozen=True, slots=True)
class ColumnRole:
    """What a column is for: the option that names it, and its usual names."""

    option: str
    usual: tuple[str, ...]


LABELLED = (ColumnRole("text", TEXTS), ColumnRole("label", LABELS))
PARALLEL = (ColumnRole("source", SOURCES), ColumnRole("target", TARGETS))


@dataclass
class TwoColumns:
    """Two columns of a table, and the number of rows that the last reading left out because one of them was empty."""

    table: TableFile
    first: str
    second: str
    empty: int = 0

    def rows(self, *, skip_empty: bool = False) -> Iterator[TableRow]:
        """Yield the rows; one without a value in either column raises, or is left out and counted."""
        self.empty = 0
        # strict: the first row without a value raises, with its place
        if not skip_empty:
            yield from self.table.rows(self.first, self.second)
            return
        rows = 0
        for row in self.table.rows():
            if row.has(self.first) and row.has(self.second):
                rows += 1
                yield row
            else:
                # counted here and reported by the caller, so that no row is lost in silence
                self.empty += 1
        if self.empty and not rows:
            raise DataError(
                f"{self.table.path}: no row has a value in {self.first!r} and in {self.second!r}"
            )


def open_columns(
    path: Path,
    roles: tuple[ColumnRole, ColumnRole],
    wanted: tuple[str | None, str | None] = (None, None),
    *,
    header: bool | None = None,
) -> TwoColumns:
    """Open a table, and choose two of its columns.

    Args:
        path: The file.
        roles: What the two columns are for.
        wanted: Their names, each None if it is not given.
        header: Whether the first row of a CSV or TSV file has the names of the columns; None: it is recognised.
    """
    table = open_table(path, header=header, named=[name for name in wanted if name])
    return TwoColumns(table, *two_columns(table, roles, wanted))


def two_columns(
    table: TableFile,
    roles: tuple[ColumnRole, ColumnRole],
    wanted: tuple[str | None, str | None] = (None, None),
) -> tuple[str, str]:
    """Return the names of two columns.

    One that is not named is found by its usual names; for pairs two columns may be named after their languages. In a
    table of two columns the one that is left over is the other one. Without a header there must be two columns, or
    they are named by their numbers.

    Args:
        table: The table.
        roles: What the two columns are for.
        wanted: Their names, each None if it is not given.
    """
    # 1. the columns that the user names
    found = [None if name is None else table.column(name) for name in wanted]
    if wanted == (None, None) and not table.header:
        if len(table.columns) == 2:
            return table.columns[0], table.columns[1]
        # columns without names are called 1, 2 and so on
        options = " and ".join(f'{role.option} = "{i}"' for i, role in enumerate(roles, 1))
        raise DataError(
            f"{table.path}:1: expected two columns, {roles[0].option} TAB {roles[1].option}, got {len(table.columns)} "
            f"columns and no header: {options} choose two of more"
        )
    # 2. by usual names
    for i, role in enumerate(roles):
        # `taken` keeps one column from being both, where a name is usual for both roles
        if found[i] is None:
            found[i] = table.usual(*role.usual, taken=found[1 - i])
    # 3. of pairs, two columns named after languages
    languages = [name for name in table.columns if is_language(name) and name not in found]
    # enough languages for the columns that are missing, taken in the order of the file
    if roles == PARALLEL and len(languages) >= found.count(None):
        found = [name or languages.pop(0) for name in found]
    # 4. the column that is left over
    if len(table.columns) == 2 and found.count(None) == 1:
        i = found.index(None)
        found[i] = next(name for name in table.columns if name != found[1 - i])
    # whatever is still missing raises here, or below as the same column twice
    first, second = (
        name or table.column(None, *role.usual) for name, role in zip(found, roles, strict=True)
    )
    if first == second:
        raise DataError(
            f"{table.path}: {roles[0].option} and {roles[1].option} are both the column {first!r}: expected two of "
            f"{', '.join(table.columns)}"
        )
    return first, second


def _csv(path: Path, header: bool | None, named: Collection[str]) -> TableFile:
    source = TextFile(path)
    return _delimited("csv", source, read_quoted, find_delimiter(source), header, named)


def _tsv(path: Path, header: bool | None, named: Collection[str]) -> TableFile:
    return _delimited("tsv", TextFile(path), read_plain, "\t", header, named)


def _delimited(
    name: str,
    source: TextFile,
    read: Callable[..., Any],
    delimiter: str,
    header: bool | None,
    named: Collection[str],
) -> TableFile:
    # one more than SAMPLE: the first may be the header
    sample = list(islice(read(source, delimiter), SAMPLE + 1))
    if not sample:
        raise DataError(f"{source.path} is empty: expected rows")
    line, first = sample[0]
    if header is None:
        headed = has_header([fields for _, fields in sample], named)
    else:
        headed = header
    if headed:
        columns = named_columns(source, line, first)
    else:
        # counted from 1, as a user would name them
        columns = tuple(str(i) for i in range(1, len(first) + 1))
    if headed and len(sample) == 1:
        raise DataError(
            f"{source.path} has only a header, {DELIMITERS[delimiter]}-separated: expected rows below it"
        )

    def rows() -> Iterator[TableRow]:
        # the header is skipped; a message counts lines from the beginning of the file
        for number, values in read_fields(source, read, delimiter, columns, int(headed)):
            yield TableRow(values, f"{source.path}:{number}")

    return TableFile(
        source.path,
        name,
        columns,
        rows,
        source.encoding,
        delimiter,
        headed,
        share_read=lambda: source.position / source.size,
    )


def _json_lines(path: Path, header: bool | None, named: Collection[str]) -> TableFile:
    return _json("jsonl", path, read_json_lines)


def _json_list(path: Path, header: bool | None, named: Collection[str]) -> TableFile:
    return _json("json", path, read_json_list)


def _json(
    name: str, path: Path, read: Callable[[TextFile], Iterator[tuple[int, dict[str, Any]]]]
) -> TableFile:
    source = TextFile(path)
    # objects may have different keys: all of the first rows together, in order
    columns = dict.fromkeys(
        key for _, values in islice(read(source), SAMPLE) for key in _unfolded(values)
    )
    if not columns:
        raise DataError(f"{path} has no rows: expected objects with values")
    return TableFile(
        path,
        name,
        tuple(columns),
        lambda: (TableRow(_unfolded(values), f"{path}:{line}") for line, values in read(source)),
        source.encoding,
        share_read=lambda: source.position / source.size,
    )


def _parquet(path: Path, header: bool | None, named: Collection[str]) -> TableFile:
    read = 0
    with parquet_file(path) as file:
        total = file.metadata.num_rows
    if not total:
        raise DataError(f"{path} has no rows")
    # the first row has all columns: Parquet has a schema
    columns = tuple(_unfolded(next(parquet_rows(path))[1]))

    def rows() -> Iterator[TableRow]:
        nonlocal read
        for number, values in parquet_rows(path):
            # progress by rows: the bytes of a Parquet file are not read in order
            read = number
            yield TableRow(_unfolded(values), f"{path}: row {number}")

    return TableFile(
        path, "parquet", columns, rows, share_read=lambda: read / total, known_rows=total
    )


def _class_folders(path: Path) -> TableFile:
    next(labelled_texts(path))  # raises if there are none
    return TableFile(
        path,
        "text",
        ("text", "label"),
        lambda: (TableRow(values, str(file)) for file, values in labelled_texts(path)),
    )


def _unfolded(values: dict[str, Any]) -> dict[str, Any]:
    """Return a row in which the texts of {"translation": {"en": ..., "de": ...}} are columns of their own.

    NaN becomes None: it is how data frames write a missing value.
    """
    inside = values.get(FOLDED)
    # the inner texts replace the column that holds them
    if isinstance(inside, dict):
        values = {key: value for key, value in values.items() if key != FOLDED} | inside
    # NaN alone is not equal to itself
    return {key: None if value != value else value for key, value in values.items()}


def whole_characters(text: str, where: str) -> str:
    """Return a text as it is; raise for a lone surrogate, which JSON can write but no tokenizer can read."""
    # ASCII has no surrogates: the search is spared
    if not text.isascii() and (half := _SURROGATE.search(text)):
        raise DataError(
            f"{where}: {half[0]!r} is half a character, at {half.start()}: expected text; a text that was cut between "
            "the two halves of an emoji may end in one"
        )
    return text


def _described(value: Any) -> str:
    """Return what kind of value this is, with it if it is short."""
    kinds = {
        bool: "true or false",
        int: "a number",
        float: "a number",
        list: "a list",
        dict: "an object",
    }
    kind = kinds.get(type(value), f"a value of the type {type(value).__name__}")
    if len(repr(value)) < 30:
        return f"{kind}, {value!r}"
    return kind


_FORMATS: dict[str, Callable[[Path, bool | None, Collection[str]], TableFile]] = {  # by suffix
    ".csv": _csv,
    ".tsv": _tsv,
    ".tab": _tsv,
    ".jsonl": _json_lines,
    ".ndjson": _json_lines,
    ".json": _json_list,
    ".parquet": _parquet,
}
