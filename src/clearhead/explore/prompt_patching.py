"""Activation patching of two prompts for the view Write, and the tokens of prompts."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import numpy as np

from ..errors import InputError
from ..look import patching
from ..tokens import Tokenizer
from ..weights import Bundle
from .attention_groups import rounded
from .candidates import significant
from .inspections import language_model_tokens
from .request_queue import added_up
from .token_axis import token_names

MOST_TOKENS = 64  # of a prompt: the model runs once per layer and token


def prompt_tokens(bundle: Bundle, texts: Sequence[str]) -> list[list[str]]:
    """The tokens of each text, as a language model reads them."""
    tokens = language_model_tokens(bundle)
    return [token_names(tokens, tokens.wrapped(text).tolist()) for text in texts]


def answer_token(tokens: Tokenizer, word: str) -> int:
    """The id of an answer: the word after a space if that is one token, or else the word as it is."""
    spellings = [word] if word.startswith(" ") else [f" {word}", word]
    for spelling in spellings:
        ids = tokens.encode(spelling)
        if len(ids) == 1 and tokens.decode(ids).strip() == word.strip():
            return int(ids[0])
    pieces = tokens.pieces(tokens.encode(spellings[0]))
    shown = ", ".join(piece.replace(" ", "␣") for piece in pieces)
    raise InputError(f"the answer {word!r} is {len(pieces)} tokens ({shown}): expected a word that is one token")


def patch_prompts(
    bundle: Bundle, clean: str, corrupted: str, answers: Sequence[str], what: str, done: Callable[[int, int], None]
) -> dict[str, Any]:
    """The share of the clean answer that each layer and token, or each head, brings back, as plain values for JSON.

    Args:
        bundle: A language model.
        clean: The prompt with the answer.
        corrupted: A prompt with as many tokens and another answer.
        answers: The answer, or two whose difference is measured; none: the likeliest after each prompt.
        what: What is exchanged: residual, attention, mlp or heads.
        done: Called with (cells done, all cells); may raise to stop.
    """
    tokens = language_model_tokens(bundle)
    pieces = prompt_tokens(bundle, (clean, corrupted))
    longest = max(len(one) for one in pieces)
    if longest > MOST_TOKENS:
        raise InputError(
            f"a prompt has {longest:,} tokens: expected at most {MOST_TOKENS}, as each is exchanged by itself"
        )
    ids = [answer_token(tokens, word) for word in answers]
    target: Any = None if not ids else ids[0] if len(ids) == 1 else (ids[0], ids[1])
    found = patching(bundle, clean, corrupted, target=target, what=what, done=added_up(done))
    return {
        "what": what, "answers": token_names(tokens, found.answer_ids), "clean": significant(found.clean),
        "corrupted": significant(found.corrupted), "layers": len(found.layers), "tokens": pieces[0],
        "columns": pieces[0] if what != "heads" else found.columns, "other_tokens": pieces[1],
        "effects": rounded(np.asarray(found.matrix)),
    }  # fmt: skip
