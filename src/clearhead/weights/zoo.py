"""The models that ship with the package: small, each with the recipe that trained it.

zoo/en-de/config.json, model.safetensors, tokens   a folder as `save` writes it, in half precision
zoo/en-de/recipe.toml                              the recipe that trained it
zoo/en-de/card.toml                                data, licence, command, minutes and scores
"""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

from .. import config

ZOO = Path(__file__).parent.parent / "zoo"


@dataclass(frozen=True, kw_only=True, slots=True)
class Card:
    """The model card of a shipped model: what it does, how it was trained, its scores and its limits.

    Examples:
        >>> card = shipped()["en-de"]
        >>> card.example, card.parameters
        ('clearhead translate en-de "A dog runs." beams=5', 2756608)
    """

    does: str  # what it does, in one line
    example: str  # command that shows it
    examples: tuple[str, ...]  # texts to try it with
    data: str  # training data
    licence: str  # licence of the weights, and of the data behind them
    command: str  # command that trained it
    machine: str  # machine that trained it
    minutes: float  # training time
    parameters: int  # number of parameters
    scores: dict[str, float]  # score by data set and metric
    measured: str  # how the scores were measured: command and signature
    half: str  # what storing it in half precision costs
    limits: str  # what it cannot do


def shipped() -> dict[str, Card]:
    """Return the models that ship with the package: the names that `load` takes, each with its card.

    Examples:
        >>> "en-de" in shipped()
        True
    """
    folders = sorted(path.parent for path in ZOO.glob("*/card.toml"))
    return {folder.name: config.read(Card, config.load(folder / "card.toml")) for folder in folders}


def in_zoo(name: str) -> Path | None:
    """The folder of a shipped model; None if there is none of that name."""
    if not name or Path(name).name != name:  # a name, never a path
        return None
    folder = ZOO / name
    return folder if (folder / "card.toml").is_file() else None
