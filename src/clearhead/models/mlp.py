"""A multi-layer perceptron, from vectors to vectors.

x -> hidden layers, each activation(norm(W x + b)) -> linear readout -> y
"""

from __future__ import annotations

from dataclasses import dataclass

import torch
from jaxtyping import Float
from torch import Tensor, nn

from ..checks import at_least
from ..layers import Linear, make_norm
from ..layers.choices import Activation, Norm
from ..layers.mlp import ACTIVATIONS
from .model import Model


@dataclass(frozen=True, kw_only=True, slots=True)
class Config:
    """The sizes and choices of a perceptron."""

    inputs: int  # width of the input
    outputs: int  # width of the output
    hidden: int = 64  # width of the hidden layers
    depth: int = 2  # number of hidden layers
    norm: Norm = "none"  # normalisation before each activation
    activation: Activation = "relu"  # activation of the hidden layers

    def __post_init__(self) -> None:
        at_least(self, 1, "inputs", "outputs", "hidden")
        at_least(self, 0, "depth")


class HiddenLayer(nn.Module):
    """A hidden layer: activation(norm(W x + b))."""

    def __init__(self, inputs: int, c: Config) -> None:
        super().__init__()
        self.linear = Linear(inputs, c.hidden)
        self.norm = make_norm(c.norm, c.hidden)
        self.activation = c.activation

    def forward(self, x: Float[Tensor, "b i"]) -> Float[Tensor, "b d"]:
        return ACTIVATIONS[self.activation](self.norm(self.linear(x)))


class Perceptron(Model):
    """Vectors (b, i) -> vectors (b, o)."""

    reads = "vectors"
    can = frozenset({"map"})
    config: Config

    def __init__(self, config: Config) -> None:
        super().__init__()
        c = self.config = config
        self.blocks = nn.ModuleList()
        width = c.inputs
        for _ in range(c.depth):
            # the first layer reads the input, each other the hidden layer before it
            self.blocks.append(HiddenLayer(width, c))
            width = c.hidden
        self.head = Linear(width, c.outputs)

    def example_inputs(self, rows: int, size: int, generator: torch.Generator) -> dict[str, Tensor]:
        return {"x": torch.randn(rows, self.config.inputs, generator=generator)}

    def forward(self, x: Float[Tensor, "b i"]) -> Float[Tensor, "b o"]:
        for block in self.blocks:
            x = block(x)
        return self.head(x)
