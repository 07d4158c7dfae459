"""Data in batches of rows of similar length: every row once per epoch, in an order that depends on (seed, epoch)."""

from __future__ import annotations

from typing import Protocol, runtime_checkable

import numpy as np
from numpy.typing import NDArray

from .. import counter_rng
from ..errors import InputError
from .batches import Batch, Data, Rows

ROWS, BATCHES = 0, 1  # streams of random numbers
CHOICE = 9  # stream of the choice of validation batches, beside those of all data in buckets


class Buckets:
    """The division of rows into batches of similar length, of at most `batch_tokens` padded tokens each.

    A row's length is rounded up to a multiple of `rounding`, but not above `longest`, and the batches are cut from the
    sorted lengths. Each epoch shuffles the rows of equal rounded length among themselves, which moves no cut, and then
    the batches: so every epoch has the same number of batches, and contains every row once.
    """

    def __init__(
        self, lengths: NDArray[np.int64], batch_tokens: int, rounding: int = 1, longest: int | None = None
    ) -> None:
        self.lengths = lengths
        most = batch_tokens if longest is None else min(batch_tokens, longest)
        # A length up to batch_tokens itself still fits, as the only row of its batch.
        self.widths = np.where(lengths > most, lengths, np.minimum(-(-lengths // rounding) * rounding, most))
        ordered = np.sort(self.widths)
        self.starts: list[int] = []
        for i, width in enumerate(ordered.tolist()):
            if width > batch_tokens:
                raise InputError(f"a row of {width} tokens does not fit into batch_tokens={batch_tokens}")
            if not self.starts or (i + 1 - self.starts[-1]) * width > batch_tokens:
                self.starts.append(i)
        self.ends = [*self.starts[1:], len(ordered)][: len(self.starts)]
        self.batch_widths = [int(ordered[end - 1]) for end in self.ends]

    def __len__(self) -> int:
        return len(self.starts)

    def rows(self, bucket: int) -> int:
        """Return the number of rows of a batch."""
        return self.ends[bucket] - self.starts[bucket]

    def order(self, shuffle: NDArray[np.int64] | None = None) -> NDArray[np.int64]:
        """Return the rows sorted by length; those of equal length in the order of `shuffle`, or of their numbers."""
        if shuffle is None:
            return np.argsort(self.widths, kind="stable")
        return shuffle[np.argsort(self.widths[shuffle], kind="stable")]


@runtime_checkable
class Examples(Protocol):
    """Encoded rows and their buckets."""

    buckets: Buckets

    def __len__(self) -> int: ...

    def batch(self, bucket: int, order: NDArray[np.int64], rows: Rows) -> Batch:
        """Return rows of a bucket; `order` is the order of all examples, of which each bucket takes a slice."""


def spread(batches: int, most: int | None) -> NDArray[np.int64]:
    """Return the numbers of `most` of some batches: always the same ones, a random one of each part of equal size.

    Args:
        batches: The number of batches, which are sorted by length.
        most: The number of batches to choose; None: all.

    Examples:
        >>> spread(3, None), spread(100, 5)
        (array([0, 1, 2]), array([14, 34, 43, 67, 88]))
    """
    if most is None or most >= batches:
        return np.arange(batches)
    edges = np.arange(most + 1) * batches // max(most, 1)
    draws = counter_rng.uniform(0, 0, np.arange(most), 1, CHOICE)[:, 0]
    return edges[:-1] + (draws * np.diff(edges)).astype(np.int64)


class Bucketed(Data):
    """Data with one batch per bucket and epoch, so that step -> (epoch, bucket) is arithmetic."""

    def _open(self, training: Examples, validation: Examples, *, seed: int, valid_most: int | None) -> None:
        """Take the examples; the end of the description says how many of validation are measured, if not all are."""
        self.training, self.validation, self.seed = training, validation, seed
        self.longest = max([*training.buckets.batch_widths, *validation.buckets.batch_widths])
        self.steps_per_epoch = len(training.buckets)
        self._chosen = spread(len(validation.buckets), valid_most)  # validation batches that are measured
        self.valid_batches = len(self._chosen)
        if self.valid_batches < len(validation.buckets):
            rows = sum(validation.buckets.rows(i) for i in self._chosen.tolist())
            measured = f"validation measures {rows:,} of its {len(validation):,} rows (valid_most = {valid_most})"
            self.description = "; ".join(part for part in (self.description, measured) if part)
        self._valid_order = validation.buckets.order()
        self._orders: tuple[int, NDArray[np.int64], NDArray[np.int64]] | None = None  # epoch, rows, batches

    def _place(self, step: int) -> tuple[int, NDArray[np.int64]]:
        """Return the bucket of a step, and the order of rows in its epoch."""
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
        return self.validation.buckets.rows(int(self._chosen[index]))

    def _valid(self, index: int, rows: Rows) -> Batch:
        return self.validation.batch(int(self._chosen[index]), self._valid_order, rows)
