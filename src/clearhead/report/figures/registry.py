"""PaperFigure: a figure of the lectures or papers, drawn with the models that ship.

To add one, write a function without arguments that returns a matplotlib Figure, whose docstring begins with one line of
what it shows, and decorate it with `figure_of`, its name and its source.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from functools import cache
from typing import Any

from ...weights import Bundle, load


@dataclass(frozen=True, kw_only=True)
class PaperFigure:
    """A figure by name."""

    name: str
    source: str  # the paper or the idea behind it
    make: Callable[[], Any]  # returns the figure

    @property
    def help(self) -> str:
        """What it shows, in one line."""
        return (self.make.__doc__ or "").strip().splitlines()[0]


FIGURES: dict[str, PaperFigure] = {}  # all figures by name


def figure_of(name: str, source: str) -> Callable[[Callable[[], Any]], Callable[[], Any]]:
    """Decorator that registers a function as a figure."""

    def register(make: Callable[[], Any]) -> Callable[[], Any]:
        FIGURES[name] = PaperFigure(name=name, source=source, make=make)
        return make

    return register


@cache
def model(name: str) -> Bundle:
    """A model that ships, on the CPU; each is loaded once."""
    return load(name, device="cpu")
