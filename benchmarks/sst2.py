"""The value of pretraining: accuracy of sentiment classification on SST-2, three seeds each.

    python benchmarks/fetch_checkpoints.py checkpoints
    python benchmarks/sst2.py                     # about 25 minutes on one H200, one training after another
    python benchmarks/sst2.py --runs DIR          # reuses the finished runs in DIR

All models are trained on the same labels, of sentences and of their phrases. The weights with the best validation loss
are kept (of MiniLM, which is trained for two and a half epochs, the last).
"""

from __future__ import annotations

import argparse
from pathlib import Path

from results import CONFIGS, keep

import clearhead as ch
from clearhead.training import train

SEEDS = (1, 2, 3)
EVERYDAY = ('data.of=["sst2","everyday"]', "steps=3500")
# Name: the recipe, and the overrides of its pretraining (None: no pretraining here).
MODELS: dict[str, tuple[str, tuple[str, ...] | None]] = {
    "words": ("sst2-words.toml", None),
    "from scratch": ("sst2-scratch.toml", None),
    "its own text": ("sst2-finetune.toml", ()),
    "its own text and everyday English": ("sst2-finetune.toml", EVERYDAY),
    "MiniLM": ("sst2-minilm.toml", None),
}


def trained(folder: Path, recipe: str, *words: str) -> Path:
    """Train a recipe unless the folder has a model; return the folder."""
    if not (folder / "model").is_dir():
        train(CONFIGS / recipe, *words, out=folder)
    return folder


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument(
        "--runs", type=Path, default=Path("runs/sst2"), help="folder of the run folders"
    )
    args = parser.parse_args()
    accuracy: dict[str, dict[str, list[float]]] = {}
    for name, (recipe, pretraining) in MODELS.items():
        scores = accuracy[name] = {"valid": [], "test": []}
        for seed in SEEDS:
            folder, words = args.runs / f"{name.replace(' ', '-')}-{seed}", [f"seed={seed}"]
            if pretraining is not None:
                before = trained(
                    folder.with_name(f"{folder.name}-before"),
                    "sst2-pretrain.toml",
                    *words,
                    *pretraining,
                )
                words += [f"pretrained={before}", f"data.tokens={before}"]
            bundle = ch.load(trained(folder, recipe, *words))
            for split, values in scores.items():
                values.append(100 * ch.evaluate(bundle, "sst2", split=split).accuracy)
        print(name, scores, flush=True)
    keep("sst2", accuracy=accuracy)


if __name__ == "__main__":
    main()
