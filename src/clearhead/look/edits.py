"""Ready-made edits for `edit`, each a function from an activation to an activation."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence

import torch
from torch import Tensor

from ..errors import InputError, InputIndexError

Edit = Callable[[Tensor], Tensor]


def silence(heads: Sequence[int]) -> Edit:
    """Switch heads off: what they say becomes 0. For addresses `...attn.heads`."""

    def change(x: Tensor) -> Tensor:
        _check(heads, x)
        off = [head in heads for head in range(x.shape[1])]
        return x.masked_fill(torch.tensor(off, device=x.device)[:, None, None], 0.0)

    return change


def scale(heads: Mapping[int, float]) -> Edit:
    """Turn each head up or down by a factor. For addresses `...attn.heads`."""

    def change(x: Tensor) -> Tensor:
        _check(heads, x)
        factor = torch.ones(x.shape[1], dtype=x.dtype)
        for head, by in heads.items():
            factor[head] = by
        return x * factor.to(x.device)[:, None, None]

    return change


def patch(heads: Sequence[int], what: Tensor) -> Edit:
    """Put what the same heads said in another run (a recorded `...attn.heads`) in the place of what they say."""

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
