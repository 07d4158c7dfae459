"""Taking turns: a bounded queue of requests, and work that goes on a step at a time while its client is there."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import AsyncIterator, Callable, Iterator
from contextlib import AsyncExitStack, asynccontextmanager
from typing import Any, TypeVar

import anyio
import anyio.to_thread
import msgspec

from ..errors import UserError
from .inspections import Left

T = TypeVar("T")

END = object()


class BusyError(UserError, RuntimeError):
    """Too many are waiting already."""


class Queue:
    """At most `active` requests are worked on at a time and `waiting` more may wait; the next is told to come back."""

    def __init__(self, active: int = 8, waiting: int = 56) -> None:
        self.most = active + waiting
        self.inside = 0
        self._room = anyio.Semaphore(active)
        self._threads = anyio.CapacityLimiter(4)

    def enter(self) -> None:
        if self.inside >= self.most:
            raise BusyError(f"{self.inside} requests are waiting already: try again in a moment")
        self.inside += 1

    def leave(self) -> None:
        self.inside -= 1

    @asynccontextmanager
    async def turn(self) -> AsyncIterator[None]:
        """Wait for a place among those that are worked on."""
        async with self._room:
            yield

    async def run(self, work: Callable[[], T], lock: anyio.Lock | None = None) -> T:
        """Do something in a thread, alone with what the lock guards. Who leaves in the middle waits for its end."""
        async with AsyncExitStack() as stack:
            if lock is not None:
                await stack.enter_async_context(lock)
            return await anyio.to_thread.run_sync(work, limiter=self._threads)

    async def each(self, steps: Iterator[T], lock: anyio.Lock | None = None) -> AsyncIterator[T]:
        """The steps of some work, each in a thread and under the lock: between them, others have their turn."""
        while True:
            found: Any = await self.run(lambda: next(steps, END), lock)
            if found is END:
                return
            yield found

    async def told(
        self, work: Callable[[Callable[[int, int], None]], T], lock: anyio.Lock
    ) -> AsyncIterator[T | tuple[int, int]]:
        """How far some work is, now and then, and in the end its result; if nobody waits for it any more, it stops."""
        far: list[tuple[int, int]] = []
        gone = threading.Event()

        def done(n: int, of: int) -> None:
            if gone.is_set():
                raise Left
            far.append((n, of))

        task = asyncio.ensure_future(self.run(lambda: work(done), lock))
        task.add_done_callback(lambda over: over.cancelled() or over.exception())  # which nobody may ask for
        try:
            while not task.done():
                await asyncio.wait({task}, timeout=0.1)
                if far:
                    yield far.pop()
            yield task.result()
        finally:
            gone.set()


def line(event: Any) -> bytes:
    """One line of a stream of JSON."""
    return msgspec.json.encode(event) + b"\n"
