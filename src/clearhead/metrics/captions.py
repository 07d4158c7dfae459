"""Scores of captions as papers report them: BLEU-1 to BLEU-4, ROUGE-L and CIDEr-D.

The formulas, constants and order of sums are those of coco-caption (Chen et al. 2015), so that scores equal its own.
"""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, field
from functools import cached_property

from .. import __version__
from ..errors import InputError, nearest
from .caption_tokens import caption_words
from .texts import References, Score, pairs

ORDERS = 4  # n-grams of one to four words
BETA = 1.2  # weight of recall in ROUGE-L
SIGMA = 6.0  # width of the penalty for another length in CIDEr-D
TINY, SMALL = 1e-15, 1e-9  # in BLEU, added to the matches and to the n-grams

Gram = tuple[str, ...]
Grams = list[Counter[Gram]]  # the n-grams of a text with their counts, one counter per n
# n-grams with their tf-idf weights, and the norm of these
Weighted = tuple[dict[Gram, float], float]
# by score: its value for the corpus, and for each caption
Values = dict[str, tuple[float, list[float]]]


@dataclass(frozen=True, slots=True)
class CaptionScore(Score):
    """A score of captions as papers print it, 100 times the definition, with the score of each caption.

    CIDEr-D goes up to 1000, the others up to 100. The scores of single captions are on the same scale; their mean is
    the score of the corpus for ROUGE-L and CIDEr-D, not for BLEU.

    Examples:
        >>> print(CaptionScore("BLEU-4", 21.3, "nrefs:5", each=(12.0, 30.6)))
        BLEU-4 21.30 (nrefs:5)
    """

    each: tuple[float, ...] = field(repr=False)  # of every caption


@dataclass(frozen=True)
class Corpus:
    """The words of captions and of their references."""

    captions: Sequence[list[str]]
    references: Sequence[Sequence[list[str]]]

    @cached_property
    def caption_grams(self) -> list[Grams]:
        return [_grams(words) for words in self.captions]

    @cached_property
    def reference_grams(self) -> list[list[Grams]]:
        return [[_grams(words) for words in several] for several in self.references]


def _grams(words: list[str]) -> Grams:
    counters = []
    for n in range(1, ORDERS + 1):
        # n copies, each shifted by one more word: zipped, they are the n-grams
        shifted = (words[i:] for i in range(n))  # zip stops where the shortest ends
        counters.append(Counter(zip(*shifted, strict=False)))
    return counters


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
        # `n` counts from 0 here: grams[0] are single words, hence len(words) - n n-grams
        for n, own in enumerate(grams):
            others = [reference[n] for reference in reference_grams]
            matches = 0
            for gram, count in own.items():
                # clipped: "the the the" matches a reference with one "the" only once
                matches += min(count, max(other[gram] for other in others))
            counts.append((matches, max(0, len(words) - n)))
        # r of the brevity penalty; of two lengths that are equally close, the shorter
        closest = min((abs(len(one) - len(words)), len(one)) for one in references)[1]
        # a score per caption, from its own counts
        each.append(_bleu(counts, (len(words), closest)))
        # the corpus sums matches and n-grams, not scores
        total = [(a + c, b + d) for (a, b), (c, d) in zip(total, counts, strict=True)]
        total_lengths = total_lengths[0] + len(words), total_lengths[1] + closest
    values = _bleu(total, total_lengths)
    return {f"BLEU-{n + 1}": (values[n], [row[n] for row in each]) for n in range(ORDERS)}


def _bleu(counts: Iterable[tuple[int, int]], lengths: tuple[int, int]) -> list[float]:
    """BLEU-1 to BLEU-4 from (matches, n-grams) per n, and the lengths (c, r) of caption and reference."""
    product, values = 1.0, []
    # with these constants an empty caption or reference does not divide by 0
    ratio = (lengths[0] + TINY) / (lengths[1] + SMALL)
    penalty = 1.0
    if ratio < 1:
        # exp(1 - r / c), section 2.3 of the paper
        penalty = math.exp(1 - 1 / ratio)
    for n, (matches, all_grams) in enumerate(counts, start=1):
        # the geometric mean of the first n precisions, brought up to date with each n
        product *= (matches + TINY) / (all_grams + SMALL)
        values.append(product ** (1 / n) * penalty)
    return values


def rouge_l(corpus: Corpus) -> Values:
    """ROUGE-L (Lin 2004): the F-score of the longest common subsequence, with recall weighted by 1.2.

    The best precision and the best recall may come from two references; the value of a corpus is the mean.
    """
    each = []
    for words, references in zip(corpus.captions, corpus.references, strict=True):
        # one length per reference
        common = [longest_common(words, reference) for reference in references]
        precision = max(common) / max(1, len(words))
        recalls = (
            length / max(1, len(reference))
            for length, reference in zip(common, references, strict=True)
        )
        recall = max(recalls)
        score = 0.0
        if precision:
            # F = (1 + b^2) R P / (R + b^2 P), which weights recall b times as much as precision
            score = (1 + BETA**2) * precision * recall / (recall + BETA**2 * precision)
        each.append(score)
    return {"ROUGE-L": (_mean(each), each)}


def longest_common(one: list[str], other: list[str]) -> int:
    """The length of the longest common subsequence, with one bit for each word of the first text (Hyyrö 2004)."""
    places: dict[str, int] = {}  # by word: a bit for each place in the first text
    for i, word in enumerate(one):
        places[word] = places.get(word, 0) | 1 << i
    # a bit of `rest` is 0 where the table of dynamic programming rises by 1 along the first text
    every = rest = (1 << len(one)) - 1
    for word in other:
        # Hyyrö's recurrence: V = (V + (V & M)) | (V & ~M), with M the places of this word
        both = rest & places.get(word, 0)
        rest = (rest + both | rest - both) & every
    return len(one) - rest.bit_count()


def cider_d(corpus: Corpus) -> Values:
    """CIDEr-D (Vedantam et al. 2015): the similarity of n-grams with tf-idf weights, times 10.

    The document frequency of an n-gram is the number of images that have it in a reference. The value of a caption is
    the mean over n and over the references, the value of a corpus the mean over captions; one image alone has no idf,
    and the value 0.
    """
    frequency: Counter[Gram] = Counter()
    for several in corpus.reference_grams:
        # a set: an image counts once, however often its references repeat an n-gram
        frequency.update({gram for grams in several for counts in grams for gram in counts})
    images = len(corpus.captions)
    idf = {gram: math.log(images / count) for gram, count in frequency.items()}
    unseen = math.log(images)  # as if it were in one image

    def weighted(grams: Grams) -> list[Weighted]:
        rows = []
        for counts in grams:
            row = {gram: count * idf.get(gram, unseen) for gram, count in counts.items()}
            norm = math.sqrt(sum(weight * weight for weight in row.values()))
            rows.append((row, norm))
        return rows

    each = []
    for words, grams, references, reference_grams in zip(
        corpus.captions,
        corpus.caption_grams,
        corpus.references,
        corpus.reference_grams,
        strict=True,
    ):
        own, similarity = weighted(grams), 0.0
        # the references are averaged, not maximised as in BLEU and ROUGE
        for reference, its_grams in zip(references, reference_grams, strict=True):
            # l_c - l_r in bigrams, as coco-caption counts
            apart = max(1, len(words)) - max(1, len(reference))
            cosines = 0.0
            # one cosine for each n from 1 to 4
            for mine, theirs in zip(own, weighted(its_grams), strict=True):
                cosines += _clipped_cosine(mine, theirs)
            # Gaussian penalty for a caption of another length, which CIDEr lacks and CIDEr-D adds
            similarity += cosines * math.exp(-(apart**2) / (2 * SIGMA**2))
        each.append(10 * similarity / ORDERS / len(references))
    return {"CIDEr-D": (_mean(each), each)}


def _clipped_cosine(caption: Weighted, reference: Weighted) -> float:
    """The cosine, in which an n-gram of the caption counts at most as much as in the reference."""
    (own, norm), (other, other_norm) = caption, reference
    # no n-gram of this length, or one that every image has and whose idf is 0
    if not norm or not other_norm:
        return 0.0
    both = ((weight, other[gram]) for gram, weight in own.items() if gram in other)
    return sum(min(a, b) * b for a, b in both) / (norm * other_norm)


def _mean(values: list[float]) -> float:
    return sum(values) / len(values)


# Each word of CAPTION_METRICS: what computes it, and the settings in the signatures of its scores.
_METRICS: dict[str, tuple[Callable[[Corpus], Values], str]] = {
    "BLEU": (bleu, "eff:closest"),
    "ROUGE-L": (rouge_l, "beta:1.2"),
    "CIDEr-D": (cider_d, "df:references|sigma:6"),
}

# What caption_scores computes: BLEU (BLEU-1 to BLEU-4), ROUGE-L, CIDEr-D.
CAPTION_METRICS = tuple(_METRICS)


def caption_scores(
    captions: Sequence[str], references: References, metrics: str | Sequence[str] = CAPTION_METRICS
) -> dict[str, CaptionScore]:
    """Compute the scores of captions by the definitions of coco-caption, without Java.

    The texts are split into words by `caption_words`. CIDEr-D weights n-grams by their frequency over the images, so
    that it needs many of them: of one image it is 0.

    Args:
        captions: One caption for each image.
        references: The references of each image, usually five texts.
        metrics: One or several of CAPTION_METRICS.

    Returns:
        The scores by name, such as "BLEU-4".

    Examples:
        >>> captions = ["A dog runs over the grass.", "Two men sit."]
        >>> references = [["A dog runs on grass.", "A brown dog is running."], ["Two men sitting on a bench."]]
        >>> scores = caption_scores(captions, references)
        >>> for name in ("BLEU-2", "ROUGE-L", "CIDEr-D"):
        ...     print(f"{name:8}{scores[name].value:6.1f}")
        BLEU-2    42.8
        ROUGE-L   57.9
        CIDEr-D  205.5
    """
    chosen = [metrics] if isinstance(metrics, str) else metrics
    for word in chosen:
        if word not in _METRICS:
            close = nearest(word, _METRICS)
            raise InputError(f"metrics has {word!r}: expected one of {', '.join(_METRICS)}{close}")
    texts, rows = pairs(captions, references, kind="caption")
    corpus = Corpus(
        [caption_words(text) for text in texts],
        [[caption_words(text) for text in row] for row in rows],
    )
    # "var" where images have different numbers of references
    counts = {len(row) for row in rows}
    nrefs = counts.pop() if len(counts) == 1 else "var"
    scores = {}
    for word in chosen:
        compute, settings = _METRICS[word]
        signature = (
            f"nrefs:{nrefs}|case:lc|tok:ptb|punct:no|{settings}|version:clearhead-{__version__}"
        )
        # BLEU gives four scores, the others one each
        for name, (value, each) in compute(corpus).items():
            percent = tuple(100 * one for one in each)
            scores[name] = CaptionScore(name, 100 * value, signature, percent)
    return scores
