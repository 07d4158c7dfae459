"""Data: batches as a pure function of (seed, step), divided among workers by rows."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Mapping, Sequence
from typing import ClassVar, Literal

import numpy as np
from numpy.typing import NDArray

from ..errors import InputError, InputIndexError
from ..tokens import Pair, Tokenizer
from ..tokens.special import Special
from .images.preprocessing import Preprocessing

# the arrays of a batch by name, such as ids and targets; the first axis is the row
Batch = dict[str, np.ndarray]
Rows = NDArray[np.int64]  # numbers of rows in a batch

IGNORE = -100  # a target that does not count in the loss


class Data(ABC):
    """A source of training and validation batches: dicts of arrays whose first axis is the row.

    These are the keys that objectives read:

    ids (b, t) int64        token ids                       targets (b, t) int64    ids to predict, -100: does not count
    source (b, s) int64     ids of a source text            lengths (b,) int64      tokens that are not padding
    documents (b, t) int64  number of the packed document   at (b, t) int64         position in the packed document
    images (b, c, y, x)     uint8 pixels                    labels (b,) int64       classes
    x, y (b, d) float32     vectors

    Examples:
        >>> data = clearhead.data.make_data("copy", {"symbols": 5, "length": 3, "rows": 4}, seed=0)
        >>> data.keys, data.sizes, data.longest
        (('ids', 'targets'), {'vocab': 6}, 6)
        >>> data.batch(step=7)["ids"].shape, data.batch(step=7, part=1, parts=2)["ids"].shape
        ((4, 6), (2, 6))
    """

    keys: tuple[str, ...]  # the keys of its batches
    unit: str = "tokens"  # the unit of throughput: tokens, images or vectors
    tokens: Tokenizer | Pair | None = None  # the tokenizer of its text
    # special ids of a model that is trained on it; None: those of the tokenizer
    special: Special | None = None
    chat: str | None = None  # the chat template that belongs to the tokenizer
    classes: tuple[str, ...] | None = None  # the names of its classes
    preprocessing: Preprocessing | None = None  # how its images become a model's input
    # by key: arrays that fit into memory, of which its batches are rows
    tables: Mapping[str, np.ndarray] = {}
    # the columns of a table that it reads, by the options that name them
    columns: Mapping[str, str] = {}
    # the user's files and folders that it was read from, as its options name them
    files: tuple[str, ...] = ()
    description: str = ""  # which version of the data this is, for the facts of a run
    # sizes that a model must have: {"vocab": 65}, {"width": 16}, {"classes": 10} ...
    sizes: dict[str, int]
    # options of a model that fit this data, where recipe and checkpoint have none
    defaults: Mapping[str, int] = {}
    # tokens of its widest row, padding included; None if it has no token ids
    longest: int | None = None
    # whether a model's context is `longest`, unless its recipe says otherwise
    sets_context: bool = True
    hint: str = ""  # advice for the error message if a model cannot learn from this data
    # name: (unit, what is better)
    qualities: ClassVar[Mapping[str, tuple[str, Literal["lower", "higher"]]]] = {}
    steps_per_epoch: int | None = None  # None where examples are endless
    valid_batches: int = 0  # 0 if there is no validation data
    # source and target of each validation row, of translations
    valid_texts: Sequence[tuple[str, str]] = ()

    def batch(self, step: int, part: int = 0, parts: int = 1, *, lookup: bool = True) -> Batch:
        """Return the training batch of a step, or a worker's part of it: rows part, part + parts, part + 2 parts, ...

        All parts have the same number of rows. Where they do not divide evenly, the last parts are filled up with rows
        that do not count: their targets are all -100, or, without targets, `weight` (b,) float32 is 0 there and 1
        elsewhere.

        Args:
            step: The training step, from 0.
            part: The number of the worker, from 0.
            parts: The number of workers.
            lookup: Look up the rows of `tables`; otherwise their keys have row numbers, (b,), for a table that is on
                the device.
        """
        if step < 0:
            raise InputError(f"step={step}: steps are counted from 0")
        batch = self._share(self._rows(step), lambda rows: self._train(step, rows), part, parts)
        return self._looked_up(batch) if lookup else batch

    def valid(self, index: int, part: int = 0, parts: int = 1, *, lookup: bool = True) -> Batch:
        """Return a validation batch, or a worker's part of it; it does not depend on the seed of training.

        Args:
            index: The number of the batch, from 0 to valid_batches - 1.
            part: The number of the worker, from 0.
            parts: The number of workers.
            lookup: As in `batch`.
        """
        if not 0 <= index < self.valid_batches:
            raise InputIndexError(
                f"validation batch {index}: there are {self.valid_batches}, counted from 0"
            )
        # the seed of training is not passed on: validation is the same in every run
        batch = self._share(
            self._valid_rows(index), lambda rows: self._valid(index, rows), part, parts
        )
        return self._looked_up(batch) if lookup else batch

    def labelled_table(self) -> tuple[np.ndarray, np.ndarray] | None:
        """Return all training images, uint8 (n, c, y, x), and their classes (n,), if they are in memory."""
        return None

    def close(self) -> None:
        """Stop worker processes, if there are any."""
        return

    def number_classes(self, names: Sequence[str]) -> None:
        """Number the classes in another order, such as that of the outputs of a checkpoint.

        Args:
            names: The names of all classes.

        Examples:
            >>> one = Pictures(images=np.zeros((3, 1, 4, 4), np.uint8), labels=np.array([0, 1, 1]))
            >>> grey = clearhead.data.Preprocessing(mean=(0.5,), deviation=(0.5,), channels="grey")
            >>> data = Pixels(PixelConfig(rows=3), one, one, classes=("no", "yes"), preprocessing=grey, seed=0)
            >>> data.number_classes(("yes", "no"))
            >>> data.classes, data.valid(0)["labels"].tolist()
            (('yes', 'no'), [1, 0, 0])
        """
        arrays = self._class_numbers()
        if self.classes is None or not arrays or sorted(names) != sorted(self.classes):
            raise InputError(
                f"classes {', '.join(names)}: expected {', '.join(self.classes or ('none',))}, in any order"
            )
        # the new number of each old number
        table = np.array([list(names).index(name) for name in self.classes], np.int64)
        for numbers in arrays:
            # in place, because batches index the same arrays
            numbers[:] = table[numbers]
        self.classes = tuple(names)

    def _class_numbers(self) -> Sequence[np.ndarray]:
        """The arrays with the numbers of classes that its batches take theirs from; none if it has no classes."""
        return ()

    def units(self, batch: Batch) -> int:
        """Return the size of a batch in `unit`."""
        # padding counts as well: it is computed like any other token
        if self.unit == "tokens":
            return batch["ids"].size
        return len(next(iter(batch.values())))

    def judge(self, rows: np.ndarray) -> dict[str, np.ndarray]:
        """Return named scores for each generated row; `judged` computes the `qualities` from their means."""
        return {}

    def judged(self, means: dict[str, float]) -> dict[str, float]:
        """Return the `qualities` of generated rows from the means of their scores."""
        return means

    def _looked_up(self, batch: Batch) -> Batch:
        return {**batch, **{key: table[batch[key]] for key, table in self.tables.items()}}

    @abstractmethod
    def _rows(self, step: int) -> int:
        """Return the number of rows of a training batch, all parts together."""

    @abstractmethod
    def _train(self, step: int, rows: Rows) -> Batch:
        """Return these rows of a training batch, in this order; all parts have the same width.

        The keys of `tables` have row numbers of the tables.
        """

    @abstractmethod
    def _valid_rows(self, index: int) -> int:
        """Return the number of rows of a validation batch, all parts together."""

    @abstractmethod
    def _valid(self, index: int, rows: Rows) -> Batch:
        """Return these rows of a validation batch."""

    def _share(self, total: int, examples: Callable[[Rows], Batch], part: int, parts: int) -> Batch:
        rows = share_rows(total, part, parts)
        # `examples` computes only the rows of this part
        batch = examples(rows)
        if total % parts:  # even if this part is full itself: all parts must have the same keys
            # row i of this part is row part + parts * i of the whole batch
            real = part + parts * np.arange(len(rows)) < total
            if "targets" in batch:
                batch["targets"][~real] = IGNORE
            else:
                # without targets that could be ignored, a weight of 0 removes a row from the mean
                batch["weight"] = real.astype(np.float32)
        return batch


def share_rows(total: int, part: int, parts: int) -> Rows:
    """Return the rows of one worker: part, part + parts, ...; row 0 is repeated where they do not divide evenly.

    Args:
        total: The number of rows of the whole batch.
        part: The number of the worker, from 0.
        parts: The number of workers.

    Examples:
        >>> share_rows(5, 0, 2), share_rows(5, 1, 2)
        (array([0, 2, 4]), array([1, 3, 0]))
    """
    if not 0 <= part < parts:
        raise InputError(f"part={part} of parts={parts}: parts are counted from 0")
    # all parts are as long as the first: rounded up, past the end where needed
    rows = np.arange(part, part + -(-total // parts) * parts, parts)
    return np.where(rows < total, rows, 0)
