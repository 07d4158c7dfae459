"""Schedules of the learning rate and of other numbers: pure functions of the step."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Literal

from ...checks import at_least, one_of
from ...errors import InputError

SHAPES = ("constant", "cosine", "linear", "inverse-sqrt")


@dataclass(frozen=True, kw_only=True, slots=True)
class ScheduleConfig:
    """The learning-rate schedule: a linear warm-up to the peak, then a decay."""

    shape: str = "cosine"  # decay after the warm-up: constant, cosine, linear or inverse-sqrt
    warmup: int = 0  # steps over which the learning rate rises linearly to its peak
    final: float = 0.1  # share of the peak at which cosine and linear end

    def __post_init__(self) -> None:
        one_of("shape", self.shape, SHAPES)
        at_least(self, 0, "warmup")
        if not 0.0 <= self.final <= 1.0:
            raise InputError(f"final={self.final}: expected a share from 0 to 1")
        if self.shape == "inverse-sqrt" and self.warmup < 1:
            raise InputError(
                "shape='inverse-sqrt' falls as sqrt(warmup / step): expected a warmup of 1 step or more"
            )


def lr_share(config: ScheduleConfig, step: int, steps: int) -> float:
    """The share of the peak learning rate in step `step` (from 0) of `steps`.

    The warm-up reaches 1 in its last step, and its first step is not 0. "cosine" is Eq. 5 of Loshchilov and Hutter 2017
    without restarts; it and "linear" would reach `final` one step after the last, so that no step has a learning rate
    of 0 even with final=0. "inverse-sqrt" is Eq. 3 of Vaswani et al. 2017, which counts steps from 1, divided by its
    peak.
    """
    if step < 0 or steps < 1:
        raise InputError(f"step={step} of steps={steps}: expected 0 or more, of 1 or more")
    if step < config.warmup:
        # step + 1: the first step already moves the weights
        return (step + 1) / config.warmup
    if config.shape == "constant":
        return 1.0
    if config.shape == "inverse-sqrt":
        # min(s^-1/2, s w^-3/2) over its peak w^-1/2, for s > w
        return math.sqrt(config.warmup / (step + 1))
    # cosine or linear: from 1 to `final` over the steps that remain after the warm-up
    done = min((step - config.warmup) / max(steps - config.warmup, 1), 1.0)
    left = 1.0 - done
    if config.shape == "cosine":
        left = (1.0 + math.cos(math.pi * done)) / 2
    return config.final + (1.0 - config.final) * left


@dataclass(frozen=True, kw_only=True, slots=True)
class Scheduled:
    """A number that changes from `start` to `final` over a training: {start = 0.996, final = 1.0} in a recipe.

    Examples:
        >>> [value_at(Scheduled(start=4.0, final=1.0, shape="linear"), step, steps=4) for step in range(4)]
        [4.0, 3.0, 2.0, 1.0]
    """

    start: float  # its value in the first step
    final: float  # its value in the last of `steps`, and after them
    shape: Literal["linear", "cosine"] = "cosine"  # shape of the curve in between
    steps: int | None = None  # number of steps that the change takes; not given: the whole training

    def __post_init__(self) -> None:
        at_least(self, 1, "steps")

    def __str__(self) -> str:
        return f"{{start = {self.start}, final = {self.final}}}"  # as a recipe has it


Scalar = float | Scheduled  # the type of an option that is a constant or a schedule


def value_at(scalar: Scalar, step: int, steps: int) -> float:
    """The value of a scalar option in step `step` (from 0) of `steps`."""
    if not isinstance(scalar, Scheduled):
        return float(scalar)
    last = (scalar.steps or steps) - 1
    moved = min(step / max(last, 1), 1.0)
    if scalar.shape == "cosine":
        # half a cosine: slow at both ends, as in DINO's schedules
        moved = (1.0 - math.cos(math.pi * moved)) / 2
    return scalar.start + (scalar.final - scalar.start) * moved


def first_and_last(scalar: Scalar) -> tuple[float, float]:
    """The first and the last value of a scalar option."""
    if isinstance(scalar, Scheduled):
        return (scalar.start, scalar.final)
    return (float(scalar), float(scalar))
