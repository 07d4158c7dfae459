"""How the learning rate moves over a training, as a pure function of the step."""

from __future__ import annotations

import math
from dataclasses import dataclass

from ..errors import InputError

SHAPES = ("constant", "cosine", "linear", "inverse-sqrt")


@dataclass(frozen=True, kw_only=True, slots=True)
class ScheduleConfig:
    shape: str = "cosine"  # constant, cosine, linear, inverse-sqrt: how it falls after the warm-up
    warmup: int = 0  # steps over which it first rises linearly
    final: float = 0.1  # share of the learning rate that cosine and linear fall to

    def __post_init__(self) -> None:
        if self.shape not in SHAPES:
            raise InputError(f"shape={self.shape!r}: expected one of {', '.join(SHAPES)}")
        if self.warmup < 0:
            raise InputError(f"warmup={self.warmup}: expected 0 steps or more")
        if not 0.0 <= self.final <= 1.0:
            raise InputError(f"final={self.final}: expected a share from 0 to 1")
        if self.shape == "inverse-sqrt" and self.warmup < 1:
            raise InputError("shape='inverse-sqrt' falls as sqrt(warmup / step): expected a warmup of 1 step or more")


def scale(config: ScheduleConfig, step: int, steps: int) -> float:
    """The share of the learning rate that step `step` (from 0) of `steps` learns with.

    The warm-up ends at 1 in its last step, and its first is not wasted. "cosine" is Eq. 5 of Loshchilov and Hutter
    2017 without restarts; it and "linear" would reach `final` right after the last step, so that even final=0 learns
    in every step. "inverse-sqrt" is Eq. 3 of Vaswani et al. 2017 divided by its peak; their first step is number 1.
    """
    if step < 0 or steps < 1:
        raise InputError(f"step={step} of steps={steps}: expected 0 or more, of 1 or more")
    if step < config.warmup:
        return (step + 1) / config.warmup
    if config.shape == "constant":
        return 1.0
    if config.shape == "inverse-sqrt":
        return math.sqrt(config.warmup / (step + 1))
    done = min((step - config.warmup) / max(steps - config.warmup, 1), 1.0)
    left = 1.0 - done if config.shape == "linear" else (1.0 + math.cos(math.pi * done)) / 2
    return config.final + (1.0 - config.final) * left
