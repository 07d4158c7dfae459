"""Training: objectives, optimisers, schedules, distribution, checkpoints, and the loop that uses them.

run = train("reverse", "optim.lr=1e-3")    run.folder, run.metrics, run.model (a Bundle)
finetune("everyday", "diary.txt")                       a checkpoint and a file of data, without a recipe
verify_resume("reverse", out="runs/v")     check that a killed and resumed training gives the same bits
"""

from .loop import TIMES, TrainingError
from .objectives import Objective
from .own_data.finetune import finetune, finetune_recipe
from .recipe import Recipe, read_recipe
from .run import Run, train
from .sweep import Sweep
from .verify import Verdict, verify_resume

__all__ = [
    "TIMES", "Objective", "Recipe", "Run", "Sweep", "TrainingError", "Verdict", "finetune", "finetune_recipe",
    "read_recipe", "train", "verify_resume",
]  # fmt: skip
