"""Scores: how well each key matches each query, before the softmax."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import torch
import torch.nn.functional as F
from jaxtyping import Float
from torch import Tensor, nn

# A score maps (q, k) either to a pair (q', k') and a scale, where the score is scale * q' . k' (which a fused kernel
# can compute), or to the matrix of scores itself.
Score = Callable[[Tensor, Tensor], "tuple[Tensor, Tensor, float] | Tensor"]


def dot(q: Tensor, k: Tensor) -> tuple[Tensor, Tensor, float]:
    """The dot product q . k."""
    return q, k, 1.0


def scaled(q: Tensor, k: Tensor) -> tuple[Tensor, Tensor, float]:
    """q . k / sqrt(e), whose variance is 1 for every head dimension e (Vaswani et al. 2017, section 3.2.1)."""
    return q, k, q.shape[-1] ** -0.5


def cosine(q: Tensor, k: Tensor) -> tuple[Tensor, Tensor, float]:
    """cos(q, k), which depends on the directions only, not on the lengths of the vectors."""
    return F.normalize(q, dim=-1), F.normalize(k, dim=-1), 1.0


# The scores of queries and keys without parameters, by the name that `attend` and the models take.
SCORES: dict[str, Score] = {"dot": dot, "scaled": scaled, "cosine": cosine}


@dataclass(frozen=True, slots=True)
class Dot:
    """The dot product with a scale of its own and, if wanted, a soft cap: cap * tanh(scale * q . k / cap).

    Gemma Team 2024 (Gemma 2), section 2. No kernel of SDPA caps scores, so with a cap they are computed explicitly, in
    float32 or better: memory grows with queries x keys.

    Args:
        scale: factor of the scores; 1 / sqrt(e) if not given.
        cap: bound of the scores' size; none if not given.

    Examples:
        >>> q = torch.full((1, 1, 1, 4), 10.0)
        >>> Dot(scale=1.0, cap=5.0)(q, q).item()  # 400, capped
        5.0
    """

    scale: float | None = None
    cap: float | None = None

    def __call__(
        self, q: Float[Tensor, "b h q e"], k: Float[Tensor, "b g k e"]
    ) -> tuple[Tensor, Tensor, float] | Float[Tensor, "b h q k"]:
        scale = q.shape[-1] ** -0.5 if self.scale is None else self.scale
        if self.cap is None:
            return q, k, scale
        wide = torch.promote_types(q.dtype, torch.float32)
        k = repeat_heads(k, q.shape[1]).to(wide)
        scores = (q.to(wide) * scale) @ k.mT  # (b, h, q, k)
        return torch.tanh(scores / self.cap) * self.cap


class Additive(nn.Module):
    """The additive score v . tanh(q + k) of Bahdanau et al. 2015, section A.1.2.

    Queries q = W s and keys k = U h are already projected. The tanh lets the query matter: without it v . q would be
    the same number for all keys of a query, and a softmax ignores a constant that is added to all of them.

    Args:
        head: head dimension of queries and keys.
        heads: number of query heads, each with its own v.

    Examples:
        >>> score = Additive(4, heads=2)
        >>> q, k = torch.zeros(1, 2, 3, 4), torch.zeros(1, 2, 5, 4)
        >>> score(q, k).shape
        torch.Size([1, 2, 3, 5])
        >>> attend(q, k, torch.ones(1, 2, 5, 4), score=score).shape
        torch.Size([1, 2, 3, 4])
    """

    def __init__(self, head: int, heads: int = 1) -> None:
        super().__init__()
        self.v = nn.Parameter(torch.empty(heads, head).uniform_(-(head**-0.5), head**-0.5))

    def forward(
        self, q: Float[Tensor, "b h q e"], k: Float[Tensor, "b g k e"]
    ) -> Float[Tensor, "b h q k"]:
        k = repeat_heads(k, q.shape[1])
        hidden = torch.tanh(q[:, :, :, None] + k[:, :, None])  # (b, h, q, k, e)
        return torch.einsum("bhqke,he->bhqk", hidden, self.v)


class Bilinear(nn.Module):
    """The bilinear score q W k, called "general" by Luong et al. 2015, section 3.1.

    Args:
        head: head dimension of the queries.
        heads: number of query heads, each with its own W.
        key: head dimension of the keys; that of the queries if not given.

    Examples:
        >>> q, k, v = torch.zeros(1, 2, 3, 4), torch.zeros(1, 2, 5, 6), torch.ones(1, 2, 5, 4)
        >>> attend(q, k, v, score=Bilinear(4, heads=2, key=6)).shape
        torch.Size([1, 2, 3, 4])
    """

    def __init__(self, head: int, heads: int = 1, *, key: int | None = None) -> None:
        super().__init__()
        if key is None:
            key = head
        self.weight = nn.Parameter(
            torch.empty(heads, head, key).uniform_(-(head**-0.5), head**-0.5)
        )

    def forward(
        self, q: Float[Tensor, "b h q e"], k: Float[Tensor, "b g k f"]
    ) -> tuple[Float[Tensor, "b h q f"], Float[Tensor, "b g k f"], float]:
        return q @ self.weight, k, 1.0


def repeat_heads(x: Float[Tensor, "b g n e"], heads: int) -> Float[Tensor, "b h n e"]:
    """Repeat key or value heads, so that each query head has its own; x itself if there are as many already."""
    if x.shape[1] == heads:
        return x
    return x.repeat_interleave(heads // x.shape[1], dim=1)
