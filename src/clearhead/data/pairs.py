"""Pairs of texts, source TAB target a line, as rows "source SEP target END" in batches of like lengths."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from .. import counter_rng
from ..errors import InputError
from ..tokens import Characters
from .batches import IGNORE, Batch, Buckets, Rows
from .bucketed import Bucketed
from .files import DataError, locate
from .parallel import Line, read_pairs
from .vocabulary import Translating

SPLIT = 2  # a stream of random numbers beside those of Bucketed


@dataclass(frozen=True, kw_only=True, slots=True)
class PairFile(Translating):
    """Options of pairs."""

    path: str  # a UTF-8 file, plain or .gz, with two columns: source TAB target
    valid_path: str | None = None  # such a file to validate on; None: a share of the first
    share: float = 0.05  # part of the different sources kept for validation, where there is no valid_path
    join: bool = True  # one row of characters, "source SEP target END"; false: translations, as the options above say

    def __post_init__(self) -> None:
        Translating.__post_init__(self)
        if not 0 <= self.share < 1:
            raise InputError(f"share={self.share}: expected 0 or more and less than 1")
        for option in ("vocabulary", "size", "minimum", "joint", "lower", "longest") if self.join else ():
            if getattr(self, option) != Translating.__dataclass_fields__[option].default:
                raise InputError(f"{option} is for join=false: joined pairs are read as characters, and all of them")

    def read(self, root: Path | None) -> tuple[list[Line], list[Line]]:
        """The pairs to train and to validate on."""
        pairs = read_pairs(locate(self.path, root))
        if self.valid_path is not None:
            return pairs, read_pairs(locate(self.valid_path, root))
        train, valid = split_by_source(pairs, self.share)
        if not train:
            raise DataError(f"{self.path}: share={self.share} leaves no pair to train on")
        return train, valid


class Pairs(Bucketed):
    """Targets are counted after SEP, END among them; SEP and END follow the characters, and END also fills up.

    An epoch has every pair once. One source may have many targets: they all train, or they all validate.
    """

    keys = ("ids", "targets")
    hint = "With join=false, pairs have a source and a target, for a model that translates"
    tokens: Characters

    def __init__(self, config: PairFile, *, seed: int, root: Path | None = None) -> None:
        self.config = config
        train, valid = config.read(root)
        self.tokens = Characters.of("".join({c for pair in (*train, *valid) for c in pair.source + pair.target}))
        self.sep, self.end = len(self.tokens), len(self.tokens) + 1
        self.sizes = {"vocab": len(self.tokens) + 2}
        joined = [Joined(lines, self.tokens, config) for lines in (train, valid)]
        self.longest = max(int(rows.lengths.max(initial=1)) for rows in joined) - 1
        self._open(*joined, seed=seed, valid_most=config.valid_most)


class Joined:
    """Pairs as ids, "source SEP target END" one after the other, and their buckets."""

    def __init__(self, pairs: Sequence[Line], tokens: Characters, config: PairFile) -> None:
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


def split_by_source(pairs: list[Line], share: float) -> tuple[list[Line], list[Line]]:
    """Training and validation pairs: a share of the different sources, with all their targets, validates."""
    number = {source: i for i, source in enumerate(dict.fromkeys(pair.source for pair in pairs))}
    kept = np.zeros(len(number), bool)
    kept[counter_rng.permutation(0, 0, len(number), SPLIT)[: round(len(number) * share)]] = True
    train = [pair for pair in pairs if not kept[number[pair.source]]]
    return train, [pair for pair in pairs if kept[number[pair.source]]]
