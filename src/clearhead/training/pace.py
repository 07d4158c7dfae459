"""The pace of a training: when a checkpoint is due by time, and how long the other steps will take."""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import dataclass

from .recipe import RunConfig

MEASURED = 10.0  # seconds of steps after which the time of the others is estimated
FEWEST = 3  # of these steps
SHORT = 60.0  # seconds; of a training that takes no longer nothing is said
HOUR = 3600.0  # seconds


@dataclass(frozen=True, kw_only=True, slots=True)
class Forecast:
    """How long the other steps of a training will take.

    Examples:
        >>> forecast = Forecast(left=1200, rate=0.1, validation=300.0, checkpoint=600.0)
        >>> print(forecast)
        about 3 h 20 min for 1,200 steps at 0.1 steps/s; the next validation in 5 min, the next checkpoint in 10 min
    """

    left: int  # steps
    rate: float  # steps per second
    validation: float | None  # seconds until the next validation; None: there is none
    checkpoint: float  # seconds until the next checkpoint

    @property
    def seconds(self) -> float:
        """The time of the other steps; validations come in addition."""
        return self.left / self.rate

    def __str__(self) -> str:
        coming = [f"the next checkpoint in {duration(self.checkpoint)}"]
        if self.validation is not None:
            coming.insert(0, f"the next validation in {duration(self.validation)}")
        return f"about {duration(self.seconds)} for {self.left:,} steps at {self.rate:.2g} steps/s; {', '.join(coming)}"


class Pace:
    """Measures the time of steps, and the time since the last checkpoint.

    Time only decides when a checkpoint is written and what is said: weights, validations and metrics depend on the step
    alone, so that a resumed run equals an uninterrupted one.

    Args:
        run: How often the run saves.
        validates: Whether there are validation data.
        steps: The number of steps of the training.
        clock: Returns seconds; tests have their own.
    """

    def __init__(
        self,
        run: RunConfig,
        *,
        validates: bool,
        steps: int,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self._run, self._validates, self._steps, self._clock = run, validates, steps, clock
        self._saved = clock()
        # the first step of this attempt, and when it was done
        self._first: tuple[int, float] | None = None
        self._has_told = False

    def saved(self) -> None:
        """A checkpoint was written: the time until the next one begins."""
        self._saved = self._clock()

    @property
    def is_save_due(self) -> bool:
        """Whether the last checkpoint is so old that another one is due."""
        return 0 < self._save_seconds <= self._clock() - self._saved

    @property
    def _save_seconds(self) -> float:
        return 60 * self._run.save_minutes

    def forecast(self, step: int) -> Forecast | None:
        """The forecast of a long training; once, when enough steps have been measured, and None before and after."""
        if self._has_told:
            return None
        now = self._clock()
        if self._first is None:  # the first step also compiles and allocates
            self._first = step, now
            return None
        first, began = self._first
        if now - began < MEASURED or step - first < FEWEST:
            return None
        self._has_told = True
        rate = (step - first) / (now - began)
        left = self._steps - step
        if left / rate <= SHORT:
            return None
        if self._validates:
            validation = self._until(self._run.valid_every, step) / rate
        else:
            validation = None
        checkpoint = self._until(self._run.save_every, step) / rate
        if self._save_seconds:
            checkpoint = min(checkpoint, max(self._saved + self._save_seconds - now, 0.0))
        return Forecast(left=left, rate=rate, validation=validation, checkpoint=checkpoint)

    def _until(self, every: int, step: int) -> int:
        """The number of steps until the next one that is a multiple of `every`, or the last one."""
        following = (step // every + 1) * every if every else self._steps
        return min(following, self._steps) - step


def duration(seconds: float) -> str:
    """A duration in words, with the precision of an estimate.

    Examples:
        >>> duration(40), duration(700), duration(15_000), duration(382_000)
        ('1 min', '12 min', '4 h 10 min', '106 h')
    """
    minutes = max(round(seconds / 60), 1)
    hours, rest = divmod(minutes, 60)
    if not hours:
        return f"{minutes} min"
    if hours >= 24 or not rest:
        return f"{hours} h"
    return f"{hours} h {rest} min"
