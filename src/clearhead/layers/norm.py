"""Normalisation: keep the size of a layer's output from growing or fading with depth."""

from __future__ import annotations

from collections.abc import Callable
from typing import ClassVar

import torch.nn.functional as F
from jaxtyping import Float
from torch import Tensor, nn

from ..errors import InputError

Normalise = Callable[[Tensor, tuple[int, ...], Tensor | None, float | None], Tensor]


class RMSNorm(nn.RMSNorm):
    """x / root mean square, then a learned scale (Zhang and Sennrich 2019, Eq. 4).

    `normalise` computes it. fast.accelerate gives the norms of a model another one, which is faster for inference.
    """

    normalise: ClassVar[Normalise] = staticmethod(F.rms_norm)

    def forward(self, x: Float[Tensor, "*b d"]) -> Float[Tensor, "*b d"]:
        return self.normalise(x, self.normalized_shape, self.weight, self.eps)


# "layer": (x - mean) / deviation over the width, then a learned scale and shift (Ba et al. 2016, Eq. 4).
# "rms": no centring, no shift.
NORMS = {"layer": nn.LayerNorm, "rms": RMSNorm, "none": nn.Identity}


def make_norm(kind: str, width: int, *, eps: float = 1e-5) -> nn.Module:
    """Return the normalisation that a word names: layer, rms or none."""
    if kind not in NORMS:
        raise InputError(f"norm={kind!r}: expected one of {', '.join(NORMS)}")
    return nn.Identity() if kind == "none" else NORMS[kind](width, eps=eps)
