"""The multi-layer perceptron of a block: what each token does alone."""

from __future__ import annotations

from collections.abc import Callable

import torch
import torch.nn.functional as F
from jaxtyping import Float
from torch import Tensor, nn

from ..errors import InputError
from .linear import Linear


def gelu_tanh(x: Tensor) -> Tensor:
    """GPT-2's gelu, which computes the error function by a tanh (Hendrycks and Gimpel 2016)."""
    if torch.compiler.is_compiling() and x.is_cuda:  # tanh u = 2 sigmoid(2u) - 1, which a GPU has in fewer steps
        wide = x.float()
        return (wide * torch.sigmoid(1.5957691216057308 * (wide + 0.044715 * wide * wide * wide))).to(x.dtype)
    return F.gelu(x, approximate="tanh")


ACTIVATIONS: dict[str, Callable[[Tensor], Tensor]] = {
    "relu": F.relu,
    "leaky_relu": F.leaky_relu,
    "gelu": F.gelu,
    "gelu_tanh": gelu_tanh,
    "silu": F.silu,
    "tanh": F.tanh,
}
KINDS = (*ACTIVATIONS, "swiglu")


class MLP(nn.Module):
    """down(activation(up(x))): Eq. 2 of Vaswani et al. 2017; "swiglu" gates it (Shazeer 2020, Eq. 6)."""

    def __init__(
        self,
        width: int,
        hidden: int | None = None,
        *,
        kind: str = "gelu",
        bias: bool = True,
        dropout: float = 0.0,
    ) -> None:
        super().__init__()
        if kind not in KINDS:
            raise InputError(f"mlp={kind!r}: expected one of {', '.join(KINDS)}")
        hidden = 4 * width if hidden is None else hidden
        if min(width, hidden) < 1 or not 0.0 <= dropout < 1.0:
            raise InputError(
                f"width={width}, hidden={hidden}, dropout={dropout}: expected 1 or more, and a share below 1"
            )
        self.kind, self.dropout = kind, dropout
        self.gate = Linear(width, hidden, bias=bias) if kind == "swiglu" else None
        self.up = Linear(width, hidden, bias=bias)
        self.down = Linear(hidden, width, bias=bias)

    def forward(self, x: Float[Tensor, "*b d"]) -> Float[Tensor, "*b d"]:
        inner = ACTIVATIONS[self.kind](self.up(x)) if self.gate is None else F.silu(self.gate(x)) * self.up(x)
        return self.down(F.dropout(inner, self.dropout) if self.training else inner)
