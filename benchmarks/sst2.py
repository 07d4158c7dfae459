"""What reading before learning is worth: the accuracy of sorting SST-2's sentences, three seeds each.

    python benchmarks/fetch_checkpoints.py checkpoints
    python benchmarks/sst2.py                     # one H200: about 25 minutes, one training after another
    python benchmarks/sst2.py --runs DIR          # trains what DIR lacks, and measures what it has

All learn from the same labels, those of the training sentences and of their phrases, and keep the weights of their best
validation loss (MiniLM, which reads them twice and a half, its last).
"""

from __future__ import annotations

import argparse
from pathlib import Path

from results import CONFIGS, keep

import clearhead as ch
from clearhead.training import train

SEEDS = (1, 2, 3)
EVERYDAY = ('data.of=["sst2","everyday"]', "steps=3500")
WAYS: dict[str, tuple[str, tuple[str, ...] | None]] = {  # the recipe, and what it is to have read, if anything
    "words": ("sst2-words.toml", None),
    "from scratch": ("sst2-scratch.toml", None),
    "its own text": ("sst2-finetune.toml", ()),
    "its own text and everyday English": ("sst2-finetune.toml", EVERYDAY),
    "MiniLM": ("sst2-minilm.toml", None),
}


def trained(folder: Path, recipe: str, *words: str) -> Path:
    if not (folder / "model").is_dir():
        train(CONFIGS / recipe, *words, out=folder)
    return folder


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--runs", type=Path, default=Path("runs/sst2"))
    args = parser.parse_args()
    found: dict[str, dict[str, list[float]]] = {}
    for way, (recipe, read) in WAYS.items():
        scores = found[way] = {"valid": [], "test": []}
        for seed in SEEDS:
            folder, words = args.runs / f"{way.replace(' ', '-')}-{seed}", [f"seed={seed}"]
            if read is not None:
                before = trained(folder.with_name(f"{folder.name}-before"), "sst2-pretrain.toml", *words, *read)
                words += [f"pretrained={before}", f"data.tokens={before}"]
            bundle = ch.load(trained(folder, recipe, *words))
            for split, into in scores.items():
                into.append(100 * ch.evaluate(bundle, "sst2", split=split).accuracy)
        print(way, scores, flush=True)
    keep("sst2", accuracy=found)


if __name__ == "__main__":
    main()
