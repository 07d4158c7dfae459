"""Data that comes in batches of rows alike in length: every row once an epoch, in an order of (seed, epoch)."""

from __future__ import annotations

from typing import Protocol, runtime_checkable

import numpy as np
from numpy.typing import NDArray

from .. import counter_rng
from .batches import Batch, Buckets, Data, Rows

ROWS, BATCHES = 0, 1  # streams of random numbers


@runtime_checkable
class Examples(Protocol):
    """Rows of ids and their buckets."""

    buckets: Buckets

    def __len__(self) -> int: ...

    def batch(self, bucket: int, order: NDArray[np.int64], rows: Rows) -> Batch:
        """Rows of a bucket, where `order` puts the examples into the buckets."""


class Bucketed(Data):
    """An epoch has as many batches as there are buckets, so that step -> (epoch, bucket) is arithmetic."""

    def _open(self, training: Examples, validation: Examples, *, seed: int, valid_most: int | None) -> None:
        self.training, self.validation, self.seed = training, validation, seed
        self.steps_an_epoch = len(training.buckets)
        batches = len(validation.buckets)
        self.valid_batches = batches if valid_most is None else min(batches, valid_most)
        self._valid_order = validation.buckets.order()
        self._orders: tuple[int, NDArray[np.int64], NDArray[np.int64]] | None = None  # of the last epoch asked for

    def _place(self, step: int) -> tuple[int, NDArray[np.int64]]:
        """Which bucket a step takes, and the order of rows in its epoch."""
        epoch, index = divmod(step, len(self.training.buckets))
        orders = self._orders
        if orders is None or orders[0] != epoch:
            rows = self.training.buckets.order(counter_rng.permutation(self.seed, epoch, len(self.training), ROWS))
            batches = counter_rng.permutation(self.seed, epoch, len(self.training.buckets), BATCHES)
            self._orders = orders = (epoch, rows, batches)
        return int(orders[2][index]), orders[1]

    def _rows(self, step: int) -> int:
        return self.training.buckets.rows(self._place(step)[0])

    def _train(self, step: int, rows: Rows) -> Batch:
        bucket, order = self._place(step)
        return self.training.batch(bucket, order, rows)

    def _valid_rows(self, index: int) -> int:
        return self.validation.buckets.rows(index)

    def _valid(self, index: int, rows: Rows) -> Batch:
        return self.validation.batch(index, self._valid_order, rows)
