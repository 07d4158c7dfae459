"""score: the log-probability of a given text, or of a given translation."""

from __future__ import annotations

from ..errors import InputError
from ..weights import Bundle
from .text import Likelihood, likelihood
from .translate import given_translation
from .translation import Translation


def score(
    bundle: Bundle, text: str, target: str | None = None, *, stride: int | None = None
) -> Likelihood | Translation:  # fmt: skip
    """Return the log-probability of a text under a language model, or of a translation under a translator.

    Args:
        bundle: A language model or a translator.
        text: The text, or the source of a translation.
        target: The translation; only for a translator.
        stride: Language model: tokens that the window over a long text moves by; see `likelihood`.

    Returns:
        A Likelihood; of a translator a Translation, with its attention to the source.

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
    result = likelihood(bundle, text, stride=stride)
    if not result.counted:
        raise InputError(f"{text!r} is one token, with nothing before it to predict it from: expected two or more")
    return result
