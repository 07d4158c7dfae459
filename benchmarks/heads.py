"""Validation loss with 1, 2, 4 and 8 heads at equal width, and so equal parameters, for three seeds each.

    python benchmarks/heads.py

The same as `clearhead sweep configs/shakespeare-heads.toml model.heads=1,2,4,8 seed=0,1,2 --out runs/heads`.
"""

from __future__ import annotations

from results import CONFIGS, keep

import clearhead as ch


def main() -> None:
    result = ch.sweep(
        CONFIGS / "shakespeare-heads.toml",
        "model.heads=1,2,4,8",
        "seed=0,1,2",
        out="runs/heads",
        quiet=True,
    )
    losses: dict[str, list[float]] = {}
    for trial in result.trials:
        losses.setdefault(trial.choices["model.heads"], []).append(trial.measures["valid_loss"])
    keep("heads", parameters=result.trials[0].parameters, valid_loss=losses)


if __name__ == "__main__":
    main()
