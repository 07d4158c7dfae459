"""From the bottleneck to attention to the Transformer: BLEU on Multi30k, both ways, three seeds each.

    python benchmarks/translation.py                    # one H200: about an hour and a half, one training after another
    python benchmarks/translation.py --runs DIR         # trains what DIR lacks, and scores what it has

Every model is trained on Multi30k alone by its recipe, and translates both test sets greedily and with five beams.
Scores: cased, detokenised sacreBLEU; (a) Moses's tokens, lowercased, five beams; (b) spaCy's words, lowercased, greedy.
"""

from __future__ import annotations

import argparse
from pathlib import Path

from results import CONFIGS, keep

import clearhead as ch
from clearhead.data.parallel import load_split
from clearhead.metrics import bleu_by, chrf
from clearhead.training import train

WAYS = {
    "rnn, one vector": ("multi30k-rnn.toml", "model.attention=none"),
    "rnn, additive attention": ("multi30k-rnn.toml", "model.attention=additive"),
    "transformer": ("multi30k-transformer.toml",),
}
PAIRS = (("en", "de"), ("de", "en"))
SEEDS = (1, 2, 3)
SPLITS = ("test_2016_flickr", "test_2017_flickr")


def hypotheses(
    folder: Path, recipe: str, words: tuple[str, ...], split: str, beams: int, texts: list[str]
) -> list[str]:
    """What a run's model makes of a test set: from its file, or by the model, trained if need be."""
    path = folder / f"{split}.{beams}.txt"
    if not path.exists():
        if not (folder / "model").is_dir():
            train(CONFIGS / recipe, *words, out=folder)
        found = ch.translate(ch.load(folder), texts, beams=beams)
        path.write_text("".join(f"{one.text}\n" for one in found), encoding="utf-8")
    return path.read_text(encoding="utf-8").split("\n")[:-1]


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--runs", type=Path, default=Path("runs/translation"))
    args = parser.parse_args()
    found: dict[str, dict[str, list[float]]] = {}
    for way, (recipe, *words) in WAYS.items():
        for source, target in PAIRS:
            for seed in SEEDS:
                chosen = (*words, f"data.source={source}", f"data.target={target}", f"seed={seed}")
                folder = args.runs / f"{way.split()[-1]}-{source}-{target}-{seed}"
                for split in SPLITS:
                    texts, wanted = load_split("multi30k", split, source=source, target=target)
                    greedy, beam = (hypotheses(folder, recipe, chosen, split, n, texts) for n in (1, 5))
                    scores = {
                        "sacrebleu": bleu_by("plain", target)(beam, wanted),
                        "chrf": chrf(beam, wanted),
                        "moses": bleu_by("moses", target)(beam, wanted),
                        "words": bleu_by("words", target)(greedy, wanted),
                    }
                    row = found.setdefault(f"{way}, {source}-{target}, {split}", {})
                    for name, score in scores.items():
                        row.setdefault(name, []).append(round(score.value, 2))
                    print(way, source, target, seed, split, *(str(score) for score in scores.values()), sep="  ")
    keep("translation", signatures={name: score.signature for name, score in scores.items()}, scores=found)


if __name__ == "__main__":
    main()
