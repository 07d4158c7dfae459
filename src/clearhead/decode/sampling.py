"""Sampling: which tokens may come next, and which one is chosen.

repetition    logits of tokens that the text already has are divided by it if positive, else multiplied by it
              (Keskar et al. 2019)
temperature   all logits are divided by it
top_k         keep the k largest (Fan et al. 2018)
top_p         keep the fewest whose probabilities reach p (Holtzman et al. 2020)
min_p         keep those at least min_p times as probable as the likeliest (Nguyen et al. 2024)

They are applied in this order, each to the result of the one before.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import torch
from jaxtyping import Bool, Float, Int
from torch import Tensor

from .. import counter_rng
from ..errors import InputError

BLOCK = 64  # neighbouring logits of which `largest` takes the maximum first
NUCLEUS = 1024  # likeliest tokens among which top_p searches first
LEAST = 1e-6  # smallest temperature and penalty; smaller ones would overflow the logits


@dataclass(frozen=True, kw_only=True, slots=True)
class Choice:
    """How the next token is chosen. Without `sample` it is the likeliest, and only `repetition` matters.

    Examples:
        >>> logits = torch.tensor([[0.1, 2.0, 0.3]])
        >>> Choice().pick(logits)[0].tolist()
        [[1]]
        >>> Choice(sample=True, top_k=2).narrowed(logits).tolist()[0][0]
        -inf
    """

    sample: bool = False  # sample each token instead of taking the likeliest
    temperature: float = 1.0  # below 1 prefers likelier tokens, above 1 flattens the distribution
    top_k: int | None = None  # number of likeliest tokens to sample from
    top_p: float | None = None  # sample from the fewest tokens with this total probability
    # sample from tokens with at least this share of the likeliest token's probability
    min_p: float | None = None
    repetition: float = 1.0  # above 1 makes tokens less likely that the text already has

    def __post_init__(self) -> None:
        if not LEAST <= self.temperature < math.inf:
            raise InputError(
                f"temperature={self.temperature}: expected a number above 0, {LEAST:g} or more"
            )
        if self.top_k is not None and self.top_k < 1:
            raise InputError(f"top_k={self.top_k}: expected 1 or more")
        for name in ("top_p", "min_p"):
            share = getattr(self, name)
            if share is not None and not 0.0 < share <= 1.0:
                raise InputError(f"{name}={share}: expected a share above 0, at most 1")
        if not LEAST <= self.repetition <= 1 / LEAST:
            raise InputError(
                f"repetition={self.repetition}: expected a number above 0, {LEAST:g} to {1 / LEAST:g}, 1 for no penalty"
            )

    def pick(
        self,
        logits: Float[Tensor, "r v"],
        *,
        uniforms: Float[Tensor, "r"] | None = None,
        seen: Bool[Tensor, "r v"] | None = None,
        banned: Int[Tensor, "n"] | None = None,
    ) -> tuple[Int[Tensor, "r 1"], Float[Tensor, "r 1"]]:
        """Choose the next token of each row; returns it and its log-probability under the model.

        Penalties decide which token is chosen; they do not change the log-probability.

        Args:
            logits: The logits of the next token.
            uniforms: A random number in [0, 1) for each row; only for sampling.
            seen: Marks the tokens that each row already has, for `repetition`.
            banned: Tokens that are never chosen.
        """
        logp = logits.log_softmax(-1)
        # `ranked` decides what is chosen
        ranked = logp
        if seen is not None:
            ranked = penalise(logits, seen, self.repetition).log_softmax(-1)
        if banned is not None:
            ranked = ranked.index_fill(1, banned, -math.inf)
        if self.sample:
            assert uniforms is not None
            token = draw(self.narrowed(ranked), uniforms)
        else:
            token = largest(ranked, 1)[1]
        return token, logp.gather(1, token)

    def narrowed(self, logits: Float[Tensor, "r v"]) -> Float[Tensor, "r v"]:
        """The logits to sample from: -inf for tokens that temperature, top_k, top_p and min_p rule out."""
        if self.temperature != 1.0:
            logits = logits / self.temperature
        if self.top_k is not None:
            logits = top_k(logits, self.top_k)
        if self.top_p is not None and self.top_p != 1.0:
            logits = top_p(logits, self.top_p)
        if self.min_p is not None:
            logits = min_p(logits, self.min_p)
        return logits


def penalise(
    logits: Float[Tensor, "r v"], seen: Bool[Tensor, "r v"], penalty: float
) -> Float[Tensor, "r v"]:
    """Make the tokens marked by `seen` less likely; a penalty below 1 makes them likelier."""
    # dividing a negative logit would make its token likelier
    penalised = torch.where(logits > 0, logits / penalty, logits * penalty)
    return torch.where(seen, penalised, logits)


def top_k(logits: Float[Tensor, "r v"], k: int) -> Float[Tensor, "r v"]:
    """Keep the k largest logits, and those equal to the last of them."""
    highest, _ = largest(logits, min(k, logits.shape[-1]))
    least = highest[:, -1:]  # (r, 1)
    return logits.masked_fill(logits < least, -math.inf)


def top_p(logits: Float[Tensor, "r v"], p: float) -> Float[Tensor, "r v"]:
    """Keep the fewest logits whose probabilities reach p, and those equal to the last of them."""
    vocab = logits.shape[-1]
    total = logits.logsumexp(-1, keepdim=True)  # (r, 1)
    # The kept tokens are rarely many, and sorting all is slow: try the largest logits first. On a GPU the host would
    # wait for the check whether they are enough.
    tries = [vocab]
    if logits.device.type == "cpu":
        tries = [min(NUCLEUS, vocab), vocab]
    for most in tries:
        if most < vocab:
            high = largest(logits, most)[0]
        else:
            high = logits.sort(dim=-1, descending=True).values
        probability = (high - total).exp()
        likelier = probability.cumsum(-1) - probability  # the summed probability of likelier tokens
        kept = (likelier < p).sum(-1, keepdim=True).clamp(min=1)  # (r, 1)
        if most == vocab or bool((kept < most).all()):
            break
    least = high.gather(-1, kept - 1)
    return logits.masked_fill(logits < least, -math.inf)


def min_p(logits: Float[Tensor, "r v"], p: float) -> Float[Tensor, "r v"]:
    """Keep the logits of tokens at least p times as probable as the likeliest."""
    least = logits.amax(-1, keepdim=True) + math.log(p)  # (r, 1)
    return logits.masked_fill(logits < least, -math.inf)


def draw(logits: Float[Tensor, "r v"], uniforms: Float[Tensor, "r"]) -> Int[Tensor, "r 1"]:
    """Sample a token per row: the one at which the cumulative probability passes the row's uniform number."""
    cumulative = logits.double().softmax(-1).cumsum(-1)
    threshold = uniforms.double()[:, None] * cumulative[:, -1:]  # the last sum is 1 up to rounding
    token = torch.searchsorted(cumulative, threshold, right=True)
    return token.clamp(max=logits.shape[-1] - 1)


def uniforms(
    seed: int | Sequence[int], rows: int, samples: int, tokens: int
) -> Float[Tensor, "n t"]:
    """A random number in [0, 1) for each token of each sample of each row.

    With one seed, sample j of row i has its own numbers; with one seed per row, a row's numbers do not depend on its
    place in the batch.
    """
    if isinstance(seed, int):
        numbers = counter_rng.uniform(seed, 0, np.arange(rows * samples), tokens)
    else:
        if len(seed) != rows:
            raise InputError(
                f"{len(seed)} seeds for {rows} rows: expected one for all, or one per row"
            )
        numbers = np.concatenate(
            [counter_rng.uniform(row_seed, 0, np.arange(samples), tokens) for row_seed in seed]
        )
    return torch.from_numpy(numbers)


def largest(x: Float[Tensor, "r v"], k: int) -> tuple[Float[Tensor, "r k"], Int[Tensor, "r k"]]:
    """The k largest numbers of each row and their indices; on a CPU faster than topk for long rows.

    They lie in the k blocks with the largest maxima, or after the last whole block.
    """
    whole = x.shape[1] // BLOCK * BLOCK
    if whole < 16 * k * BLOCK or x.device.type != "cpu":
        if k == 1:
            return x.max(-1, keepdim=True)
        return x.topk(k, dim=-1)
    maxima = x[:, :whole].unflatten(1, (-1, BLOCK)).amax(-1)  # (r, blocks)
    if k == 1:
        block = maxima.argmax(-1, keepdim=True)  # (r, k)
    else:
        block = maxima.topk(k, dim=-1).indices
    # the indices in x of the numbers in those blocks and after the last one
    inside = (block[..., None] * BLOCK + torch.arange(BLOCK)).flatten(1)
    after = torch.arange(whole, x.shape[1]).expand(x.shape[0], -1)
    index = torch.cat([inside, after], dim=1)
    candidates = x.gather(1, index)
    if k == 1:
        high, at = candidates.max(-1, keepdim=True)
    else:
        high, at = candidates.topk(k, dim=-1)
    return high, index.gather(1, at)
