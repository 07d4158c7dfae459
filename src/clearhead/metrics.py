"""How good an answer is, in numbers that others can repeat: each comes with the signature of how it was made.

bleu          corpus BLEU (Papineni et al. 2002) of plain text, by sacreBLEU (Post 2018)
token_bleu    corpus BLEU-4 of texts that are already cut into tokens
chrf          character F-score (Popović 2015), by sacreBLEU
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

TOKENIZERS = ("13a", "none", "intl", "char", "zh", "ja-mecab", "ko-mecab", "flores101", "flores200")

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
        raise ValueError(f"tokenize={tokenize!r}: expected one of {', '.join(TOKENIZERS)}")
    texts, streams = _streams(hypotheses, references)
    return _score(BLEU(tokenize=tokenize, lowercase=lower, force=tokenize == "none"), texts, streams)


def token_bleu(hypotheses: Sequence[Sequence[str]], references: Sequence[Sequence[str]]) -> Score:
    """Corpus BLEU-4 of rows of tokens, one reference a sentence: nothing is cut, joined or lowered."""
    for rows in (hypotheses, references):
        for i, row in enumerate(rows):
            wrong = row if isinstance(row, str) else next((token for token in row if token.split() != [token]), None)
            if wrong is not None:
                raise ValueError(f"sentence {i} has {wrong!r}: expected a row of tokens without white space")
    return bleu([" ".join(row) for row in hypotheses], [" ".join(row) for row in references], tokenize="none")


def chrf(hypotheses: Sequence[str], references: References) -> Score:
    """Corpus chrF2: the F-score, recall counted twice, of runs of one to six characters; spaces do not count."""
    from sacrebleu.metrics.chrf import CHRF

    return _score(CHRF(), *_streams(hypotheses, references))


def _score(metric: Any, hypotheses: list[str], streams: list[list[str | None]]) -> Score:
    found = metric.corpus_score(hypotheses, streams)
    return Score(found.name, float(found.score), str(metric.get_signature()))


def _streams(hypotheses: Sequence[str], references: References) -> tuple[list[str], list[list[str | None]]]:
    """The hypotheses, and the references as sacreBLEU has them: the first of every sentence, then the second ..."""
    for what, rows in (("hypotheses", hypotheses), ("references", references)):
        if isinstance(rows, str):
            raise ValueError(f"the {what} are one text, {rows[:40]!r}: expected a list of them")
    if len(hypotheses) != len(references):
        raise ValueError(f"{len(hypotheses)} hypotheses and {len(references)} references: expected as many")
    if not hypotheses:
        raise ValueError("there is no hypothesis: expected one or more")
    several = [[row] if isinstance(row, str) else list(row) for row in references]
    for i, row in enumerate(several):
        if not row:
            raise ValueError(f"sentence {i} has no reference: expected one or more")
    most = max(map(len, several))
    streams = [[row[k] if k < len(row) else None for row in several] for k in range(most)]
    return list(hypotheses), streams
