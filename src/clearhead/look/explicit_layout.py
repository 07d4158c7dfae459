"""Which axes of a product of attention weights and values are rows, heads, queries, keys and features."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from torch import Tensor


@dataclass(frozen=True)
class Layout:
    """How weights, values and their product become (b, h, q, k), (b, h, k, e) and (b, h, q, e), and back.

    Each field says which axes of a tensor these are, in order. With three axes, the first has the rows and the heads.
    """

    weights: tuple[int, ...]
    values: tuple[int, ...]
    out: tuple[int, ...]
    heads: int | None = None  # of tensors with three axes: how many heads the first axis has for each row

    def four(self, x: Tensor, axes: tuple[int, ...]) -> Tensor:
        """A tensor with four axes, the rows and heads first."""
        x = x if axes == tuple(range(x.ndim)) else x.permute(axes)
        return x if self.heads is None else x.unflatten(0, (x.shape[0] // self.heads, self.heads))

    def back(self, x: Tensor, axes: tuple[int, ...]) -> Tensor:
        """A tensor with four axes in the form that it had before."""
        x = x if self.heads is None else x.flatten(0, 1)
        return x if axes == tuple(range(x.ndim)) else x.permute(tuple(axes.index(i) for i in range(x.ndim)))


def matmul_layout(axes: int, dim: int) -> Layout | None:
    """The layout of torch.matmul or torch.bmm for weights with so many axes that sum to 1 over axis `dim`."""
    order = tuple(range(axes))
    return Layout(order, order, order) if dim == axes - 1 else None


def einsum_layout(equation: Any, axes: int, dim: int) -> Layout | None:
    """The same of torch.einsum; None if its equation is no weighted sum of values.

    Examples:
        >>> einsum_layout("bhqk,bkhd->bqhd", 4, 3)
        Layout(weights=(0, 1, 2, 3), values=(0, 2, 1, 3), out=(0, 2, 1, 3), heads=None)
    """
    inputs, _, out = str(equation).replace(" ", "").replace("...", "*+"[: axes - 2]).partition("->")
    weights, _, values = inputs.partition(",")
    if not axes == len(weights) == len(set(weights)) == len(values) == len(set(values)):
        return None
    key, shared = weights[dim], [axis for axis in weights if axis in values]
    lead = [axis for axis in shared if axis != key]
    queries = [axis for axis in weights if axis not in values]
    features = [axis for axis in values if axis not in weights]
    if key not in shared or len(queries) != 1 or sorted(out) != sorted([*lead, *queries, *features]):
        return None
    return Layout(
        weights=tuple(map(weights.index, [*lead, *queries, key])),
        values=tuple(map(values.index, [*lead, key, *features])),
        out=tuple(map(out.index, [*lead, *queries, *features])),
    )
