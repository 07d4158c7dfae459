"""Which columns of a file an evaluation reads: those that the user names, or those that the model was trained on.

A translator is never silently evaluated in the opposite direction: if the columns of a file are named after languages,
these decide, and a file with other languages than the model's is refused.
"""

from __future__ import annotations

import json
import warnings
from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, Generic, TypeVar

from ... import config
from ...data import data_config
from ...data.files import DataError, fingerprint, locate
from ...data.tables.column_names import is_language, language_of, may_be_language
from ...data.tables.reading import (
    LABELLED,
    PARALLEL,
    ColumnRole,
    TableFile,
    TwoColumns,
    open_table,
    two_columns,
)
from ...data.text.labelled import Label, LabelledConfig, divided
from ...data.text.parallel import Line
from ...data.text.translations import PairConfig
from ...errors import InputError, MissingFileError, Notice
from ...weights import Bundle

# The data that a model was trained on, as its folder or the recipe of its run names it.


R = TypeVar("R", Label, Line)  # a row of a table
# of the data that a model was trained on: held out, the others, both
PARTS = ("valid", "train", "all")
ALL = "held out of its training; split=all takes all"  # a remark beside the data of an evaluation
COLUMNS = ("text", "label", "source", "target")  # options that name columns, or languages


def _places(bundle: Bundle) -> list[Path]:
    """The folder of a model, and the run folder that it is in."""
    places = [] if bundle.folder is None else [bundle.folder]
    # a run folder holds its result in model/, and the recipe beside it
    if bundle.folder is not None and bundle.folder.name in ("model", "unfinished"):
        places.append(bundle.folder.parent)
    return places


def trained_on(bundle: Bundle, name: str | None = None) -> Any:
    """The options of the data in the recipe of a model's run; None without a recipe, or if it names other data."""
    for path in (place / "recipe.toml" for place in _places(bundle)):
        if path.is_file():
            # the recipe of the run, beside the model
            data = config.load(path)["data"]
            if name not in (None, data["name"]):
                return None
            return config.read(data_config(data["name"]), data.without("name"))
    return None


def trained_on_file(bundle: Bundle, path: Path, root: Path | None) -> Any:
    """The options of the data of a model's run, if it was this file or folder; None otherwise.

    It is known by its content, wherever it lies now. A Notice says if the content has changed: which rows are held out
    depends on all of them.
    """
    options = trained_on(bundle)
    name = getattr(options, "path", None)
    if not isinstance(name, str):
        return None
    mark = _fingerprints(bundle).get(name)
    # the same content, perhaps moved or renamed since
    if mark is not None and fingerprint(path) == mark:
        return options
    # neither the content nor the path is the training's
    if not same_place(name, path, root):
        return None
    if mark is not None:
        warnings.warn(
            Notice(
                f"{path} has changed since the training: rows that are now held out may have been trained on"
            ),
            stacklevel=3,
        )
    return options


def _fingerprints(bundle: Bundle) -> dict[str, str]:
    """The fingerprint of each file of the data of a model's run, when it was last trained; {} if unknown."""
    for path in (place / "facts.json" for place in _places(bundle)):
        if path.is_file():
            attempts = json.loads(path.read_bytes()).get("attempts", [])
            # the newest attempt: data may have changed between two
            if attempts:
                return dict(attempts[-1].get("files", {}))
            return {}
    return {}


def same_place(name: str, path: Path, root: Path | None) -> bool:
    """Whether the path in a recipe is the file or folder given."""
    try:
        return locate(name, root).resolve() == path.resolve()
    except MissingFileError:
        return False


@dataclass(frozen=True, slots=True)
class EvaluatedRows(Generic[R]):
    """The rows of a table that are evaluated."""

    name: str  # of the data, for the result
    rows: Sequence[R]
    remark: str = ""


def evaluated_part(
    bundle: Bundle,
    data: str | Path,
    path: Path,
    rows: Sequence[R],
    split: str | None,
    root: Path | None,
) -> EvaluatedRows[R]:
    """Return the rows of a table to evaluate: of the table that a model was trained on, those that were held out.

    Args:
        bundle: The model.
        data: What the user named.
        path: The file.
        rows: Its rows.
        split: The part that the user asks for: valid, train or all; None: valid, if there is one.
        root: A data folder in which files are searched first.
    """
    options = trained_on_file(bundle, path, root)
    # not the training's table: nothing of it was held out
    if options is None:
        if split not in (None, "all"):
            raise InputError(
                f"split={split!r}: the model was not trained on {data}, which is taken as a whole: expected no split"
            )
        return EvaluatedRows(str(data), rows)
    if split not in (None, *PARTS):
        raise InputError(f"split={split!r}: expected one of {', '.join(PARTS)}")
    places = _held_out(options, path, root)
    if split is None and not places:
        # a notice, not an error: the numbers are right, but say nothing about new data
        warnings.warn(Notice(trained_on_all(data)), stacklevel=4)
    if split == "all" or (split is None and not places):
        return EvaluatedRows(str(data), rows)
    # valid keeps the held-out rows, train the others
    kept = [row for row in rows if (row.where in places) == (split != "train")]
    if not kept:
        raise InputError(
            f"split={split!r}: {data} has no such rows: expected split=all, or another file"
        )
    return EvaluatedRows(f"{data} {split or 'valid'}", kept, ALL if split is None else "")


def trained_on_all(data: str | Path) -> str:
    """The warning about data that the model was trained on as a whole."""
    return f"{data}: the model was trained on all of it, so that this does not tell how good it is on other data"


def _held_out(options: Any, path: Path, root: Path | None) -> set[str]:
    """The places of the rows of a file that a training held out for validation."""
    # validation had a file of its own, so that all rows of this one were trained on
    if getattr(options, "valid_path", None) is not None:
        return set()
    # the file may lie elsewhere now; the division depends on its rows alone
    own = replace(options, path=str(path))
    if isinstance(own, LabelledConfig):
        # (train, valid)
        return {row.where for row in divided(own, root)[1]}
    if isinstance(own, PairConfig):
        return {row.where for row in own.read(root)[1]}
    return set()


def trained_columns(bundle: Bundle) -> dict[str, str]:
    """The columns of the table that a model was trained on, by their purpose; for a named set, its languages."""
    options = trained_on(bundle)
    named = {option: getattr(options, option, None) for option in COLUMNS}
    return {option: str(name) for option, name in named.items() if name is not None} | dict(
        bundle.columns
    )


def trained_languages(bundle: Bundle) -> dict[str, str]:
    """The codes of the languages of a translator, by side: source and target; {} if its training does not name them."""
    columns = trained_columns(bundle)
    # a column named "de" or "German" gives the code; others give none
    codes = {side: language_of(columns[side]) for side in ("source", "target") if side in columns}
    return {side: code for side, code in codes.items() if code is not None}


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
    chosen = [_column(table, word) for word in (text, label)]
    # what the user names wins; the training's columns fill in the rest
    for i, name in enumerate(trained):
        if chosen[i] is None and name in table.columns and name not in chosen:
            chosen[i] = name
    return TwoColumns(table, *two_columns(table, LABELLED, (chosen[0], chosen[1])))


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
    chosen = [_given(table, word) for word in (source, target)]
    for i, name in enumerate(trained):
        if chosen[i] is None and (source, target)[i] is None and name is not None:
            # a column of the same name, or else the one of the same language
            for column in (name, _of_language(table, name)):
                if chosen[i] is None and column in table.columns and column not in chosen:
                    # each column is used once, for source or target
                    chosen[i] = column
    _check_direction(table, chosen, (source, target), trained)
    return TwoColumns(table, *two_columns(table, PARALLEL, (chosen[0], chosen[1])))


def _trained(bundle: Bundle, roles: tuple[ColumnRole, ColumnRole]) -> Names:
    """The names of the columns, or of the languages, that a model was trained on."""
    columns = trained_columns(bundle)
    return columns.get(roles[0].option), columns.get(roles[1].option)


def _open(bundle: Bundle, path: Path, wanted: Names, trained: Names) -> TableFile:
    header: Any = getattr(trained_on(bundle), "header", None)
    return open_table(path, header=header, named=[name for name in (*wanted, *trained) if name])


def _column(table: TableFile, word: str | None) -> str | None:
    """The column that the user names, by its name or its number; raises if there is none."""
    if word is None or word in table.columns:
        return word
    # columns are numbered from 1
    if word.isdigit() and 0 < int(word) <= len(table.columns):
        return table.columns[int(word) - 1]
    return table.column(word)


def _given(table: TableFile, word: str | None) -> str | None:
    """The column that the user names; None for a language, if no column is named after one."""
    if word is None or word in table.columns:
        return word
    column = _of_language(table, word)
    # a language is no column here: two_columns then decides by position or usual names
    if column is None and may_be_language(word) and not any(map(is_language, table.columns)):
        return None
    return column or _column(table, word)


def _of_language(table: TableFile, word: str) -> str | None:
    """The only column that is named after the language of a word."""
    code = language_of(word)
    columns = [name for name in table.columns if code is not None and language_of(name) == code]
    # without a header names are made up; several columns of one language leave the choice open
    if table.header and len(columns) == 1:
        return columns[0]
    return None


def _check_direction(
    table: TableFile, chosen: list[str | None], wanted: Names, trained: Names
) -> None:
    """Raise if the default columns would swap source and target compared with the training."""
    # nothing to guess, nothing to compare with, the user has spoken, or no names to go by
    if None not in chosen or None in trained or wanted != (None, None) or not table.header:
        return
    usual = [any(name.lower() in role.usual for name in table.columns) for role in PARALLEL]
    if all(usual):  # source and target say it
        return
    # the training chose columns by number, in another order than the usual one
    swapped = all(str(name).isdigit() for name in trained) and trained != ("1", "2")
    languages = [name for name in table.columns if is_language(name)]
    if swapped or (len(languages) >= 2 and all(map(is_language, map(str, trained)))):
        raise DataError(
            f"{table.path} has the columns {', '.join(table.columns)}, and the model was trained on {trained[0]} as "
            f"the source and {trained[1]} as the target: expected source=COLUMN target=COLUMN"
        )
