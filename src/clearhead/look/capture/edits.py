"""Ready-made edits for `edit`, each a function from an activation to an activation."""

from __future__ import annotations

import inspect
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import torch
from torch import Tensor

from ...errors import InputError, InputIndexError, InputTypeError

Edit = Callable[[Tensor], Tensor]


def silence(heads: Sequence[int]) -> Edit:
    """Return an edit that sets the output of some heads to 0, for addresses `...attn.heads`.

    Args:
        heads: The heads, counted from 0.

    Examples:
        >>> silence([1])(torch.ones(1, 2, 3, 4))[0, :, 0, 0]
        tensor([1., 0.])
    """
    _check_list(heads)

    def change(x: Tensor) -> Tensor:
        _check(heads, x)
        # (h,) -> (h, 1, 1), to broadcast over (b, h, t, e)
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
    if not isinstance(heads, Mapping):
        raise InputTypeError(
            f"scale was given {heads!r}: expected a dict of heads and factors, such as {{0: 0.5}}"
        )

    def change(x: Tensor) -> Tensor:
        _check(heads, x)
        # Heads that are not named keep the factor 1.
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
    _check_list(heads)

    def change(x: Tensor) -> Tensor:
        _check(heads, x)
        if what.shape != x.shape:
            raise InputError(
                f"a patch of shape {tuple(what.shape)} does not fit heads of shape {tuple(x.shape)}"
            )
        # The activation itself may be in use elsewhere, so a copy is changed.
        x = x.clone()
        x[:, list(heads)] = what[:, list(heads)].to(x)
        return x

    return change


def checked_edit(pattern: str, change: Any) -> Edit:
    """The edit of an address; raises if it is no function of one argument."""
    if not callable(change):
        raise InputTypeError(
            f"the edit of {pattern!r} is a {type(change).__name__}: expected a function of the activation"
        )
    try:
        # A call with one argument must be possible, whatever the argument is called.
        inspect.signature(change).bind(None)
    except TypeError as cause:
        raise InputTypeError(
            f"the edit of {pattern!r} does not take one argument: expected a function of the activation alone"
        ) from cause
    except ValueError:  # some functions of C have no signature
        pass
    edit: Edit = change
    return edit


def _check_list(heads: Any) -> None:
    # A string is iterable, and its letters are no heads.
    if isinstance(heads, int | str) or not hasattr(heads, "__iter__"):
        raise InputTypeError(f"heads={heads!r}: expected a list of heads, such as [2]")


def _check(heads: Sequence[int] | Mapping[int, float], x: Tensor) -> None:
    if not isinstance(x, Tensor):
        raise InputTypeError(
            f"a {type(x).__name__} has no heads: expected an address '...attn.heads'"
        )
    # (b, h, t, e)
    if x.ndim != 4:
        raise InputError(
            f"an activation of shape {tuple(x.shape)} has no heads: expected an address '...attn.heads'"
        )
    wrong = [head for head in heads if not 0 <= head < x.shape[1]]
    if wrong:
        raise InputIndexError(f"heads {wrong}: there are {x.shape[1]}, counted from 0")
