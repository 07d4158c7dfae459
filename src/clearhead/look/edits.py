"""Ready-made edits for `edit`, each a function from an activation to an activation."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence

import torch
from torch import Tensor

from ..errors import InputError, InputIndexError

Edit = Callable[[Tensor], Tensor]


def silence(heads: Sequence[int]) -> Edit:
    """Return an edit that sets the output of some heads to 0, for addresses `...attn.heads`.

    Args:
        heads: The heads, counted from 0.

    Examples:
        >>> silence([1])(torch.ones(1, 2, 3, 4))[0, :, 0, 0]
        tensor([1., 0.])
    """

    def change(x: Tensor) -> Tensor:
        _check(heads, x)
        off = [head in heads for head in range(x.shape[1])]
        return x.masked_fill(torch.tensor(off, device=x.device)[:, None, None], 0.0)

    return change


def scale(heads: Mapping[int, float]) -> Edit:
    """Return an edit that multiplies the output of some heads by a factor, for addresses `...attn.heads`.

    Args:
        heads: The factor of each head; heads that are not named stay as they are.

    Examples:
        >>> scale({0: 0.5})(torch.ones(1, 2, 3, 4))[0, :, 0, 0]
        tensor([0.5000, 1.0000])
    """

    def change(x: Tensor) -> Tensor:
        _check(heads, x)
        factor = torch.ones(x.shape[1], dtype=x.dtype)
        for head, by in heads.items():
            factor[head] = by
        return x * factor.to(x.device)[:, None, None]

    return change


def patch(heads: Sequence[int], what: Tensor) -> Edit:
    """Return an edit that replaces the output of some heads by that of another run, for addresses `...attn.heads`.

    Args:
        heads: The heads, counted from 0.
        what: The output of all heads in the other run, as recorded at the same address.

    Examples:
        >>> patch([1], torch.zeros(1, 2, 3, 4))(torch.ones(1, 2, 3, 4))[0, :, 0, 0]
        tensor([1., 0.])
    """

    def change(x: Tensor) -> Tensor:
        _check(heads, x)
        if what.shape != x.shape:
            raise InputError(f"a patch of shape {tuple(what.shape)} does not fit heads of shape {tuple(x.shape)}")
        x = x.clone()
        x[:, list(heads)] = what[:, list(heads)].to(x)
        return x

    return change


def _check(heads: Sequence[int] | Mapping[int, float], x: Tensor) -> None:
    if x.ndim != 4:
        raise InputError(f"an activation of shape {tuple(x.shape)} has no heads: expected an address '...attn.heads'")
    wrong = [head for head in heads if not 0 <= head < x.shape[1]]
    if wrong:
        raise InputIndexError(f"heads {wrong}: there are {x.shape[1]}, counted from 0")
