"""Which tensors can be recorded: those that hold numbers which can be read now."""

from __future__ import annotations

import sys

import torch
from torch import Tensor


def why_not(*tensors: Tensor) -> str:
    """Why attention with these queries, keys or weights cannot be recorded; empty if it can."""
    if any(x.is_nested for x in tensors):
        return "its tensors are nested: expected a padded batch and a mask"
    if any(torch._C._functorch.is_functorch_wrapped_tensor(x) for x in tensors):
        return "it runs inside a transform of torch.func"
    fake = getattr(sys.modules.get("torch._subclasses.fake_tensor"), "FakeTensor", ())
    if any(x.is_meta or isinstance(x, fake) for x in tensors):
        return "its tensors hold no numbers"
    if not all(x.shape[-2] for x in tensors):
        return "it has no queries or no keys"
    return "" if all(x.numel() for x in tensors) else "it has no rows, no heads or no features"
