"""score: how likely a model finds a text that somebody else wrote."""

from __future__ import annotations

from ..errors import InputError
from ..weights import Bundle
from .text import Likelihood, likelihood
from .translate import given_translation
from .translation import Translation


def score(
    bundle: Bundle, text: str, target: str | None = None, *, stride: int | None = None
) -> Likelihood | Translation:  # fmt: skip
    """Return a language model's log-probability of a text, or a translator's of a translation, with its attention.

    Args:
        bundle: A language model or a translator.
        text: The text, or the source of a translation.
        target: The translation; only for a translator.
        stride: Of windows over a long text: see `likelihood`.

    Examples:
        >>> score(clearhead.load("fr-en"), "Je la mange.", "I eat it.").logprob > -5
        True
    """
    translator = "translate" in bundle.can
    if translator != (target is not None):
        raise InputError(
            "this is a translator: expected a text and its translation" if translator
            else "this is no translator: expected a text alone"
        )  # fmt: skip
    if target is not None:
        return given_translation(bundle, text, target)
    found = likelihood(bundle, text, stride=stride)
    if not found.counted:
        raise InputError(f"{text!r} is one token, with nothing before it to predict it from: expected two or more")
    return found
