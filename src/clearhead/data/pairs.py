"""Pairs of texts, source TAB target per line, as rows "source SEP target END" in batches of similar length."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from .. import counter_rng
from ..checks import fraction
from ..errors import InputError
from ..tokens import Characters
from .batches import IGNORE, Batch, Rows
from .bucketed import Bucketed, Buckets
from .files import DataError, locate
from .parallel import Line, read_pairs
from .vocabulary import TranslationConfig

SPLIT = 2  # stream of random numbers beside those of Bucketed


@dataclass(frozen=True, kw_only=True, slots=True)
class PairConfig(TranslationConfig):
    """Options of pairs."""

    path: str  # a UTF-8 file, plain or .gz, with two columns: source TAB target
    valid_path: str | None = None  # such a file for validation; None: a share of the first
    share: float = 0.05  # share of the different sources kept for validation, if there is no valid_path
    join: bool = True  # one row of characters, "source SEP target END"; false: translations, with the options above

    def __post_init__(self) -> None:
        TranslationConfig.__post_init__(self)  # super() loses its class when slots make a new one
        fraction(self, "share")
        for option in ("vocabulary", "size", "minimum", "joint", "lower", "longest") if self.join else ():
            if getattr(self, option) != TranslationConfig.__dataclass_fields__[option].default:
                raise InputError(f"{option} is for join=false: joined pairs are characters, and all of them are kept")

    def read(self, root: Path | None) -> tuple[list[Line], list[Line]]:
        """Return the training and validation pairs."""
        pairs = read_pairs(locate(self.path, root))
        if self.valid_path is not None:
            return pairs, read_pairs(locate(self.valid_path, root))
        train, valid = split_by_source(pairs, self.share)
        if not train:
            raise DataError(f"{self.path}: share={self.share} leaves no pair to train on")
        return train, valid


class Pairs(Bucketed):
    """Joined pairs, of which the target and END are predicted; the ids of SEP and END follow those of the characters.

    END is also the padding. Every pair once per epoch. All targets of one source are in training, or all in validation.
    """

    keys = ("ids", "targets")
    hint = "Pairs with join=true are single rows of text; set data.join=false to give a translation model its source"
    tokens: Characters

    def __init__(self, config: PairConfig, *, seed: int, root: Path | None = None) -> None:
        self.config = config
        train, valid = config.read(root)
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


def split_by_source(pairs: list[Line], share: float) -> tuple[list[Line], list[Line]]:
    """Return training and validation pairs: a share of the different sources validates, with all their targets."""
    number = {source: i for i, source in enumerate(dict.fromkeys(pair.source for pair in pairs))}
    validates = np.zeros(len(number), bool)
    validates[counter_rng.permutation(0, 0, len(number), SPLIT)[: round(len(number) * share)]] = True
    train = [pair for pair in pairs if not validates[number[pair.source]]]
    return train, [pair for pair in pairs if validates[number[pair.source]]]
