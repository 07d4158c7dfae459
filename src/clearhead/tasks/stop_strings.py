"""Stop strings and streamed text: where an answer is cut, and which of its characters are final."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from ..tokens import Tokenizer

HALF = "\ufffd"  # how a tokenizer shows a character whose bytes are not all there


class Stopper:
    """Whether an answer has reached a stop string. Call it with the number of the answer and its ids so far.

    Only the last tokens are decoded: a character has at most 4 bytes, and a token at least one.
    """

    def __init__(self, tokens: Tokenizer, stops: tuple[str, ...]) -> None:
        self.tokens, self.stops = tokens, stops
        self.tail = 4 * max(map(len, stops)) + 4

    def __call__(self, answer: int, ids: Sequence[int]) -> bool:
        tail = self.tokens.decode(np.array(ids[-self.tail :], np.int64))
        return any(stop in tail for stop in self.stops)


def stopper(tokens: Tokenizer, stops: tuple[str, ...]) -> Stopper | None:
    """A Stopper for these stop strings; None if there are none."""
    return Stopper(tokens, stops) if stops else None


def text_after(tokens: Tokenizer, ids: list[int], first: int, before: str) -> str:
    """The text of the ids from `first` on, with the space that it may have after the text `before` it."""
    whole = tokens.decode(np.array(ids, np.int64))
    if before and not before.endswith(HALF) and whole.startswith(before):
        return whole[len(before) :]
    return tokens.decode(np.array(ids[first:], np.int64))


def cut_at_stop(text: str, stops: tuple[str, ...]) -> tuple[str, bool]:
    """A text up to its first stop string, and whether there is one."""
    places = [at for stop in stops if (at := text.find(stop)) >= 0]
    return (text[: min(places)], True) if places else (text, False)


def pending(text: str, stops: tuple[str, ...]) -> int:
    """The number of characters at the end that may still change: half a character, or the start of a stop string."""
    half = len(text) - len(text.rstrip(HALF))
    begun = [n for stop in stops for n in range(1, len(stop)) if text.endswith(stop[:n])]
    return max([half, *begun])
