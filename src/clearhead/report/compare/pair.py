"""Pair: two models and their inputs, which a section of a comparison measures; Section: what it found."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np

from ...errors import InputError
from ...weights import Bundle
from ..views.registry import READS, Condition
from .inputs import Inputs

FEW, SHOWN = 16, 4  # inputs of slow measures, and of those that are drawn


@dataclass(frozen=True, kw_only=True, eq=False)
class Pair:
    """Two models by name, and the inputs that both are measured on."""

    models: dict[str, Bundle]
    inputs: Inputs
    images: bool  # they read images

    @property
    def few(self) -> list[Any]:
        """Some inputs, for slow measures."""
        return list(self.inputs.items[:: max(1, len(self.inputs.items) // FEW)][:FEW])

    @property
    def shown(self) -> list[int]:
        """The numbers of some inputs to draw: images of classes that a model has, if there are such."""
        known = {label.lower() for one in self.models.values() for label in one.labels or ()}
        every = [i for i, name in enumerate(self.inputs.subjects) if name.lower() in known]
        every = every or list(range(len(self.inputs.items)))
        return [
            every[i] for i in np.unique(np.linspace(0, len(every) - 1, SHOWN).round().astype(int))
        ]

    def fitting(self, *conditions: Condition) -> tuple[dict[str, Bundle], str]:
        """The models that meet conditions, and a sentence about the one that does not; raises if neither does."""
        reasons: dict[str, str] = {}
        for name, bundle in self.models.items():
            every = (condition(bundle) for condition in conditions)
            reason = next((one for one in every if one is not None), None)
            if reason is not None:
                reasons[name] = reason
        if len(reasons) == len(self.models):
            raise UnfitError("; ".join(f"{name}: {reason}" for name, reason in reasons.items()))
        fit = {name: bundle for name, bundle in self.models.items() if name not in reasons}
        return fit, "".join(f" {name} is not shown: {reason}." for name, reason in reasons.items())

    def need_images(self) -> None:
        """Raise if the models read no images."""
        if not self.images:
            kind = READS[next(iter(self.models.values())).reads]
            raise UnfitError(f"this is measured on images, and these models read {kind}")


@dataclass(frozen=True, kw_only=True, eq=False)
class Section:
    """A measure of two models."""

    text: str = ""  # how to read it, in plain words
    numbers: dict[str, Any] = field(default_factory=dict)  # for JSON, by name
    table: Sequence[tuple[str, ...]] = ()  # rows; the first is the header
    figures: dict[str, Any] = field(default_factory=dict)  # figures by caption


class UnfitError(InputError):
    """A section does not fit these models."""
