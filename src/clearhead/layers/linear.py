"""The linear map, by whichever product of this machine is quickest for it."""

from __future__ import annotations

import torch
import torch.nn.functional as F
from jaxtyping import Float
from torch import Tensor, nn

LARGE = 1 << 20  # weights from which the product of a few rows is worth a choice ...
HUGE = 1 << 23  # ... and from which that of a single row is: a readout of many words
FEW = 512  # rows up to which it is


class Linear(nn.Linear):
    """x W' + b. A CPU that is asked for a few rows, and no gradient, takes oneDNN's product.

    The usual one leaves most of the memory's speed unused: for the readout of 58,101 words from a width of 512 it takes
    about twice as long for one row, and nearly three times for five (benchmarks/translate.py).
    """

    def forward(self, x: Float[Tensor, "*b i"]) -> Float[Tensor, "*b o"]:
        if self._few(x):
            out: Tensor = torch.ops.mkldnn._linear_pointwise(x, self.weight, self.bias, "none", [], "")
            return out
        return F.linear(x, self.weight, self.bias)

    def _few(self, x: Tensor) -> bool:
        """Whether the other product may be taken, and pays."""
        size = self.weight.numel()
        if size < LARGE or torch.is_grad_enabled() or torch.compiler.is_compiling():
            return False
        rows = x.numel() // max(x.shape[-1], 1)
        few = 1 < rows <= FEW or (rows == 1 and size >= HUGE)
        plain = x.dtype == self.weight.dtype == torch.float32 and type(self.weight) is nn.Parameter
        here = x.device.type == "cpu" and torch.backends.mkldnn.is_available()
        return few and plain and here and not torch.is_autocast_enabled("cpu")
