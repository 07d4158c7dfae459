"""Deep: a deep network of simple layers, for the question of how a network keeps its input on the way.

    x -> layers, each a linear map, an activation and perhaps a norm -> readout -> y

The three ways to connect them are layers.Stack's: plain, dense (Huang et al. 2017), residual (He et al. 2016).
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

import torch
from jaxtyping import Float
from torch import Tensor

from ..checks import at_least
from ..layers import Stack
from ..layers.words import Activation, Norm
from .model import Model


@dataclass(frozen=True, kw_only=True, slots=True)
class Config:
    """The sizes and choices of a deep network."""

    width: int = 16  # of the input, of every layer and of the output
    depth: int = 8  # layers before the readout
    connect: Literal["plain", "dense", "residual"] = "residual"  # what a layer sees, and what becomes of its answer
    norm: Norm = "none"  # normalisation of each layer's output
    activation: Activation = "leaky_relu"  # of each layer

    def __post_init__(self) -> None:
        at_least(self, 1, "width")
        at_least(self, 0, "depth")


class Deep(Model):
    """Vectors (b, d) -> vectors (b, d)."""

    reads = "vectors"
    can = frozenset({"map"})
    config: Config

    def __init__(self, config: Config) -> None:
        super().__init__()
        c = self.config = config
        self.stack = Stack(c.width, c.depth, connect=c.connect, norm=c.norm, activation=c.activation)

    def example_inputs(self, rows: int, size: int, generator: torch.Generator) -> dict[str, Tensor]:
        return {"x": torch.randn(rows, self.config.width, generator=generator)}

    def forward(self, x: Float[Tensor, "b d"]) -> Float[Tensor, "b d"]:
        return self.stack(x)
