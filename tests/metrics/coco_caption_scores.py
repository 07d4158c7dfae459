"""Writes coco_caption_scores.json: scores and tokens by pycocoevalcap, whose tokeniser is a Java program.

    pip install pycocoevalcap
    python tests/metrics/coco_caption_scores.py FOLDER

FOLDER holds Flickr8k: Flickr8k.token.txt.gz and Flickr_8k.testImages.txt. The references are captions 1 to 4 of 300
test images. The candidates are caption 0 ("people"), and the same with words left out, repeated, inflected, in another
order, from another image, or without spaces before punctuation ("changed").
"""

import gzip
import hashlib
import json
import random
import re
import sys
from pathlib import Path

from pycocoevalcap.bleu.bleu import Bleu
from pycocoevalcap.cider.cider import Cider
from pycocoevalcap.rouge.rouge import Rouge
from pycocoevalcap.tokenizer.ptbtokenizer import PTBTokenizer

IMAGES = 300
WORDS = ["a", "the", "dog", "dogs", "run", "running", "in", "on", "man", "men"]
MARKS = [".", ",", ";", ":", "?", "!", "-", '"', "'"]
# Texts whose tokens are unlike the words between their spaces.
TEXTS = """
Don't you see? You can't, won't and shouldn't; I'm sure he's here, they'll come, we've seen it and I'd go.
'Tis cold, 'twas colder; I cannot stay, I'm gonna leave, wanna come? Gimme that, lemme go, I gotta run.
The dogs' toys and the dog's toy. It’s a “curly” quote, isn’t it? She said: "A 'single' one".
Mr. Smith and Mrs. Jones walk on St. James Ave. in the U.S. at 5 p.m. with Dr. Who vs. Sgt. Pepper Jr. and co.
A well-known T-shirt -- no dash - one dash – two — three. And/or 24/7, 1/2 of 3.5-mile runs, 50-meter pool.
It costs $5, £5 or €5 (5% off) [or less] {maybe}; 1,000 people at 10:30 on 12/25/2010 #1 & #22.
Hello...world … wait. . . what?! Wow!! No! A woman in a dress.A man in a hat!And a dog.
Rock 'n' roll at 5 o'clock, y'all; d'Artagnan and O'Neil saw a jack-o'-lantern in the '90s and the 1990's.
AT&T, R&B, Q&A &amp; M&M's; a&b, x=y, a+b, 2x4, 5x7, 5'10" and No. 5, no.5, figs and fig. 3.
Email foo@bar.com or see http://www.foo.com/bar?x=1 and www.foo.com; @home #tag.
A café, naïve façade, Über-cool; an 18-wheeler, semi-; truck, mother-in-law's bird's-eye-view.
J. Smith and J.R.R. Tolkien, Ph.D., live in L.A., D.C. and Mass. near Mt. Everest, Inc.
""".strip().splitlines()


def tokens(rows):
    """The tokens of each row of texts, separated by spaces."""
    return PTBTokenizer().tokenize({i: [{"caption": text} for text in row] for i, row in enumerate(rows)})


def changed(captions, draw):
    """Captions changed in several ways, the first ones empty or almost."""
    ways = [
        lambda words: draw.sample(words, len(words)),
        lambda words: [word for word in words if draw.random() > 0.3],
        lambda words: words + words[: draw.randrange(len(words))],
        lambda words: [word + draw.choice(["", "s", "ing", "ed"]) for word in words],
        lambda words: draw.choice(captions).split(),
        lambda words: re.sub(r" ([.,;:!?']|n't)", r"\1", " ".join(words)).split(),
        lambda words: [draw.choice(WORDS) for _ in range(draw.randrange(25))],
    ]
    texts = [" ".join(ways[i % len(ways)](text.split())) for i, text in enumerate(captions)]
    return ["", ".", "dogs", "A dog", *texts[4:]]


def measured(candidates, references):
    gts, res = tokens(references), tokens([[text] for text in candidates])
    result = {}
    for name, scorer in (("ROUGE-L", Rouge()), ("CIDEr-D", Cider())):
        value, each = scorer.compute_score(gts, res)
        result[name] = [float(value), [round(float(one), 9) for one in each]]
    values, each = Bleu(4).compute_score(gts, res, verbose=0)
    for n in range(4):
        result[f"BLEU-{n + 1}"] = [values[n], [round(one, 9) for one in each[n]]]
    return {"candidates": candidates, "scores": result}


def main(folder):
    captions = {}
    with gzip.open(folder / "Flickr8k.token.txt.gz", "rt", encoding="utf-8", newline="\n") as file:
        for line in file:
            name, text = line.rstrip("\n").split("\t")
            captions.setdefault(name.split("#")[0], []).append(text)
    draw = random.Random(0)
    images = (folder / "Flickr_8k.testImages.txt").read_text().split()
    chosen = [captions[name] for name in draw.sample(images, IMAGES)]
    people, references = [row[0] for row in chosen], [row[1:] for row in chosen]
    everything = tokens(captions.values())
    lines = [line for i in range(len(captions)) for line in everything[i]]
    unlike = [
        [text, line]
        for text, line in zip((text for row in captions.values() for text in row), lines, strict=True)
        if [word for word in text.lower().split() if word not in MARKS] != line.split()
    ]
    result = {
        "references": references,
        "people": measured(people, references),
        "changed": measured(changed(people, draw), references),
        "tokens": [
            *unlike,
            *([text, line[0]] for text, line in zip(TEXTS, tokens([[t] for t in TEXTS]).values(), strict=True)),
        ],
        "sha256 of the tokens of all captions": hashlib.sha256("\n".join(lines).encode()).hexdigest(),
    }
    path = Path(__file__).with_suffix(".json")
    lines = [f"{json.dumps(key)}: {json.dumps(value, ensure_ascii=False)}" for key, value in result.items()]
    path.write_text("{\n" + ",\n".join(lines) + "\n}\n", encoding="utf-8")


if __name__ == "__main__":
    main(Path(sys.argv[1]))
