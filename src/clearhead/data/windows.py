"""Windows on one long row of ids: at random places in training, side by side in validation; documents packed or not."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from .. import counter_rng
from ..checks import at_least, fraction
from .batches import IGNORE, Batch, Data, Rows
from .files import DataError


@dataclass(frozen=True, kw_only=True, slots=True)
class WindowConfig:
    """Options of all data that is cut into windows."""

    context: int = 256  # tokens per window
    rows: int = 64  # windows per step
    share: float = 0.1  # share of the ids, at the end, kept for validation
    valid_rows: int = 64  # windows per validation batch
    valid_most: int | None = None  # largest number of validation batches; None: all
    documents: bool = False  # separate documents: no attention and no target crosses from one into the next

    def __post_init__(self) -> None:
        at_least(self, 1, "context", "rows", "valid_rows")
        at_least(self, 0, "valid_most")
        fraction(self, "share")


class Windows(Data):
    """Windows of `context` ids, with the next ids as targets.

    Validation is the end of the ids, from `cut` on, or has ids of its own. It covers its part from the first id to the
    last: each id is predicted once, except the very first. With `documents`, a batch also has `documents`, counted from
    0 in each row, and `at`, the position in the document, or in the part of it that is in the window; the last id of a
    document has no target.
    """

    def __init__(
        self, config: WindowConfig, *, seed: int, ids: np.ndarray, ends: NDArray[np.int64], vocab: int, name: str,
        cut: int | None = None, valid: tuple[np.ndarray, NDArray[np.int64]] | None = None,
    ) -> None:  # fmt: skip
        self.config, self.seed, self.name = config, seed, name
        self.ids = ids  # in memory or on disk: only windows of it are read
        self.ends = ends  # for each document the place after its last id, rising
        self.sizes = {"vocab": vocab}
        self.keys = ("ids", "targets", *(("documents", "at") if config.documents else ()))
        self.longest = config.context
        share = config.share if valid is None else 0.0
        self.cut = int(len(ids) * (1 - share)) if cut is None else cut  # the number of ids of training
        if self.cut < config.context + 1:
            kept = f" (share={share} is kept for validation)" if share else ""
            raise DataError(
                f"{name} has {self.cut} tokens to train on{kept}: context={config.context} needs {config.context + 1} "
                "or more"
            )
        # The ids of validation with the ends of its documents, and the first of them.
        self.validation, self.begin = ((ids, ends), self.cut) if valid is None else (valid, 0)
        self.steps_per_epoch = max(self.cut // (config.rows * config.context), 1)  # which read as many ids as there are
        self.windows = -(-max(len(self.validation[0]) - self.begin - 1, 0) // config.context)
        batches = -(-self.windows // config.valid_rows)
        self.valid_batches = batches if config.valid_most is None else min(batches, config.valid_most)

    def _rows(self, step: int) -> int:
        return self.config.rows

    def _train(self, step: int, rows: Rows) -> Batch:
        starts = counter_rng.integers(self.seed, step, rows, 1, 0, self.cut - self.config.context)
        return self._cut((self.ids, self.ends), starts, self.cut)

    def _valid_rows(self, index: int) -> int:
        return min(self.config.valid_rows, self.windows - index * self.config.valid_rows)

    def _valid(self, index: int, rows: Rows) -> Batch:
        window = index * self.config.valid_rows + rows[:, None]
        return self._cut(self.validation, self.begin + window * self.config.context, len(self.validation[0]))

    def _cut(self, source: tuple[np.ndarray, NDArray[np.int64]], starts: NDArray[np.int64], limit: int) -> Batch:
        """Return the windows of ids, with the ends of their documents, from starts (b, 1); up to a limit."""
        ids, ends = source
        places = starts + np.arange(self.config.context + 1)
        inside = places < limit
        whole = ids[np.minimum(places, limit - 1)].astype(np.int64)
        if whole.max() >= self.sizes["vocab"]:
            raise DataError(f"{self.name} has the id {whole.max()}: expected ids below vocab={self.sizes['vocab']}")
        batch = {"ids": whole[:, :-1].copy(), "targets": np.where(inside, whole, IGNORE)[:, 1:].copy()}
        if self.config.documents:
            begins = self._begins(ends, starts)
            batch["targets"][begins[:, 1:]] = IGNORE
            batch["documents"] = np.cumsum(begins[:, :-1], axis=1, dtype=np.int64)
            at = np.broadcast_to(np.arange(self.config.context), batch["ids"].shape)
            batch["at"] = at - np.maximum.accumulate(np.where(begins[:, :-1], at, 0), axis=1)
        return batch

    def _begins(self, ends: NDArray[np.int64], starts: NDArray[np.int64]) -> NDArray[np.bool_]:
        """Return whether a document begins at each place of a window (b, context + 1), except at the first place."""
        first = np.searchsorted(ends, starts[:, 0], side="right")
        last = np.searchsorted(ends, starts[:, 0] + self.config.context, side="right")
        row = np.repeat(np.arange(len(starts)), last - first)
        end = np.arange(len(row)) + np.repeat(first - (np.cumsum(last - first) - (last - first)), last - first)
        begins = np.zeros((len(starts), self.config.context + 1), bool)
        begins[row, ends[end] - starts[row, 0]] = True
        return begins
