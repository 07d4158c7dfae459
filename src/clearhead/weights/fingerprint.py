"""fingerprint: a short text by which a change of a model's weights is noticed."""

from __future__ import annotations

import hashlib
from collections.abc import Mapping

import torch
from torch import Tensor

BITS = {1: torch.int8, 2: torch.int16, 4: torch.int32, 8: torch.int64}  # bytes of a number: the type with its bits


@torch.no_grad()
def fingerprint(tensors: Mapping[str, Tensor]) -> str:
    """A hash of the names, the dtypes, the shapes, and the sums of the bits of tensors: one pass over their memory.

    Args:
        tensors: The tensors by name, on any device.
    """
    digest = hashlib.blake2b(digest_size=12)
    for name, x in sorted(tensors.items()):
        bits = x.detach().contiguous().reshape(-1).view(BITS[x.element_size()]).sum(dtype=torch.int64)
        digest.update(f"{name} {x.dtype} {tuple(x.shape)} {int(bits)}\n".encode())
    return digest.hexdigest()
