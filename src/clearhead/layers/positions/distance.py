"""Positions as a bias of the scores by the distance of query and key."""

from __future__ import annotations

import math

import torch
from jaxtyping import Int
from torch import Tensor, nn

from ...errors import InputError
from ..bias import Bias
from .interface import Positions


class Alibi(Positions):
    """ALiBi: subtract from each score the distance times a fixed slope per head (Press et al. 2022).

    The slopes of n = 2^m heads are 2^(-8/n), 2^(-16/n), ...; for other n, as in the paper's code, those of the next
    lower power of two and then every second slope of twice that power.

    Args:
        heads: number of query heads.

    Examples:
        >>> Alibi(2).bias(torch.arange(3), torch.arange(3)).tile((2, 3), (0, 3))[0, 0].tolist()  # of the last query
        [[-0.125, -0.0625, 0.0]]
    """

    biases = True

    def __init__(self, heads: int) -> None:
        super().__init__()
        if heads < 1:
            raise InputError(f"heads={heads}: expected 1 or more")
        below = 2 ** int(math.log2(heads))  # the largest power of two that is no more
        slopes = [2.0 ** (-8 * i / below) for i in range(1, below + 1)]
        slopes += [2.0 ** (-4 * i / below) for i in range(1, 2 * (heads - below), 2)]
        self.constant("slope", -torch.tensor(slopes, dtype=torch.float32, device="cpu"))
        self.slope: Tensor

    def bias(self, q_at: Int[Tensor, "*p q"], k_at: Int[Tensor, "*r k"]) -> Bias:
        return Bias(q_at=q_at, k_at=k_at, slope=self.slope)


class Relative(Positions):
    """A learned bias per head and bucket of distances (Raffel et al. 2020, section 2.1, T5).

    The smallest distances have a bucket each, larger ones share logarithmically wider buckets, and all past `reach`
    share the last.

    Args:
        heads: number of query heads.
        buckets: number of buckets.
        reach: distance from which all share the last bucket.
        causal: use no bucket for keys after the query (a decoder); otherwise they have half of the buckets.

    Examples:
        >>> positions = Relative(heads=3, buckets=8, reach=16)
        >>> positions.table.shape
        torch.Size([8, 3])
        >>> positions.bias(torch.arange(5), torch.arange(5)).tile((0, 5), (0, 5)).shape
        torch.Size([1, 3, 5, 5])
    """

    biases = True

    def __init__(
        self, heads: int, *, buckets: int = 32, reach: int = 128, causal: bool = False
    ) -> None:
        super().__init__()
        fewest = 2 if causal else 4
        exact = buckets // fewest  # distances with a bucket of their own
        if exact < 1 or reach <= exact:
            raise InputError(
                f"buckets={buckets}, reach={reach}: expected at least {fewest} buckets, and a reach past "
                f"the first {exact} distances, which have a bucket each"
            )
        self.reach = reach
        self.table = nn.Parameter(torch.zeros(buckets, heads))
        distances = torch.arange(-reach, reach + 1, device="cpu")
        self.constant("bucket", _bucket(distances, buckets, reach, causal))
        self.bucket: Tensor

    def bias(self, q_at: Int[Tensor, "*p q"], k_at: Int[Tensor, "*r k"]) -> Bias:
        return Bias(q_at=q_at, k_at=k_at, table=self.table[self.bucket].T)


def _bucket(distance: Int[Tensor, "d"], buckets: int, reach: int, causal: bool) -> Int[Tensor, "d"]:
    """The bucket of each distance key - query."""
    first = torch.zeros_like(distance)
    if causal:
        # keys after the query get bucket 0 too, but a causal mask forbids them
        back = (-distance).clamp(min=0)
    else:
        buckets //= 2
        first = (distance > 0) * buckets  # later keys have the second half
        back = distance.abs()
    # half of the buckets have one distance each; the others grow with the logarithm up to `reach`
    exact = buckets // 2
    ratio = torch.log(back.clamp(min=1).float() / exact) / math.log(reach / exact)
    far = (exact + (ratio * (buckets - exact)).long()).clamp(max=buckets - 1)
    return first + torch.where(back < exact, back, far)
