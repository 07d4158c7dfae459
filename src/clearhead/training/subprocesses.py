"""Trainings in child processes: several in parallel, or one that is to be killed."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

from .loop import TrainingError

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
    workers = ["-m", "torch.distributed.run", "--standalone", f"--nproc-per-node={world}"] if world else []
    options = ["--out", str(out), "--device", device, "--quiet", *(["--data", str(data)] if data else [])]
    return [sys.executable, *workers, "-m", "clearhead", "train", str(recipe), *overrides, *options]


class Child:
    """A training in a child process, a context manager that ends it; its stderr goes to the file `log`."""

    def __init__(self, words: list[str], *, threads: int, log: Path) -> None:
        self.words, self.log = words, log
        log.parent.mkdir(parents=True, exist_ok=True)
        with open(log, "wb") as file:
            self.process = subprocess.Popen(
                words, stdin=subprocess.DEVNULL, stdout=subprocess.DEVNULL, stderr=file,
                env={**os.environ, "OMP_NUM_THREADS": str(threads)},
            )  # fmt: skip

    def __enter__(self) -> Child:
        return self

    def __exit__(self, *_: object) -> None:
        if self.running:
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
            return f"the training was ended by signal {-code}" + (f"; its last message: {lines[-1]}" if lines else "")
        return lines[-1] if lines else f"the training ended with exit code {code} and no message"
