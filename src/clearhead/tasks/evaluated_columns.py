"""Which columns of a file an evaluation reads: those that the user names, or those that the model was trained on.

A translator is never evaluated in the other direction without a word: languages that the file's columns are named after
decide, and a file that has others than the model's is refused.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

from ..data.column_names import is_language, language_of, may_be_language
from ..data.columns import LABELLED, PARALLEL, Role, TwoColumns, two_columns
from ..data.files import DataError
from ..data.tables import Table, open_table
from ..weights import Bundle
from .training_data import trained_columns, trained_on

Names = tuple[str | None, str | None]


def labelled_columns(bundle: Bundle, path: Path, text: str | None, label: str | None) -> TwoColumns:
    """Open a table of texts and labels.

    Args:
        bundle: The classifier.
        path: The file.
        text: The column of the texts; None: the one that it was trained on, if it is there, or one with a usual name.
        label: The column of the labels, likewise.
    """
    trained = _trained(bundle, LABELLED)
    table = _open(bundle, path, (text, label), trained)
    found = [_column(table, word) for word in (text, label)]
    for i, name in enumerate(trained):
        if found[i] is None and name in table.columns and name not in found:
            found[i] = name
    return TwoColumns(table, *two_columns(table, LABELLED, (found[0], found[1])))


def pair_columns(bundle: Bundle, path: Path, source: str | None, target: str | None) -> TwoColumns:
    """Open a table of sources and targets.

    Args:
        bundle: The translator.
        path: The file.
        source: The column of the sources, by its name, its number or its language; None: as in the model's training.
        target: The column of the targets, likewise.
    """
    trained = _trained(bundle, PARALLEL)
    table = _open(bundle, path, (source, target), trained)
    found = [_given(table, word) for word in (source, target)]
    for i, name in enumerate(trained):
        if found[i] is None and (source, target)[i] is None and name is not None:
            found[i] = next(
                (c for c in (name, _of_language(table, name)) if c in table.columns and c not in found), None
            )
    _check_direction(table, found, (source, target), trained)
    return TwoColumns(table, *two_columns(table, PARALLEL, (found[0], found[1])))


def _trained(bundle: Bundle, roles: tuple[Role, Role]) -> Names:
    """The names of the columns, or of the languages, that a model was trained on."""
    columns = trained_columns(bundle)
    return columns.get(roles[0].option), columns.get(roles[1].option)


def _open(bundle: Bundle, path: Path, wanted: Names, trained: Names) -> Table:
    header: Any = getattr(trained_on(bundle), "header", None)
    return open_table(path, header=header, named=[name for name in (*wanted, *trained) if name])


def _column(table: Table, word: str | None) -> str | None:
    """The column that the user names, by its name or its number; raises if there is none."""
    if word is None or word in table.columns:
        return word
    if word.isdigit() and 0 < int(word) <= len(table.columns):
        return table.columns[int(word) - 1]
    return table.column(word)


def _given(table: Table, word: str | None) -> str | None:
    """The column that the user names; None for a language, if no column is named after one."""
    if word is None or word in table.columns:
        return word
    column = _of_language(table, word)
    if column is None and may_be_language(word) and not any(map(is_language, table.columns)):
        return None
    return column or _column(table, word)


def _of_language(table: Table, word: str) -> str | None:
    """The only column that is named after the language of a word."""
    code = language_of(word)
    columns = [name for name in table.columns if code is not None and language_of(name) == code]
    return columns[0] if table.header and len(columns) == 1 else None


def _check_direction(table: Table, found: list[str | None], wanted: Names, trained: Names) -> None:
    """Raise if the columns that are not found would be chosen against what the model was trained on."""
    if None not in found or None in trained or wanted != (None, None) or not table.header:
        return
    usual = [any(name.lower() in role.usual for name in table.columns) for role in PARALLEL]
    if all(usual):  # source and target say it
        return
    swapped = all(str(name).isdigit() for name in trained) and trained != ("1", "2")
    languages = [name for name in table.columns if is_language(name)]
    if swapped or (len(languages) >= 2 and all(map(is_language, map(str, trained)))):
        raise DataError(
            f"{table.path} has the columns {', '.join(table.columns)}, and the model was trained on {trained[0]} as "
            f"the source and {trained[1]} as the target: expected source=COLUMN target=COLUMN"
        )
