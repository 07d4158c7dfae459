"""Data in batches of rows of similar length: every row once per epoch, in an order that depends on (seed, epoch)."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from typing import Any, Protocol, runtime_checkable

import numpy as np
from numpy.typing import NDArray

from .. import counter_rng
from ..checks import at_least, fraction
from ..errors import InputError
from .data import IGNORE, Batch, Data, Rows
from .files import DataError

ROWS, BATCHES = 0, 1  # streams of random numbers
CHOICE = 9  # stream of the choice of validation batches, beside those of all data in buckets


class Buckets:
    """The division of rows into batches of similar length, of at most `batch_tokens` padded tokens each.

    A row's length is rounded up to a multiple of `rounding`, but not above `longest`, and the batches are cut from the
    sorted lengths. Each epoch shuffles the rows of equal rounded length among themselves, which moves no cut, and then
    the batches: so every epoch has the same number of batches, and contains every row once.
    """

    def __init__(
        self,
        lengths: NDArray[np.int64],
        batch_tokens: int,
        rounding: int = 1,
        longest: int | None = None,
    ) -> None:
        self.lengths, self.rounding = lengths, rounding
        # rounding up must not lift a row above what a batch or the model can hold
        most = min(batch_tokens, longest or batch_tokens)
        # A length up to batch_tokens itself still fits, as the only row of its batch.
        # -(-n // r) * r is n rounded up to a multiple of r
        self.widths = np.where(
            lengths > most, lengths, np.minimum(-(-lengths // rounding) * rounding, most)
        )
        # from the shortest row on, a batch takes rows as long as rows x widest row <= batch_tokens
        ordered = np.sort(self.widths)
        self.starts: list[int] = []
        for i, width in enumerate(ordered.tolist()):
            if width > batch_tokens:
                raise InputError(
                    f"a row of {width} tokens does not fit into batch_tokens={batch_tokens}"
                )
            # sorted, so that this row is the widest of its batch so far
            # if the padded size with this row is too large, the row begins the next batch
            if not self.starts or (i + 1 - self.starts[-1]) * width > batch_tokens:
                self.starts.append(i)
        # each batch ends where the next begins; without rows there are no batches at all
        self.ends = [*self.starts[1:], len(ordered)][: len(self.starts)]
        self.batch_widths = [int(ordered[end - 1]) for end in self.ends]

    def __len__(self) -> int:
        return len(self.starts)

    def rows(self, bucket: int) -> int:
        """Return the number of rows of a batch."""
        return self.ends[bucket] - self.starts[bucket]

    def choose(
        self, bucket: int, order: NDArray[np.int64], rows: Rows
    ) -> tuple[NDArray[np.int64], NDArray[np.int64]]:
        """Return the numbers of all rows of a batch, and of some of its rows, in an order of all rows."""
        whole = order[self.starts[bucket] : self.ends[bucket]]
        return whole, whole[rows]

    def width(self, bucket: int, lengths: NDArray[np.int64]) -> int:
        """Return the width of a batch whose rows have these lengths: all of them, as all workers must get the same."""
        rounded = -(-int(lengths.max()) // self.rounding) * self.rounding
        return min(rounded, self.batch_widths[bucket])

    def order(self, shuffle: NDArray[np.int64] | None = None) -> NDArray[np.int64]:
        """Return the rows sorted by length; those of equal length in the order of `shuffle`, or of their numbers."""
        if shuffle is None:
            # a stable sort keeps the order of equal widths, which makes validation reproducible
            return np.argsort(self.widths, kind="stable")
        # indices into `shuffle` are turned back into row numbers
        return shuffle[np.argsort(self.widths[shuffle], kind="stable")]


@runtime_checkable
class Examples(Protocol):
    """Encoded rows and their buckets."""

    buckets: Buckets

    def __len__(self) -> int: ...

    def group(self, config: Any) -> None:
        """Divide the rows into buckets."""

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
    # edges of equal parts; max(most, 1) keeps a division by 0 away
    edges = np.arange(most + 1) * batches // max(most, 1)
    draws = counter_rng.uniform(0, 0, np.arange(most), 1, CHOICE)[:, 0]
    # a random batch of each part, so that short and long rows are both measured
    return edges[:-1] + (draws * np.diff(edges)).astype(np.int64)


class Bucketed(Data):
    """Data with one batch per bucket and epoch, so that step -> (epoch, bucket) is arithmetic."""

    config: Any  # its options; `valid_most` is one of them
    seed: int
    _encoded: tuple[Examples, Examples]  # of training and of validation
    _split: str = ""  # how the rows were divided, in a sentence

    def _group(self) -> None:
        """Divide the rows, which have been read and tokenized, into batches as `config` says, and describe them."""
        for part in self._encoded:
            part.group(self.config)
        # the limits are part of the description
        parts = (self._split, *self._left_out())
        self.description = "; ".join(part for part in parts if part)
        self._take(*self._encoded)

    def _left_out(self) -> Sequence[str]:
        """Return sentences about rows that were cut or left out, some of which may be empty."""
        return ()

    def regroup(self, **limits: Any) -> None:
        """Divide the same rows into other batches, without reading and tokenizing them again.

        Args:
            limits: New values of `batch_tokens`, `longest`, `pack` and `valid_most`. No row may be longer than the new
                `longest`: rows are not cut again.

        Examples:
            >>> _ = (tmp / "a.tsv").write_text("A dog.\\tEin Hund.\\nTwo dogs.\\tZwei Hunde.\\n" * 9)
            >>> data = clearhead.data.make_data("pairs", {"path": str(tmp / "a.tsv"), "share": 0.0}, seed=0)
            >>> data.steps_per_epoch
            1
            >>> data.regroup(batch_tokens=100)
            >>> data.steps_per_epoch
            4
        """
        self.config = replace(self.config, **limits)
        self._group()

    def _take(self, training: Examples, validation: Examples) -> None:
        """Set the examples, their width and the validation batches; the description says if only some are measured."""
        self.training, self.validation = training, validation
        valid_most = self.config.valid_most
        # the widest row decides the positions that a model needs
        self.longest = max([*training.buckets.batch_widths, *validation.buckets.batch_widths])
        self.steps_per_epoch = len(training.buckets)
        # validation batches that are measured
        self._chosen = spread(len(validation.buckets), valid_most)
        self.valid_batches = len(self._chosen)
        if self.valid_batches < len(validation.buckets):
            rows = sum(validation.buckets.rows(i) for i in self._chosen.tolist())
            measured = f"validation measures {rows:,} of its {len(validation):,} rows (valid_most = {valid_most})"
            self.description = "; ".join(part for part in (self.description, measured) if part)
        self._valid_order = validation.buckets.order()
        # epoch, rows, batches
        self._orders: tuple[int, NDArray[np.int64], NDArray[np.int64]] | None = None

    def _place(self, step: int) -> tuple[int, NDArray[np.int64]]:
        """Return the bucket of a step, and the order of rows in its epoch."""
        # arithmetic instead of an iterator: a resumed run needs no replay of earlier steps
        epoch, index = divmod(step, len(self.training.buckets))
        orders = self._orders  # those of the last epoch are kept: steps come in order
        if orders is None or orders[0] != epoch:
            # fresh order for each epoch, from (seed, epoch) alone
            rows = self.training.buckets.order(
                counter_rng.permutation(self.seed, epoch, len(self.training), ROWS)
            )
            # a second stream, so that the order of batches does not depend on the order of rows
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


# Rows of token ids of different lengths, kept in one flat array.


class Ragged:
    """Rows of different lengths, concatenated; `padded` returns some of them as a rectangle."""

    def __init__(self, rows: Sequence[np.ndarray]) -> None:
        self.lengths = np.array([len(row) for row in rows], np.int64)
        # the place of each row's first id, by an exclusive sum of the lengths
        self.starts = np.cumsum(self.lengths) - self.lengths
        # the empty row keeps concatenate from failing when there are no rows
        self.ids = np.concatenate([np.zeros(0, np.int32), *rows]).astype(np.int32)

    def __len__(self) -> int:
        return len(self.lengths)

    def __iter__(self) -> Iterator[np.ndarray]:
        for start, length in zip(self.starts.tolist(), self.lengths.tolist(), strict=True):
            yield self.ids[start : start + length]

    def padded(self, chosen: NDArray[np.int64], width: int, fill: int) -> NDArray[np.int64]:
        """Return the rows of these numbers, padded to a width with `fill`."""
        at = np.arange(width)
        # (rows, 1) + (width,) -> (rows, width); clipped, because the last row may end the array
        places = np.minimum(self.starts[chosen][:, None] + at, len(self.ids) - 1)
        rows = self.ids[places].astype(np.int64)
        # whatever was read beyond a row's end belongs to other rows
        rows[at >= self.lengths[chosen][:, None]] = fill
        return rows


# Windows on one long row of ids: at random places in training, side by side in validation; documents packed or not.


@dataclass(frozen=True, kw_only=True, slots=True)
class WindowConfig:
    """Options of all data that is cut into windows."""

    context: int = 256  # tokens per window
    rows: int = 64  # windows per step
    share: float = 0.1  # share of the ids, at the end, kept for validation
    valid_rows: int = 64  # windows per validation batch
    valid_most: int | None = None  # largest number of validation batches; None: all
    # separate documents: no attention and no target crosses from one into the next
    documents: bool = False

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
        self,
        config: WindowConfig,
        *,
        seed: int,
        ids: np.ndarray,
        ends: NDArray[np.int64],
        vocab: int,
        name: str,
        cut: int | None = None,
        valid: tuple[np.ndarray, NDArray[np.int64]] | None = None,
    ) -> None:
        self.config, self.seed, self.name = config, seed, name
        self.ids = ids  # in memory or on disk: only windows of it are read
        self.ends = ends  # for each document the place after its last id, rising
        self.sizes = {"vocab": vocab}
        self.keys = ("ids", "targets")
        if config.documents:
            self.keys += ("documents", "at")
        self.longest = config.context
        share = config.share if valid is None else 0.0
        if cut is None:
            # the end is kept for validation: windows of training never reach into it
            cut = int(len(ids) * (1 - share))
        self.cut = cut  # the number of ids of training
        # a window reads context ids, and one more as the last target
        if self.cut < config.context + 1:
            kept = ""
            # only a share that is not 0 can be the reason
            if share:
                kept = f" (share={share} is kept for validation)"
            raise DataError(
                f"{name} has {self.cut} tokens to train on{kept}: context={config.context} needs {config.context + 1} "
                "or more"
            )
        # The ids of validation with the ends of its documents, and the first of them.
        if valid is None:
            self.validation, self.begin = ((ids, ends), self.cut)
        else:
            self.validation, self.begin = (valid, 0)
        # which read as many ids as there are
        self.steps_per_epoch = max(self.cut // (config.rows * config.context), 1)
        # rounded up: the last window may be shorter; the very first id is never a target
        self.windows = -(-max(len(self.validation[0]) - self.begin - 1, 0) // config.context)
        batches = -(-self.windows // config.valid_rows)
        if config.valid_most is None:
            self.valid_batches = batches
        else:
            self.valid_batches = min(batches, config.valid_most)

    def _rows(self, step: int) -> int:
        return self.config.rows

    def _train(self, step: int, rows: Rows) -> Batch:
        # any place whose window and last target still lie in the training part
        starts = counter_rng.integers(self.seed, step, rows, 1, 0, self.cut - self.config.context)
        return self._cut((self.ids, self.ends), starts, self.cut)

    def _valid_rows(self, index: int) -> int:
        return min(self.config.valid_rows, self.windows - index * self.config.valid_rows)

    # (b, 1): the number of each row's window; windows lie side by side
    def _valid(self, index: int, rows: Rows) -> Batch:
        window = index * self.config.valid_rows + rows[:, None]
        return self._cut(
            self.validation, self.begin + window * self.config.context, len(self.validation[0])
        )

    def _cut(
        self, source: tuple[np.ndarray, NDArray[np.int64]], starts: NDArray[np.int64], limit: int
    ) -> Batch:
        """Return the windows of ids, with the ends of their documents, from starts (b, 1); up to a limit."""
        ids, ends = source
        # one more than the context: the targets are the ids, one place later
        # (b, 1) + (context + 1,) -> (b, context + 1)
        places = starts + np.arange(self.config.context + 1)
        inside = places < limit
        whole = ids[np.minimum(places, limit - 1)].astype(np.int64)
        # a foreign file could hold any number: an embedding would fail with a useless message
        if whole.max() >= self.sizes["vocab"]:
            raise DataError(
                f"{self.name} has the id {whole.max()}: expected ids below vocab={self.sizes['vocab']}"
            )
        batch = {
            "ids": whole[:, :-1].copy(),
            "targets": np.where(inside, whole, IGNORE)[:, 1:].copy(),
        }
        if self.config.documents:
            # (b, context + 1): True where a document begins
            begins = self._begins(ends, starts)
            # the first id of a document is not predicted from the one before
            batch["targets"][begins[:, 1:]] = IGNORE
            # 0 up to the first beginning, then one more at each
            batch["documents"] = np.cumsum(begins[:, :-1], axis=1, dtype=np.int64)
            # the place in the window, less that of the last beginning before it
            at = np.broadcast_to(np.arange(self.config.context), batch["ids"].shape)
            batch["at"] = at - np.maximum.accumulate(np.where(begins[:, :-1], at, 0), axis=1)
        return batch

    def _begins(self, ends: NDArray[np.int64], starts: NDArray[np.int64]) -> NDArray[np.bool_]:
        """Return whether a document begins at each place of a window (b, context + 1), except at the first place."""
        first = np.searchsorted(ends, starts[:, 0], side="right")
        # searchsorted: documents may have any length, and few ends lie in a window
        last = np.searchsorted(ends, starts[:, 0] + self.config.context, side="right")
        # every end inside a window: the number of its row, and its number among all ends
        row = np.repeat(np.arange(len(starts)), last - first)
        end = np.arange(len(row)) + np.repeat(
            first - (np.cumsum(last - first) - (last - first)), last - first
        )
        begins = np.zeros((len(starts), self.config.context + 1), bool)
        # an end is the place after the last id, where the next document begins
        begins[row, ends[end] - starts[row, 0]] = True
        return begins
