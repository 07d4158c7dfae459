"""The data that a model was trained on, as its folder or the recipe of its run names it."""

from __future__ import annotations

from typing import Any

from .. import config
from ..data import data_config
from ..data.column_names import language_of
from ..weights import Bundle

COLUMNS = ("text", "label", "source", "target")  # options that name columns, or languages


def trained_on(bundle: Bundle) -> Any:
    """The options of the data in the recipe of a model's run; None if there is no recipe."""
    places = [] if bundle.folder is None else [bundle.folder]
    if bundle.folder is not None and bundle.folder.name in ("model", "unfinished"):  # of a run folder
        places.append(bundle.folder.parent)
    for path in (place / "recipe.toml" for place in places):
        if path.is_file():
            data = config.load(path)["data"]
            return config.read(data_config(data["name"]), data.without("name"))
    return None


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
