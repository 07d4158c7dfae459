"""The linear map, with a product that faster code may replace."""

from __future__ import annotations

from collections.abc import Callable

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
