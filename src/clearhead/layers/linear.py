"""The linear map."""

from __future__ import annotations

from collections.abc import Callable
from typing import ClassVar

import torch.nn.functional as F
from jaxtyping import Float
from torch import Tensor, nn

Product = Callable[[Tensor, Tensor, Tensor | None], Tensor]


class Linear(nn.Linear):
    """x W' + b.

    `product` computes it. fast.accelerate gives the maps of a model another one, which is faster for inference.
    """

    product: ClassVar[Product] = staticmethod(F.linear)

    def forward(self, x: Float[Tensor, "*b i"]) -> Float[Tensor, "*b o"]:
        return self.product(x, self.weight, self.bias)
