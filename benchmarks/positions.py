"""Whether learned positions collapse where order does not matter: on `reverse` it matters, on `most` it does not.

    python benchmarks/positions.py

The spread of the table is the root mean square distance of its rows from their mean, relative to the initial table.
Weight decay shrinks all rows, and only a task that needs positions keeps them apart; so `most` is also trained without
decay. Two seeds. Runs are kept in runs/positions.
"""

from __future__ import annotations

import torch
from results import CONFIGS, keep
from torch import Tensor

from clearhead.data import make_data
from clearhead.training import read_recipe, train
from clearhead.training.checkpoints import Checkpoint
from clearhead.training.distributed import World
from clearhead.training.setup import resolve
from clearhead.training.trainer import Trainer

TASKS = {"reverse": (), "most": (), "most, without decay": ("optim.decay=0.0",)}
SEEDS = (0, 1)


def spread(table: Tensor) -> float:
    """The root mean square distance of the rows from their mean."""
    return (table - table.mean(0)).square().sum(-1).mean().sqrt().item()


def main() -> None:
    spreads: dict[str, list[list[float]]] = {}
    accuracy: dict[str, list[float]] = {}
    steps: list[int] = []
    for task, words in TASKS.items():
        spreads[task], accuracy[task] = [], []
        for seed in SEEDS:
            recipe = read_recipe(
                CONFIGS / f"{task.split(',')[0]}-positions.toml", *words, f"seed={seed}"
            )
            options = dict(recipe.data)
            data = make_data(options.pop("name"), options, seed=seed)
            length = data.valid(0)["ids"].shape[1]  # rows of the table beyond it are never used
            initial = Trainer(
                recipe, resolve(recipe, data, {}), data, World(0, 1, torch.device("cpu"))
            ).model
            first = initial.get_parameter("positions.table").detach()
            tables = {0: first[:length]}
            run = train(
                recipe,
                out=f"runs/positions/{task.replace(', ', '-').replace(' ', '-')}-{seed}",
                quiet=True,
            )
            for path in sorted((run.folder / "checkpoints").glob("step-*")):
                table, checkpoint = torch.empty_like(first), Checkpoint(path)
                checkpoint.fill("model/weight/positions.table", table)
                checkpoint.close()
                tables[checkpoint.step] = table[:length]
            steps = list(tables)
            spreads[task].append([spread(table) / spread(tables[0]) for table in tables.values()])
            accuracy[task].append(run.metrics[-1]["valid_accuracy"])
            print(
                f"{task} {seed}: accuracy {accuracy[task][-1]:.3f}, spread {spreads[task][-1][-1]:.2f}",
                flush=True,
            )
    keep("positions", steps=steps, spread=spreads, valid_accuracy=accuracy)


if __name__ == "__main__":
    main()
