"""Pairs of texts, source TAB target a line, as rows "source SEP target END" in batches of like lengths."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from ..tokens import Characters
from . import keyed
from .batches import IGNORE, Batch, Buckets, Data, Rows
from .files import DataError, locate, read_text

ROWS, BATCHES, SPLIT = 0, 1, 2  # streams of random numbers


@dataclass(frozen=True, kw_only=True, slots=True)
class PairFile:
    """Options of pairs."""

    path: str  # a UTF-8 file, plain or .gz, with two columns: source TAB target
    valid_path: str | None = None  # such a file to validate on; None: a share of the first
    share: float = 0.05  # part of the different sources kept for validation, where there is no valid_path
    batch_tokens: int = 4096  # tokens a step at most, padding counted
    rounding: int = 8  # rows are padded to multiples of this, so that there are few different widths
    valid_most: int | None = None  # validation batches at most; None: all

    def __post_init__(self) -> None:
        for name in ("batch_tokens", "rounding"):
            if getattr(self, name) < 1:
                raise ValueError(f"{name}={getattr(self, name)}: expected 1 or more")
        if not 0 <= self.share < 1:
            raise ValueError(f"share={self.share}: expected 0 or more and less than 1")
        if self.valid_most is not None and self.valid_most < 0:
            raise ValueError(f"valid_most={self.valid_most}: expected 0 or more")


@dataclass(frozen=True, kw_only=True, slots=True)
class Pair:
    """A line of a file."""

    source: str
    target: str
    where: str  # file:line


class Pairs(Data):
    """Targets are counted after SEP, END among them; SEP and END follow the characters, and END also fills up.

    An epoch has every pair once. One source may have many targets: they all train, or they all validate.
    """

    kind = "sequences"
    tokens: Characters

    def __init__(self, config: PairFile, *, seed: int, root: Path | None = None) -> None:
        self.config, self.seed = config, seed
        pairs = read_pairs(locate(config.path, root))
        if config.valid_path is None:
            train, valid = split_by_source(pairs, config.share)
        else:
            train, valid = pairs, read_pairs(locate(config.valid_path, root))
        if not train:
            raise DataError(f"{config.path}: share={config.share} leaves no pair to train on")
        self.tokens = Characters.of("".join({c for pair in (*train, *valid) for c in pair.source + pair.target}))
        self.sep, self.end = len(self.tokens), len(self.tokens) + 1
        self.sizes = {"vocab": len(self.tokens) + 2}
        self.training = Joined(train, self.tokens, config)
        self.validation = Joined(valid, self.tokens, config)
        self.steps_an_epoch = len(self.training.buckets)
        batches = len(self.validation.buckets)
        self.valid_batches = batches if config.valid_most is None else min(batches, config.valid_most)
        self._valid_order = self.validation.buckets.order()
        self._orders: tuple[int, NDArray[np.int64], NDArray[np.int64]] | None = None  # of the last epoch asked for

    def _place(self, step: int) -> tuple[int, NDArray[np.int64]]:
        """Which bucket a step takes, and the order of rows in its epoch."""
        epoch, index = divmod(step, len(self.training.buckets))
        orders = self._orders
        if orders is None or orders[0] != epoch:
            rows = self.training.buckets.order(keyed.permutation(self.seed, epoch, len(self.training), ROWS))
            batches = keyed.permutation(self.seed, epoch, len(self.training.buckets), BATCHES)
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


class Joined:
    """Pairs as ids, "source SEP target END" one after the other, and their buckets."""

    def __init__(self, pairs: Sequence[Pair], tokens: Characters, config: PairFile) -> None:
        self.sources = np.array([len(pair.source) for pair in pairs], np.int64)
        self.lengths = self.sources + np.array([len(pair.target) for pair in pairs], np.int64) + 2
        self.end = len(tokens) + 1
        ends = np.cumsum(self.lengths)
        self.starts = ends - self.lengths
        letter = np.ones(self.lengths.sum(), bool)
        letter[ends - 1] = letter[self.starts + self.sources] = False
        self.ids = np.empty(len(letter), np.int32)
        self.ids[letter] = tokens.encode("".join(pair.source + pair.target for pair in pairs))
        self.ids[self.starts + self.sources], self.ids[ends - 1] = len(tokens), self.end
        for i in np.flatnonzero(self.lengths - 1 > config.batch_tokens).tolist():
            raise DataError(
                f"{pairs[i].where}: this pair is {self.lengths[i] - 1} tokens long: "
                f"batch_tokens={config.batch_tokens} holds no such row"
            )
        self.buckets = Buckets(self.lengths - 1, config.batch_tokens, config.rounding)  # END is never told

    def __len__(self) -> int:
        return len(self.lengths)

    def batch(self, bucket: int, order: NDArray[np.int64], rows: Rows) -> Batch:
        """Rows of a bucket, where `order` puts the pairs into the buckets."""
        chosen = order[self.buckets.starts[bucket] + rows][:, None]
        at = np.arange(self.buckets.batch_widths[bucket] + 1)
        inside = at < self.lengths[chosen]
        whole = self.ids[np.minimum(self.starts[chosen] + at, len(self.ids) - 1)].astype(np.int64)
        whole[~inside] = self.end
        counted = inside & (at > self.sources[chosen])
        return {"ids": whole[:, :-1].copy(), "targets": np.where(counted, whole, IGNORE)[:, 1:].copy()}


def read_pairs(path: Path) -> list[Pair]:
    """The pairs of a file; any line that is not a pair raises, with its number."""
    lines = read_text(path).split("\n")
    if not lines[-1]:
        lines.pop()
    pairs = []
    for number, line in enumerate(lines, start=1):
        columns = line.removesuffix("\r").split("\t")
        if len(columns) != 2 or not all(columns):
            found = f"{len(columns)} columns" if len(columns) != 2 else "an empty one"
            raise DataError(f"{path}:{number}: expected two columns, source TAB target, found {found}: {line[:60]!r}")
        pairs.append(Pair(source=columns[0], target=columns[1], where=f"{path}:{number}"))
    return pairs


def split_by_source(pairs: list[Pair], share: float) -> tuple[list[Pair], list[Pair]]:
    """Training and validation pairs: a share of the different sources, with all their targets, validates."""
    number = {source: i for i, source in enumerate(dict.fromkeys(pair.source for pair in pairs))}
    kept = np.zeros(len(number), bool)
    kept[keyed.permutation(0, 0, len(number), SPLIT)[: round(len(number) * share)]] = True
    train = [pair for pair in pairs if not kept[number[pair.source]]]
    return train, [pair for pair in pairs if kept[number[pair.source]]]
