"""Whether training in bfloat16 with float32 masters reaches the loss of float32: GPT-2 124M on subwords, several seeds.

    python benchmarks/learn_gpt.py --make corpus.bin --data $CLEARHEAD_DATA      # needs tokenizers; any machine
    python benchmarks/learn_gpt.py --corpus corpus.bin                           # needs a GPU

The corpus is the English of Tatoeba, Multi30k, SST-2 and Shakespeare as byte-level BPE. All runs of a seed have equal
batches and initial weights; compared is the mean training loss of the last 20 steps. Small differences grow early in
training, so a control (--control) shows the size of a difference that means nothing: float32 from initial weights that
were rounded to bfloat16.
"""

import argparse
import gzip
import json
import statistics
import sys
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager, nullcontext
from pathlib import Path
from typing import Any
from unittest import mock

import torch

from clearhead.data import write_tokens
from clearhead.training import train, trainer

VOCAB = 50304  # GPT-2's 50,257 rounded up to a multiple of 128, as training code usually does


def english(data: Path) -> list[str]:
    """The distinct English lines of the data folder."""

    def lines(name: str) -> list[str]:
        with gzip.open(data / name, "rt", encoding="utf-8") as file:
            return file.read().splitlines()

    texts = [
        line.split("\t")[0] for name in ("fra", "deu") for line in lines(f"tatoeba/{name}.txt.gz")
    ]
    texts += lines("multi30k/train.en.gz")
    texts += [line.split("\t")[0] for line in lines("sst2/train.tsv.gz")]
    texts += [line for line in lines("shakespeare.txt.gz") if line]
    return list(dict.fromkeys(texts))


def make(path: Path, data: Path) -> None:
    """Train the tokenizer and write the corpus, in documents of fifty neighbouring lines."""
    from tokenizers import ByteLevelBPETokenizer

    lines = english(data)
    subwords = ByteLevelBPETokenizer()
    subwords.train_from_iterator(lines, vocab_size=50256, min_frequency=2, show_progress=False)
    documents = ["\n".join(lines[i : i + 50]) + "\n" for i in range(0, len(lines), 50)]
    ids = (torch.tensor(e.ids).numpy() for e in subwords.encode_batch(documents))
    write_tokens(path, ids, vocab=VOCAB)
    print(f"{path}: {len(lines):,} lines, {subwords.get_vocab_size():,} subwords", file=sys.stderr)


def recipe(
    corpus: Path, precision: str, seed: int, rows: int, steps: int, lr: float
) -> dict[str, object]:
    return {
        "seed": seed,
        "steps": steps,
        "initial": "normal",
        "precision": precision,
        "compile": True,
        "data": {
            "name": "tokens",
            "path": str(corpus.resolve()),
            "context": 1024,
            "rows": rows,
            "valid_most": 1,
        },
        "model": {"name": "gpt", "context": 1024},
        "optim": {"lr": lr},
        "schedule": {"warmup": 40, "shape": "constant"},
        "run": {"log_every": 1},
    }


@contextmanager
def rounded_weights() -> Iterator[None]:
    """Round the initial weights of trainings that start within it to bfloat16."""
    original = trainer.initialise

    def initialise(model: torch.nn.Module, *args: Any, **options: Any) -> None:
        original(model, *args, **options)
        with torch.no_grad():
            for p in model.parameters():
                p.copy_(p.bfloat16())

    with mock.patch.object(trainer, "initialise", initialise):
        yield


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--make", type=Path, help="write the corpus to this file and exit")
    parser.add_argument("--data", type=Path, help="data folder, for --make")
    parser.add_argument("--corpus", type=Path, help="file that --make has written")
    parser.add_argument("--rows", type=int, default=4, help="sequences per step")
    parser.add_argument("--lr", type=float, default=3e-4)
    parser.add_argument(
        "--control", action="store_true", help="also train float32 from rounded initial weights"
    )
    parser.add_argument("--steps", type=int, default=200)
    parser.add_argument("--seeds", type=int, nargs="+", default=[1, 2, 3])
    args = parser.parse_args()
    if args.make:
        make(args.make, args.data)
        return
    if not args.corpus:
        parser.error("expected --corpus FILE, or --make FILE to write one")
    names = ["bfloat16", "float32", *(["control"] if args.control else [])]
    losses: dict[str, list[float]] = {name: [] for name in names}
    for seed in args.seeds:
        for name, means in losses.items():
            table = recipe(
                args.corpus,
                name.replace("control", "float32"),
                seed,
                args.rows,
                args.steps,
                args.lr,
            )
            with (
                tempfile.TemporaryDirectory() as folder,
                rounded_weights() if name == "control" else nullcontext(),
            ):
                run = train(table, out=folder, quiet=True)
            last = [line["loss"] for line in run.metrics if "loss" in line][-20:]
            means.append(statistics.mean(last))
            print(
                f"seed {seed} {name:9s} mean loss of the last 20 steps {means[-1]:.4f}",
                file=sys.stderr,
            )
    differences = {
        f"{name} - float32": [a - b for a, b in zip(losses[name], losses["float32"], strict=True)]
        for name in names
        if name != "float32"
    }
    print(json.dumps({"rows": args.rows, "lr": args.lr, **losses, **differences}, indent=1))


if __name__ == "__main__":
    main()
