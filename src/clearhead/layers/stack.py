"""A stack of simple layers for experiments with depth, with three ways to connect them."""

from __future__ import annotations

import torch
from jaxtyping import Float
from torch import Tensor, nn

from ..checks import one_of
from .choices import Activation, Connection, Norm
from .mlp import ACTIVATIONS
from .norm import make_norm

CONNECTIONS = ("plain", "dense", "residual")


class Stack(nn.Module):
    """Layers f_k(z) = norm(activation(W z + b)) and a linear readout.

    plain      z_k = f_k(z_{k-1})                   the input must survive every layer
    dense      z_k = f_k([x, z_1, ..., z_{k-1}])    nothing is lost; weights grow as depth squared (Huang et al. 2017)
    residual   z_k = z_{k-1} + f_k(z_{k-1})         a layer learns what to add (He et al. 2016)

    Args:
        width: width of the input and of every layer.
        depth: number of layers, besides the readout.
        connect: "plain", "dense" or "residual".
        norm: normalisation of each layer's output: "layer", "rms" or "none".
        activation: relu, leaky_relu, gelu, gelu_tanh, silu or tanh.

    Examples:
        >>> Stack(4, 3, connect="dense", norm="layer")(torch.zeros(2, 4)).shape
        torch.Size([2, 4])
    """

    def __init__(
        self,
        width: int,
        depth: int,
        *,
        connect: Connection = "residual",
        norm: Norm = "none",
        activation: Activation = "leaky_relu",
    ) -> None:
        super().__init__()
        one_of("connect", connect, CONNECTIONS)
        one_of("activation", activation, ACTIVATIONS)
        self.connect, self.activation = connect, activation
        # the input of layer k, and of the readout after the last: with dense connections x and all layers before it
        inputs = [width] * (depth + 1)
        if connect == "dense":
            inputs = [width * (k + 1) for k in range(depth + 1)]
        self.layers = nn.ModuleList(nn.Linear(inputs[k], width) for k in range(depth))
        self.norms = nn.ModuleList(make_norm(norm, width) for _ in range(depth))
        self.readout = nn.Linear(inputs[depth], width)

    def forward(self, x: Float[Tensor, "*b d"]) -> Float[Tensor, "*b d"]:
        z = x
        for layer, norm in zip(self.layers, self.norms, strict=True):
            new = norm(ACTIVATIONS[self.activation](layer(z)))
            if self.connect == "dense":
                # (..., d k) -> (..., d (k + 1)): later layers read all outputs so far
                z = torch.cat([z, new], dim=-1)
            elif self.connect == "residual":
                z = z + new
            else:
                z = new
        return self.readout(z)
