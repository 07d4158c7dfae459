"""The mean of several checkpoints, which is often better than the last one (Vaswani et al. 2017, section 6.1)."""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor

from ..tensors import local
from .checkpoint import Checkpoint


class MeanCheckpoint:
    """Several checkpoints of one run, read as one whose tensors are the means of theirs.

    Means are computed in float64 and rounded once. A tensor of whole numbers, such as a batch norm's count of batches,
    is that of the last checkpoint.
    """

    def __init__(self, checkpoints: Sequence[Checkpoint]) -> None:
        """`checkpoints`: oldest first."""
        self.checkpoints = checkpoints

    @torch.no_grad()
    def fill(self, name: str, tensor: Tensor) -> None:
        """Copy the mean of a tensor into an existing one, as `Checkpoint.fill` does."""
        if not tensor.is_floating_point():
            self.checkpoints[-1].fill(name, tensor)
            return
        # on the CPU: not every device has float64
        total = torch.zeros(local(tensor).shape, dtype=torch.float64)
        for checkpoint in self.checkpoints:
            checkpoint.fill(name, tensor)
            total += local(tensor).cpu()
        local(tensor).copy_(total / len(self.checkpoints))
