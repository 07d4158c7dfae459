"""The data that a model was trained on, as its folder or the recipe of its run names it."""

from __future__ import annotations

import json
import warnings
from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, Generic, TypeVar

from .. import config
from ..data import data_config
from ..data.column_names import language_of
from ..data.files import locate
from ..data.fingerprints import fingerprint
from ..data.labelled import Label, LabelledConfig, divided
from ..data.pairs import PairConfig
from ..data.parallel import Line
from ..errors import InputError, MissingFileError, Notice
from ..weights import Bundle

R = TypeVar("R", Label, Line)  # a row of a table
PARTS = ("valid", "train", "all")  # of the data that a model was trained on: held out, the others, both
ALL = "held out of its training; split=all takes all"  # a remark beside the data of an evaluation
COLUMNS = ("text", "label", "source", "target")  # options that name columns, or languages


def _places(bundle: Bundle) -> list[Path]:
    """The folder of a model, and the run folder that it is in."""
    places = [] if bundle.folder is None else [bundle.folder]
    if bundle.folder is not None and bundle.folder.name in ("model", "unfinished"):
        places.append(bundle.folder.parent)
    return places


def trained_on(bundle: Bundle) -> Any:
    """The options of the data in the recipe of a model's run; None if there is no recipe."""
    for path in (place / "recipe.toml" for place in _places(bundle)):
        if path.is_file():
            data = config.load(path)["data"]
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
    if mark is not None and fingerprint(path) == mark:
        return options
    if not same_place(name, path, root):
        return None
    if mark is not None:
        warnings.warn(
            Notice(f"{path} has changed since the training: rows that are now held out may have been trained on"),
            stacklevel=3,
        )
    return options


def _fingerprints(bundle: Bundle) -> dict[str, str]:
    """The fingerprint of each file of the data of a model's run, when it was last trained; {} if unknown."""
    for path in (place / "facts.json" for place in _places(bundle)):
        if path.is_file():
            attempts = json.loads(path.read_bytes()).get("attempts", [])
            return dict(attempts[-1].get("files", {})) if attempts else {}
    return {}


def same_place(name: str, path: Path, root: Path | None) -> bool:
    """Whether the path in a recipe is the file or folder given."""
    try:
        return locate(name, root).resolve() == path.resolve()
    except MissingFileError:
        return False


@dataclass(frozen=True, slots=True)
class Part(Generic[R]):
    """The rows of a table that are evaluated."""

    name: str  # of the data, for the result
    rows: Sequence[R]
    remark: str = ""


def evaluated_part(
    bundle: Bundle, data: str | Path, path: Path, rows: Sequence[R], split: str | None, root: Path | None
) -> Part[R]:
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
    if options is None:
        if split not in (None, "all"):
            raise InputError(
                f"split={split!r}: the model was not trained on {data}, which is taken as a whole: expected no split"
            )
        return Part(str(data), rows)
    if split not in (None, *PARTS):
        raise InputError(f"split={split!r}: expected one of {', '.join(PARTS)}")
    places = _held_out(options, path, root)
    if split is None and not places:
        warnings.warn(Notice(trained_on_all(data)), stacklevel=4)
    if split == "all" or (split is None and not places):
        return Part(str(data), rows)
    kept = [row for row in rows if (row.where in places) == (split != "train")]
    if not kept:
        raise InputError(f"split={split!r}: {data} has no such rows: expected split=all, or another file")
    return Part(f"{data} {split or 'valid'}", kept, ALL if split is None else "")


def trained_on_all(data: str | Path) -> str:
    """A sentence for data of which nothing was held out."""
    return f"{data}: the model was trained on all of it, so that this does not tell how good it is on other data"


def _held_out(options: Any, path: Path, root: Path | None) -> set[str]:
    """The places of the rows of a file that a training held out for validation."""
    if getattr(options, "valid_path", None) is not None:
        return set()
    own = replace(options, path=str(path))
    if isinstance(own, LabelledConfig):
        return {row.where for row in divided(own, root)[1]}
    return {row.where for row in own.read(root)[1]} if isinstance(own, PairConfig) else set()


def trained_columns(bundle: Bundle) -> dict[str, str]:
    """The columns of the table that a model was trained on, by what they are for; of a named set its languages."""
    options = trained_on(bundle)
    named = {option: getattr(options, option, None) for option in COLUMNS}
    return {option: str(name) for option, name in named.items() if name is not None} | dict(bundle.columns)


def trained_languages(bundle: Bundle) -> dict[str, str]:
    """The codes of the languages of a translator, by side: source and target; {} if its training does not name them."""
    columns = trained_columns(bundle)
    codes = {side: language_of(columns[side]) for side in ("source", "target") if side in columns}
    return {side: code for side, code in codes.items() if code is not None}
