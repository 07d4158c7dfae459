"""Which English words each French word attends to: the sentence of Bahdanau et al. 2015, figure 3, and a caption.

    python benchmarks/alignment.py --run runs/en-fr-rnn    # trains configs/en-fr-rnn.toml there if it has no model

The attention is that of the given translation (forced decoding); the model's own translation is kept beside it.
Printed for each French word: the English word with the largest weight, and that weight.
"""

from __future__ import annotations

import argparse
from pathlib import Path

from results import CONFIGS, keep

import clearhead as ch
from clearhead.tasks import score
from clearhead.training import train

PAIRS = {
    "lecture": (
        "The agreement on the European Economic Area was signed in August 1992.",
        "L'accord sur la zone économique européenne a été signé en août 1992.",
    ),
    "caption": ("A red car on a wet street.", "Une voiture rouge dans une rue mouillée."),
}


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--run", type=Path, default=Path("runs/en-fr-rnn"), help="run folder")
    args = parser.parse_args()
    if not (args.run / "model").is_dir():
        train(CONFIGS / "en-fr-rnn.toml", out=args.run)
    bundle, results = ch.load(args.run, dtype="float32"), {}
    for name, (text, translation) in PAIRS.items():
        forced, own = score(bundle, text, translation), ch.translate(bundle, text)
        source, target, weights = forced.by_word()
        results[name] = {
            "source": source, "target": target, "weights": weights.tolist(),
            "nats_a_token": forced.score, "own": own.text, "own_nats_a_token": own.score,
        }  # fmt: skip
        for word, row in zip(target, weights, strict=True):
            print(f"{word:12} {source[int(row.argmax())]:12} {row.max():.2f}")
    keep("alignment", **results)


if __name__ == "__main__":
    main()
