"""The models that ship with the package: small, trained by the recipes that lie beside them.

zoo/en-de/config.json, model.safetensors, tokens   a folder as `save` writes it, in half precision
zoo/en-de/recipe.toml                              what trained it
zoo/en-de/card.toml                                data, licence, command, minutes and scores
"""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

from .. import config

ZOO = Path(__file__).parent.parent / "zoo"


@dataclass(frozen=True, kw_only=True, slots=True)
class Card:
    """What a user should know of a model before trusting it."""

    does: str  # in a line
    example: str  # a command that shows it at its best
    data: str  # what it has learned from
    licence: str  # of the weights, and what it rests on
    command: str  # that trained it
    machine: str  # on which
    minutes: float  # that took
    parameters: int
    scores: dict[str, float]  # by set and measure
    measured: str  # how the scores were taken: command and signature
    half: str  # what storing it in half precision costs
    limits: str  # what it cannot do


def shipped() -> dict[str, Card]:
    """The names that `load` knows without a folder, each with its card."""
    folders = sorted(path.parent for path in ZOO.glob("*/card.toml"))
    return {folder.name: config.read(Card, config.load(folder / "card.toml")) for folder in folders}


def in_zoo(name: str) -> Path | None:
    """The folder of a shipped model; None if there is none of that name."""
    if not name or Path(name).name != name:  # a name, never a path
        return None
    folder = ZOO / name
    return folder if (folder / "card.toml").is_file() else None
