"""BLEU-1 to BLEU-4, ROUGE-L and CIDEr-D of captions, by the definitions of coco-caption (Chen et al. 2015).

Each function takes a Corpus and returns, for each score, the value of the corpus and that of every caption.
"""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property

ORDERS = 4  # n-grams of one to four words
BETA = 1.2  # weight of recall in ROUGE-L
SIGMA = 6.0  # of the penalty for another length in CIDEr-D
TINY, SMALL = 1e-15, 1e-9  # in BLEU, added to the matches and to the n-grams

# N-grams of a text with their counts, one counter for each n
Grams = list[Counter[tuple[str, ...]]]
# by score: the value of the corpus, the value of each caption
Values = dict[str, tuple[float, list[float]]]


@dataclass(frozen=True)
class Corpus:
    """The words of captions and of the references of each."""

    captions: Sequence[list[str]]
    references: Sequence[Sequence[list[str]]]

    @cached_property
    def caption_grams(self) -> list[Grams]:
        return [_grams(words) for words in self.captions]

    @cached_property
    def reference_grams(self) -> list[list[Grams]]:
        return [[_grams(words) for words in several] for several in self.references]


def _grams(words: list[str]) -> Grams:
    return [
        Counter(zip(*(words[i:] for i in range(n)), strict=False)) for n in range(1, ORDERS + 1)
    ]


def bleu(corpus: Corpus) -> Values:
    """BLEU-1 to BLEU-4 (Papineni et al. 2002) with the length of the closest reference.

    An n-gram of a caption matches at most as often as it occurs in the reference that has most of it. The sums over the
    corpus are divided; a caption alone is measured by the same formula, whose constants keep it from dividing by 0.
    """
    each = []
    total, total_lengths = [(0, 0)] * ORDERS, (0, 0)
    for words, grams, references, reference_grams in zip(
        corpus.captions,
        corpus.caption_grams,
        corpus.references,
        corpus.reference_grams,
        strict=True,
    ):
        counts = []
        for n, own in enumerate(grams):
            others = [one[n] for one in reference_grams]
            right = sum(
                min(count, max(other[gram] for other in others)) for gram, count in own.items()
            )
            counts.append((right, max(0, len(words) - n)))
        closest = min((abs(len(one) - len(words)), len(one)) for one in references)[1]
        each.append(_bleu(counts, (len(words), closest)))
        total = [(a + c, b + d) for (a, b), (c, d) in zip(total, counts, strict=True)]
        total_lengths = total_lengths[0] + len(words), total_lengths[1] + closest
    values = _bleu(total, total_lengths)
    return {f"BLEU-{n + 1}": (values[n], [row[n] for row in each]) for n in range(ORDERS)}


def _bleu(counts: Iterable[tuple[int, int]], lengths: tuple[int, int]) -> list[float]:
    product, values = 1.0, []
    ratio = (lengths[0] + TINY) / (lengths[1] + SMALL)
    penalty = math.exp(1 - 1 / ratio) if ratio < 1 else 1.0
    for n, (right, all_grams) in enumerate(counts, start=1):
        product *= (right + TINY) / (all_grams + SMALL)
        values.append(product ** (1 / n) * penalty)
    return values


def rouge_l(corpus: Corpus) -> Values:
    """ROUGE-L (Lin 2004): the F-score of the longest common subsequence, with recall weighted by 1.2.

    The best precision and the best recall may come from two references; the value of a corpus is the mean.
    """
    each = []
    for words, references in zip(corpus.captions, corpus.references, strict=True):
        common = [_common(words, one) for one in references]
        precision = max(common) / max(1, len(words))
        recall = max(
            length / max(1, len(one)) for length, one in zip(common, references, strict=True)
        )
        each.append(
            (1 + BETA**2) * precision * recall / (recall + BETA**2 * precision)
            if precision
            else 0.0
        )
    return {"ROUGE-L": (_mean(each), each)}


def _common(one: list[str], other: list[str]) -> int:
    """The length of the longest common subsequence, with one bit for each word of the first text (Hyyrö 2004)."""
    places: dict[str, int] = {}
    for i, word in enumerate(one):
        places[word] = places.get(word, 0) | 1 << i
    every = rest = (1 << len(one)) - 1
    for word in other:
        both = rest & places.get(word, 0)
        rest = (rest + both | rest - both) & every
    return len(one) - rest.bit_count()


def cider_d(corpus: Corpus) -> Values:
    """CIDEr-D (Vedantam et al. 2015): the similarity of n-grams with tf-idf weights, times 10.

    The document frequency of an n-gram is the number of images that have it in a reference. The value of a caption is
    the mean over n and over the references, that of a corpus is the mean; a corpus of one image has no idf, and 0.
    """
    seen = Counter(
        gram
        for several in corpus.reference_grams
        for gram in {g for row in several for n in row for g in n}
    )
    images = len(corpus.captions)
    rarity = {gram: math.log(images / count) for gram, count in seen.items()}
    unseen = math.log(images)

    def weighted(grams: Grams) -> list[tuple[dict[tuple[str, ...], float], float]]:
        rows = [
            {gram: count * rarity.get(gram, unseen) for gram, count in row.items()} for row in grams
        ]
        return [(row, math.sqrt(sum(weight * weight for weight in row.values()))) for row in rows]

    each = []
    for words, grams, references, reference_grams in zip(
        corpus.captions,
        corpus.caption_grams,
        corpus.references,
        corpus.reference_grams,
        strict=True,
    ):
        own, similarity = weighted(grams), 0.0
        for one, its_grams in zip(references, reference_grams, strict=True):
            apart = max(1, len(words)) - max(1, len(one))  # in bigrams
            cosines = sum(
                _clipped_cosine(*a, *b) for a, b in zip(own, weighted(its_grams), strict=True)
            )
            similarity += cosines * math.exp(-(apart**2) / (2 * SIGMA**2))
        each.append(10 * similarity / ORDERS / len(references))
    return {"CIDEr-D": (_mean(each), each)}


def _clipped_cosine(
    one: Mapping[tuple[str, ...], float],
    norm: float,
    other: Mapping[tuple[str, ...], float],
    other_norm: float,
) -> float:
    """The cosine, in which an n-gram of the caption counts at most as much as in the reference."""
    if not norm or not other_norm:
        return 0.0
    both = ((weight, other[gram]) for gram, weight in one.items() if gram in other)
    return sum(min(a, b) * b for a, b in both) / (norm * other_norm)


def _mean(values: list[float]) -> float:
    return sum(values) / len(values)
