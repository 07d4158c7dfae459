"""What a model thinks of a text that somebody else wrote."""

from __future__ import annotations

from ..errors import InputError
from ..tokens import Pair
from ..weights import Bundle
from .text import Likelihood, likelihood
from .translate import Translation, given


def score(
    bundle: Bundle, text: str, target: str | None = None, *, stride: int | None = None
) -> Likelihood | Translation:
    """A language model's log-probability of a text, or a translator's of a text's translation, with its attention.

    score(gpt2, "Attention is all you need.").perplexity; score(fr_en, "Je la mange.", "I am eating it.").score
    """
    translator = isinstance(bundle.tokens, Pair)
    if translator != (target is not None):
        raise InputError(
            "this is a translator: expected a text and its translation" if translator
            else "this is no translator: expected a text alone"
        )  # fmt: skip
    if target is not None:
        return given(bundle, text, target)
    found = likelihood(bundle, text, stride=stride)
    if not found.counted:
        raise InputError(f"{text!r} is one token, with nothing before it to tell it from: expected two or more")
    return found
