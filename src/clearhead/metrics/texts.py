"""A score with its signature, and texts with their references."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from ..errors import InputError

References = Sequence[str] | Sequence[Sequence[str]]  # one reference per text, or several


@dataclass(frozen=True, slots=True)
class Score:
    """A score from 0 to 100, with the signature that says how to reproduce it.

    Examples:
        >>> print(Score("BLEU", 27.3, "nrefs:1|case:mixed|tok:13a"))
        BLEU 27.30 (nrefs:1|case:mixed|tok:13a)
    """

    name: str  # of the metric, such as BLEU
    value: float  # 0 to 100
    signature: str  # settings, and the version of the program

    def __str__(self) -> str:
        return f"{self.name} {self.value:.2f} ({self.signature})"


PLURALS = {"hypothesis": "hypotheses", "caption": "captions"}  # of what texts may be


def pairs(
    texts: Sequence[str], references: References, *, kind: str
) -> tuple[list[str], list[list[str]]]:
    """Return the texts and the references of each, after checking that they fit."""
    kinds = PLURALS[kind]
    _check_list(texts, kinds)
    _check_list(references, "references")
    if len(texts) != len(references):
        raise InputError(
            f"{len(texts)} {kinds} and {len(references)} references: expected the same number"
        )
    if not texts:
        raise InputError(f"there is no {kind}: expected one or more")
    # a lone reference becomes a row of one, so that what follows knows rows only
    rows = [[row] if isinstance(row, str) else row for row in references]
    for i, (text, row) in enumerate(zip(texts, rows, strict=True)):
        _check_text(text, f"{kind} {i}")
        _check_list(row, f"references of {kind} {i}")
        # no score is defined for a text that has nothing to be compared with
        if not row:
            raise InputError(f"{kind} {i} has no reference: expected one or more")
        for one in row:
            _check_text(one, f"a reference of {kind} {i}")
    return list(texts), [list(row) for row in rows]


def _check_list(rows: object, what: str) -> None:
    # a text is a Sequence as well: its letters would be scored as sentences
    if isinstance(rows, str):
        raise InputError(f"the {what} are one text, {rows[:40]!r}: expected a list of them")
    if not isinstance(rows, Sequence):
        raise InputError(f"the {what} are of type {type(rows).__name__}: expected a list of them")


def _check_text(text: object, what: str) -> None:
    if not isinstance(text, str):
        raise InputError(f"{what} is of type {type(text).__name__}: expected a text")
