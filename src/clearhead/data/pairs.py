"""Pairs of texts, the rows of a table, as rows "source SEP target END" in batches of similar length."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Literal

import numpy as np
from numpy.typing import NDArray

from .. import counter_rng
from ..checks import fraction
from ..errors import InputError
from ..tokens import Characters
from .batches import IGNORE, Batch, Rows
from .bucketed import Bucketed, Buckets
from .columns import PARALLEL, TwoColumns, open_columns
from .files import DataError, given_files, locate
from .parallel import Line, lines_of
from .splits import empty_told, told
from .vocabulary import TranslationConfig

SPLIT = 2  # stream of random numbers beside those of Bucketed


@dataclass(frozen=True, kw_only=True, slots=True)
class PairConfig(TranslationConfig):
    """Options of pairs."""

    path: str  # a table: .csv, .tsv, .jsonl, .json or .parquet; other files have source TAB target per line
    valid_path: str | None = None  # such a file for validation; None: a share of the first
    source: str | None = None  # the column of the sources; None: source, src, en, ... or the first of two
    target: str | None = None  # the column of the targets; None: target, tgt, de, ... or the second of two
    header: bool | None = None  # whether the first row of a CSV or TSV file names the columns; None: recognised
    share: float = 0.05  # share of the different sources kept for validation, if there is no valid_path
    split_by: Literal["source", "target"] = "source"  # the side of which no text is in both training and validation
    join: bool = True  # one row of characters, "source SEP target END"; false: translations, with the options above
    tokens: str | None = None  # with join=false, the folder of a translator whose tokenizers to use; None: train them

    def __post_init__(self) -> None:
        TranslationConfig.__post_init__(self)  # super() loses its class when slots make a new one
        fraction(self, "share")
        for option in ("vocabulary", "size", "minimum", "joint", "lower", "longest") if self.join else ():
            if getattr(self, option) != TranslationConfig.__dataclass_fields__[option].default:
                raise InputError(f"{option} is for join=false: joined pairs are characters, and all of them are kept")
        if self.join and self.tokens is not None:
            raise InputError("tokens is for join=false: joined pairs are characters")

    def read(self, root: Path | None) -> tuple[list[Line], list[Line], TwoColumns, str]:
        """Return the training and validation pairs, the columns they are in, and how they were divided, in a sentence.

        A row without a source or a target is left out, and counted.
        """
        opened = self._columns(self.path, root)
        pairs = lines_of(opened, skip_empty=True)
        empty = opened.empty
        if self.valid_path is not None:
            other = self._columns(self.valid_path, root)
            valid = lines_of(other, skip_empty=True)
            description = told(pairs, valid, "pair", f"from {self.valid_path}", self._both(pairs, valid))
            return pairs, valid, opened, description + empty_told(empty + other.empty, "pairs")
        train, valid = split_pairs(pairs, self.share, self.split_by)
        if not train:
            raise DataError(f"{self.path}: share={self.share} leaves no pair to train on")
        description = told(train, valid, "pair", f"share = {self.share} of the different {self.split_by}s")
        return train, valid, opened, description + empty_told(empty, "pairs")

    def _columns(self, path: str, root: Path | None) -> TwoColumns:
        return open_columns(locate(path, root), PARALLEL, (self.source, self.target), header=self.header)

    def _both(self, train: Sequence[Line], valid: Sequence[Line]) -> int:
        known = {getattr(line, self.split_by) for line in train}
        return sum(getattr(line, self.split_by) in known for line in valid)


class Pairs(Bucketed):
    """Joined pairs, of which the target and END are predicted; the ids of SEP and END follow those of the characters.

    END is also the padding. Every pair once per epoch. All targets of one source are in training, or all in validation.
    """

    keys = ("ids", "targets")
    hint = "Pairs with join=true are single rows of text; set data.join=false to give a translation model its source"
    tokens: Characters

    def __init__(self, config: PairConfig, *, seed: int, root: Path | None = None) -> None:
        self.config, self.files = config, given_files(config.path, config.valid_path)
        train, valid, opened, self.description = config.read(root)
        self.columns = {"source": opened.first, "target": opened.second}
        self.tokens = Characters.of("".join({c for pair in (*train, *valid) for c in pair.source + pair.target}))
        self.sep, self.end = len(self.tokens), len(self.tokens) + 1
        self.sizes = {"vocab": len(self.tokens) + 2}
        training, validation = (JoinedPairs(lines, self.tokens, config) for lines in (train, valid))
        self._open(training, validation, seed=seed, valid_most=config.valid_most)


class JoinedPairs:
    """Pairs as ids, "source SEP target END" concatenated, and their buckets."""

    def __init__(self, pairs: Sequence[Line], tokens: Characters, config: PairConfig) -> None:
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
                f"{pairs[i].where}: this pair has {self.lengths[i] - 1} tokens: "
                f"expected batch_tokens={config.batch_tokens} or fewer"
            )
        self.buckets = Buckets(self.lengths - 1, config.batch_tokens, config.rounding)  # END is never an input

    def __len__(self) -> int:
        return len(self.lengths)

    def batch(self, bucket: int, order: NDArray[np.int64], rows: Rows) -> Batch:
        """Return rows of a bucket; `order` is the order of all pairs, of which each bucket takes a slice."""
        chosen = order[self.buckets.starts[bucket] + rows][:, None]
        at = np.arange(self.buckets.batch_widths[bucket] + 1)
        inside = at < self.lengths[chosen]
        whole = self.ids[np.minimum(self.starts[chosen] + at, len(self.ids) - 1)].astype(np.int64)
        whole[~inside] = self.end
        counted = inside & (at > self.sources[chosen])
        return {"ids": whole[:, :-1].copy(), "targets": np.where(counted, whole, IGNORE)[:, 1:].copy()}


def split_pairs(
    pairs: list[Line], share: float, by: Literal["source", "target"] = "source"
) -> tuple[list[Line], list[Line]]:
    """Return training and validation pairs: a share of the different texts of one side validates, with all pairs."""
    keys = [getattr(pair, by) for pair in pairs]
    number = {key: i for i, key in enumerate(dict.fromkeys(keys))}
    validates = np.zeros(len(number), bool)
    validates[counter_rng.permutation(0, 0, len(number), SPLIT)[: round(len(number) * share)]] = True
    parts: tuple[list[Line], list[Line]] = ([], [])
    for pair, key in zip(pairs, keys, strict=True):
        parts[int(validates[number[key]])].append(pair)
    return parts
