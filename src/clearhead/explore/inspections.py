"""Inspection: what a model computed for one text, kept so that any map, head, layer or token can be queried later."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import torch
from torch import Tensor

from ..errors import InputError
from ..look import AttentionMap, Tape, edit, silence, watch
from ..tasks import Translation
from ..tokens import Tokenizer
from ..weights import Bundle
from .attention_groups import CELLS, KINDS, Group, in_range, rounded


@dataclass(eq=False)
class Inspection:
    """The attention maps of a model for one text, and of a language model also the output of each block."""

    groups: dict[str, Group]  # by kind of attention; empty for a model without attention
    bundle: Bundle
    ids: list[int] = field(default_factory=list)  # the tokens of a language model's text
    states: list[Tensor] = field(default_factory=list)  # (t, d) residual stream after each block, for the logit lens

    def to_dict(self) -> dict[str, Any]:
        """Plain values, for JSON."""
        return {"groups": [group.to_dict() for group in self.groups.values()], "lens": bool(self.states)}

    def group(self, name: str) -> Group:
        """The attention of one kind; raises for a kind that the model does not have."""
        if name not in self.groups:
            raise InputError(f"no attention {name!r} here: expected one of {', '.join(self.groups)}")
        return self.groups[name]

    @torch.no_grad()
    def lens(self, at: int, top: int = 5) -> dict[str, Any]:
        """The likeliest next tokens after token `at` by each layer's output (nostalgebraist 2020, the logit lens)."""
        if not self.states:
            raise InputError("this model has no logit lens: expected a GPT")
        in_range("token", at, len(self.ids))
        model: Any = self.bundle.model
        x = torch.stack([state[at] for state in self.states]).to(self.bundle.device)
        return {"at": at, "layers": self._likeliest(model.head(model.norm(x)), top)}

    @torch.no_grad()
    def candidates(self, first: int, last: int, top: int = 5) -> dict[str, Any]:
        """The probability of each token from `first` to last - 1, and the likeliest tokens in its place."""
        if not self.states:
            raise InputError("this model has no candidates: expected a GPT")
        if not 1 <= first < last <= len(self.ids):
            raise InputError(f"tokens {first} to {last}: expected a range within 1 to {len(self.ids)}")
        if last - first > CELLS:
            raise InputError(f"{last - first} tokens at once: expected at most {CELLS}")
        model: Any = self.bundle.model
        logits = model.head(model.norm(self.states[-1][first - 1 : last - 1].to(self.bundle.device))).float()
        ids = torch.tensor(self.ids[first:last], device=logits.device)
        share = logits.softmax(-1).gather(1, ids[:, None])[:, 0]
        return {"first": first, "shares": rounded(share.cpu().numpy()), "candidates": self._likeliest(logits, top)}

    def _likeliest(self, logits: Tensor, top: int) -> list[list[list[Any]]]:
        return likeliest(language_model_tokens(self.bundle), logits, top)

    def size(self) -> int:
        """Bytes held by the maps and the states."""
        return sum(group.size() for group in self.groups.values()) + sum(x.nbytes for x in self.states)


def inspect_translation(bundle: Bundle, translation: Translation) -> Inspection:
    """Inspect the attention of a translator for one of its translations; no groups for a model without attention."""
    modules = dict(bundle.model.named_modules())
    names = {name: at for name, (at, _) in KINDS.items() if name != "self" and _has(modules, at)}
    if not names or not translation.target:
        return Inspection({}, bundle)
    tape = translation.tape(*names.values())
    source_words, target_words = translation.words
    decoder_inputs = ["<start>", *translation.target[:-1]]
    sides = {
        "cross": (translation.target, translation.source, (target_words, source_words)),
        "reading": (translation.source, translation.source, (source_words, source_words)),
        "writing": (translation.target, decoder_inputs, None),
    }
    groups = {}
    for name, at in names.items():
        rows, columns, words = sides[name]
        groups[name] = Group(name, rows, columns, list(tape.match(at).values()), words)
    return Inspection(groups, bundle)


@torch.no_grad()
def inspect_text(
    bundle: Bundle,
    ids: Sequence[int],
    off: Mapping[int, Sequence[int]] | None = None,  # heads to silence, by layer
    done: Callable[[int, int], None] | None = None,  # called with (blocks done, all blocks); may raise to stop
) -> Inspection:
    """Run a language model once over a text and keep every attention map and every block's output."""
    tokens, blocks = language_model_tokens(bundle), len(bundle.model.blocks)  # type: ignore[arg-type]
    ids = list(ids)
    passed = 0

    def keep(record: Any) -> Any:
        nonlocal passed
        if isinstance(record, Tensor):
            passed += 1
            if done is not None:
                done(passed, blocks)
            return record[0]
        return record

    row = torch.tensor([ids], device=bundle.device)
    with edit(bundle.model, silenced(off)), watch(bundle.model, KINDS["self"][0], "blocks.*", keep=keep) as tape:
        bundle.model.states(row)  # type: ignore[operator]
    pieces = tokens.pieces(np.array(ids, np.int64))
    maps, states = _split(tape)
    groups = {"self": Group("self", pieces, pieces, maps)} if maps else {}
    return Inspection(groups, bundle, ids, states)


def likeliest(tokens: Tokenizer, logits: Tensor, top: int) -> list[list[list[Any]]]:
    """The `top` likeliest tokens of each row of logits, as [piece, probability]."""
    probabilities = logits[..., : len(tokens)].float().softmax(-1)
    high, which = probabilities.topk(min(top, probabilities.shape[-1]), dim=-1)
    return [
        [[piece, round(p, 5)] for piece, p in zip(tokens.pieces(ids), shares, strict=True)]
        for ids, shares in zip(which.tolist(), high.tolist(), strict=True)
    ]


def silenced(off: Mapping[int, Sequence[int]] | None) -> dict[str, Callable[[Tensor], Tensor]]:
    """The edits that silence heads, given by layer."""
    return {f"blocks.{layer}.attn.heads": silence(heads) for layer, heads in (off or {}).items() if heads}


def language_model_tokens(bundle: Bundle) -> Tokenizer:
    """The tokenizer of a language model; raises for other models."""
    bundle.require("generate", "a GPT with its tokens")
    return bundle.tokenizer()


def _split(tape: Tape) -> tuple[list[AttentionMap], list[Tensor]]:
    """The attention maps of a tape, and its other records."""
    maps = [tape[name] for name in tape.names if name.endswith(".weights")]
    return maps, [tape[name] for name in tape.names if not name.endswith(".weights")]


def _has(modules: Mapping[str, Any], pattern: str) -> bool:
    return pattern.replace("*", "0").removesuffix(".weights") in modules
