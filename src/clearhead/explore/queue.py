"""A bounded queue of requests, and work in threads that stops when its client disconnects."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import AsyncIterator, Callable, Iterator
from contextlib import AsyncExitStack, asynccontextmanager
from typing import Any, NamedTuple, TypeVar

import anyio
import anyio.to_thread

from ..errors import UserError

T = TypeVar("T")

END = object()


class Progress(NamedTuple):
    """How much of some work is done."""

    done: int
    of: int


class BusyError(UserError, RuntimeError):
    """The queue is full."""


class Cancelled(Exception):  # noqa: N818  (not an error: the client has disconnected)
    """Raised inside work whose client has disconnected, to stop it."""


def added_up(done: Callable[[int, int], None]) -> Callable[[int, int], None]:
    """A callback for work that reports (just finished, all), which calls `done` with (finished so far, all)."""
    finished = 0

    def more(count: int, of: int) -> None:
        nonlocal finished
        finished += count
        done(finished, of)

    return more


class Queue:
    """Runs at most `active` requests at a time and lets `waiting` more wait; further requests are refused."""

    def __init__(self, active: int = 8, waiting: int = 56) -> None:
        self.most = active + waiting
        self.inside = 0  # requests that run or wait
        self._slots = anyio.Semaphore(active)
        self._threads = anyio.CapacityLimiter(4)

    def enter(self) -> None:
        """Count a new request, or raise BusyError if the queue is full."""
        if self.inside >= self.most:
            # Refused at once: a client that waits without an end would not learn that the server is full.
            raise BusyError(f"{self.inside} requests are waiting already: try again in a moment")
        self.inside += 1

    def leave(self) -> None:
        """Count a request as done."""
        self.inside -= 1

    @asynccontextmanager
    async def slot(self) -> AsyncIterator[None]:
        """Wait until fewer than `active` requests run, and hold one of their slots."""
        async with self._slots:
            yield

    async def run(self, work: Callable[[], T], lock: anyio.Lock | None = None) -> T:
        """Run `work` in a thread while holding `lock`; if this task is cancelled, it still waits for the thread."""
        async with AsyncExitStack() as stack:
            if lock is not None:
                # Taken before the thread starts, so that waiting for a model holds up no thread.
                await stack.enter_async_context(lock)
            return await anyio.to_thread.run_sync(work, limiter=self._threads)

    async def each(self, steps: Iterator[T], lock: anyio.Lock | None = None) -> AsyncIterator[T]:
        """Yield the items of an iterator, each computed in a thread; the lock is free between two items."""
        while True:
            # next() raising StopIteration could not cross a coroutine; a sentinel can.
            item: Any = await self.run(lambda: next(steps, END), lock)
            if item is END:
                return
            yield item

    async def with_progress(
        self, work: Callable[[Callable[[int, int], None]], T], lock: anyio.Lock
    ) -> AsyncIterator[T | Progress]:
        """Run `work(done)` and yield its latest Progress every 0.1 s, then its result.

        If the consumer stops iterating, the next call of `done` raises Cancelled inside `work`.
        """
        reports: list[Progress] = []
        cancelled = threading.Event()

        def done(n: int, of: int) -> None:
            # The only place where work in a thread can be stopped: threads cannot be killed.
            if cancelled.is_set():
                raise Cancelled
            reports.append(Progress(n, of))

        task = asyncio.ensure_future(self.run(lambda: work(done), lock))
        # An exception that nobody retrieves would be logged when the task is collected.
        task.add_done_callback(lambda over: over.cancelled() or over.exception())
        try:
            # Progress is read from here, because `done` runs in the thread and cannot yield.
            while not task.done():
                await asyncio.wait({task}, timeout=0.1)
                if reports:
                    newest = reports.pop()
                    # An older report that is sent later would make the progress go back.
                    reports.clear()
                    yield newest
            yield task.result()
        # Also reached when the consumer stops, which closes this generator at its yield.
        finally:
            cancelled.set()
