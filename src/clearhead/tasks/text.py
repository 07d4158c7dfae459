"""embed, likelihood, fill and classify: what a model makes of whole texts."""

from __future__ import annotations

import math
import warnings
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
import torch.nn.functional as F
from jaxtyping import Float
from torch import Tensor

from ..data.text_rows import MASKS, around, mask_of
from ..errors import InputError, Notice
from ..tokens import Pair, Pieces, Subwords, Tokens
from ..weights import Bundle

BATCH_TOKENS = 8192  # padded tokens that are read at a time


@dataclass(frozen=True, kw_only=True)
class Likelihood:
    """What a language model thinks of a text."""

    logprob: float  # the sum over the tokens that count, in nats
    logprobs: list[float | None]  # of each token after those before it; None where nothing stands before
    pieces: list[str]  # the tokens

    @property
    def counted(self) -> int:
        """How many tokens count."""
        return sum(one is not None for one in self.logprobs)

    @property
    def perplexity(self) -> float:
        """exp of the mean surprise a token."""
        return math.exp(-self.logprob / max(self.counted, 1))

    def to_dict(self) -> dict[str, Any]:
        """Plain values, for machines."""
        return {
            "logprob": self.logprob, "perplexity": self.perplexity, "pieces": self.pieces, "logprobs": self.logprobs
        }  # fmt: skip


@torch.no_grad()
def embed(
    bundle: Bundle, text: str | Sequence[str], *, pool: str | None = None, normalise: bool = True
) -> Float[np.ndarray, "*n d"]:
    """A vector for a text, or for each of many: their products are cosines, unless normalise=False.

    A model made for sentences pools as it was made to; of any other, `pool` takes the mean of its tokens' vectors, the
    first or the last (mean if not given).
    """
    tokens, model = _tokens(bundle), bundle.model
    own = getattr(bundle.config, "answer", None) == "sentence"
    if pool not in (None, "mean", "first", "last"):
        raise InputError(f"pool={pool!r}: expected mean, first or last")
    if not own and not hasattr(model, "encode") and not hasattr(model, "read"):
        raise InputError(f"this {type(model).__name__} gives texts no vector: expected a BERT or a GPT")
    texts = [text] if isinstance(text, str) else list(text)
    rows = [_read(bundle, tokens, one) for one in texts]
    found = np.zeros((len(texts), bundle.config.width), np.float32)
    for batch, ids, lengths in _batches(bundle, tokens, rows):
        if own and pool is None:
            x = model(ids, lengths=lengths)
        else:
            x = _pooled(_states(bundle, ids, lengths), lengths, pool or "mean")
        found[batch] = (F.normalize(x.float(), dim=-1) if normalise else x.float()).cpu().numpy()
    return found[0] if isinstance(text, str) else found


@torch.no_grad()
def likelihood(
    bundle: Bundle,
    text: str,
    *,
    stride: int | None = None,
    done: Callable[[int, int], None] | None = None,  # is told how many tokens have just been read, of how many
) -> Likelihood:
    """The log-probability of a text, token by token.

    A text longer than the model's context is read in windows that go on by `stride` tokens (half the context if not
    given): each token is counted once, with all that its window has before it.
    """
    tokens, reach = _tokens(bundle), getattr(bundle.model, "reach", None)
    if not hasattr(bundle.model, "read"):
        raise InputError(f"this {type(ready.model).__name__} does not say what comes next: expected a GPT")
    ids = _ids(bundle, tokens, text)
    if not ids:
        raise InputError("the text is empty: expected a token or more")
    most = reach or len(ids)
    stride = max(most // 2, 1) if stride is None else stride
    if not 1 <= stride <= most:
        raise InputError(f"stride={stride}: expected 1 to {most}, the model's context")
    found: list[float | None] = [None] * len(ids)
    row, told, begin = torch.tensor([ids], device=bundle.device), 1, 0  # the first token has nothing before it
    while told < len(ids):
        last = min(begin + most, len(ids) - 1)  # the last token that is asked for; all before it can be read
        x = bundle.model.states(row[:, begin:last])[0, told - 1 - begin :]  # type: ignore[operator]
        logp = bundle.model.head(x).float().log_softmax(-1)  # type: ignore[operator]
        found[told : last + 1] = logp.gather(1, row[0, told : last + 1, None])[:, 0].tolist()
        if done is not None:
            done(last + 1 - told, len(ids) - 1)
        told, begin = last + 1, begin + stride
    whole = sum((one for one in found if one is not None), 0.0)
    return Likelihood(logprob=whole, logprobs=found, pieces=tokens.pieces(np.array(ids, np.int64)))


@torch.no_grad()
def fill(bundle: Bundle, text: str, *, top: int = 5) -> list[list[tuple[str, float]]]:
    """For each gap of a text, written [MASK], the likeliest tokens and their probabilities: "Paris is in [MASK]." """
    tokens = _tokens(bundle)
    if getattr(bundle.config, "answer", None) != "words":
        raise InputError(f"this {type(ready.model).__name__} fills no gaps: expected a BERT with answer='words'")
    if top < 1:
        raise InputError(f"top={top}: expected 1 or more")
    mask, _ = mask_of(tokens)
    for word in MASKS:
        text = text.replace(word, MASKS[0])
    parts = [tokens.encode(part.strip() if isinstance(tokens, Subwords) else part) for part in text.split(MASKS[0])]
    if len(parts) < 2:
        raise InputError(f"{text[:60]!r} has no gap: expected one or more {MASKS[0]} in it")
    inside = np.concatenate([parts[0], *(np.append([mask], part) for part in parts[1:])]).astype(np.int64)
    ids = torch.from_numpy(around(tokens, inside))[None].to(bundle.device)
    if ids.shape[1] > bundle.config.context:
        raise InputError(f"the text has {ids.shape[1]} tokens: this model reads {ready.config.context} at once")
    gaps = (ids[0] == mask).nonzero()[:, 0]
    x = bundle.model.states(ids)[0, gaps]  # type: ignore[operator]
    p = bundle.model.head(x).float().softmax(-1)[:, : len(tokens)]  # type: ignore[operator]
    high, token = p.topk(min(top, p.shape[1]), dim=-1)
    return [
        list(zip((piece.strip() for piece in tokens.pieces(t.tolist())), h.tolist(), strict=True))
        for h, t in zip(high, token, strict=True)
    ]


@torch.no_grad()
def classify(
    bundle: Bundle, text: str | Sequence[str], *, top: int | None = None
) -> list[tuple[str, float]] | list[list[tuple[str, float]]]:
    """The classes of a text, or of each of many, with their probabilities, the likeliest first."""
    tokens = _tokens(bundle)
    if getattr(bundle.config, "answer", None) != "class":
        raise InputError(f"this {type(ready.model).__name__} sorts nothing: expected a BERT with answer='class'")
    texts = [text] if isinstance(text, str) else list(text)
    rows = [_read(bundle, tokens, one) for one in texts]
    names = bundle.labels or tuple(str(i) for i in range(bundle.config.classes))
    found: list[list[tuple[str, float]]] = [[] for _ in texts]
    for batch, ids, lengths in _batches(bundle, tokens, rows):
        p, order = bundle.model(ids, lengths=lengths).float().softmax(-1).sort(dim=-1, descending=True)
        for i, shares, classes in zip(batch, p.tolist(), order.tolist(), strict=True):
            found[i] = [(names[c], share) for c, share in zip(classes, shares, strict=True)][:top]
    return found[0] if isinstance(text, str) else found


def _states(bundle: Bundle, ids: Tensor, lengths: Tensor) -> Tensor:
    model: Any = bundle.model
    return model.encode(ids, lengths=lengths) if hasattr(model, "encode") else model.states(ids)


def _pooled(x: Float[Tensor, "b t d"], lengths: Tensor, pool: str) -> Float[Tensor, "b d"]:
    if pool == "first":
        return x[:, 0]
    if pool == "last":
        return x[torch.arange(len(x), device=x.device), lengths - 1]
    inside = torch.arange(x.shape[1], device=x.device) < lengths[:, None]
    return (x * inside[..., None]).sum(1) / lengths[:, None]


def _tokens(bundle: Bundle) -> Tokens:
    if bundle.tokens is None or isinstance(bundle.tokens, Pair):
        raise InputError(f"this {type(ready.model).__name__} reads no texts: expected a model with tokens of its own")
    return bundle.tokens


def _ids(bundle: Bundle, tokens: Tokens, text: str) -> list[int]:
    """The ids of a text, with the special ones that its model expects around it: an encoder's begin and end."""
    if not hasattr(bundle.model, "read"):
        return around(tokens, tokens.encode(text)).tolist()
    return [int(i) for i in (tokens.wrapped(text) if isinstance(tokens, Subwords | Pieces) else tokens.encode(text))]


def _read(bundle: Bundle, tokens: Tokens, text: str) -> list[int]:
    """The ids of a text, at most as many as the model reads."""
    ids, most = _ids(bundle, tokens, text), getattr(bundle.model, "reach", bundle.config.context)
    if not ids:
        raise InputError("a text is empty: expected a token or more")
    if most is None or len(ids) <= most:
        return ids
    warnings.warn(f"a text of {len(ids)} tokens is longer than the {most} this model reads: it is cut there", Notice, 3)
    return [*ids[: most - 1], ids[-1]]  # the end stays


def _batches(bundle: Bundle, tokens: Tokens, rows: Sequence[list[int]]) -> Iterator[tuple[list[int], Tensor, Tensor]]:
    """Rows of like length together: their numbers, their padded ids and their lengths."""
    waiting = sorted(range(len(rows)), key=lambda i: -len(rows[i]))
    while waiting:
        most = max(BATCH_TOKENS // len(rows[waiting[0]]), 1)
        batch, waiting = waiting[:most], waiting[most:]
        longest = len(rows[batch[0]])
        ids = [rows[i] + [tokens.pad or 0] * (longest - len(rows[i])) for i in batch]
        lengths = torch.tensor([len(rows[i]) for i in batch], device=bundle.device)
        yield batch, torch.tensor(ids, device=bundle.device), lengths
