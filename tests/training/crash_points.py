"""Kill a process at many points of a save, and check the checkpoints. A script: crash_points.py FOLDER (each|some).

torch is imported once; each victim is a fork of this process.
"""

import os
import random
import shutil
import signal
import sys
import time
from pathlib import Path

import torch

from clearhead.training.checkpoints import CheckpointWriter, latest

torch.set_num_threads(1)  # a fork has no thread pool, and would wait for it
TOUCHES = {"open", "os.mkdir", "os.rename", "os.remove", "os.rmdir", "shutil.rmtree"}


def state(step: int, mark: int = 0) -> dict[str, torch.Tensor]:
    """The tensors of a checkpoint of a step; `mark` distinguishes two of the same step."""
    return {"w": torch.arange(50_000) + step + mark, "b": torch.full((7,), step + 0.5, dtype=torch.bfloat16)}


def save(folder: Path, attempt: str, steps: range, keep: int = 1) -> None:
    writer = CheckpointWriter(folder, attempt=attempt, keep=keep)
    for step in steps:
        writer.save(step, state(step), {"step": step, "mark": 0})
    writer.save(steps[-1], state(steps[-1], 1000), {"step": steps[-1], "mark": 1000})  # replaces itself
    writer.wait()


def check(folder: Path, least: int) -> int:
    """Assert that the newest checkpoint is intact and equals `state` to the bit; returns its step."""
    complaints: list[str] = []
    checkpoint = latest(folder, say=complaints.append)
    assert checkpoint is not None, "no checkpoint is left"
    assert not complaints, complaints
    assert checkpoint.step == checkpoint.facts["step"] >= least, (checkpoint.step, least)
    for name, tensor in state(checkpoint.step, checkpoint.facts["mark"]).items():
        assert torch.equal(checkpoint.read(name), tensor), (checkpoint.path, name)
    return checkpoint.step


def die_at(count: int) -> None:
    """Kill this process at its `count`-th change of the file system."""
    touched = 0

    def watch(event: str, arguments: tuple) -> None:
        nonlocal touched
        if event in TOUCHES and not (event == "open" and arguments[1] in ("r", "rb")):
            touched += 1
            if touched == count:
                os.kill(os.getpid(), signal.SIGKILL)

    sys.addaudithook(watch)


def victim(work) -> int:
    child = os.fork()
    if child == 0:
        work()
        os._exit(0)
    return child


def at_points(folder: Path, stride: int) -> int:
    save(folder / "start", "first", range(1, 2))
    point = 1
    while True:
        here = folder / str(point)
        shutil.copytree(folder / "start", here)

        def work(here: Path = here, point: int = point) -> None:
            die_at(point)
            save(here, "second", range(2, 4))

        _, status = os.waitpid(victim(work), 0)
        check(here, least=1)
        save(here, "third", range(4, 5))  # a new attempt works, and removes leftovers
        assert os.listdir(here) == ["step-00000004"], os.listdir(here)
        if os.WIFEXITED(status):
            assert os.WEXITSTATUS(status) == 0
            return point
        assert os.WTERMSIG(status) == signal.SIGKILL
        point += stride


def wait_for_a_step(folder: Path, last: int) -> None:
    """Wait until a checkpoint later than `last` is there: on a busy machine that takes a while."""
    until = time.monotonic() + 20
    while time.monotonic() < until:
        names = os.listdir(folder) if folder.is_dir() else []
        if any(name.startswith("step-") and name[:13] > f"step-{last:08d}" for name in names):
            return
        time.sleep(0.005)


def at_random(folder: Path) -> None:
    chance, last, rounds = random.Random(0), 0, 8
    for i in range(rounds):
        child = victim(lambda i=i, last=last: save(folder, f"attempt-{i}", range(last + 1, last + 10**6), keep=2))
        wait_for_a_step(folder, last)
        time.sleep(0.05 * chance.random())
        os.kill(child, signal.SIGKILL)
        os.waitpid(child, 0)
        if os.path.isdir(folder) and any(name.startswith("step-") for name in os.listdir(folder)):
            last = check(folder, least=last)
    assert last > 0, "the victims had no time to save anything"


if __name__ == "__main__":
    where, moment = Path(sys.argv[1]), sys.argv[2]
    at_random(where / "random")
    print(at_points(where, {"each": 1, "some": 6}[moment]))
