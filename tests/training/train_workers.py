"""Run by test_workers.py under torchrun: trains every recipe of a list in turn. A script: train_workers.py LIST.json

Each entry is {"recipe": ..., "out": ..., "stop": step or absent, "words": [...]}; with `stop` only the last worker
receives SIGTERM in that step.
"""

import json
import os
import signal
import sys
import warnings
from pathlib import Path

warnings.simplefilter("error")

import torch.distributed as dist  # noqa: E402
import trainings  # noqa: E402

from clearhead.training import train  # noqa: E402
from clearhead.training.optim import optimisers as optim  # noqa: E402

RANK, SIZE = int(os.environ["RANK"]), int(os.environ["WORLD_SIZE"])


def stop_at(step):
    """SIGTERM to the last worker, and to no other, in the middle of a step."""
    real, left = optim.Optimiser.step, [step]

    def counted(self, *args):
        left[0] -= 1
        if left[0] == 0 and RANK == SIZE - 1:
            os.kill(os.getpid(), signal.SIGTERM)
        return real(self, *args)

    optim.Optimiser.step = counted
    return lambda: setattr(optim.Optimiser, "step", real)


def main(path):
    for entry in json.loads(Path(path).read_text()):
        undo = stop_at(entry["stop"]) if "stop" in entry else lambda: None
        run = train(entry["recipe"], *entry.get("words", []), out=entry["out"], device="cpu", quiet=True)
        undo()
        assert run.finished != ("stop" in entry), entry
        assert not dist.is_initialized()
        if RANK == SIZE - 1:
            Path(entry["out"], f"said-{len(run.metrics)}").touch()


if __name__ == "__main__":
    with trainings.own_models():
        main(sys.argv[1])
