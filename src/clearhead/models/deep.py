"""Deep: a deep network of simple layers, to measure how well a signal passes through depth.

    x -> layers, each norm(activation(W z + b)) -> linear readout -> y

layers.Stack connects the layers in one of three ways: plain, dense (Huang et al. 2017) or residual (He et al. 2016,
Eq. 1).
"""

from __future__ import annotations

from dataclasses import dataclass

import torch
from jaxtyping import Float
from torch import Tensor

from ..checks import at_least
from ..layers import Stack
from ..layers.choices import Activation, Connection, Norm
from .model import Model


@dataclass(frozen=True, kw_only=True, slots=True)
class Config:
    """The sizes and choices of a deep network."""

    width: int = 16  # width of the input, of every layer and of the output
    depth: int = 8  # number of layers before the readout
    # plain: a chain; dense: a layer reads all before it; residual: it adds to its input
    connect: Connection = "residual"
    norm: Norm = "none"  # normalisation of each layer's output
    activation: Activation = "leaky_relu"  # activation of each layer

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
        self.stack = Stack(
            c.width, c.depth, connect=c.connect, norm=c.norm, activation=c.activation
        )

    def example_inputs(self, rows: int, size: int, generator: torch.Generator) -> dict[str, Tensor]:
        return {"x": torch.randn(rows, self.config.width, generator=generator)}

    def forward(self, x: Float[Tensor, "b d"]) -> Float[Tensor, "b d"]:
        return self.stack(x)
