"""Normalisation: keep the size of what a layer says from growing or fading with depth."""

from __future__ import annotations

import torch
import torch.nn.functional as F
from jaxtyping import Float
from torch import Tensor, nn

from ..errors import InputError

FEW = 1 << 13  # numbers up to which the time of an operation is not that of its numbers


class RMSNorm(nn.RMSNorm):
    """x / root mean square, then a learned scale (Zhang and Sennrich 2019, Eq. 4).

    The layer norm of x beside -x, whose mean is 0, is the rms norm of both: one operation, where torch has eight on a
    CPU, which for a single token takes half the time.
    """

    def forward(self, x: Float[Tensor, "*b d"]) -> Float[Tensor, "*b d"]:
        eager = not torch.is_grad_enabled() and not torch.compiler.is_compiling()
        if eager and x.device.type == "cpu" and x.numel() <= FEW and x.dtype == self.weight.dtype == torch.float32:
            d = x.shape[-1]
            both = torch.layer_norm(torch.cat([x, -x], dim=-1), (2 * d,), None, None, self.eps or 0.0)
            return both.narrow(-1, 0, d) * self.weight
        return F.rms_norm(x, self.normalized_shape, self.weight, self.eps)


# "layer": (x - mean) / deviation over the width, then a learned scale and shift (Ba et al. 2016, Eq. 4).
# "rms": no centring, no shift.
NORMS = {"layer": nn.LayerNorm, "rms": RMSNorm, "none": nn.Identity}


def make_norm(kind: str, width: int, *, eps: float = 1e-5) -> nn.Module:
    """The normalisation a word names."""
    if kind not in NORMS:
        raise InputError(f"norm={kind!r}: expected one of {', '.join(NORMS)}")
    return nn.Identity() if kind == "none" else NORMS[kind](width, eps=eps)
