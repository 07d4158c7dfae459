"""Translations: a source that is read whole, and a target that is written token by token, in batches of like lengths.

source  (b, s)   x1 .. xm <end>, filled up with <pad>      lengths (b,)  m + 1
ids     (b, t)   <start> y1 .. yn                          targets (b, t)  y1 .. yn <end>, then -100
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, fields
from pathlib import Path
from typing import Literal

import numpy as np
from numpy.typing import NDArray

from ..errors import InputError
from ..tokens import Pair, Tokenizer
from .batches import IGNORE, Batch, Buckets, Data, Rows
from .bucketed import Bucketed
from .files import DataError, locate
from .pairs import PairFile, Pairs, split_by_source
from .parallel import SPLITS, Line, read_multi30k, read_pairs, read_tatoeba
from .vocabulary import Translating

Language = Literal["en", "de", "fr"]


@dataclass(frozen=True, kw_only=True, slots=True)
class Multi30k(Translating):
    """Options of multi30k."""

    source: Language = "en"  # what is read
    target: Language = "de"  # what is written
    join_sentences: tuple[int, int] = (1, 1)  # (fewest, most) neighbouring sentences that make an example

    def __post_init__(self) -> None:
        Translating.__post_init__(self)
        _two_languages(self.source, self.target)
        fewest, most = self.join_sentences
        if not 1 <= fewest <= most:
            raise InputError(f"join_sentences=[{fewest}, {most}]: expected the fewest, 1 or more, then the most")


@dataclass(frozen=True, kw_only=True, slots=True)
class Tatoeba(Translating):
    """Options of tatoeba."""

    source: Language = "en"  # what is read; one of the two is en
    target: Language = "fr"  # what is written
    valid_share: float = 0.01  # part of the different English sentences kept for validation
    test_share: float = 0.01  # and for the end, which no training sees

    def __post_init__(self) -> None:
        Translating.__post_init__(self)
        _two_languages(self.source, self.target)
        if "en" not in (self.source, self.target):
            raise InputError(f"source={self.source!r} and target={self.target!r}: expected one of them to be 'en'")
        _shares(self.valid_share, self.test_share)


@dataclass(frozen=True, kw_only=True, slots=True)
class Mixture(Translating):
    """Options of translations."""

    of: tuple[str, ...]  # multi30k, tatoeba, and files with two columns, source TAB target: all of them together
    source: Language = "en"  # what is read
    target: Language = "de"  # what is written
    valid_share: float = 0.01  # of tatoeba and of files, kept for validation; multi30k has its own
    test_share: float = 0.01  # of tatoeba, kept for the end

    def __post_init__(self) -> None:
        Translating.__post_init__(self)
        _two_languages(self.source, self.target)
        _shares(self.valid_share, self.test_share)
        if not self.of:
            raise InputError(f"of is empty: expected some of {', '.join(SPLITS)}, and files")


class Translations(Bucketed):
    """Pairs of texts as ids. An epoch has every example once; the vocabulary is made from the training text alone."""

    keys = ("ids", "targets", "source", "lengths")
    sets_context = False
    tokens: Pair

    def __init__(
        self,
        config: Translating,
        train: Sequence[Line],
        valid: Sequence[Line],
        *,
        seed: int,
        join: tuple[int, int] = (1, 1),
    ) -> None:
        self.config = config
        if not train:
            raise DataError("there is no pair to train on: expected a smaller share for validation")
        self.tokens = config.make([line.source for line in train], [line.target for line in train])
        self.sizes = {"vocab": len(self.tokens.source)}
        if not config.joint:  # else a model shares its table, unless its recipe says otherwise
            self.sizes["target_vocab"] = len(self.tokens.target)
        training = Translated(train, self.tokens, config, _joined(len(train), *join, apart=False))
        validation = Translated(valid, self.tokens, config, _joined(len(valid), *join, apart=True))
        if not len(training):
            raise DataError(f"longest={config.longest} leaves no pair to train on")
        sides = [side.lengths for part in (training, validation) for side in (part.source, part.target)]
        self.longest = max(int(lengths.max(initial=1)) for lengths in sides)
        self.left_out = training.left_out + validation.left_out  # examples that were longer than `longest`
        self._open(training, validation, seed=seed, valid_most=config.valid_most)


def multi30k(config: Multi30k, *, seed: int, root: Path | None = None) -> Translations:
    """Multi30k, its own validation part, and neighbours joined where that is asked for.

    In training every sentence begins an example of each length, in validation the examples do not overlap.
    """
    train, valid = (read_multi30k(split, config.source, config.target, root) for split in ("train", "valid"))
    return Translations(config, train, valid, seed=seed, join=config.join_sentences)


def tatoeba(config: Tatoeba, *, seed: int, root: Path | None = None) -> Translations:
    """Tatoeba, split by the English side."""
    shares = {"valid_share": config.valid_share, "test_share": config.test_share}
    parts = read_tatoeba(config.source, config.target, root, **shares)
    return Translations(config, parts["train"], parts["valid"], seed=seed)


def mixture(config: Mixture, *, seed: int, root: Path | None = None) -> Translations:
    """Several sets one after the other."""
    train: list[Line] = []
    valid: list[Line] = []
    for name in config.of:
        if name == "multi30k":
            more = [read_multi30k(split, config.source, config.target, root) for split in ("train", "valid")]
        elif name == "tatoeba":
            shares = {"valid_share": config.valid_share, "test_share": config.test_share}
            parts = read_tatoeba(config.source, config.target, root, **shares)
            more = [parts["train"], parts["valid"]]
        else:
            more = list(split_by_source(read_pairs(locate(name, root)), config.valid_share))
        train += more[0]
        valid += more[1]
    return Translations(config, train, valid, seed=seed)


def pairs(config: PairFile, *, seed: int, root: Path | None = None) -> Data:
    """A file of pairs: joined into one row of characters, or source and target apart."""
    if config.join:
        return Pairs(config, seed=seed, root=root)
    options = Translating(**{field.name: getattr(config, field.name) for field in fields(Translating)})
    train, valid = config.read(root)
    return Translations(options, train, valid, seed=seed)


class Translated:
    """Examples as ids, and their buckets by the longer side. An example is some neighbouring lines."""

    def __init__(
        self, lines: Sequence[Line], tokens: Pair, config: Translating, joined: tuple[Rows, NDArray[np.int64]]
    ) -> None:
        starts, counts = joined
        self.rounding = config.rounding
        source_pad, pad, start = tokens.source.pad, tokens.target.pad, tokens.target.start
        if source_pad is None or pad is None or start is None:
            raise InputError(f"{tokens!r} has no <pad> and <start>: translations need them")
        self.source_pad, self.pad, self.start = source_pad, pad, start
        source = _examples(tokens.source, [line.source for line in lines], starts, counts)
        target = _examples(tokens.target, [line.target for line in lines], starts, counts)
        longer = np.array([max(len(x), len(y)) for x, y in zip(source, target, strict=True)], np.int64)
        kept = np.flatnonzero(longer <= (config.longest or max(longer, default=0)))
        self.left_out = len(longer) - len(kept)
        for i in kept[longer[kept] > config.batch_tokens][:1].tolist():
            raise DataError(
                f"{lines[starts[i]].where}: this pair is {longer[i]} tokens long: "
                f"batch_tokens={config.batch_tokens} holds no such row"
            )
        self.source, self.target = (Ragged([rows[i] for i in kept.tolist()]) for rows in (source, target))
        self.buckets = Buckets(longer[kept], config.batch_tokens, config.rounding)

    def __len__(self) -> int:
        return len(self.source.lengths)

    def batch(self, bucket: int, order: NDArray[np.int64], rows: Rows) -> Batch:
        """Rows of a bucket; every part of it is as wide as the longest of the whole bucket."""
        whole = order[self.buckets.starts[bucket] : self.buckets.ends[bucket]]
        chosen, most = whole[rows], self.buckets.batch_widths[bucket]
        source, target = (
            side.padded(chosen, min(-(-int(side.lengths[whole].max()) // self.rounding) * self.rounding, most), fill)
            for side, fill in ((self.source, self.source_pad), (self.target, IGNORE))
        )
        ids = np.full_like(target, self.start)
        ids[:, 1:] = target[:, :-1]
        ids[target == IGNORE] = self.pad  # <end> is asked for, and never told
        return {"ids": ids, "targets": target, "source": source, "lengths": self.source.lengths[chosen]}


class Ragged:
    """Rows of different lengths, one after the other."""

    def __init__(self, rows: Sequence[np.ndarray]) -> None:
        self.lengths = np.array([len(row) for row in rows], np.int64)
        self.starts = np.cumsum(self.lengths) - self.lengths
        self.ids = np.concatenate([np.zeros(0, np.int32), *rows]).astype(np.int32)

    def padded(self, chosen: NDArray[np.int64], width: int, fill: int) -> NDArray[np.int64]:
        """Some rows, filled up to a width."""
        at = np.arange(width)
        places = np.minimum(self.starts[chosen][:, None] + at, len(self.ids) - 1)
        rows = self.ids[places].astype(np.int64)
        rows[at >= self.lengths[chosen][:, None]] = fill
        return rows


def _examples(tokens: Tokenizer, texts: list[str], starts: Rows, counts: NDArray[np.int64]) -> list[np.ndarray]:
    """The ids of neighbouring texts with a space between them, then <end>: as if the joined text were encoded."""
    first = tokens.encode_all(texts)
    later = tokens.encode_all([" " + text for text in texts]) if (counts > 1).any() else first
    end = np.array([tokens.end], np.int64)
    return [
        np.concatenate([first[i], *later[i + 1 : i + n], end])
        for i, n in zip(starts.tolist(), counts.tolist(), strict=True)
    ]


def _joined(lines: int, fewest: int, most: int, *, apart: bool) -> tuple[Rows, NDArray[np.int64]]:
    """Where examples of fewest to most lines start, and of how many they are; apart: those of one length share none."""
    found = [(i, n) for n in range(fewest, most + 1) for i in range(0, lines - n + 1, n if apart else 1)]
    table = np.array(found, np.int64).reshape(-1, 2)
    return table[:, 0], table[:, 1]


def _two_languages(source: str, target: str) -> None:
    if source == target:
        raise InputError(f"source and target are both {source!r}: expected two languages")


def _shares(valid: float, test: float) -> None:
    if not (valid >= 0 and test >= 0 and valid + test < 1):
        raise InputError(f"valid_share={valid} and test_share={test}: expected 0 or more, together less than 1")
