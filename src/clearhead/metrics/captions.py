"""Scores of captions as papers report them: BLEU-1 to BLEU-4, METEOR, ROUGE-L and CIDEr-D."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field

from .. import __version__
from ..errors import InputError, nearest
from .meteor import meteor
from .ngrams import Corpus, Values, bleu, cider_d, rouge_l
from .ptb import caption_words
from .texts import References, Score, pairs

# Each word of CAPTION_METRICS: what computes it, and the settings in the signatures of its scores.
_METRICS: dict[str, tuple[Callable[[Corpus], Values], str]] = {
    "BLEU": (bleu, "eff:closest"),
    "METEOR": (
        lambda corpus: {"METEOR": meteor(corpus.captions, corpus.references)},
        "match:exact,stem",
    ),
    "ROUGE-L": (rouge_l, "beta:1.2"),
    "CIDEr-D": (cider_d, "df:references|sigma:6"),
}

# What caption_scores computes: BLEU (BLEU-1 to BLEU-4), METEOR, ROUGE-L, CIDEr-D.
CAPTION_METRICS = tuple(_METRICS)


@dataclass(frozen=True, slots=True)
class CaptionScore(Score):
    """A score of captions as papers print it, 100 times the definition, with the score of each caption.

    CIDEr-D goes up to 1000, the others up to 100. The scores of single captions are on the same scale; their mean is
    the score of the corpus for ROUGE-L and CIDEr-D, not for BLEU and METEOR.

    Examples:
        >>> print(CaptionScore("BLEU-4", 21.3, "nrefs:5", each=(12.0, 30.6)))
        BLEU-4 21.30 (nrefs:5)
    """

    each: tuple[float, ...] = field(repr=False)  # of every caption


def caption_scores(
    captions: Sequence[str], references: References, metrics: str | Sequence[str] = CAPTION_METRICS
) -> dict[str, CaptionScore]:
    """Compute the scores of captions by the definitions of coco-caption, without Java.

    The texts are split into words by `caption_words`. METEOR matches words that are equal or have the same stem; the
    METEOR of other programs also matches synonyms and paraphrases, and is higher. CIDEr-D weights n-grams by their
    frequency over the images, so that it needs many of them: of one image it is 0.

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
        >>> for name in ("BLEU-2", "METEOR", "ROUGE-L", "CIDEr-D"):
        ...     print(f"{name:8}{scores[name].value:6.1f}")
        BLEU-2    42.8
        METEOR    34.8
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
    counts = {len(row) for row in rows}
    nrefs = counts.pop() if len(counts) == 1 else "var"
    scores = {}
    for word in chosen:
        compute, settings = _METRICS[word]
        signature = (
            f"nrefs:{nrefs}|case:lc|tok:ptb|punct:no|{settings}|version:clearhead-{__version__}"
        )
        for name, (value, each) in compute(corpus).items():
            scores[name] = CaptionScore(
                name, 100 * value, signature, tuple(100 * one for one in each)
            )
    return scores
