"""Unigram: the most probable way to cut a text into pieces (Kudo 2018)."""

from __future__ import annotations

from collections.abc import Iterable

import numpy as np

from .kinds import DEFINED, NORMAL

_PENALTY = 10.0  # an unknown character scores this much below the least probable piece


class Unigram:
    """Segments a text by the Viterbi algorithm, where a piece's score is its log-probability.

    Sums are rounded to float32 as the library rounds them, so that near ties are cut alike.

    Args:
        pieces: Each piece with its score and its kind.
    """

    def __init__(self, pieces: Iterable[tuple[str, float, int]]) -> None:
        # The score of every piece that may be used; None for a text that only begins one.
        self._scores: dict[str, float | None] = {}
        normal = []
        for piece, score, kind in pieces:
            if kind == NORMAL:
                normal.append(score)
            if kind in (NORMAL, DEFINED):
                for end in range(1, len(piece)):
                    self._scores.setdefault(piece[:end], None)
                self._scores[piece] = _defined_score(piece) if kind == DEFINED else score
        self._unknown = float(np.float32(min(normal, default=0.0)) - np.float32(_PENALTY))

    def __call__(self, text: str) -> list[tuple[str, bool]]:
        """The pieces of a text, each with whether it is in the vocabulary."""
        scores, float32 = self._scores, np.float32
        # of the best way to each position
        best, origin = [0.0] * (len(text) + 1), [0] + [-1] * len(text)
        for at in range(len(text)):
            here, one, end = best[at], False, at + 1
            while True:
                piece = text[at:end]
                if end > len(text) or piece not in scores:  # no piece begins like this
                    break
                score = scores[piece]
                if score is not None:
                    total = float(float32(here + score))
                    if origin[end] < 0 or total > best[end]:
                        best[end], origin[end] = total, at
                    one = one or end == at + 1
                end += 1
            if not one:  # the character itself is unknown
                total = float(float32(here + self._unknown))
                if origin[at + 1] < 0 or total > best[at + 1]:
                    best[at + 1], origin[at + 1] = total, at
        pieces, end = [], len(text)
        while end:
            piece = text[origin[end] : end]
            pieces.append((piece, scores.get(piece) is not None))
            end = origin[end]
        return pieces[::-1]


def _defined_score(piece: str) -> float:
    """The score of a piece added by the user: above every log-probability, and higher for a longer piece."""
    return float(np.float32(0.1 * (len(piece.encode()) - 1)))
