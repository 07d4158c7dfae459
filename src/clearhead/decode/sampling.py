"""Which tokens may come next, and the one that is drawn: what sampling does to a model's logits.

repetition    the logits of tokens that were there are divided by it if positive, else multiplied (Keskar et al. 2019)
temperature   all logits are divided by it
top_k         only the k largest (Fan et al. 2018)
top_p         only the fewest whose probabilities reach p (Holtzman et al. 2020)
min_p         only those at least min_p times as probable as the first (Nguyen et al. 2024)

They act in this order, each on what the one before has left.
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

BLOCK = 64  # neighbouring tokens whose maximum is taken first
NUCLEUS = 1024  # tokens among which those of top_p are looked for first
LEAST = 1e-6  # logits divided by less, or multiplied by more than its inverse, leave the range of their numbers


@dataclass(frozen=True, kw_only=True, slots=True)
class Choice:
    """How the next token is chosen. Without `sample`, the likeliest is taken, and only `repetition` matters."""

    sample: bool = False  # draw each token instead of taking the likeliest
    temperature: float = 1.0  # below 1 draws likelier tokens, above 1 stranger ones
    top_k: int | None = None  # tokens to choose from
    top_p: float | None = None  # probability that they have together
    min_p: float | None = None  # probability that each has at least, as a share of the likeliest's
    repetition: float = 1.0  # above 1, what was there becomes less likely

    def __post_init__(self) -> None:
        if not LEAST <= self.temperature < math.inf:
            raise InputError(f"temperature={self.temperature}: expected a number above 0, {LEAST:g} or more")
        if self.top_k is not None and self.top_k < 1:
            raise InputError(f"top_k={self.top_k}: expected 1 or more")
        for name in ("top_p", "min_p"):
            if getattr(self, name) is not None and not 0.0 < getattr(self, name) <= 1.0:
                raise InputError(f"{name}={getattr(self, name)}: expected a share above 0, at most 1")
        if not LEAST <= self.repetition <= 1 / LEAST:
            raise InputError(
                f"repetition={self.repetition}: expected a number above 0, {LEAST:g} to {1 / LEAST:g}, 1 for no penalty"
            )

    def narrowed(self, logits: Float[Tensor, "r v"]) -> Float[Tensor, "r v"]:
        """The logits to draw from: what may not come is -inf."""
        x = logits if self.temperature == 1.0 else logits / self.temperature
        x = x if self.top_k is None else top_k(x, self.top_k)
        x = x if self.top_p is None or self.top_p == 1.0 else top_p(x, self.top_p)
        return x if self.min_p is None else min_p(x, self.min_p)


def repeat_less(logits: Float[Tensor, "r v"], seen: Bool[Tensor, "r v"], penalty: float) -> Float[Tensor, "r v"]:
    """Tokens that were seen become less likely, or more with a penalty below 1."""
    return torch.where(seen, torch.where(logits > 0, logits / penalty, logits * penalty), logits)


def top_k(logits: Float[Tensor, "r v"], k: int) -> Float[Tensor, "r v"]:
    """Only the k largest, and those equal to the last of them."""
    least = largest(logits, min(k, logits.shape[-1]))[0][:, -1:]
    return logits.masked_fill(logits < least, -math.inf)


def top_p(logits: Float[Tensor, "r v"], p: float) -> Float[Tensor, "r v"]:
    """Only the fewest whose probabilities together reach p, and those equal to the last of them."""
    whole = logits.logsumexp(-1, keepdim=True)
    first = NUCLEUS if logits.device.type == "cpu" else logits.shape[-1]  # a GPU is not asked: the host would wait
    for most in (min(first, logits.shape[-1]), logits.shape[-1]):  # they are rarely many: sorting all takes long
        high = largest(logits, most)[0] if most < logits.shape[-1] else logits.sort(dim=-1, descending=True).values
        share = (high - whole).exp()
        before = share.cumsum(-1) - share
        inside = (before < p).sum(-1, keepdim=True).clamp(min=1)  # (r, 1)
        if most == logits.shape[-1] or bool((inside < most).all()):
            break
    return logits.masked_fill(logits < high.gather(-1, inside - 1), -math.inf)


def min_p(logits: Float[Tensor, "r v"], p: float) -> Float[Tensor, "r v"]:
    """Only those at least p times as probable as the likeliest."""
    return logits.masked_fill(logits < logits.amax(-1, keepdim=True) + math.log(p), -math.inf)


def draw(logits: Float[Tensor, "r v"], chance: Float[Tensor, "r"]) -> Int[Tensor, "r 1"]:
    """For each row the token at which the sum of probabilities passes its chance, a number from 0 to below 1."""
    whole = logits.double().softmax(-1).cumsum(-1)
    wanted = chance.double()[:, None] * whole[:, -1:]
    return torch.searchsorted(whole, wanted, right=True).clamp(max=logits.shape[-1] - 1)


def chances(seed: int | Sequence[int], rows: int, samples: int, tokens: int) -> Float[Tensor, "n t"]:
    """A chance for each token of each sample of each row.

    With one seed, sample j of row i has its own; with a seed a row, a row's do not depend on where it stands.
    """
    if isinstance(seed, int):
        found = counter_rng.uniform(seed, 0, np.arange(rows * samples), tokens)
    else:
        if len(seed) != rows:
            raise InputError(f"{len(seed)} seeds for {rows} rows: expected one for all, or one a row")
        found = np.concatenate([counter_rng.uniform(one, 0, np.arange(samples), tokens) for one in seed])
    return torch.from_numpy(found)


def largest(x: Float[Tensor, "r v"], k: int) -> tuple[Float[Tensor, "r k"], Int[Tensor, "r k"]]:
    """topk of long rows, on a CPU: the k largest numbers lie in the k blocks with the largest maxima, or after them."""
    whole = x.shape[1] // BLOCK * BLOCK
    if whole < 16 * k * BLOCK or x.device.type != "cpu":
        return x.max(-1, keepdim=True) if k == 1 else x.topk(k, dim=-1)
    blocks = x[:, :whole].unflatten(1, (-1, BLOCK)).amax(-1)
    which = blocks.argmax(-1, keepdim=True) if k == 1 else blocks.topk(k, dim=-1).indices  # (r, k)
    inside = (which[..., None] * BLOCK + torch.arange(BLOCK)).flatten(1)
    after = torch.arange(whole, x.shape[1]).expand(x.shape[0], -1)
    places = torch.cat([inside, after], dim=1)
    near = x.gather(1, places)
    high, at = near.max(-1, keepdim=True) if k == 1 else near.topk(k, dim=-1)
    return high, places.gather(1, at)
