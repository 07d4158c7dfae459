"""A stack of simple layers for the depth experiments: how the input gets through, in one word."""

from __future__ import annotations

import torch
from jaxtyping import Float
from torch import Tensor, nn

from ..errors import InputError
from .mlp import ACTIVATIONS
from .norm import make_norm

CONNECTIONS = ("plain", "dense", "residual")


class Stack(nn.Module):
    """`depth` layers f_k(z) = activation(W z + b), each normalised if `norm` says so, and a linear readout.

    plain      z_k = f_k(z_{k-1})                   the input must survive every layer
    dense      z_k = f_k([x, z_1, ..., z_{k-1}])    nothing is lost; weights grow as depth squared (Huang et al. 2017)
    residual   z_k = z_{k-1} + f_k(z_{k-1})         a layer learns what to add (He et al. 2016)
    """

    def __init__(
        self,
        width: int,
        depth: int,
        *,
        connect: str = "residual",
        norm: str = "none",
        activation: str = "leaky_relu",
    ) -> None:
        super().__init__()
        if connect not in CONNECTIONS:
            raise InputError(f"connect={connect!r}: expected one of {', '.join(CONNECTIONS)}")
        if activation not in ACTIVATIONS:
            raise InputError(f"activation={activation!r}: expected one of {', '.join(ACTIVATIONS)}")
        self.connect, self.activation = connect, activation
        dense = connect == "dense"
        self.layers = nn.ModuleList(nn.Linear(width * (k + 1 if dense else 1), width) for k in range(depth))
        self.norms = nn.ModuleList(make_norm(norm, width) for _ in range(depth))
        self.readout = nn.Linear(width * (depth + 1 if dense else 1), width)

    def forward(self, x: Float[Tensor, "*b d"]) -> Float[Tensor, "*b d"]:
        z = x
        for layer, norm in zip(self.layers, self.norms, strict=True):
            new = norm(ACTIVATIONS[self.activation](layer(z)))
            if self.connect == "dense":
                z = torch.cat([z, new], dim=-1)
            else:
                z = z + new if self.connect == "residual" else new
        return self.readout(z)
