"""train/: objectives, optimiser, schedule, distribution, checkpoints, and the one loop that uses them.

run = train("configs/reverse.toml", "optim.lr=1e-3")       run.folder, run.metrics, run.model (a Ready)
"""

from .loop import TIMES, Run, TrainingError, train
from .recipe import Recipe, read_recipe

__all__ = ["TIMES", "Recipe", "Run", "TrainingError", "read_recipe", "train"]
