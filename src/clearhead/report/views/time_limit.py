"""TimeLimit: estimates from its first passes how long a view will take, and stops one that exceeds the limit."""

from __future__ import annotations

import time
import warnings
from collections.abc import Callable

from ...errors import InputError, Notice

Done = Callable[[int, int], None]  # called with the amount of work just finished, and of all
WORTH_SAYING = 10.0  # seconds from which an estimate is announced
MEASURED = 1.0  # seconds of work that an estimate is made from


class TimeLimit:
    """A progress report that estimates the time of a view, announces it, and raises if it is above a limit.

    A view may have several phases, each with a total of its own: the estimate is of the phase that runs, and of all
    before it.

    Args:
        view: The name of the view.
        limit: Seconds; None: no limit and no announcement.
        cheaper: What takes less time, for the message: "fewer steps=".
        done: Another report, which is called first.
        clock: The time in seconds.

    Examples:
        >>> limit = TimeLimit("effects", 60.0, clock=iter([0.0, 2.0]).__next__)
        >>> limit(1, 100)  # doctest: +ELLIPSIS
        Traceback (most recent call last):
        ...
        clearhead.errors.InputError: the view effects would take about 3 minutes, ...
    """

    def __init__(
        self,
        view: str,
        limit: float | None,
        *,
        cheaper: str = "",
        done: Done | None = None,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        # Written with "not", so that NaN is refused too.
        if limit is not None and not limit > 0:
            raise InputError(f"limit={limit}: expected seconds above 0")
        self._view, self._limit, self._cheaper = view, limit, cheaper
        self._done, self._clock = done, clock
        self._begun = self._phase_begun = clock()
        self._total, self._finished = 0, 0
        self._announced = False

    def __call__(self, finished: int, total: int) -> None:
        if self._done is not None:
            self._done(finished, total)
        if self._limit is None:
            return
        now = self._clock()
        # The first report of a phase, which began when the phase before it ended.
        if total != self._total:
            # A phase with the same total as the last is recognised because the end of a phase sets
            # the total to 0.
            self._total, self._finished = total, 0
        self._finished += finished
        spent = now - self._phase_begun
        # All phases before, and this one extrapolated from the work that it has done.
        seconds = self._phase_begun - self._begun + spent * total / max(self._finished, 1)
        # The end of a phase: the next report belongs to the next one.
        if self._finished >= total:
            # What lies between two phases counts for the second.
            self._phase_begun, self._total = now, 0
        # The first passes alone are slower than the rest, and would give too high an estimate.
        elif spent >= MEASURED:
            self._check(seconds, self._limit)

    def _check(self, seconds: float, limit: float) -> None:
        if seconds > limit:
            # The limit to suggest is above the estimate, because estimates vary.
            more = _round_up(seconds)
            # What the user can change instead of the limit.
            cheaper = f", or {self._cheaper}" if self._cheaper else ""
            raise InputError(
                f"the view {self._view} would take about {_spoken(seconds)}, and the limit is {_spoken(limit)}: "
                f"expected more seconds, --limit {more} (in Python limit={more}){cheaper}"
            )
        # Announced once: a notice for every report would fill the terminal.
        if seconds >= WORTH_SAYING and not self._announced:
            self._announced = True
            warnings.warn(f"{self._view}: about {_spoken(seconds)}", Notice, stacklevel=2)


def _spoken(seconds: float) -> str:
    """A duration in words, such as "3 minutes"."""
    units = {"hour": 3600, "minute": 60, "second": 1}
    name = next(
        # From one and a half units on: 80 seconds stay seconds, 90 become "2 minutes".
        (name for name, size in units.items() if seconds >= 1.5 * size or seconds == size),
        "second",
    )
    count = max(round(seconds / units[name]), 1)
    if count == 1:
        return f"{count} {name}"
    return f"{count} {name}s"


def _round_up(seconds: float) -> int:
    """A limit with room for an estimate that was too low: by a fifth, in whole minutes."""
    # Ceiling division in floating point.
    return 60 * int(-(-1.2 * seconds // 60))
