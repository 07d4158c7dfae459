"""Batches of rows of similar length, which need little padding; long rows are cut, with a Notice."""

from __future__ import annotations

import warnings
from collections.abc import Sequence

import numpy as np
import torch
from jaxtyping import Int
from torch import Tensor, nn

from ..errors import CutNotice, InputError, caller_level
from ..fast import hooked

BATCH_TOKENS = 8192  # padded tokens per batch


def by_length(
    sizes: Sequence[int], model: nn.Module, batch_tokens: int = BATCH_TOKENS
) -> list[list[int]]:
    """The row numbers of each batch, the longest rows first, so that a lack of memory shows at once.

    A model with hooks or taps gets one row at a time, in the given order: then a tape holds the texts in their order
    and without padding.
    """
    if batch_tokens < 1:
        raise InputError(
            f"batch_tokens={batch_tokens}: expected 1 or more; a longer row is a batch of its own"
        )
    if hooked(model):
        # a batch of one row has no padding, which a tape would record
        return [[i] for i in range(len(sizes))]
    batches: list[list[int]] = []
    # greedy packing in the order of falling length; sorted is stable, so ties keep their order
    for i in sorted(range(len(sizes)), key=lambda i: -sizes[i]):
        # the first row of a batch is its longest, to which the others are padded
        if not batches or (len(batches[-1]) + 1) * sizes[batches[-1][0]] > batch_tokens:
            # row i would exceed the budget, or is the first of all
            batches.append([])
        batches[-1].append(i)
    return batches


def padded(
    rows: Sequence[Sequence[int] | np.ndarray], pad: int | None, device: torch.device
) -> tuple[Int[Tensor, "b t"], Int[Tensor, "b"]]:
    """Ids with padding at the end of short rows, and the length of each row; without a padding token it is id 0."""
    # padding only follows the text, so that position i of a row is its token i
    longest = max(map(len, rows))
    ids = torch.full((len(rows), longest), pad or 0, dtype=torch.long)
    for i, row in enumerate(rows):
        # the rest of the row stays padding
        ids[i, : len(row)] = torch.as_tensor(row, dtype=torch.long)
    return ids.to(device), torch.tensor([len(row) for row in rows], device=device)


def cut_rows(rows: Sequence[np.ndarray], most: int | None) -> list[np.ndarray]:
    """Rows of ids, cut to `most` ids where they are longer; one CutNotice names all rows that were cut."""
    if most is None:
        return list(rows)
    lengths = {i: len(ids) for i, ids in enumerate(rows) if len(ids) > most}
    if lengths:
        warnings.warn(CutNotice(lengths, len(rows), most), stacklevel=caller_level())
    return [cut(ids, most) for ids in rows]


def cut(ids: np.ndarray, most: int | None) -> np.ndarray:
    """A row cut to at most `most` ids; its last id, the end token, is kept."""
    if most is None or len(ids) <= most:
        return ids
    return np.append(ids[: most - 1], ids[-1])
