"""Text generation one token at a time, with the probability of each token and of its alternatives."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch

from .. import decode
from ..decode import Choice, Plan
from ..decode.runner import first_read
from ..errors import InputError
from ..look import edit, patching, watch
from ..tasks import conversation
from ..tokens import Tokenizer
from ..weights import Bundle
from . import answers
from .candidates import TOP, candidates, significant
from .inspections.attention_groups import rounded, spaces_before, text_axis, token_names
from .inspections.text import Off, language_model_tokens, silenced
from .queue import added_up

NEAR = 64  # tokens before a new one that decide whether a space comes before it


def generate_tokens(
    bundle: Bundle,
    ids: Sequence[int],
    *,
    max_new: int,
    choice: Choice,
    seed: int = 0,
    drawn: int = 0,
    off: Off | None = None,
    top: int = TOP,
) -> Iterator[dict[str, Any]]:
    """Yield each new token of a prompt's continuation: its id, piece, probability and likeliest alternatives.

    If the model ends the text, the last value is the name of its end token: {"ended": "</s>"}.
    `drawn` is the number of tokens at the end of the prompt that were sampled with the same seed, so that a text that
    was stopped continues as if it had not been. `off` names heads to silence, by layer. When the model's context is
    full, the older half of the text is forgotten. The model is watched and edited only while a token is computed, so
    that other requests may use it between two tokens.
    """
    tokens = language_model_tokens(bundle)
    # A bare model without special tokens never ends a text by itself.
    if bundle.special is None:
        ends = []
    else:
        ends = [int(i) for i in bundle.special.ends]
    plan = Plan(
        start=[list(ids)],
        end=ends,
        limit=max_new,
        choice=choice,
        seed=[seed],
        drawn=drawn,
        slide=True,
        banned=bundle.spare_ids,
    )
    # The tail is decoded for every new token, so it is kept short.
    steps, tail = decode.stream(bundle.model, {}, plan), list(ids[-NEAR:])
    for _ in range(max_new):
        # The edits are undone and the hooks removed before the yield, because others use the model meanwhile.
        changed = edit(bundle.model, silenced(bundle.model, off))
        with torch.no_grad(), changed, watch(bundle.model, "head", keep="last") as tape:
            new = next(steps, None)
            if new is not None:
                # (1, t, v) -> (1, v): the distribution that the new token was drawn from.
                logits = tape.calls("head")[-1][0, -1:]
            else:
                logits = None
        # The stream has ended, so that the head was not called.
        if new is None or logits is None:
            return
        if new[0] in ends:
            yield {"ended": token_names(tokens, [new[0]])[0]}
            return
        # The model's own probability, before temperature, top-k and top-p.
        share = significant(float(logits[0].float().softmax(-1)[new[0]]))
        best = candidates(tokens, logits, choice, top)[0]
        tail, piece = [*tail[-NEAR:], new[0]], token_names(tokens, [new[0]])[0]
        # The last token of the tail is the new one.
        if len(tail) - 1 in spaces_before(tokens, tail):
            text = f" {piece}"
        else:
            text = piece
        yield {"id": new[0], "piece": piece, "text": text, "share": share, "candidates": best}


def prompt_and_written(
    bundle: Bundle, text: str, written: Sequence[int], chat: bool = False
) -> list[int]:
    """The ids of a prompt and of tokens that were written after it; raises for an id that the model cannot write.

    With `chat`, the text is the user's message of a conversation, written with the model's chat template.
    """
    # Some models have more embeddings than their tokenizer has tokens.
    size = max(len(language_model_tokens(bundle)), getattr(bundle.config, "vocab", 0))
    wrong = [i for i in written if not 0 <= i < size]
    if wrong:
        raise InputError(f"written has the id {wrong[0]}: expected ids of tokens, 0 to {size - 1}")
    if chat:
        prompt = conversation(bundle, [{"role": "user", "content": text}])
    else:
        prompt = bundle.prompt(text)
    return [*prompt, *written]


def prompt_text(bundle: Bundle, ids: Sequence[int]) -> answers.TextShape:
    """The tokens of a prompt as plain values, for JSON."""
    axis = text_axis(language_model_tokens(bundle), ids)
    return {
        "names": axis.names,
        "special": axis.special,
        "spaces": spaces_before(bundle.tokenizer(), ids),
    }


@dataclass(frozen=True, kw_only=True, eq=False)
class Part:
    """The part of a text that a model reads at once."""

    ids: list[int]
    first: int  # index of its first token in the text
    of: int  # tokens of the text
    most: int | None  # tokens that the model reads at once; None: any number

    @property
    def cut(self) -> answers.CutShape | None:
        """Which tokens are read, and how many the model reads at most; None if it reads all of them."""
        if len(self.ids) == self.of or self.most is None:
            return None
        return {"read": len(self.ids), "of": self.of, "first": self.first, "most": self.most}


def what_fits(bundle: Bundle, ids: Sequence[int], written: int = 0) -> Part:
    """The part of a text that the model reads, of which the last `written` tokens were generated.

    All of it, if it fits into the model's context. Otherwise what generation has read when it wrote the last token: the
    newer part of the tokens before it.
    """
    before = list(ids)
    # The last token was only written, not read yet: the window is that of the tokens before it.
    if written and bundle.max_tokens is not None and len(before) > bundle.max_tokens:
        before.pop()
    first = first_read(len(before), bundle.max_tokens)
    return Part(ids=before[first:], first=first, of=len(ids), most=bundle.max_tokens)


# Activation patching of two prompts for the view Write, and the tokens of prompts.


MOST_TOKENS = 64  # of a prompt: the model runs once per layer and token


def prompt_tokens(bundle: Bundle, texts: Sequence[str]) -> list[list[str]]:
    """The tokens of each text, as a language model reads them."""
    tokens = language_model_tokens(bundle)
    return [token_names(tokens, tokens.wrapped(text).tolist()) for text in texts]


def answer_token(tokens: Tokenizer, word: str) -> int:
    """The id of an answer: the word after a space if that is one token, or else the word as it is."""
    # In most texts a word follows a space, which belongs to its token.
    spellings = [word] if word.startswith(" ") else [f" {word}", word]
    for spelling in spellings:
        # Decoding must give the word back: an unknown word may also be a single token, <unk>.
        ids = tokens.encode(spelling)
        if len(ids) == 1 and tokens.decode(ids).strip() == word.strip():
            return int(ids[0])
    pieces = tokens.pieces(tokens.encode(spellings[0]))
    shown = ", ".join(piece.replace(" ", "␣") for piece in pieces)
    raise InputError(
        f"the answer {word!r} is {len(pieces)} tokens ({shown}): expected a word that is one token"
    )


def patch_prompts(
    bundle: Bundle,
    clean: str,
    corrupted: str,
    answers: Sequence[str],
    what: str,
    done: Callable[[int, int], None],
) -> answers.PatchingShape:
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
    longest = max(len(names) for names in pieces)
    if longest > MOST_TOKENS:
        raise InputError(
            f"a prompt has {longest:,} tokens: expected at most {MOST_TOKENS}, as each is exchanged by itself"
        )
    ids = [answer_token(tokens, word) for word in answers]
    target: Any = None
    if len(ids) == 1:
        target = ids[0]
    # Two answers: the difference of their logits, as in Wang et al. 2023 (IOI).
    elif ids:
        target = (ids[0], ids[1])
    result = patching(bundle, clean, corrupted, target=target, what=what, done=added_up(done))
    return {
        "what": what,
        "answers": token_names(tokens, result.answer_ids),
        "clean": significant(result.clean),
        "corrupted": significant(result.corrupted),
        "layers": len(result.layers),
        "tokens": pieces[0],
        "columns": pieces[0] if what != "heads" else result.columns,
        "other_tokens": pieces[1],
        "effects": rounded(np.asarray(result.matrix)),
    }
