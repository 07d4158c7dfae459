"""Signals that end a training."""

from __future__ import annotations

import signal
from collections.abc import Callable, Iterator
from contextlib import contextmanager


@contextmanager
def on_stop(ask: Callable[[], bool]) -> Iterator[None]:
    """Context in which SIGTERM and Ctrl-C call `ask`; if `ask` returns True, Ctrl-C raises KeyboardInterrupt."""

    def handle(number: int, _: object) -> None:
        if ask() and number == signal.SIGINT:
            raise KeyboardInterrupt

    with _handlers({signal.SIGTERM: handle, signal.SIGINT: handle}):
        yield


@contextmanager
def exit_on_sigterm() -> Iterator[None]:
    """Context in which SIGTERM raises SystemExit, so that child processes are ended before their parent."""

    def leave(number: int, _: object) -> None:
        raise SystemExit(128 + number)

    with _handlers({signal.SIGTERM: leave}):
        yield


@contextmanager
def _handlers(wanted: dict[int, Callable[[int, object], None]]) -> Iterator[None]:
    try:
        old = {number: signal.signal(number, handler) for number, handler in wanted.items()}
    except ValueError:  # only the main thread may set signal handlers
        yield
        return
    try:
        yield
    finally:
        for number, handler in old.items():
            signal.signal(number, handler)
