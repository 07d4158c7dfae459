"""Batches of rows of similar length, which need little padding."""

from __future__ import annotations

import warnings
from collections.abc import Sequence

import numpy as np
import torch
from torch import Tensor, nn

from ..errors import CutNotice, InputError
from ..fast import hooked

BATCH_TOKENS = 8192  # padded tokens per batch


def batches(sizes: Sequence[int], model: nn.Module, batch_tokens: int = BATCH_TOKENS) -> list[list[int]]:
    """The row numbers of each batch, the longest rows first, so that a lack of memory shows at once.

    A model with hooks or taps gets one row at a time, in the given order: then a tape holds the texts in their order
    and without padding.
    """
    if batch_tokens < 1:
        raise InputError(f"batch_tokens={batch_tokens}: expected 1 or more; a longer row is a batch of its own")
    if hooked(model):
        return [[i] for i in range(len(sizes))]
    result: list[list[int]] = []
    for i in sorted(range(len(sizes)), key=lambda i: -sizes[i]):
        if not result or (len(result[-1]) + 1) * sizes[result[-1][0]] > batch_tokens:
            result.append([])
        result[-1].append(i)
    return result


def padded(rows: Sequence[Sequence[int] | np.ndarray], pad: int, device: torch.device) -> tuple[Tensor, Tensor]:
    """Ids (b, t) with padding at the end of short rows, and the length of each row."""
    longest = max(map(len, rows))
    ids = torch.full((len(rows), longest), pad, dtype=torch.long)
    for i, row in enumerate(rows):
        ids[i, : len(row)] = torch.as_tensor(row, dtype=torch.long)
    return ids.to(device), torch.tensor([len(row) for row in rows], device=device)


def warn_cut(sizes: Sequence[int], most: int) -> None:
    """Name the texts that have more tokens than the model reads, in one CutNotice for the caller of the task."""
    lengths = {i: size for i, size in enumerate(sizes) if size > most}
    if lengths:
        warnings.warn(CutNotice(lengths, len(sizes), most), stacklevel=4)
