"""What one vector can hold: BLEU against the length of the sentence, with and without attention.

    python benchmarks/sentence_length.py --runs runs/sentence_length        # trains on one H200 what is not there

Bahdanau et al. 2015, figure 2. Multi30k's captions are short, so one to four neighbours are joined, in training and
in the test (test_2016_flickr, English to German, five beams). Each point is the BLEU of all texts of that length.
"""

from __future__ import annotations

import argparse
from pathlib import Path

from results import CONFIGS, keep

import clearhead as ch
from clearhead.data.parallel import load_split
from clearhead.metrics import bleu
from clearhead.training import train

WAYS = {"additive attention": "additive", "one vector": "none"}
EDGES = (0, 10, 15, 20, 25, 30, 40, 50, 80)  # words


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--runs", type=Path, default=Path("runs/sentence_length"))
    args = parser.parse_args()
    texts: list[tuple[str, str]] = []
    for joined in (1, 2, 3, 4):
        texts += zip(*load_split("multi30k", "test_2016_flickr", join=joined), strict=True)
    bins = [[i for i, (s, _) in enumerate(texts) if a < len(s.split()) <= b] for a, b in zip(EDGES, EDGES[1:])]  # noqa: B905, RUF007
    found = {}
    for way, word in WAYS.items():
        folder = args.runs / word
        if not (folder / "model").is_dir():
            train(CONFIGS / "joined-rnn.toml", f"model.attention={word}", out=folder)
        answers = [one.text for one in ch.translate(ch.load(folder, dtype="float32"), [s for s, _ in texts], beams=5)]
        found[way] = [bleu([answers[i] for i in rows], [texts[i][1] for i in rows]).value for rows in bins]
        print(way, [round(x, 1) for x in found[way]], flush=True)
    words = [sum(len(texts[i][0].split()) for i in rows) / len(rows) for rows in bins]
    keep("sentence_length", edges=list(EDGES), words=words, texts=[len(rows) for rows in bins], bleu=found)


if __name__ == "__main__":
    main()
