"""The projection head of self-supervised training, whose outputs are compared instead of the features themselves."""

from __future__ import annotations

import torch.nn.functional as F
from jaxtyping import Float
from torch import Tensor, nn

from .linear import Linear

HIDDEN, BOTTLENECK = 2048, 256  # widths of the head of Caron et al. 2021, appendix C


class ProjectionHead(nn.Module):
    """An MLP of three layers, then cosines with one learned direction per output (Caron et al. 2021, DINO).

    The last layer is weight-normalised with all lengths fixed to 1, so that an output is the cosine of the bottleneck's
    vector and the direction of that output: no output can win by a long weight vector.

    Args:
        width: width of the features.
        outputs: number of outputs.

    Examples:
        >>> out = ProjectionHead(8, 5)(torch.randn(2, 8))
        >>> out.shape, bool((out.abs() <= 1).all())
        (torch.Size([2, 5]), True)
    """

    def __init__(self, width: int, outputs: int) -> None:
        super().__init__()
        self.first = Linear(width, HIDDEN)
        self.second = Linear(HIDDEN, HIDDEN)
        self.third = Linear(HIDDEN, BOTTLENECK)
        self.last = Linear(BOTTLENECK, outputs, bias=False)

    def forward(self, x: Float[Tensor, "b d"]) -> Float[Tensor, "b o"]:
        x = self.third(F.gelu(self.second(F.gelu(self.first(x)))))
        # in float32: the eps of normalise is below the smallest 16-bit number
        unit = F.normalize(x.float(), dim=-1).to(x.dtype)
        directions = F.normalize(self.last.weight.float(), dim=-1).to(x.dtype)
        return F.linear(unit, directions)
