"""Training: objectives, optimisers, schedules, distribution, checkpoints, and the loop that uses them.

run = train("reverse", "optim.lr=1e-3")    run.folder, run.metrics, run.model (a Bundle)
finetune("everyday", "diary.txt")                       a checkpoint and a file of data, without a recipe
verify_resume("reverse", out="runs/v")     check that a killed and resumed training gives the same bits
"""

from typing import TYPE_CHECKING

from .. import lazy

if TYPE_CHECKING:
    from .loop import TIMES as TIMES
    from .objectives import Objective as Objective
    from .own_data.finetune import finetune as finetune
    from .own_data.finetune import finetune_recipe as finetune_recipe
    from .processes import TrainingError as TrainingError
    from .recipe import Recipe as Recipe
    from .recipe import read_recipe as read_recipe
    from .sweep import Sweep as Sweep
    from .train import Run as Run
    from .train import train as train
    from .verify import Verdict as Verdict
    from .verify import verify_resume as verify_resume

lazy.public_names(__name__)
