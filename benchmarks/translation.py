"""BLEU of an RNN without and with attention and of a Transformer on Multi30k, in both directions, three seeds each.

    python benchmarks/translation.py                    # about 90 minutes on one H200, one training after another
    python benchmarks/translation.py --runs DIR         # reuses the finished runs and translations in DIR

Every model is trained on Multi30k alone, and translates both test sets greedily and with five beams. Scores with five
beams: cased, detokenised sacreBLEU; chrF; BLEU of lowercased Moses tokens. Score of greedy decoding: BLEU of lowercased
spaCy words.
"""

from __future__ import annotations

import argparse
from pathlib import Path

from results import CONFIGS, keep

import clearhead as ch
from clearhead.data.text.parallel import load_split
from clearhead.metrics import bleu_by, chrf
from clearhead.training import train

MODELS = {
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
    """Translations of a test set, from the run folder's file or by its model, which is trained if it is missing."""
    path = folder / f"{split}.{beams}.txt"
    if not path.exists():
        if not (folder / "model").is_dir():
            train(CONFIGS / recipe, *words, out=folder)
        translations = ch.translate(ch.load(folder), texts, beams=beams)
        path.write_text("".join(f"{one.text}\n" for one in translations), encoding="utf-8")
    return path.read_text(encoding="utf-8").split("\n")[:-1]


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument(
        "--runs", type=Path, default=Path("runs/translation"), help="folder of the run folders"
    )
    args = parser.parse_args()
    results: dict[str, dict[str, list[float]]] = {}
    for name, (recipe, *words) in MODELS.items():
        for source, target in PAIRS:
            for seed in SEEDS:
                chosen = (*words, f"data.source={source}", f"data.target={target}", f"seed={seed}")
                folder = args.runs / f"{name.split()[-1]}-{source}-{target}-{seed}"
                for split in SPLITS:
                    texts, references = load_split("multi30k", split, source=source, target=target)
                    greedy, beam = (
                        hypotheses(folder, recipe, chosen, split, n, texts) for n in (1, 5)
                    )
                    scores = {
                        "sacrebleu": bleu_by("plain", target)(beam, references),
                        "chrf": chrf(beam, references),
                        "moses": bleu_by("moses", target)(beam, references),
                        "words": bleu_by("words", target)(greedy, references),
                    }
                    row = results.setdefault(f"{name}, {source}-{target}, {split}", {})
                    for metric, score in scores.items():
                        row.setdefault(metric, []).append(round(score.value, 2))
                    print(
                        name,
                        source,
                        target,
                        seed,
                        split,
                        *(str(score) for score in scores.values()),
                        sep="  ",
                    )
    keep(
        "translation",
        signatures={metric: score.signature for metric, score in scores.items()},
        scores=results,
    )


if __name__ == "__main__":
    main()
