"""Rows of token ids of different lengths, kept in one flat array."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
from numpy.typing import NDArray


class Ragged:
    """Rows of different lengths, concatenated; `padded` returns some of them as a rectangle."""

    def __init__(self, rows: Sequence[np.ndarray]) -> None:
        self.lengths = np.array([len(row) for row in rows], np.int64)
        self.starts = np.cumsum(self.lengths) - self.lengths
        self.ids = np.concatenate([np.zeros(0, np.int32), *rows]).astype(np.int32)

    def padded(self, chosen: NDArray[np.int64], width: int, fill: int) -> NDArray[np.int64]:
        """Return the rows of these numbers, padded to a width with `fill`."""
        at = np.arange(width)
        places = np.minimum(self.starts[chosen][:, None] + at, len(self.ids) - 1)
        rows = self.ids[places].astype(np.int64)
        rows[at >= self.lengths[chosen][:, None]] = fill
        return rows
