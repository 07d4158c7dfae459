"""Signals that end a training."""

from __future__ import annotations

import signal
from collections.abc import Callable, Iterator
from contextlib import contextmanager


@contextmanager
def on_stop(ask: Callable[[], bool]) -> Iterator[None]:
    """Within it SIGTERM, and Ctrl-C once, call `ask`; a Ctrl-C after `ask` has returned True interrupts."""

    def handle(number: int, _: object) -> None:
        if ask() and number == signal.SIGINT:
            raise KeyboardInterrupt

    with _handlers({signal.SIGTERM: handle, signal.SIGINT: handle}):
        yield


@contextmanager
def exit_on_sigterm() -> Iterator[None]:
    """Within it SIGTERM leaves the block as an exit does, so that no child process outlives its parent."""

    def leave(number: int, _: object) -> None:
        raise SystemExit(128 + number)

    with _handlers({signal.SIGTERM: leave}):
        yield


@contextmanager
def _handlers(wanted: dict[int, Callable[[int, object], None]]) -> Iterator[None]:
    try:
        old = {number: signal.signal(number, handler) for number, handler in wanted.items()}
    except ValueError:  # not the main thread, which alone may set them
        yield
        return
    try:
        yield
    finally:
        for number, handler in old.items():
            signal.signal(number, handler)
