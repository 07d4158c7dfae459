"""Does bfloat16 with float32 masters learn as float32 does? GPT-2 124M on a subword corpus, several seeds.

    python benchmarks/learn_gpt.py --make corpus.bin --data $CLEARHEAD_DATA      # needs tokenizers; any machine
    python benchmarks/learn_gpt.py --corpus corpus.bin                           # needs a GPU

The corpus is byte-level BPE over the English at hand (Tatoeba, Multi30k, SST-2, Shakespeare). All see the same batches
from the same first weights; compared is the mean training loss of steps 181 to 200. Early on small differences
grow, so a control says how much of a difference means nothing: float32 whose first weights were rounded to bfloat16.
"""

import argparse
import gzip
import json
import statistics
import sys
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import torch

from clearhead.data import write_tokens
from clearhead.training import trainer
from clearhead.training.loop import train

VOCAB = 50304  # 50,257 rounded up, as training code does


def english(data: Path) -> list[str]:
    """The lines of English in the data folder, each once."""

    def lines(name: str) -> list[str]:
        with gzip.open(data / name, "rt", encoding="utf-8") as file:
            return file.read().splitlines()

    found = [line.split("\t")[0] for name in ("fra", "deu") for line in lines(f"tatoeba/{name}.txt.gz")]
    found += lines("multi30k/train.en.gz")
    found += [line.split("\t")[0] for line in lines("sst2/train.tsv.gz")]
    found += [line for line in lines("shakespeare.txt.gz") if line]
    return list(dict.fromkeys(found))


def make(path: Path, data: Path) -> None:
    """Train the subwords and write the corpus, fifty neighbouring lines a document."""
    from tokenizers import ByteLevelBPETokenizer

    lines = english(data)
    subwords = ByteLevelBPETokenizer()
    subwords.train_from_iterator(lines, vocab_size=50256, min_frequency=2, show_progress=False)
    documents = ["\n".join(lines[i : i + 50]) + "\n" for i in range(0, len(lines), 50)]
    ids = (torch.tensor(e.ids).numpy() for e in subwords.encode_batch(documents))
    write_tokens(path, ids, vocab=VOCAB)
    print(f"{path}: {len(lines):,} lines, {subwords.get_vocab_size():,} subwords", file=sys.stderr)


def recipe(corpus: Path, precision: str, seed: int, rows: int, steps: int, lr: float) -> dict[str, object]:
    return {
        "seed": seed,
        "steps": steps,
        "initial": "normal",
        "precision": precision,
        "compile": True,
        "data": {"name": "tokens", "path": str(corpus.resolve()), "context": 1024, "rows": rows, "valid_most": 1},
        "model": {"name": "gpt", "context": 1024},
        "optim": {"lr": lr},
        "schedule": {"warmup": 40, "shape": "constant"},
        "run": {"log_every": 1},
    }


@contextmanager
def rounded(yes: bool) -> Iterator[None]:
    """Within it, first weights are rounded to bfloat16."""
    made = trainer.build_model

    def build(*args: object) -> torch.nn.Module:
        model = made(*args)  # type: ignore[arg-type]
        with torch.no_grad():
            for p in model.parameters():
                p.copy_(p.bfloat16())
        return model

    trainer.build_model = build if yes else made  # type: ignore[assignment]
    try:
        yield
    finally:
        trainer.build_model = made


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--make", type=Path, help="write the corpus here, and stop")
    parser.add_argument("--data", type=Path, help="the data folder, for --make")
    parser.add_argument("--corpus", type=Path)
    parser.add_argument("--rows", type=int, default=4, help="sequences a step")
    parser.add_argument("--lr", type=float, default=3e-4)
    parser.add_argument("--control", action="store_true", help="also float32 from rounded first weights")
    parser.add_argument("--steps", type=int, default=200)
    parser.add_argument("--seeds", type=int, nargs="+", default=[1, 2, 3])
    args = parser.parse_args()
    if args.make:
        make(args.make, args.data)
        return
    names = ["bfloat16", "float32", *(["control"] if args.control else [])]
    found: dict[str, list[float]] = {name: [] for name in names}
    for seed in args.seeds:
        for name, means in found.items():
            made = recipe(args.corpus, name.replace("control", "float32"), seed, args.rows, args.steps, args.lr)
            with tempfile.TemporaryDirectory() as folder, rounded(name == "control"):
                run = train(made, out=folder, quiet=True)
            last = [line["loss"] for line in run.metrics if "loss" in line][-20:]
            means.append(statistics.mean(last))
            print(f"seed {seed} {name:9s} mean loss of the last 20 steps {means[-1]:.4f}", file=sys.stderr)
    apart = {
        f"{name} - float32": [a - b for a, b in zip(found[name], found["float32"], strict=True)]
        for name in names if name != "float32"
    }  # fmt: skip
    print(json.dumps({"rows": args.rows, "lr": args.lr, **found, **apart}, indent=1))


if __name__ == "__main__":
    main()
