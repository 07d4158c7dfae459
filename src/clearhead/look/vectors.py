"""Numbers that a caller gives in any form, as a tensor; and vectors of length 1."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
import torch
from jaxtyping import Float
from torch import Tensor

from ..errors import InputError


def as_tensor(given: Any) -> Tensor:
    """Return numbers in any form as a tensor of float32 or float64 on the CPU, without a gradient.

    Arrays with negative strides, bfloat16, float16, whole numbers and lists of tensors are all read; what is not
    float32 becomes float64, which holds it without rounding.

    Args:
        given: A tensor, an array, or nested sequences of numbers or tensors.

    Raises:
        InputError: If these are not real numbers, or rows of different lengths, or if entries are masked.

    Examples:
        >>> as_tensor(torch.ones(2, dtype=torch.bfloat16, requires_grad=True))
        tensor([1., 1.], dtype=torch.float64)
    """
    x = given if isinstance(given, Tensor) else _of_array(given)
    if x.is_complex():
        raise InputError(f"complex numbers of shape {tuple(x.shape)}: expected real numbers")
    x = x.detach().cpu()
    return x if x.dtype == torch.float32 else x.double()


def _of_array(given: Any) -> Tensor:
    """The tensor of an array or of nested sequences."""
    rows = given if isinstance(given, Sequence) else ()
    if any(np.ma.is_masked(part) for part in (given, *rows)):
        raise InputError("an array with masked entries: expected a number for each, such as x.filled(...) gives")
    try:
        if isinstance(given, Sequence) and any(isinstance(row, Tensor) for row in given):
            return torch.stack([as_tensor(row).double() for row in given])
        array = np.asarray(given)
        if array.dtype.kind not in "biufO":
            raise InputError(f"an array of {array.dtype}: expected real numbers")
        # A copy, because torch reads neither negative strides nor the other byte order, and warns of read-only memory.
        kept = np.float32 if array.dtype == np.float32 else np.float64
        return torch.from_numpy(array.astype(kept, order="C"))
    except (TypeError, ValueError, RuntimeError) as cause:
        raise InputError(f"a {type(given).__name__} is not an array of numbers: {cause}") from cause


def unit(x: Float[Tensor, "*n d"]) -> Float[Tensor, "*n d"]:
    """Return vectors divided by their length; a vector of zeros stays one.

    Each is divided by its largest entry first: the squares of entries below 1e-162 or above 1e154 have no float64.

    Args:
        x: Finite vectors.

    Examples:
        >>> unit(torch.tensor([[3e30, 4e30], [0.0, 0.0]]))
        tensor([[0.6000, 0.8000],
                [0.0000, 0.0000]])
    """
    largest = x.abs().amax(-1, keepdim=True)
    x = x / largest.where(largest > 0, 1.0)
    length = x.norm(dim=-1, keepdim=True)
    return x / length.where(length > 0, 1.0)
