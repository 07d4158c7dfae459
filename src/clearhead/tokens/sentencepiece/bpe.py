"""Byte pair encoding: neighbouring pieces are merged, the best pair first (Sennrich et al. 2016)."""

from __future__ import annotations

import heapq
from collections.abc import Iterable

from .kinds import DEFINED, NORMAL, UNUSED


class BytePairs:
    """Segments a text by merging neighbours into the piece with the highest score; of equals, the leftmost.

    Args:
        pieces: Each piece with its score and its kind. UNUSED ones only lead to larger pieces: one that remains is
            split again.
    """

    def __init__(self, pieces: Iterable[tuple[str, float, int]]) -> None:
        pieces = list(pieces)
        self._scores = {
            piece: score for piece, score, kind in pieces if kind in (NORMAL, DEFINED, UNUSED)
        }
        self._unused = frozenset(piece for piece, _, kind in pieces if kind == UNUSED)
        self._defined = frozenset(piece for piece, _, kind in pieces if kind == DEFINED)
        self._lengths = sorted({len(piece) for piece in self._defined}, reverse=True)

    def __call__(self, text: str) -> list[tuple[str, bool]]:
        """The pieces of a text, each with whether it is in the vocabulary."""
        symbols, whole = self._symbols(text)
        before, after = list(range(-1, len(symbols) - 1)), [*range(1, len(symbols)), -1]  # -1: none
        queue: list[tuple[float, int, int, str]] = []
        halves: dict[str, tuple[str, str]] = {}  # what each unused piece was merged from

        def offer(left: int, right: int) -> None:
            if left < 0 or right < 0 or whole[left] or whole[right]:
                return
            piece = symbols[left] + symbols[right]
            score = self._scores.get(piece)
            if score is not None:
                heapq.heappush(queue, (-score, left, right, piece))
                if piece in self._unused:
                    halves[piece] = symbols[left], symbols[right]

        for i in range(len(symbols) - 1):
            offer(i, i + 1)
        while queue:
            _, left, right, piece = heapq.heappop(queue)
            if (
                not symbols[left]
                or not symbols[right]
                or len(symbols[left]) + len(symbols[right]) != len(piece)
            ):
                continue  # one of them has been merged with another neighbour
            symbols[left], symbols[right] = piece, ""
            after[left] = after[right]
            if after[left] >= 0:
                before[after[left]] = left
            offer(before[left], left)
            offer(left, after[left])
        return self._split_unused(symbols, halves)

    def _symbols(self, text: str) -> tuple[list[str], list[bool]]:
        """The characters of a text, pieces added by the user in one; and which symbols those are."""
        symbols, whole, at = [], [], 0
        while at < len(text):
            length = next((n for n in self._lengths if text[at : at + n] in self._defined), 0)
            symbols.append(text[at : at + (length or 1)])
            whole.append(length > 0)
            at += length or 1
        return symbols, whole

    def _split_unused(
        self, symbols: list[str], halves: dict[str, tuple[str, str]]
    ) -> list[tuple[str, bool]]:
        out: list[tuple[str, bool]] = []
        stack = [symbol for symbol in reversed(symbols) if symbol]
        while stack:
            piece = stack.pop()
            if piece in halves:
                stack += halves[piece][::-1]
            else:
                out.append((piece, piece in self._scores))
        return out
