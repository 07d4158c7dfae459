"""Which two columns of a table are read: those that the user names, those with usual names, or the only two."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

from ..files import DataError
from .column_names import LABELS, SOURCES, TARGETS, TEXTS, is_language
from .reading import TableFile, TableRow, open_table


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
        if not skip_empty:
            yield from self.table.rows(self.first, self.second)
            return
        rows = 0
        for row in self.table.rows():
            if row.has(self.first) and row.has(self.second):
                rows += 1
                yield row
            else:
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
    found = [None if name is None else table.column(name) for name in wanted]
    if wanted == (None, None) and not table.header:
        if len(table.columns) == 2:
            return table.columns[0], table.columns[1]
        options = " and ".join(f'{role.option} = "{i}"' for i, role in enumerate(roles, 1))
        raise DataError(
            f"{table.path}:1: expected two columns, {roles[0].option} TAB {roles[1].option}, got {len(table.columns)} "
            f"columns and no header: {options} choose two of more"
        )
    for i, role in enumerate(roles):
        if found[i] is None:
            found[i] = table.usual(*role.usual, taken=found[1 - i])
    languages = [name for name in table.columns if is_language(name) and name not in found]
    if roles == PARALLEL and len(languages) >= found.count(None):
        found = [name or languages.pop(0) for name in found]
    if len(table.columns) == 2 and found.count(None) == 1:
        i = found.index(None)
        found[i] = next(name for name in table.columns if name != found[1 - i])
    first, second = (
        name or table.column(None, *role.usual) for name, role in zip(found, roles, strict=True)
    )
    if first == second:
        raise DataError(
            f"{table.path}: {roles[0].option} and {roles[1].option} are both the column {first!r}: expected two of "
            f"{', '.join(table.columns)}"
        )
    return first, second
