"""The sections of a comparison of two models, in the order of the report.

To add one, write a function (pair) -> Section, which raises UnfitError with the reason where it fits neither model, and
a line in SECTIONS.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import NamedTuple

from .depth import distance, fields, lens, similarity
from .explanations import colours, salience
from .pair import Pair, Section
from .scores import accuracy, sizes, speed

__all__ = ["SECTIONS", "Measure", "Pair", "Section", "distance"]


class Measure(NamedTuple):
    """A section with its title."""

    title: str
    run: Callable[[Pair], Section]


SECTIONS = {
    "sizes": Measure("Size", sizes),
    "accuracy": Measure("Accuracy", accuracy),
    "speed": Measure("Speed", speed),
    "cka": Measure("Similarity of layers (CKA)", similarity),
    "distance": Measure("Attention distance by depth", distance),
    "fields": Measure("Receptive fields", fields),
    "colours": Measure("Features as colours", colours),
    "saliency": Measure("Saliency", salience),
    "lens": Measure("Logit lens", lens),
}
