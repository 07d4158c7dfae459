"""The sentences of a text to translate, and translations as JSON."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from ..errors import InputError
from ..tasks import Translation
from ..tasks.translate import given_translation, translator_tokens
from ..tokens import sentences
from ..weights import Bundle
from .inspections.attention_groups import token_names

MOST_SENTENCES = 64
MOST_CHARACTERS = 20_000
MOST_TOKENS = 512  # of a translation, for models without a limit of their own


def sentences_of(text: str) -> list[str]:
    """The sentences of a text; raises if there are too many."""
    if len(text) > MOST_CHARACTERS:
        raise InputError(
            f"the text has {len(text):,} characters: expected at most {MOST_CHARACTERS:,} at once"
        )
    parts = sentences(text)
    if len(parts) > MOST_SENTENCES:
        raise InputError(
            f"the text has {len(parts):,} sentences: expected at most {MOST_SENTENCES} at once"
        )
    return parts


def aligned(bundle: Bundle, text: str, target: str | Sequence[int]) -> Translation:
    """A given translation of a text, which may be unfinished; raises if it is longer than the model can write."""
    most = bundle.max_tokens or MOST_TOKENS
    if isinstance(target, str):
        tokens = len(translator_tokens(bundle).written(target))
    else:
        tokens = len(target)
    if tokens > most:
        raise InputError(
            f"the translation has {tokens:,} tokens: this model writes at most {most:,}"
        )
    return given_translation(bundle, text, target)


def translation_dict(translation: Translation, text: str) -> dict[str, Any]:
    """A translation of a text as plain values, for JSON; its attention is requested by layer and head."""
    values = {"text": translation.text, "score": translation.score, "logprob": translation.logprob}
    if translation.forced is None:  # nothing was translated
        return values | {"cut": None, "source": [], "target": [], "ids": []}
    pair, source, ids = (
        translator_tokens(translation.forced.bundle),
        translation.forced.source,
        translation.forced.target,
    )
    # The source may have been cut, or the translation may lack its end token, or both.
    cut = None
    if translation.cut:
        of = len(pair.read(text))
        unfinished = not ids or ids[-1] != pair.target.end
        source_cut = [len(source), of] if len(source) < of else None
        cut = {"source": source_cut, "target": unfinished}
    return values | {
        "cut": cut,
        "source": token_names(pair.source, source.tolist()),
        "target": token_names(pair.target, ids),
        "ids": ids,
    }
