"""Pair: two models and their inputs, which a section of a comparison measures; Section: its result."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

import numpy as np

from ...draw import Table
from ...errors import InputError
from ...weights import Bundle
from ..conditions import READS, Condition
from .inputs import SharedInputs

FEW, SHOWN = 16, 4  # inputs of slow measures, and of those that are drawn


@dataclass(frozen=True, kw_only=True, eq=False)
class ModelPair:
    """Two models by name, and the inputs that both are measured on."""

    models: dict[str, Bundle]
    inputs: SharedInputs
    images: bool  # they read images

    @property
    def few(self) -> list[Any]:
        """Some inputs, for slow measures."""
        # Evenly spaced, at most FEW of them.
        return list(self.inputs.items[:: max(1, len(self.inputs.items) // FEW)][:FEW])

    @property
    def shown(self) -> list[int]:
        """The numbers of some inputs to draw: images of classes that a model has, if there are such."""
        known = {label.lower() for bundle in self.models.values() for label in bundle.labels or ()}
        # Images of a known class make better examples than crops of unknown content.
        numbers = [i for i, name in enumerate(self.inputs.subjects) if name.lower() in known]
        if not numbers:
            # Texts, and images of unknown classes: any of them.
            numbers = list(range(len(self.inputs.items)))
        # Evenly from the first to the last.
        places = np.unique(np.linspace(0, len(numbers) - 1, SHOWN).round().astype(int))
        return [numbers[place] for place in places]

    def fitting(self, *conditions: Condition) -> tuple[dict[str, Bundle], str]:
        """The models that meet conditions, and a sentence about the one that does not; raises if neither does."""
        fit, reasons = dict[str, Bundle](), dict[str, str]()
        for name, bundle in self.models.items():
            # All conditions are tried, and the first that fails is the reason shown.
            unmet = [reason for condition in conditions if (reason := condition(bundle))]
            if unmet:
                reasons[name] = unmet[0]
            else:
                fit[name] = bundle
        # A section about neither model is left out; about one of them, it says so in its text.
        if not fit:
            raise UnfitError("; ".join(f"{name}: {reason}" for name, reason in reasons.items()))
        return fit, "".join(f" {name} is not shown: {reason}." for name, reason in reasons.items())

    def need_images(self) -> None:
        """Raise if the models do not read images."""
        if not self.images:
            # Both models read the same kind of input.
            kind = READS[next(iter(self.models.values())).reads]
            raise UnfitError(f"this is measured on images, and these models read {kind}")


@dataclass(frozen=True, kw_only=True, eq=False)
class Section:
    """A measure of two models."""

    text: str = ""  # how to read it, in plain words
    numbers: dict[str, Any] = field(default_factory=dict)  # for JSON, by name
    table: Table | None = None
    figures: dict[str, Any] = field(default_factory=dict)  # figures by caption


class UnfitError(InputError):
    """A section does not fit these models."""
