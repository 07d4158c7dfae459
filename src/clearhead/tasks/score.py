"""score: the log-probability of a given text, or of a given translation."""

from __future__ import annotations

from collections.abc import Sequence

from ..errors import InputError, TextError
from ..weights import Bundle
from .text import Likelihood, likelihood, likelihoods
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
    _check_pair(bundle, target is not None)
    if target is not None:
        return given_translation(bundle, text, target)
    return _checked(text, likelihood(bundle, text, stride=stride))


def scores(bundle: Bundle, texts: Sequence[str]) -> list[Likelihood]:
    """What `score` returns for each of several texts, which a language model reads in batches."""
    _check_pair(bundle, False)
    return [_checked(text, one) for text, one in zip(texts, likelihoods(bundle, texts), strict=True)]


def _check_pair(bundle: Bundle, pair: bool) -> None:
    """Raise unless a translator gets a text with its translation, and another model a text alone."""
    translator = "translate" in bundle.can
    if translator != pair:
        raise InputError(
            "this is a translator: expected a text and its translation" if translator
            else "this is no translator: expected a text alone"
        )  # fmt: skip


def _checked(text: str, result: Likelihood) -> Likelihood:
    if not result.counted:
        raise TextError(f"{text!r} is one token, with nothing before it to predict it from: expected two or more")
    return result
