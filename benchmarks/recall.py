"""How well a memory recalls one important token after many others: a sum, a sum that forgets, and attention.

    python benchmarks/recall.py

The important token (the lecture's guest at a party) is at any place in training, among 1 to 48 tokens. Measured is the
accuracy of recalling it from 48 tokens at fixed ages, an age being the number of tokens after it.
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
    accuracy: dict[str, list[list[float]]] = {}
    for name, (mix, *words) in KINDS.items():
        accuracy[name] = []
        recipe = CONFIGS / f"recall-{mix}.toml"
        options = dict(read_recipe(recipe).data)
        kind = options.pop("name")
        for seed in SEEDS:
            out = f"runs/recall/{name.replace(', gamma ', '-')}-{seed}"
            run = train(recipe, *words, f"seed={seed}", out=out, quiet=True)
            assert run.model is not None
            by_age = []
            for age in AGES:
                data = make_data(kind, options | {"valid_age": age, "valid_rows": 256}, seed=0)
                by_age.append(measure(run.model.model, data)["accuracy"])
            accuracy[name].append(by_age)
            print(
                f"{name:18} seed {seed}  "
                + " ".join(f"{a}:{r:.2f}" for a, r in zip(AGES, by_age, strict=True)),
                flush=True,
            )
    keep("recall", guests=48, symbols=16, ages=list(AGES), accuracy=accuracy)


if __name__ == "__main__":
    main()
