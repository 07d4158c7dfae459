"""The best validation so far by one measurement, and early stopping."""

from __future__ import annotations

import sys
from collections.abc import Mapping
from typing import Any

from ..errors import InputError, nearest
from .objectives import Measurement
from .recipe import RunConfig

WORST = sys.float_info.max  # not infinity, which JSON does not have
NONE_YET: dict[str, float] = {"value": WORST, "loss": WORST, "step": 0, "waited": 0}


class Best:
    """Tracks the best value of a measurement; `facts` is its state in checkpoints.

    Of equal values, as accuracies of few examples often are, the one with the lowest validation loss is the best.
    """

    def __init__(self, run: RunConfig, measurements: Mapping[str, Measurement]) -> None:
        self.patience, self.kept = run.patience, bool(run.best or run.patience)
        names = {f"valid_{name}": measurement for name, measurement in measurements.items()}
        if run.best:
            # the recipe's choice, checked below
            self.name = run.best
        elif "valid_loss" in names or not names:
            self.name = "valid_loss"
        else:
            # an objective without a loss measurement: its first one
            self.name = next(iter(names))
        if self.kept and not names:
            word = f"best = {run.best!r}" if run.best else f"patience = {run.patience}"
            raise InputError(
                f"run.{word}: this objective declares no measurements: leave it out, or declare the measurements of "
                "the objective"
            )
        if self.kept and self.name not in names:
            raise InputError(
                f"run.best = {self.name!r}: expected one of {', '.join(names)}{nearest(self.name, names)}"
            )
        # values are kept with a sign, so that the lowest is always the best
        higher_is_better = self.name in names and names[self.name].better == "higher"
        self._sign = -1.0 if higher_is_better else 1.0
        self.facts: dict[str, Any] = {"name": self.name, **NONE_YET}

    @property
    def step(self) -> int:
        """The step of the best validation; 0 before the first."""
        return int(self.facts["step"])

    @property
    def chosen_step(self) -> int | None:
        """The step whose weights are the trained model's; None: the last one's are."""
        if not self.kept or not self.step:
            return None
        return self.step

    @property
    def value(self) -> float:
        """The best value."""
        return float(self._sign * self.facts["value"])

    @property
    def waited(self) -> int:
        """The number of validations since the best one."""
        return int(self.facts["waited"])

    @property
    def out_of_patience(self) -> bool:
        """True if training should stop early."""
        return 0 < self.patience <= self.waited

    def resume(self, facts: Mapping[str, Any]) -> None:
        """Restore the state from a checkpoint; forget it if run.best named another measurement then."""
        self.facts = dict(facts)
        if self.facts.get("name", self.name) != self.name:
            # values of two measurements cannot be compared
            self.forget()

    def take(self, record: Mapping[str, float], step: int) -> bool:
        """Record a validation; returns True if it is the best so far."""
        value = WORST
        if self.name in record:
            # a validation without this measurement counts as the worst
            value = self._sign * record[self.name]
        loss = record.get("valid_loss", WORST)
        before = self.facts["value"]
        waited = 0 if value < before else self.waited + 1  # patience is for the measurement alone
        # tuples compare the loss only where the values are equal
        if (value, loss) < (before, self.facts.get("loss", WORST)):
            self.facts = {
                "name": self.name,
                "value": value,
                "loss": loss,
                "step": step,
                "waited": waited,
            }
            return True
        self.facts["waited"] = waited
        return False

    def forget(self) -> None:
        """Reset the state, because the best checkpoint was not kept, is damaged, or is of another measurement."""
        self.facts = {"name": self.name, **NONE_YET}
