"""The likeliest next tokens with their probabilities, by the model and after temperature, top-k and top-p."""

from __future__ import annotations

from typing import Any

import torch
from jaxtyping import Float
from torch import Tensor

from ..decode import Choice
from ..tokens import Tokenizer
from .inspections.attention_groups import token_names

TOP = 8  # tokens to list, if a request does not say
MOST = 50  # tokens to list at most
DIGITS = 5  # significant digits of a probability


def choice_of(temperature: float, top_k: int | None, top_p: float | None) -> Choice:
    """The Choice for these options; temperature 0 takes the likeliest token."""
    if not temperature:
        # Without sampling, top-k and top-p have no effect.
        return Choice()
    return Choice(sample=True, temperature=temperature, top_k=top_k, top_p=top_p)


def likeliest(tokens: Tokenizer, logits: Float[Tensor, "r v"], top: int) -> list[list[Any]]:
    """The `top` likeliest tokens of each row of logits, as [piece, probability]."""
    return _listed(tokens, [logits.float().softmax(-1)], top)


def candidates(
    tokens: Tokenizer, logits: Float[Tensor, "r v"], choice: Choice, top: int
) -> list[list[Any]]:
    """The `top` likeliest tokens of each row of logits, as [piece, probability, probability of being chosen].

    The last number is 0 for tokens that the choice rules out. No choice changes the order of tokens, so the likeliest
    by the model are also the likeliest to be chosen.
    """
    logp = logits.float().log_softmax(-1)
    if choice.sample:
        chosen = choice.narrowed(logp).softmax(-1)
    else:
        # Greedy: all probability on the token that would be picked.
        chosen = torch.zeros_like(logp).scatter_(1, choice.pick(logp)[0], 1.0)
    return _listed(tokens, [logp.exp(), chosen], top)


def entropies(logits: Float[Tensor, "r v"]) -> list[float]:
    """The entropy of each row's distribution, in nats."""
    logp = logits.float().log_softmax(-1)
    # 0 * log 0 is NaN in floating point, and 0 in the limit.
    return [significant(x) for x in (logp.exp() * -logp).nan_to_num(0.0).sum(-1).tolist()]


def significant(x: float) -> float:
    """Round a number to DIGITS significant digits, which keeps JSON small and small numbers above 0."""
    return float(f"{x:.{DIGITS}g}")


def _listed(tokens: Tokenizer, probabilities: list[Tensor], top: int) -> list[list[Any]]:
    # A model may have more embeddings than there are tokens; ids without a text are not listed.
    first = probabilities[0][:, : len(tokens)]
    which = first.topk(min(top, first.shape[-1]), dim=-1).indices
    columns = [p.gather(1, which).tolist() for p in probabilities]
    return [
        [
            [piece, *map(significant, numbers)]
            for piece, *numbers in zip(token_names(tokens, ids), *shares, strict=True)
        ]
        for ids, *shares in zip(which.tolist(), *columns, strict=True)
    ]
