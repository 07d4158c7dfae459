"""BLEU against the length of the sentence, with and without attention (an RNN with one vector as its memory).

    python benchmarks/sentence_length.py --runs runs/sentence_length        # on one H200; finished runs are reused

After Bahdanau et al. 2015, figure 2. Multi30k's captions are short, so one to four neighbours are joined, in training
and in the test set (test_2016_flickr, English to German, five beams). Each point is the BLEU of all texts of a range of
lengths.
"""

from __future__ import annotations

import argparse
import itertools
from pathlib import Path

from results import CONFIGS, keep

import clearhead as ch
from clearhead.data.text.parallel import load_split
from clearhead.metrics import bleu
from clearhead.training import train

MODELS = {"additive attention": "additive", "one vector": "none"}
EDGES = (0, 10, 15, 20, 25, 30, 40, 50, 80)  # words


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument(
        "--runs", type=Path, default=Path("runs/sentence_length"), help="folder of the run folders"
    )
    args = parser.parse_args()
    texts: list[tuple[str, str]] = []
    for joined in (1, 2, 3, 4):
        texts += zip(*load_split("multi30k", "test_2016_flickr", join=joined), strict=True)
    bins = [
        [i for i, (s, _) in enumerate(texts) if a < len(s.split()) <= b]
        for a, b in itertools.pairwise(EDGES)
    ]
    scores = {}
    for name, word in MODELS.items():
        folder = args.runs / word
        if not (folder / "model").is_dir():
            train(CONFIGS / "multi30k-joined-rnn.toml", f"model.attention={word}", out=folder)
        outputs = [
            one.text
            for one in ch.translate(
                ch.load(folder, dtype="float32"), [s for s, _ in texts], beams=5
            )
        ]
        scores[name] = [
            bleu([outputs[i] for i in rows], [texts[i][1] for i in rows]).value for rows in bins
        ]
        print(name, [round(x, 1) for x in scores[name]], flush=True)
    words = [sum(len(texts[i][0].split()) for i in rows) / len(rows) for rows in bins]
    keep(
        "sentence_length",
        edges=list(EDGES),
        words=words,
        texts=[len(rows) for rows in bins],
        bleu=scores,
    )


if __name__ == "__main__":
    main()
