"""The interface of all position encodings."""

from __future__ import annotations

from jaxtyping import Float, Int
from torch import Tensor

from ..bias import Bias
from ..linear import Exact


class Positions(Exact):
    """The base class of all position encodings, which itself encodes nothing: override one of its three methods.

    `at` holds the positions of the tokens: (t,) for all rows, or (b, t) for each row; on a grid (t, 2) or (b, t, 2).

    Examples:
        >>> positions, x = Positions(), torch.zeros(2, 7, 12)
        >>> positions.add(x) is x, positions.bias(torch.arange(7), torch.arange(7))
        (True, None)
    """

    extra = 0  # width that `add` appends to x
    biases = False  # whether `bias` returns a Bias

    def add(self, x: Float[Tensor, "b t d"], at: Tensor | None = None) -> Float[Tensor, "b t o"]:
        """Return the tokens with their position vectors; positions count from 0 if `at` is not given."""
        return x

    def turn(
        self, q: Float[Tensor, "b h t e"], k: Float[Tensor, "b g t e"], at: Tensor
    ) -> tuple[Float[Tensor, "b h t e"], Float[Tensor, "b g t e"]]:
        """Return queries and keys, rotated by their positions."""
        return q, k

    def bias(self, q_at: Int[Tensor, "*p q"], k_at: Int[Tensor, "*r k"]) -> Bias | None:
        """Return the bias of the scores of queries at `q_at` and keys at `k_at`."""
        return None
