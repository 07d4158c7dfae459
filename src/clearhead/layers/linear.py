"""The linear map, with a product that faster code may replace."""

from __future__ import annotations

from collections.abc import Callable

import torch
import torch.nn.functional as F
from jaxtyping import Float
from torch import Tensor, nn

Product = Callable[[Tensor, Tensor, Tensor | None], Tensor]


class Linear(nn.Linear):
    """The linear map x W' + b: torch.nn.Linear, with a replaceable product.

    `product(x, weight, bias)` computes it; fast.accelerate sets a faster one for inference on the modules of a model.

    Args:
        in_features: width of the input.
        out_features: width of the output.
        bias: add a learned bias.
        device: device of the parameters.
        dtype: dtype of the parameters.

    Examples:
        >>> Linear(4, 3)(torch.zeros(2, 7, 4)).shape
        torch.Size([2, 7, 3])
    """

    product: Product = staticmethod(F.linear)

    def forward(self, x: Float[Tensor, "*b i"]) -> Float[Tensor, "*b o"]:
        return self.product(x, self.weight, self.bias)


class Readout(Linear):
    """An output layer whose input is scaled, whose logits are capped, or both: cap * tanh(scale x W' / cap).

    Args:
        in_features: width of the input.
        out_features: number of logits.
        bias: add a learned bias.
        scale: factor of the input (T5).
        cap: bound of the logits' size (Gemma 2); none if not given.

    Examples:
        >>> readout = Readout(4, 3, cap=30.0)
        >>> bool(readout(1e6 * torch.ones(1, 4)).abs().max() <= 30.0)
        True
    """

    def __init__(
        self, in_features: int, out_features: int, bias: bool = False, *, scale: float = 1.0, cap: float | None = None
    ) -> None:
        super().__init__(in_features, out_features, bias=bias)
        self.scale, self.cap = scale, cap

    def forward(self, x: Float[Tensor, "*b i"]) -> Float[Tensor, "*b o"]:
        logits = super().forward(x if self.scale == 1.0 else x * self.scale)
        return logits if self.cap is None else torch.tanh(logits / self.cap) * self.cap
