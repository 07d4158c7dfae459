"""Small helpers for tensors that may be sharded over workers (DTensor)."""

from __future__ import annotations

import torch
from torch import Tensor


def local(x: Tensor) -> Tensor:
    """This worker's part of a sharded tensor, or the tensor itself; it shares the memory."""
    return x.to_local() if hasattr(x, "to_local") else x


def whole(x: Tensor) -> Tensor:
    """The whole of a sharded tensor, gathered from all workers, or the tensor itself."""
    return x.full_tensor() if hasattr(x, "full_tensor") else x


def wide(x: Tensor) -> Tensor:
    """In float32 or better."""
    return x.to(torch.promote_types(x.dtype, torch.float32))


def copy_all(pairs: list[tuple[Tensor, Tensor]]) -> None:
    """Copy the second of each pair into its first, whatever their dtypes."""
    if pairs:
        torch._foreach_copy_([local(a) for a, _ in pairs], [local(b) for _, b in pairs])
