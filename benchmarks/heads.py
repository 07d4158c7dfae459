"""How many heads? 1, 2, 4 and 8 at equal width, so with equal parameters: loss and spread over three seeds.

    python benchmarks/heads.py

The same as `clearhead sweep configs/heads.toml model.heads=1,2,4,8 seed=0,1,2 --out runs/heads`.
"""

from __future__ import annotations

from results import CONFIGS, keep

from clearhead.training import sweep


def main() -> None:
    found = sweep(CONFIGS / "heads.toml", "model.heads=1,2,4,8", "seed=0,1,2", out="runs/heads", quiet=True)
    losses: dict[str, list[float | None]] = {}
    for trial in found.trials:
        losses.setdefault(trial.choices["model.heads"], []).append(trial.measures["valid_loss"])
    keep("heads", parameters=found.trials[0].parameters, valid_loss=losses)


if __name__ == "__main__":
    main()
