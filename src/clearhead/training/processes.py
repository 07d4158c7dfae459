"""Processes of trainings: the signals that end one, and trainings in child processes."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

from ..errors import UserError


class TrainingError(UserError, RuntimeError):
    """A training cannot continue; the message gives the step and the last intact checkpoint, if there is one."""


# Signals that end a training


@contextmanager
def on_stop(ask: Callable[[], bool]) -> Iterator[None]:
    """Context in which SIGTERM and Ctrl-C call `ask`; if `ask` returns True, Ctrl-C raises KeyboardInterrupt."""

    def handle(number: int, _: object) -> None:
        if ask() and number == signal.SIGINT:
            # a stop was requested before: do not wait for the end of the step
            raise KeyboardInterrupt

    # torchrun sends SIGTERM to its workers, a terminal SIGINT
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


# Trainings in child processes: several in parallel, or one that is to be killed


PATIENCE = 60.0  # seconds that a child gets to save a checkpoint and exit


def command(
    recipe: str | Path,
    *overrides: str,
    out: Path,
    data: str | Path | None = None,
    device: str = "auto",
    world: int | None = None,  # workers, under torchrun
) -> list[str]:
    """The command line that trains a recipe in a folder."""
    words = [sys.executable]
    if world:
        # torchrun, by its module, so that it is the same Python
        words += ["-m", "torch.distributed.run", "--standalone", f"--nproc-per-node={world}"]
    words += ["-m", "clearhead", "train", str(recipe), *overrides]
    words += ["--out", str(out), "--device", device, "--quiet"]
    if data:
        words += ["--data", str(data)]
    return words


class Child:
    """A training in a child process, a context manager that ends it; its stderr goes to the file `log`."""

    def __init__(self, words: list[str], *, threads: int, log: Path) -> None:
        self.words, self.log = words, log
        log.parent.mkdir(parents=True, exist_ok=True)
        with open(log, "wb") as file:
            self.process = subprocess.Popen(
                words,
                stdin=subprocess.DEVNULL,
                stdout=subprocess.DEVNULL,
                stderr=file,
                # as many threads for all: another number changes the order of sums
                env={**os.environ, "OMP_NUM_THREADS": str(threads)},
            )

    def __enter__(self) -> Child:
        return self

    def __exit__(self, *_: object) -> None:
        if self.running:  # it saves a checkpoint, if it can
            self.process.terminate()
            try:
                self.process.wait(PATIENCE)
            except subprocess.TimeoutExpired:
                self.kill()

    @property
    def running(self) -> bool:
        return self.process.poll() is None

    def kill(self) -> None:
        """End it at once with SIGKILL, without saving anything."""
        self.process.kill()
        self.process.wait()

    def finish(self) -> None:
        """Wait for its end; raises with the last line of its log if it failed."""
        if code := self.process.wait():
            raise TrainingError(self.error(code))

    def error(self, code: int) -> str:
        """Why it failed: the last line of its log, and the signal that ended it."""
        lines = [line for line in self.log.read_text(errors="replace").splitlines() if line.strip()]
        if code < 0:
            # a negative exit code is the number of the signal
            message = f"; its last message: {lines[-1]}" if lines else ""
            return f"the training was ended by signal {-code}{message}"
        if lines:
            return lines[-1]
        return f"the training ended with exit code {code} and no message"
