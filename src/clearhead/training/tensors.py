"""Functions for tensors that may be sharded over workers (DTensor)."""

from __future__ import annotations

import torch
from torch import Tensor


def local(x: Tensor) -> Tensor:
    """This worker's shard of a sharded tensor, or the tensor itself; shares its memory."""
    return x.to_local() if hasattr(x, "to_local") else x


def whole(x: Tensor) -> Tensor:
    """A sharded tensor gathered from all workers, or the tensor itself."""
    return x.full_tensor() if hasattr(x, "full_tensor") else x


def wide(x: Tensor) -> Tensor:
    """The tensor in float32, or in float64 if it already is."""
    return x.to(torch.promote_types(x.dtype, torch.float32))


def copy_all(pairs: list[tuple[Tensor, Tensor]]) -> None:
    """Copy the second tensor of each pair into the first; their dtypes may differ."""
    if pairs:
        torch._foreach_copy_([local(a) for a, _ in pairs], [local(b) for _, b in pairs])
