"""Normalisation: keeps the size of a layer's output from growing or shrinking with depth."""

from __future__ import annotations

from collections.abc import Callable

import torch
import torch.nn.functional as F
from jaxtyping import Float
from torch import Tensor, nn

from ..checks import one_of
from .choices import Norm

Normalise = Callable[[Tensor, tuple[int, ...], Tensor | None, float | None], Tensor]


class RMSNorm(nn.RMSNorm):
    """x divided by its root mean square, then a learned scale (Zhang and Sennrich 2019, Eq. 4).

    `normalise(x, shape, weight, eps)` computes it; fast.accelerate sets a faster one for inference on the modules of a
    model.
    """

    normalise: Normalise = staticmethod(F.rms_norm)

    def forward(self, x: Float[Tensor, "*b d"]) -> Float[Tensor, "*b d"]:
        return self.normalise(x, self.normalized_shape, self.weight, self.eps)


class RMSNormPlusOne(RMSNorm):
    """RMSNorm whose scale is 1 + weight, with weights that start at 0 (Gemma Team 2024).

    As in Gemma's code, it is computed in float32 or better: 1 + weight in bfloat16 would lose most of the weight.
    """

    def reset_parameters(self) -> None:
        nn.init.zeros_(self.weight)

    def forward(self, x: Float[Tensor, "*b d"]) -> Float[Tensor, "*b d"]:
        wide = torch.promote_types(x.dtype, torch.float32)
        scale = 1.0 + self.weight.to(wide)
        return self.normalise(x.to(wide), self.normalized_shape, scale, self.eps).to(x.dtype)


# "layer": (x - mean) / standard deviation over the width, then a learned scale and shift (Ba et al. 2016, Eq. 4).
# "rms": no centring, no shift. "rms_plus_one": the same, scaled by 1 + weight.
NORMS = {"layer": nn.LayerNorm, "rms": RMSNorm, "rms_plus_one": RMSNormPlusOne, "none": nn.Identity}


def make_norm(kind: Norm, width: int, *, eps: float = 1e-5) -> nn.Module:
    """Build a normalisation layer from its name.

    Args:
        kind: "layer", "rms", "rms_plus_one" or "none" (the identity).
        width: width of the tokens, which is normalised over.
        eps: added to the variance, so that a constant input does not divide by zero.

    Examples:
        >>> make_norm("rms", 2, eps=0.0)(torch.tensor([1.0, 7.0])).tolist()  # divided by 5
        [0.2..., 1.39...]
    """
    one_of("norm", kind, NORMS)
    if kind == "none":
        # a module all the same, so that callers need no branch
        return nn.Identity()
    return NORMS[kind](width, eps=eps)
