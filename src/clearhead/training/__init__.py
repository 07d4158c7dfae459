"""train/: objectives, optimiser, schedule, distribution, checkpoints, and the one loop that uses them.

run = train("configs/reverse.toml", "optim.lr=1e-3")       run.folder, run.metrics, run.model (a Bundle)
sweep("configs/reverse.toml", "seed=1,2,3", out="runs/s")  the alternatives of a recipe, side by side
verify_resume("configs/reverse.toml", out="runs/v")        a training with kills equals one in peace

The room is its verb too: clearhead.train(...) trains, whatever has imported the room before.
"""

import sys
from types import ModuleType

from .loop import TIMES, Run, TrainingError, train
from .recipe import Recipe, read_recipe
from .sweep import Sweep, sweep
from .verify import Verdict, verify_resume

__all__ = [
    "TIMES", "Recipe", "Run", "Sweep", "TrainingError", "Verdict", "read_recipe", "sweep", "train", "verify_resume",
]  # fmt: skip


class _Room(ModuleType):
    __call__ = staticmethod(train)


sys.modules[__name__].__class__ = _Room
