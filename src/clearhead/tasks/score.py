"""What a model thinks of a text that somebody else wrote."""

from __future__ import annotations

from ..tokens import Pair
from ..weights import Ready
from .text import Likelihood, likelihood
from .translate import Translation, given


def score(ready: Ready, text: str, target: str | None = None, *, stride: int | None = None) -> Likelihood | Translation:
    """A language model's log-probability of a text, or a translator's of a text's translation, with its attention.

    score(gpt2, "Attention is all you need.").perplexity; score(fr_en, "Je la mange.", "I am eating it.").score
    """
    translator = isinstance(ready.tokens, Pair)
    if translator != (target is not None):
        raise ValueError(
            "this is a translator: expected a text and its translation" if translator
            else "this is no translator: expected a text alone"
        )  # fmt: skip
    if target is not None:
        return given(ready, text, target)
    found = likelihood(ready, text, stride=stride)
    if not found.counted:
        raise ValueError(f"{text!r} is one token, with nothing before it to tell it from: expected two or more")
    return found
