"""Captioners on the official test part of Flickr8k, five beams, all scores; and on scenes, where their words point.

    python benchmarks/captioning.py                                           # the two of the zoo, about 6 minutes
    python benchmarks/captioning.py --scenes runs/scenes runs/scenes-rnn      # trained by configs/scenes.toml
    python benchmarks/captioning.py runs/soft runs/hard --against runs/soft runs/hard

On a CPU in float32. Each model is added to docs/results/captioning.json, which keeps the others. --against resamples
the test images, with both models on the same ones, and gives the difference, second minus first, with the interval that
holds 95 % of the resampled ones. Chance is the share of the image that the boxes of the words take.
"""

from __future__ import annotations

import argparse
import json
import random
from typing import Any

from results import RESULTS, keep

import clearhead as ch
from clearhead.metrics import caption_scores

BEAMS, SAMPLES = 5, 200
ZOO = ("captioner", "captioner-rnn")


def flickr8k(name: str) -> tuple[dict[str, Any], list[str], list[list[str]]]:
    """The scores of a model, its captions, and the references."""
    bundle = ch.load(name, device="cpu", dtype="float32")
    found: Any = ch.evaluate(bundle, "flickr8k", beams=BEAMS)
    scores = {score.name: round(score.value, 2) for score in found.scores}
    parameters = sum(p.numel() for p in bundle.model.parameters())
    lengths = [len(text.split()) for text in found.hypotheses]
    facts = {
        "parameters": parameters,
        "images": len(lengths),
        "words_per_caption": sum(lengths) / len(lengths),
        "different_captions": len(set(found.hypotheses)),
    }
    return scores | facts, found.hypotheses, found.references


def difference(
    first: list[str], second: list[str], references: list[list[str]]
) -> dict[str, list[float]]:
    """BLEU-4 and CIDEr-D of the second captions minus those of the first, with the ends of a 95 % interval."""
    rng, drawn, every = random.Random(0), list[tuple[float, float]](), range(len(references))
    each = [caption_scores(texts, references)["CIDEr-D"].each for texts in (first, second)]

    def of(rows: Any) -> tuple[float, float]:
        chosen = [references[i] for i in rows]
        one, two = (
            caption_scores([texts[i] for i in rows], chosen, "BLEU")["BLEU-4"].value
            for texts in (first, second)
        )
        return two - one, sum(each[1][i] - each[0][i] for i in rows) / len(rows)

    for _ in range(SAMPLES):
        drawn.append(of([rng.choice(every) for _ in every]))
    middle, cut = of(every), SAMPLES // 40
    ends = [sorted(one)[cut :: SAMPLES - 2 * cut - 1] for one in zip(*drawn, strict=True)]
    return {name: [middle[i], *ends[i]] for i, name in enumerate(("BLEU-4", "CIDEr-D"))}


def scenes(name: str) -> dict[str, float]:
    """Exact captions, and colour and object words whose map is largest in the right box, in percent."""
    found: Any = ch.evaluate(ch.load(name, device="cpu", dtype="float32"), "scenes", beams=BEAMS)
    return {score.name: score.value for score in found.scores} | {"scenes": len(found.hypotheses)}


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument(
        "models",
        nargs="*",
        help="run folders, or names of the zoo; the two of the zoo if none is given",
    )
    parser.add_argument(
        "--against", nargs=2, metavar=("SOFT", "HARD"), help="two of the models to be compared"
    )
    parser.add_argument(
        "--scenes", nargs="+", default=[], help="run folders of configs/scenes.toml"
    )
    args = parser.parse_args()
    path = RESULTS / "captioning.json"
    before = json.loads(path.read_text(encoding="utf-8")) if path.is_file() else {}
    results: dict[str, Any] = {
        part: before.get(part, {}) for part in ("flickr8k", "against", "scenes")
    }
    captions: dict[str, tuple[list[str], list[list[str]]]] = {}
    for name in args.models or (() if args.scenes else ZOO):
        results["flickr8k"][name], *captions[name] = flickr8k(name)
        print(name, results["flickr8k"][name])
        keep("captioning", **results)
    if args.against:
        (first, references), (second, _) = (captions[name] for name in args.against)
        results["against"][" and ".join(args.against)] = difference(first, second, references)
    for name in args.scenes:
        results["scenes"][name] = scenes(name)
        print(name, results["scenes"][name])
    keep("captioning", **results)


if __name__ == "__main__":
    main()
