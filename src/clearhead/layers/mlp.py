"""The multi-layer perceptron of a block, applied to each token separately."""

from __future__ import annotations

from collections.abc import Callable

import torch
import torch.nn.functional as F
from jaxtyping import Float
from torch import Tensor, nn

from ..checks import one_of
from ..errors import InputError
from .choices import MLPKind
from .linear import Linear


def gelu_tanh(x: Tensor) -> Tensor:
    """GPT-2's GELU, which approximates the error function by a tanh (Hendrycks and Gimpel 2016)."""
    # tanh u = 2 sigmoid(2u) - 1, fewer instructions on a GPU
    if torch.compiler.is_compiling() and x.is_cuda:
        wide = x.float()
        u = 1.5957691216057308 * (wide + 0.044715 * wide * wide * wide)  # 2 sqrt(2 / pi) = 1.59...
        return (wide * torch.sigmoid(u)).to(x.dtype)
    return F.gelu(x, approximate="tanh")


ACTIVATIONS: dict[str, Callable[[Tensor], Tensor]] = {
    "relu": F.relu,
    "leaky_relu": F.leaky_relu,
    "gelu": F.gelu,
    "gelu_tanh": gelu_tanh,
    "silu": F.silu,
    "tanh": F.tanh,
}
# Kinds with a gate, and the activation of the gate. Like Gemma and T5, "geglu" has GPT-2's GELU.
GATES: dict[str, Callable[[Tensor], Tensor]] = {"swiglu": F.silu, "geglu": gelu_tanh}
KINDS = (*ACTIVATIONS, *GATES)


class MLP(nn.Module):
    """The feed-forward layer down(activation(up(x))): Eq. 2 of Vaswani et al. 2017.

    "swiglu" has a gate: down(silu(gate(x)) * up(x)), Shazeer 2020, Eq. 6; so has "geglu", with a GELU.

    Args:
        width: width of the input and the output.
        hidden: width inside; 4 x width if not given.
        kind: activation: relu, leaky_relu, gelu, gelu_tanh, silu, tanh, swiglu or geglu.
        bias: the linear maps have a bias.
        dropout: share of the hidden layer dropped in training.

    Examples:
        >>> mlp = MLP(4, kind="swiglu", bias=False)
        >>> [name for name, _ in mlp.named_parameters()]
        ['gate.weight', 'up.weight', 'down.weight']
        >>> mlp(torch.zeros(2, 7, 4)).shape
        torch.Size([2, 7, 4])
    """

    def __init__(
        self,
        width: int,
        hidden: int | None = None,
        *,
        kind: MLPKind = "gelu",
        bias: bool = True,
        dropout: float = 0.0,
    ) -> None:
        super().__init__()
        one_of("mlp", kind, KINDS)
        if hidden is None:
            hidden = 4 * width
        if min(width, hidden) < 1 or not 0.0 <= dropout < 1.0:
            raise InputError(
                f"width={width}, hidden={hidden}, dropout={dropout}: expected widths of 1 or more, dropout in [0, 1)"
            )
        self.kind, self.dropout = kind, dropout
        self.gate = Linear(width, hidden, bias=bias) if kind in GATES else None
        self.up = Linear(width, hidden, bias=bias)
        self.down = Linear(hidden, width, bias=bias)

    def forward(self, x: Float[Tensor, "*b d"]) -> Float[Tensor, "*b d"]:
        if self.gate is None:
            # max(0, x W1 + b1) of Eq. 2, for the activation "relu"
            inner = ACTIVATIONS[self.kind](self.up(x))
        else:
            # elementwise: a gate for each hidden unit
            inner = GATES[self.kind](self.gate(x)) * self.up(x)
        if self.training:
            inner = F.dropout(inner, self.dropout)
        return self.down(inner)
