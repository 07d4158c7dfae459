"""Deep: a deep network of simple layers, for the question of how a network keeps its input on the way.

    x -> layers, each a linear map, an activation and perhaps a norm -> readout -> y

The three ways to connect them are layers.Stack's: plain, dense (Huang et al. 2017), residual (He et al. 2016).
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

from jaxtyping import Float
from torch import Tensor, nn

from ..errors import InputError
from ..layers import Stack


@dataclass(frozen=True, kw_only=True, slots=True)
class Config:
    """The sizes and choices of a deep network."""

    width: int = 16  # of the input, of every layer and of the output
    depth: int = 8  # layers before the readout
    connect: Literal["plain", "dense", "residual"] = "residual"  # what a layer sees, and what becomes of its answer
    norm: Literal["none", "layer", "rms"] = "none"  # of what each layer says
    activation: Literal["relu", "leaky_relu", "gelu", "gelu_tanh", "silu", "tanh"] = "leaky_relu"  # of each layer

    def __post_init__(self) -> None:
        for name, least in (("width", 1), ("depth", 0)):
            if getattr(self, name) < least:
                raise InputError(f"{name}={getattr(self, name)}: expected {least} or more")


class Deep(nn.Module):
    """Vectors (b, d) -> vectors (b, d)."""

    def __init__(self, config: Config) -> None:
        super().__init__()
        c = self.config = config
        self.stack = Stack(c.width, c.depth, connect=c.connect, norm=c.norm, activation=c.activation)

    def forward(self, x: Float[Tensor, "b d"]) -> Float[Tensor, "b d"]:
        return self.stack(x)
