"""The data that a model was trained on, as the recipe of its run names it."""

from __future__ import annotations

from typing import Any

from .. import config
from ..data import data_config
from ..weights import Bundle


def trained_on(bundle: Bundle) -> Any:
    """The options of the data in the recipe of a model's run; None if there is no recipe."""
    places = [] if bundle.folder is None else [bundle.folder, *bundle.folder.parents[: bundle.folder.name == "model"]]
    for path in (place / "recipe.toml" for place in places):
        if path.is_file():
            data = config.load(path)["data"]
            return config.read(data_config(data["name"]), data.without("name"))
    return None
