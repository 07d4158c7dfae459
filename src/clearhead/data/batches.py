"""Data: batches as a pure function of (seed, step), shared out among workers by rows."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable
from typing import Literal

import numpy as np
from numpy.typing import NDArray

from ..errors import InputError, InputIndexError
from ..tokens import Pair, Tokenizer

Batch = dict[str, np.ndarray]
Rows = NDArray[np.int64]

IGNORE = -100  # a target that is not counted


class Data(ABC):
    """Where batches come from. A batch is a dict of arrays of one of six kinds:

    sequences: ids (b, t) int64, targets (b, t) int64 with -100 for "not counted"; where documents are packed also
               documents (b, t) int64, which is a number a document, and at (b, t) int64, the place in the document
    translations: those of sequences, of what is written; source (b, s) int64, what is read, and lengths (b,) int64, how
               much of each row of it is not padding
    masked:    ids (b, t) int64 with gaps, targets (b, t) int64, what stood in them, lengths (b,) int64
    labelled:  ids (b, t) int64, lengths (b,) int64, labels (b,) int64
    vectors:   x (b, d) float32, y (b, d) float32
    images:    images (b, 3, y, x) float32, labels (b,) int64
    """

    kind: Literal["sequences", "translations", "masked", "labelled", "vectors", "images"]
    tokens: Tokenizer | Pair | None = None  # how text becomes ids, where there is text
    classes: tuple[str, ...] | None = None  # what the classes are called, where there are some
    sizes: dict[str, int]  # what a model must know: {"vocab": 65}, {"width": 16}, {"classes": 10} ...
    steps_an_epoch: int | None = None  # None where there is no end of fresh examples
    valid_batches: int = 0  # 0 if there is nothing to validate on

    def batch(self, step: int, part: int = 0, parts: int = 1) -> Batch:
        """The training batch of a step, or a worker's part of it: rows part, part + parts, part + 2 parts, ...

        Every part has as many rows; where they do not divide, the last ones are filled up by rows that do not count:
        their targets are all -100, or, where there are none, `weight` (b,) float32 is 0 instead of 1 there.
        """
        if step < 0:
            raise InputError(f"step={step}: steps are counted from 0")
        return self._share(self._rows(step), lambda rows: self._train(step, rows), part, parts)

    def valid(self, index: int, part: int = 0, parts: int = 1) -> Batch:
        """A validation batch of `valid_batches`, or a part of it: the same whatever the seed of training."""
        if not 0 <= index < self.valid_batches:
            raise InputIndexError(f"validation batch {index}: there are {self.valid_batches}, counted from 0")
        return self._share(self._valid_rows(index), lambda rows: self._valid(index, rows), part, parts)

    def close(self) -> None:
        """Stop workers, where there are any."""
        return

    @abstractmethod
    def _rows(self, step: int) -> int:
        """How many rows all parts of a training batch have together."""

    @abstractmethod
    def _train(self, step: int, rows: Rows) -> Batch:
        """These rows of the training batch, in this order; all parts have the same width."""

    @abstractmethod
    def _valid_rows(self, index: int) -> int:
        """How many rows all parts of a validation batch have together."""

    @abstractmethod
    def _valid(self, index: int, rows: Rows) -> Batch:
        """These rows of the validation batch."""

    def _share(self, total: int, examples: Callable[[Rows], Batch], part: int, parts: int) -> Batch:
        rows = share_rows(total, part, parts)
        batch = examples(rows)
        if total % parts:  # also in a part that is full itself: all parts have the same keys
            real = part + parts * np.arange(len(rows)) < total
            if "targets" in batch:
                batch["targets"][~real] = IGNORE
            else:
                batch["weight"] = real.astype(np.float32)
        return batch


def share_rows(total: int, part: int, parts: int) -> Rows:
    """The rows of a part: part, part + parts, ...; as many in every part, so that row 0 may fill up the last."""
    if not 0 <= part < parts:
        raise InputError(f"part={part} of parts={parts}: parts are counted from 0")
    rows = np.arange(part, part + -(-total // parts) * parts, parts)
    return np.where(rows < total, rows, 0)


class Buckets:
    """Batches of rows alike in length, of at most `batch_tokens` padded tokens.

    A row's length counts as the next multiple of `rounding`, and the batches are cut from the sorted lengths. Each
    epoch shuffles rows of one length among themselves, which moves no cut, and then the batches: so every epoch has
    the same number of batches, and holds every row once.
    """

    def __init__(self, lengths: NDArray[np.int64], batch_tokens: int, rounding: int = 1) -> None:
        # A length of up to batch_tokens itself still fits, one row a batch.
        self.widths = np.where(
            lengths > batch_tokens, lengths, np.minimum(-(-lengths // rounding) * rounding, batch_tokens)
        )
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
        """How many rows a batch has."""
        return self.ends[bucket] - self.starts[bucket]

    def order(self, shuffle: NDArray[np.int64] | None = None) -> NDArray[np.int64]:
        """Rows by length, those of one length in the order of `shuffle`, or as they came."""
        if shuffle is None:
            return np.argsort(self.widths, kind="stable")
        return shuffle[np.argsort(self.widths[shuffle], kind="stable")]
