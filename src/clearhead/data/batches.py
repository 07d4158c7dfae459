"""Data: batches as a pure function of (seed, step), shared out among workers by rows."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Mapping
from typing import ClassVar, Literal

import numpy as np
from numpy.typing import NDArray

from ..errors import InputError, InputIndexError
from ..tokens import Pair, Tokenizer
from .preprocessing import Preprocessing

Batch = dict[str, np.ndarray]
Rows = NDArray[np.int64]

IGNORE = -100  # a target that is not counted


class Data(ABC):
    """A source of batches: dicts of arrays whose first axis is the row. Objectives know these keys:

    ids (b, t) int64        token ids                       targets (b, t) int64    ids to predict, -100: does not count
    source (b, s) int64     ids of a source text            lengths (b,) int64      tokens that are not padding
    documents (b, t) int64  a number per packed text        at (b, t) int64         position in the packed text
    images (b, c, y, x)     uint8 pixels                    labels (b,) int64       classes
    x, y (b, d) float32     vectors
    """

    keys: tuple[str, ...]  # the keys of its batches
    unit: str = "tokens"  # what throughput is counted in: tokens, images or vectors
    tokens: Tokenizer | Pair | None = None  # the tokenizer of its text
    classes: tuple[str, ...] | None = None  # the names of its classes
    preprocessing: Preprocessing | None = None  # how its images become a model's input
    sizes: dict[str, int]  # sizes that a model must have: {"vocab": 65}, {"width": 16}, {"classes": 10} ...
    longest: int | None = None  # tokens of its longest row
    sets_context: bool = True  # a model's context is `longest`, unless its recipe says otherwise
    hint: str = ""  # a sentence for whoever gives it to a model that cannot learn from it
    qualities: ClassVar[Mapping[str, tuple[str, Literal["lower", "higher"]]]] = {}  # of generated rows: see `judge`
    steps_an_epoch: int | None = None  # None where examples are endless
    valid_batches: int = 0  # 0 if there is no validation data

    def batch(self, step: int, part: int = 0, parts: int = 1) -> Batch:
        """The training batch of a step, or a worker's part of it: rows part, part + parts, part + 2 parts, ...

        Every part has as many rows; where they do not divide evenly, the last parts are filled up with rows that do
        not count: their targets are all -100, or, without targets, `weight` (b,) float32 is 0 there and 1 elsewhere.
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
        """Stop worker processes, if there are any."""
        return

    def units(self, batch: Batch) -> int:
        """The size of a batch in `unit`."""
        return batch["ids"].size if self.unit == "tokens" else len(next(iter(batch.values())))

    def judge(self, rows: np.ndarray) -> dict[str, np.ndarray]:
        """Numbers per generated row, from whose means `judged` computes the `qualities` of a generator."""
        return {}

    def judged(self, means: dict[str, float]) -> dict[str, float]:
        """The qualities of generated rows."""
        return means

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
