"""Scores of translations, each with the signature that others need to reproduce it.

bleu          corpus BLEU (Papineni et al. 2002) of plain text, by sacreBLEU (Post 2018)
token_bleu    corpus BLEU-4 of texts that are already split into tokens
bleu_by       BLEU by one of the PROTOCOLS that published scores follow
chrf          character F-score (Popović 2015), by sacreBLEU
"""

from __future__ import annotations

import re
from collections.abc import Callable, Sequence
from dataclasses import replace
from functools import cache
from typing import Any

from ..errors import InputError, MissingPackageError, nearest
from ..tokens.ids import APOSTROPHES, split
from .texts import References, Score, pairs

# How sacreBLEU splits a text into tokens.
TOKENIZERS = ("13a", "none", "intl", "char", "zh", "ja-mecab", "ko-mecab", "flores101", "flores200")

# How a text is prepared before BLEU is computed.
PROTOCOLS = {
    "plain": "unchanged text, tokenised by sacreBLEU (13a)",
    "moses": "normalised, tokenised and lowercased by the rules of Moses, in Python by sacremoses",
    "words": "split into words almost as spaCy does, and lowercased",
}


def bleu(
    hypotheses: Sequence[str], references: References, *, tokenize: str = "13a", lower: bool = False
) -> Score:
    """Corpus BLEU of detokenised text.

    Args:
        hypotheses: The translations, one text per sentence.
        references: One reference per sentence, or several.
        tokenize: How sacreBLEU splits a text into tokens, one of TOKENIZERS; "none" splits at spaces only.
        lower: Lowercase both sides.

    Examples:
        >>> score = bleu(["A dog runs over the grass."], ["A dog runs over the lawn."])
        >>> f"{score.name} {score.value:.1f}"
        'BLEU 64.3'
    """
    from sacrebleu.metrics.bleu import BLEU

    if tokenize not in TOKENIZERS:
        close = nearest(tokenize, TOKENIZERS)
        raise InputError(f"tokenize={tokenize!r}: expected one of {', '.join(TOKENIZERS)}{close}")
    texts, streams = _streams(hypotheses, references)
    return _score(
        BLEU(tokenize=tokenize, lowercase=lower, force=tokenize == "none"), texts, streams
    )


def token_bleu(
    hypotheses: Sequence[Sequence[str]], references: Sequence[Sequence[str]], *, lower: bool = False
) -> Score:
    """Corpus BLEU-4 of tokens as they are, with one reference per sentence.

    Args:
        hypotheses: The tokens of each translation.
        references: The tokens of each reference.
        lower: Lowercase both sides.

    Examples:
        >>> round(token_bleu([["a", "dog", "runs", "now"]], [["a", "dog", "runs", "now"]]).value, 2)
        100.0
    """
    # a token with a space inside would be split again when sacreBLEU reads the joined text
    for rows in (hypotheses, references):
        for i, row in enumerate(rows):
            if isinstance(row, str):
                # a plain text: its characters would count as tokens
                wrong: str | None = row
            else:
                wrong = next((token for token in row if token.split() != [token]), None)
            if wrong is not None:
                raise InputError(
                    f"sentence {i} has {wrong!r}: expected a row of tokens without white space"
                )
    # joined by single spaces and split at them again, the tokens stay exactly as they are
    texts = ([" ".join(row) for row in rows] for rows in (hypotheses, references))
    return bleu(*texts, tokenize="none", lower=lower)


def chrf(hypotheses: Sequence[str], references: References) -> Score:
    """Corpus chrF2: the F-score of character n-grams of 1 to 6, with recall weighted twice; spaces do not count.

    Args:
        hypotheses: The translations, one text per sentence.
        references: One reference per sentence, or several.

    Examples:
        >>> round(chrf(["A dog runs."], ["A dog ran."]).value, 1)
        41.9
    """
    from sacrebleu.metrics.chrf import CHRF

    return _score(CHRF(), *_streams(hypotheses, references))


def bleu_by(protocol: str, language: str | None) -> Callable[[Sequence[str], References], Score]:
    """Return the function that computes BLEU by a protocol.

    The packages that the protocol needs are checked now, before any text is translated. The protocol is part of the
    score's signature.

    Args:
        protocol: One of PROTOCOLS.
        language: The language of the texts, such as "de"; None only for "plain".

    Returns:
        A function of hypotheses and references.

    Raises:
        MissingPackageError: The protocol is "moses", and sacremoses is not installed.

    Examples:
        >>> by_words = bleu_by("words", "en")
        >>> by_words(["A dog doesn't run."], ["a dog doesn't run ."]).signature.split("|")[-1]
        'cut:words-en'
    """
    if protocol not in PROTOCOLS:
        close = nearest(protocol, PROTOCOLS)
        raise InputError(f"protocol={protocol!r}: expected one of {', '.join(PROTOCOLS)}{close}")
    if protocol == "plain":
        return bleu
    if language is None:
        raise InputError(
            f"protocol={protocol!r} has rules for each language: expected a language, such as 'de'"
        )
    split_words, by = spacy_words, "words"
    if protocol == "moses":
        # version and language go into the signature: the rules of Moses change with both
        split_words, by = moses_words, f"sacremoses-{_moses(language)[0]}"

    def spaced(text: str) -> str:
        return " ".join(split_words(text, language))

    def measure(hypotheses: Sequence[str], references: References) -> Score:
        rows = []
        for row in references:
            # several references per sentence, or one; `bleu` reads both as rows
            several = [row] if isinstance(row, str) else row
            rows.append([spaced(text) for text in several])
        # the texts are split already: sacreBLEU only splits at spaces
        score = bleu([spaced(text) for text in hypotheses], rows, tokenize="none", lower=True)
        # the signature of sacreBLEU says tok:none, which hides how the words were cut before
        return replace(score, signature=f"{score.signature}|cut:{by}-{language}")

    return measure


def moses_words(text: str, language: str) -> list[str]:
    """Normalise the punctuation of a text and split it into tokens, both as Moses does (Koehn et al. 2007).

    Args:
        text: Any text; its special characters are not escaped.
        language: The language of the text, such as "de".

    Examples:
        >>> moses_words("Mr. Dow doesn't stop.", "en")
        ['Mr.', 'Dow', 'doesn', "'t", 'stop', '.']
    """
    _, normalise, tokenise = _moses(language)
    return " ".join(tokenise(normalise(text), escape=False)).split()


@cache
def _moses(language: str) -> tuple[str, Callable[..., str], Callable[..., list[str]]]:
    try:
        import sacremoses
    except ImportError as cause:
        raise MissingPackageError(
            "protocol='moses' needs sacremoses: pip install 'clearhead[moses]'"
        ) from cause
    normaliser = sacremoses.MosesPunctNormalizer(lang=language)
    tokeniser = sacremoses.MosesTokenizer(lang=language)
    return sacremoses.__version__, normaliser.normalize, tokeniser.tokenize


# What spaCy keeps whole and `split` does not: several dots, abbreviations such as U.S. and Mr.; in German also U-Bahn,
# Joe's, and the Obst- of Obst- und Gemüse.
_DOTTED = r"\.{2,}|(?<!\w)(?:[^\W\d_]\.){2,}"
_WHOLE = {
    "en": rf"{_DOTTED}|(?<!\w)(?:Dr|Jr|Mr|Mrs|Ms|St)\.|\d+:\d+",
    "de": rf"{_DOTTED}|(?<!\w)(?:bzw|ca|Dr|Mr|Mrs|Nr|St|usw)\.|\w+(?:[-{APOSTROPHES}]\w+)+|\w+-(?=[\s,])",
}


def spacy_words(text: str, language: str) -> list[str]:
    """Split a text into words as spaCy does, except in rare cases.

    Args:
        text: Any text.
        language: "en" or "de"; in any other language the words are those of `clearhead.tokens.split`.

    Examples:
        >>> spacy_words("Mr. Dow doesn't stop.", "en")
        ['Mr.', 'Dow', 'does', "n't", 'stop', '.']
    """
    # Between the words that stay whole, the rules are those of the tokenizer.
    words, at = [], 0
    # "(?!)" never matches: in other languages no word is kept whole
    for whole in re.finditer(_WHOLE.get(language, "(?!)"), text):
        words += [*split(text[at : whole.start()]), whole[0]]
        at = whole.end()
    words += split(text[at:])
    if language == "en":  # don 't -> do n't
        # `split` cuts before the apostrophe, spaCy before the n: one letter moves to the next word
        for i in range(1, len(words)):
            word, before = words[i], words[i - 1]
            is_t = word[0] in APOSTROPHES and word[1:] in ("t", "T")
            # "n" alone is left as it is, for it would leave an empty word behind
            if is_t and before[-1] in "nN" and len(before) > 1:
                # two words are replaced by two, so that the places that follow stay valid
                words[i - 1 : i + 1] = before[:-1], before[-1] + word
    return words


def _score(metric: Any, hypotheses: list[str], streams: list[list[str | None]]) -> Score:
    result = metric.corpus_score(hypotheses, streams)
    return Score(result.name, float(result.score), str(metric.get_signature()))


def _streams(
    hypotheses: Sequence[str], references: References
) -> tuple[list[str], list[list[str | None]]]:
    """The hypotheses, and the references as sacreBLEU expects them: the first of every sentence, then the second ..."""
    texts, several = pairs(hypotheses, references, kind="hypothesis")
    streams: list[list[str | None]] = []
    # references are transposed: sacreBLEU takes one stream per reference, not per sentence
    for k in range(max(map(len, several))):
        # None: this sentence has fewer references
        streams.append([row[k] if k < len(row) else None for row in several])
    return texts, streams
