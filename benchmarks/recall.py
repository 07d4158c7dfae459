"""The party: how well is the important guest remembered when so many came after? A sum, forgetting, attention.

    python benchmarks/recall.py

Streams of 1 to 48 guests with the important one at any place train each memory; streams of 48 test it at fixed ages.
Three seeds each. Runs are kept in runs/recall.
"""

from __future__ import annotations

from results import CONFIGS, keep, measure

from clearhead.data import make_data
from clearhead.training import read_recipe, train

KINDS = {
    "sum": ("sum",),
    "forget, gamma 0.7": ("forget", "model.gamma=0.7"),
    "forget, gamma 0.9": ("forget", "model.gamma=0.9"),
    "attention": ("attention",),
}
AGES = (0, 1, 2, 3, 4, 6, 8, 12, 16, 24, 32, 40, 47)
SEEDS = (0, 1, 2)


def main() -> None:
    found: dict[str, list[list[float]]] = {}
    for name, (mix, *words) in KINDS.items():
        found[name] = []
        recipe = CONFIGS / f"recall-{mix}.toml"
        given = dict(read_recipe(recipe).data)
        kind = given.pop("name")
        for seed in SEEDS:
            out = f"runs/recall/{name.replace(', gamma ', '-')}-{seed}"
            run = train(recipe, *words, f"seed={seed}", out=out, quiet=True)
            assert run.model is not None
            right = []
            for age in AGES:
                data = make_data(kind, given | {"valid_age": age, "valid_rows": 256}, seed=0)
                right.append(measure(run.model.model, data)[1])
            found[name].append(right)
            print(
                f"{name:18} seed {seed}  " + " ".join(f"{a}:{r:.2f}" for a, r in zip(AGES, right, strict=True)),
                flush=True,
            )
    keep("recall", guests=48, symbols=16, ages=list(AGES), accuracy=found)


if __name__ == "__main__":
    main()
