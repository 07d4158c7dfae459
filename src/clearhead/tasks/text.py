"""embed, likelihood and fill: vectors, log-probabilities and masked tokens of whole texts."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
import torch.nn.functional as F
from jaxtyping import Float
from torch import Tensor

from ..checks import one_of
from ..data.images.files import ImageLike
from ..data.text.labelled import MASKS
from ..draw.result import PlainValues
from ..errors import InputError, TextError
from ..inputs import Batch
from ..inputs.batching import BATCH_TOKENS
from ..inputs.read import reader_of
from ..inputs.texts import check_text, id_batches, id_row, read_ids
from ..layers import mean_of_tokens
from ..tokens import Tokenizer
from ..weights import Bundle, ModelLike, opened

LOGITS = 1 << 24  # numbers of logits that are in memory at a time
POOLS = ("mean", "first", "last")


@dataclass(frozen=True, kw_only=True)
class Likelihood(PlainValues):
    """The log-probability of a text under a language model, token by token.

    Examples:
        >>> result = likelihood(clearhead.load("everyday"), "A man is standing in the street.")
        >>> result.pieces[:3], result.counted, result.perplexity < 10
        (['A', ' man', ' is'], 7, True)
    """

    in_json = "logprob perplexity pieces logprobs"

    logprob: float  # the sum over the tokens that count, in nats
    logprobs: list[float | None]  # of each token given those before it; None for the first token
    pieces: list[str]  # the text of each token

    @property
    def counted(self) -> int:
        """The number of tokens that count: all but the first."""
        return sum(one is not None for one in self.logprobs)

    @property
    def perplexity(self) -> float:
        """exp of the mean negative log-probability per counted token."""
        return math.exp(-self.logprob / max(self.counted, 1))


@torch.no_grad()
def embed(
    bundle: ModelLike,
    inputs: str | Sequence[str] | ImageLike | Sequence[ImageLike],
    *,
    pool: str | None = None,
    normalise: bool = True,
) -> Float[np.ndarray, "*n d"]:
    """Return a vector for a text or an image, or one for each of several.

    Args:
        bundle: A model that encodes text, a BERT or a GPT, or any model that reads images; or its name or folder. Of a
            classifier of images it is the input of its output layer.
        inputs: One text, or several. If the model reads images: one image, or several, or a folder, as for `classify`.
        pool: How the vectors of a text's tokens become one: mean, first or last. If not given, a sentence model
            (a BERT with answer="sentence") pools as it was trained, and any other takes the mean.
        normalise: Scale vectors to length 1, so that their dot products are cosines.

    Returns:
        A vector (d), or vectors (n, d) for several texts or images, in float32.

    Examples:
        >>> embed(clearhead.load("everyday"), ["A dog runs.", "A cat sleeps."]).shape
        (2, 160)
    """
    bundle = opened(bundle)
    if pool is not None and bundle.reads == "images":
        raise InputError(
            f"pool={pool!r} is for texts: this {bundle.name} reads images, and pools as it was built"
        )
    if bundle.reads == "images":
        # an image model has its own pooling
        vector_of = _image_vectors(bundle)
    else:
        vector_of = _text_vectors(bundle, pool)
    reader = reader_of(bundle)
    items, single = reader.items(bundle, inputs)
    # grouped batches come out of order: each vector is put at its own number
    vectors: list[np.ndarray] = [np.zeros(0, np.float32)] * len(items)
    for numbers, batch in reader.grouped(bundle, items):
        # (b, d) in float32, because the length of a bfloat16 vector is inexact
        x = vector_of(batch).float()
        if normalise:
            # after pooling, so that the dot product of two vectors is their cosine
            x = F.normalize(x, dim=-1)
        for i, vector in zip(numbers, x.cpu().numpy(), strict=True):
            vectors[i] = vector
    # (d,) for one input, (n, d) for several
    if single:
        return vectors[0]
    # an empty folder or list: (0, d), so that results can be concatenated
    if not vectors:
        return np.zeros((0, getattr(bundle.config, "width", 0)), np.float32)
    return np.stack(vectors)


def _text_vectors(bundle: Bundle, pool: str | None) -> Callable[[Batch], Tensor]:
    """The function that gives a vector for each text of a batch."""
    model: Any = bundle.model
    bundle.tokenizer()  # raises for a model that reads no text
    if pool is None and "embed" in bundle.can:
        return lambda batch: batch.run(model)  # a sentence model pools as it was trained
    if pool is not None:
        one_of("pool", pool, POOLS)
    bundle.require("encode", "a BERT or a GPT")

    def pooled(batch: Batch) -> Tensor:
        assert batch.lengths is not None
        # (b, t, d) of all layers but the head
        x = model.encode(*batch.args, lengths=batch.lengths)
        return _pooled(x, batch.lengths, pool or "mean")

    return pooled


def _image_vectors(bundle: Bundle) -> Callable[[Batch], Tensor]:
    """The function that gives the pooled vector of each image of a batch."""
    model: Any = bundle.model
    if not hasattr(model, "states"):
        raise InputError(
            f"this {bundle.name} has no vector per image: expected a model of images with `states`"
        )
    return lambda batch: model.states(*batch.args)


@torch.no_grad()
def likelihood(
    bundle: ModelLike,
    text: str,
    *,
    stride: int | None = None,
    done: Callable[[int, int], None] | None = None,
) -> Likelihood:
    """Return the log-probability of a text, token by token.

    Args:
        bundle: A language model, or its name or folder.
        text: The text.
        stride: A text longer than the model's context is read in windows of that size, which move by this number of
            tokens; half the context if not given. Each token counts once, given all tokens before it in its window.
        done: Called with the number of tokens just read and the number of all.

    Examples:
        >>> round(likelihood(clearhead.load("everyday"), "The man walks.").perplexity)
        252
    """
    bundle = opened(bundle)
    bundle.require("predict", "a GPT")
    tokens = bundle.tokenizer()
    model: Any = bundle.model
    if not isinstance(text, str):
        raise InputError(
            f"text is a {type(text).__name__}: expected a string; `likelihoods` reads several"
        )
    ids = [int(i) for i in tokens.wrapped(text)]
    if not ids:
        raise TextError("the text is empty: expected a token or more")
    # without a limit of the context, one window reads all
    most = bundle.max_tokens or len(ids)
    if stride is None:
        # every token but those of the first window has at least half a context before it
        stride = max(most // 2, 1)
    # a stride above the context would leave tokens without a prediction
    if stride < 1 or (bundle.max_tokens is not None and stride > most):
        if bundle.max_tokens is None:
            expected = "1 or more"
        else:
            expected = f"1 to {most}, the model's context"
        raise InputError(f"stride={stride}: expected {expected}")
    logprobs: list[float | None] = [None] * len(ids)
    # nothing predicts the first token
    row, first, begin = torch.tensor([ids], device=bundle.device), 1, 0
    # the window begins at `begin`, and its first token that was not yet counted is `first`
    while first < len(ids):
        last = min(begin + most, len(ids) - 1)  # the last token that this window predicts
        # state i - 1 predicts token i; the states count from the window's first token
        x = model.states(row[:, begin : min(last + 1, begin + most)])[
            0, first - 1 - begin : last - begin
        ]
        logprobs[first : last + 1] = target_logprobs(
            model.head, x, row[0, first : last + 1]
        ).tolist()
        if done is not None:
            done(last + 1 - first, len(ids) - 1)
        # the next window predicts only tokens that no earlier one has counted
        first, begin = last + 1, begin + stride
    return _likelihood(tokens, ids, logprobs)


@torch.no_grad()
def likelihoods(bundle: Bundle, texts: Sequence[str]) -> list[Likelihood]:
    """The Likelihood of each of several texts; those that fit the model's context are read in batches.

    A token's log-probability depends only on the tokens before it, so the padding after a text changes nothing.
    """
    bundle.require("predict", "a GPT")
    tokens = bundle.tokenizer()
    model: Any = bundle.model
    rows = [tokens.wrapped(text) for text in texts]
    most = bundle.max_tokens or BATCH_TOKENS
    # longer texts need windows, and one token predicts nothing: `likelihood` reads these below
    short = [i for i, ids in enumerate(rows) if 1 < len(ids) <= most]
    results: dict[int, Likelihood] = {}
    for numbers, ids, lengths in id_batches(bundle, [rows[i] for i in short]):
        # nothing predicts the first token, and the last state predicts nothing
        x, targets = model.states(ids)[:, :-1], ids[:, 1:]
        places = torch.arange(1, ids.shape[1], device=ids.device)
        # (b, t - 1): padding is no target
        real = places < lengths[:, None]
        logprobs = target_logprobs(model.head, x[real], targets[real])
        # boolean indexing flattened the rows in order, each with its length - 1 targets
        per_text = logprobs.split((lengths - 1).tolist())
        for number, values in zip(numbers, per_text, strict=True):
            # the number among the short texts -> among all texts
            i = short[number]
            # None: the first token, which nothing predicts
            results[i] = _likelihood(tokens, rows[i].tolist(), [None, *values.tolist()])
    return [results.get(i) or likelihood(bundle, text) for i, text in enumerate(texts)]


def _likelihood(tokens: Tokenizer, ids: list[int], logprobs: list[float | None]) -> Likelihood:
    total = sum((logprob for logprob in logprobs if logprob is not None), 0.0)
    # infinity is a possible log-probability of an impossible token, NaN is none
    if math.isnan(total):
        raise InputError(
            "the model's logits are not numbers (NaN): expected finite weights; perhaps its training diverged, or its "
            "checkpoint is damaged"
        )
    return Likelihood(
        logprob=total, logprobs=logprobs, pieces=tokens.pieces(np.array(ids, np.int64))
    )


def target_logprobs(head: Any, x: Float[Tensor, "t d"], targets: Tensor) -> Float[Tensor, "t"]:
    """The log-probability of each target; the logits of only a few tokens are in memory at a time."""
    rows = max(LOGITS // head.out_features, 1)
    parts = zip(x.split(rows), targets.split(rows), strict=True)
    return torch.cat(
        [head(part).float().log_softmax(-1).gather(1, ids[:, None])[:, 0] for part, ids in parts]
    )


@torch.no_grad()
def fill(bundle: ModelLike, text: str, *, top: int = 5) -> list[list[tuple[str, float]]]:
    """Return the likeliest tokens for each mask of a text, with their probabilities, the likeliest first.

    Args:
        bundle: A model trained on masked tokens: a BERT with answer="words"; or its name or folder.
        text: A text with masked tokens, written [MASK]: "Paris is in [MASK]."
        top: Tokens to return for each mask.

    Examples:
        >>> words = clearhead.tokens.Words(["a", "cat", "sleeps"])
        >>> bert = clearhead.build("bert", vocab=len(words) + 1, context=8, width=8, depth=1, heads=2)
        >>> len(fill(clearhead.Bundle(bert, words), "a [MASK] sleeps", top=2)[0])
        2
    """
    bundle = opened(bundle)
    bundle.require("fill", "a BERT with answer='words'")
    check_text(bundle, text)
    tokens = bundle.tokenizer()
    model: Any = bundle.model
    if top < 1:
        raise InputError(f"top={top}: expected 1 or more")
    row, masks = read_ids(bundle, text)
    if not masks:
        raise TextError(f"{text[:60]!r} has no gap: expected one or more {MASKS[0]}, in capitals")
    ids = id_row(bundle, row)
    # (masks, v), without the outputs of the mask token and of padding of the vocabulary
    p = model.head(model.states(ids)[0, masks]).float().softmax(-1)[:, : len(tokens)]
    high, token = p.topk(min(top, p.shape[1]), dim=-1)
    return [
        list(zip((piece.strip() for piece in tokens.pieces(t.tolist())), h.tolist(), strict=True))
        for h, t in zip(high, token, strict=True)
    ]


def _pooled(x: Float[Tensor, "b t d"], lengths: Tensor, pool: str) -> Float[Tensor, "b d"]:
    """One vector per row: the mean of its tokens, the first or the last."""
    if pool == "first":
        # such as BERT's [CLS]
        return x[:, 0]
    if pool == "last":
        # the last real token, because padding follows it
        return x[torch.arange(len(x), device=x.device), lengths - 1]
    return mean_of_tokens(x, lengths)
