"""Make the two captioners of the zoo of their trainings: together at most 12 MB.

    python benchmarks/pack_captioners.py runs/captioner runs/captioner-rnn

Matrices are rounded to 8 bits, the frozen image encoder is stored once, in captioner/, and words that occur fewer than
seven times in the training captions are left out. The cards are written by hand, with the scores of what is stored:
`python benchmarks/captioning.py captioner captioner-rnn`.
"""

from __future__ import annotations

import argparse
import shutil
from dataclasses import replace
from pathlib import Path
from typing import Any

import torch

import clearhead as ch
from clearhead import config
from clearhead.models.captioner import Captioner
from clearhead.tokens import Words
from clearhead.weights import Bundle
from clearhead.weights.native import save_compact

HOME = Path(__file__).parents[1]
ZOO = HOME / "src" / "clearhead" / "zoo"
LEAST = 7  # occurrences of a word in the training captions


@torch.no_grad()
def frequent(bundle: Bundle, least: int) -> Bundle:
    """The same captioner with the words alone that occur at least so often."""
    tokens, model = bundle.tokens, bundle.model
    assert isinstance(tokens, Words)
    assert isinstance(model, Captioner)
    special = len(tokens.symbols) - sum(count > 0 for count in tokens.counts)
    kept = [i for i, count in enumerate(tokens.counts) if i < special or count >= least]
    words = Words(
        [tokens.symbols[i] for i in kept[special:]],
        [tokens.counts[i] for i in kept[special:]],
        lower=tokens.lower,
    )
    smaller: Any = ch.build("captioner", **config.dump(replace(model.config, vocab=len(kept))))
    rows = ("decoder.embed.table", "head.weight")
    smaller.load_state_dict(
        {name: x[kept] if name in rows else x for name, x in model.state_dict().items()}
    )
    return Bundle(smaller, words, preprocessing=bundle.preprocessing)


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("captioner", type=Path, help="run of configs/captioner.toml")
    parser.add_argument("rnn", type=Path, help="run of configs/captioner-rnn.toml")
    parser.add_argument("--out", type=Path, default=ZOO)
    chosen = parser.parse_args()
    total = 0
    for name, run, shared in (
        ("captioner", chosen.captioner, {}),
        ("captioner-rnn", chosen.rnn, {"encoder": "captioner"}),
    ):
        folder = chosen.out / name
        save_compact(frequent(ch.load(run, device="cpu", dtype="float32"), LEAST), folder, shared)
        shutil.copyfile(HOME / "configs" / f"{name}.toml", folder / "recipe.toml")
        size = sum(path.stat().st_size for path in folder.iterdir())
        print(f"{folder}: {size:,} bytes")
        total += size
    print(f"together: {total:,} bytes")


if __name__ == "__main__":
    main()
