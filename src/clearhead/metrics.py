"""How good an answer is, in numbers that others can repeat: each comes with the signature of how it was made.

bleu          corpus BLEU (Papineni et al. 2002) of plain text, by sacreBLEU (Post 2018)
token_bleu    corpus BLEU-4 of texts that are already cut into tokens
bleu_by       BLEU by one of the PROTOCOLS that published numbers follow
chrf          character F-score (Popović 2015), by sacreBLEU
"""

from __future__ import annotations

import re
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from functools import cache
from typing import Any

from .errors import InputError
from .tokens.ids import APOSTROPHES, split

TOKENIZERS = ("13a", "none", "intl", "char", "zh", "ja-mecab", "ko-mecab", "flores101", "flores200")

PROTOCOLS = {
    "plain": "text as it stands, cut by sacreBLEU (13a)",
    "moses": "normalised, cut and lowered by the rules of Moses, in Python by sacremoses",
    "words": "cut into words much as spaCy does, and lowered",
}

References = Sequence[str] | Sequence[Sequence[str]]  # one a sentence, or several


@dataclass(frozen=True, slots=True)
class Score:
    """A number from 0 to 100 and the signature that says how to repeat it."""

    name: str
    value: float
    signature: str

    def __str__(self) -> str:
        return f"{self.name} {self.value:.2f} ({self.signature})"


def bleu(hypotheses: Sequence[str], references: References, *, tokenize: str = "13a", lower: bool = False) -> Score:
    """Corpus BLEU of detokenised text. `tokenize` "none" counts what stands between spaces, as it stands."""
    from sacrebleu.metrics.bleu import BLEU

    if tokenize not in TOKENIZERS:
        raise InputError(f"tokenize={tokenize!r}: expected one of {', '.join(TOKENIZERS)}")
    texts, streams = _streams(hypotheses, references)
    return _score(BLEU(tokenize=tokenize, lowercase=lower, force=tokenize == "none"), texts, streams)


def token_bleu(
    hypotheses: Sequence[Sequence[str]], references: Sequence[Sequence[str]], *, lower: bool = False
) -> Score:
    """Corpus BLEU-4 of rows of tokens, one reference a sentence: nothing is cut or joined."""
    for rows in (hypotheses, references):
        for i, row in enumerate(rows):
            wrong = row if isinstance(row, str) else next((token for token in row if token.split() != [token]), None)
            if wrong is not None:
                raise InputError(f"sentence {i} has {wrong!r}: expected a row of tokens without white space")
    texts = ([" ".join(row) for row in rows] for rows in (hypotheses, references))
    return bleu(*texts, tokenize="none", lower=lower)


def chrf(hypotheses: Sequence[str], references: References) -> Score:
    """Corpus chrF2: the F-score, recall counted twice, of runs of one to six characters; spaces do not count."""
    from sacrebleu.metrics.chrf import CHRF

    return _score(CHRF(), *_streams(hypotheses, references))


def bleu_by(protocol: str, language: str | None) -> Callable[[Sequence[str], References], Score]:
    """BLEU by a protocol, of texts in a language ("de"): a function of hypotheses and references.

    What the protocol needs is looked for now, before any text is made. Its name joins the signature.
    """
    if protocol not in PROTOCOLS:
        raise InputError(f"protocol={protocol!r}: expected one of {', '.join(PROTOCOLS)}")
    if protocol == "plain":
        return bleu
    if language is None:
        raise InputError(f"protocol={protocol!r} has rules for each language: expected one, like 'de'")
    cut, by = (moses_words, f"sacremoses-{_moses(language)[0]}") if protocol == "moses" else (spacy_words, "words")

    def spaced(text: str) -> str:
        return " ".join(cut(text, language))

    def measure(hypotheses: Sequence[str], references: References) -> Score:
        wanted = [[spaced(one) for one in ([row] if isinstance(row, str) else row)] for row in references]
        found = bleu([spaced(text) for text in hypotheses], wanted, tokenize="none", lower=True)
        return replace(found, signature=f"{found.signature}|cut:{by}-{language}")

    return measure


def moses_words(text: str, language: str) -> list[str]:
    """The tokens of a text whose punctuation was normalised before, both by Moses (Koehn et al. 2007); no escapes."""
    _, normalise, tokenise = _moses(language)
    return " ".join(tokenise(normalise(text), escape=False)).split()


@cache
def _moses(language: str) -> tuple[str, Callable[..., str], Callable[..., list[str]]]:
    try:
        import sacremoses
    except ImportError as cause:
        raise RuntimeError("protocol='moses' needs sacremoses: pip install 'clearhead[moses]'") from cause
    normaliser, tokeniser = sacremoses.MosesPunctNormalizer(lang=language), sacremoses.MosesTokenizer(lang=language)
    return sacremoses.__version__, normaliser.normalize, tokeniser.tokenize


# What spaCy keeps whole and `split` does not: dots in a row, U.S. and the like, what is shortened with a dot; in German
# also U-Bahn, Joe's, and the Obst- of Obst- und Gemüse.
_DOTTED = r"\.{2,}|(?<!\w)(?:[^\W\d_]\.){2,}"
_WHOLE = {
    "en": rf"{_DOTTED}|(?<!\w)(?:Dr|Jr|Mr|Mrs|Ms|St)\.|\d+:\d+",
    "de": rf"{_DOTTED}|(?<!\w)(?:bzw|ca|Dr|Mr|Mrs|Nr|St|usw)\.|\w+(?:[-{APOSTROPHES}]\w+)+|\w+-(?=[\s,])",
}


def spacy_words(text: str, language: str) -> list[str]:
    """The words of a text: in English and German spaCy's, but for rare cases; in other languages those of `split`."""
    found, at = [], 0
    for whole in re.finditer(_WHOLE.get(language, "(?!)"), text):
        found += [*split(text[at : whole.start()]), whole[0]]
        at = whole.end()
    found += split(text[at:])
    if language == "en":  # don 't -> do n't
        for i in range(1, len(found)):
            word, before = found[i], found[i - 1]
            if word[0] in APOSTROPHES and word[1:] in ("t", "T") and before[-1] in "nN" and len(before) > 1:
                found[i - 1 : i + 1] = before[:-1], before[-1] + word
    return found


def _score(metric: Any, hypotheses: list[str], streams: list[list[str | None]]) -> Score:
    found = metric.corpus_score(hypotheses, streams)
    return Score(found.name, float(found.score), str(metric.get_signature()))


def _streams(hypotheses: Sequence[str], references: References) -> tuple[list[str], list[list[str | None]]]:
    """The hypotheses, and the references as sacreBLEU has them: the first of every sentence, then the second ..."""
    for what, rows in (("hypotheses", hypotheses), ("references", references)):
        if isinstance(rows, str):
            raise InputError(f"the {what} are one text, {rows[:40]!r}: expected a list of them")
    if len(hypotheses) != len(references):
        raise InputError(f"{len(hypotheses)} hypotheses and {len(references)} references: expected as many")
    if not hypotheses:
        raise InputError("there is no hypothesis: expected one or more")
    several = [[row] if isinstance(row, str) else list(row) for row in references]
    for i, row in enumerate(several):
        if not row:
            raise InputError(f"sentence {i} has no reference: expected one or more")
    most = max(map(len, several))
    streams = [[row[k] if k < len(row) else None for row in several] for k in range(most)]
    return list(hypotheses), streams
