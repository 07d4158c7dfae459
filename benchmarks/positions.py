"""Does a table of positions learn that order does not matter? On `reverse` it does matter, on `most` it does not.

    python benchmarks/positions.py

The spread of the table is the root mean square distance of its rows from their mean, over that of the first table.
Weight decay pulls all rows to zero, and only a task that must tell places apart pulls them from each other; so `most`
is also trained without decay. Two seeds. Runs are kept in runs/positions.
"""

from __future__ import annotations

import torch
from results import CONFIGS, keep
from torch import Tensor

from clearhead.data import make_data
from clearhead.training import read_recipe, train
from clearhead.training.checkpoint import Checkpoint
from clearhead.training.trainer import build_model

TASKS = {"reverse": (), "most": (), "most, without decay": ("optim.decay=0.0",)}
SEEDS = (0, 1)


def spread(table: Tensor) -> float:
    return (table - table.mean(0)).square().sum(-1).mean().sqrt().item()


def main() -> None:
    spreads: dict[str, list[list[float]]] = {}
    right: dict[str, list[float]] = {}
    steps: list[int] = []
    for task, words in TASKS.items():
        spreads[task], right[task] = [], []
        for seed in SEEDS:
            recipe = read_recipe(CONFIGS / f"positions-{task.split(',')[0]}.toml", *words, f"seed={seed}")
            given = dict(recipe.data)
            data = make_data(given.pop("name"), given, seed=seed)
            read = data.valid(0)["ids"].shape[1]  # rows of the table beyond it are never read
            tables = {0: dict(build_model(recipe, data).named_parameters())["positions.table"].detach()[:read]}
            run = train(recipe, out=f"runs/positions/{task.replace(', ', '-').replace(' ', '-')}-{seed}", quiet=True)
            for path in sorted((run.folder / "checkpoints").glob("step-*")):
                table = torch.empty(recipe.model["context"], recipe.model["width"])
                checkpoint = Checkpoint(path)
                checkpoint.fill("model/positions.table", table)
                checkpoint.close()
                tables[checkpoint.step] = table[:read]
            steps = list(tables)
            spreads[task].append([spread(table) / spread(tables[0]) for table in tables.values()])
            right[task].append(run.metrics[-1]["valid_accuracy"])
            print(f"{task} {seed}: accuracy {right[task][-1]:.3f}, spread {spreads[task][-1][-1]:.2f}", flush=True)
    keep("positions", steps=steps, spread=spreads, valid_accuracy=right)


if __name__ == "__main__":
    main()
