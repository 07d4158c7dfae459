"""A progress bar on stderr for work that comes before training; a line per long stage if stderr is not a terminal."""

from __future__ import annotations

import sys
import threading
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from contextvars import ContextVar
from typing import Any, TypeVar

T = TypeVar("T")
STEP = 0.002  # smallest change of a share that moves the bar
PART = 4096  # items between two moves of the bar
SILENT = 1.0  # seconds after which a stage is named in a line, where there is no bar

_QUIET: ContextVar[bool] = ContextVar("quiet", default=False)

# called with the number of steps just finished, and of all
Done = Callable[[int, int], None]
# called with what is being done, and the share of it that is done
Stage = Callable[[str, float], None]


@contextmanager
def silenced(quiet: bool) -> Iterator[None]:
    """Context in which neither bars nor lines are shown.

    Args:
        quiet: False changes nothing.

    Examples:
        >>> with silenced(True), progress_bar() as stage:
        ...     stage("tokenizing", 0.5)
    """
    before = _QUIET.set(quiet)
    try:
        yield
    finally:
        _QUIET.reset(before)


@contextmanager
def progress_bar() -> Iterator[Stage]:
    """Show a bar while the block runs; yields the function that moves it.

    Without a terminal, a line names each stage that is still going on after a second, so that logs of short work stay
    as they are.

    Examples:
        >>> with progress_bar() as stage:
        ...     stage("reading", 0.5)
    """
    from rich.console import Console
    from rich.progress import (
        BarColumn,
        Progress,
        TaskProgressColumn,
        TextColumn,
        TimeRemainingColumn,
    )

    console = Console(stderr=True, quiet=_QUIET.get())
    columns = (
        TextColumn("{task.description}"),
        BarColumn(),
        TaskProgressColumn(),
        TimeRemainingColumn(),
    )
    with Progress(
        *columns, console=console, disable=not console.is_terminal, transient=True
    ) as progress:
        # the bar of each name, and the share that it shows
        tasks: dict[str, tuple[Any, float]] = {}
        # a clock of its own: a stage such as the training of a tokenizer reports only that it begins
        timers: list[threading.Timer] = []

        def stage(name: str, share: float) -> None:
            if name not in tasks:
                # the first report of a stage adds its bar
                tasks[name] = progress.add_task(name, total=1.0), 0.0
                if not (console.is_terminal or console.quiet):
                    timers.append(threading.Timer(SILENT, _say, [name]))
                    timers[-1].start()
            task, shown = tasks[name]
            # smaller changes are not drawn: drawing each would take longer than the work itself
            if abs(share - shown) >= STEP:
                tasks[name] = task, share
                progress.update(task, completed=share)

        try:
            yield stage
        finally:
            for timer in timers:
                timer.cancel()


def _say(name: str) -> None:
    print(f"{name} ...", file=sys.stderr, flush=True)


def in_parts(items: Sequence[T], name: str) -> Iterator[Sequence[T]]:
    """Yield a few items at a time, with a bar if there are many.

    Args:
        items: What to yield in parts.
        name: The name of the bar.

    Examples:
        >>> list(in_parts([1, 2, 3], "tokens"))
        [[1, 2, 3]]
    """
    if len(items) <= PART:
        yield items
        return
    with progress_bar() as stage:
        for first in range(0, len(items), PART):
            if first:
                stage(name, first / len(items))
            yield items[first : first + PART]
