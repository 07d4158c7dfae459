"""Translations: a source that is read at once and a target that is predicted, in batches of similar length.

source  (b, s)   x1 .. xm <end>, padded with <pad>         lengths (b,)  m + 1
ids     (b, t)   <start> y1 .. yn                          targets (b, t)  y1 .. yn <end>, then -100
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, fields
from operator import attrgetter
from pathlib import Path
from typing import Literal

import numpy as np
from numpy.typing import NDArray

from ... import counter_rng
from ...checks import fraction
from ...errors import InputError
from ...tokens import Characters, Pair, Tokenizer
from ...tokens.decoder_prompt import decoder_prompt
from ...tokens.special import Special
from ..batching import Bucketed, Buckets, Ragged
from ..data import IGNORE, Batch, Data, Rows
from ..files import DataError, given_files, locate
from ..splits import SPLIT, RowsOfFile, Split, counted, split_files
from ..tables.reading import PARALLEL, open_columns
from .labelled import encode_rows
from .parallel import SPLITS, Line, lines_of, read_multi30k, read_pairs, read_tatoeba
from .tokenizers import TranslationConfig, open_pair

# Pairs of texts, the rows of a table, as rows "source SEP target END" in batches of similar length.


@dataclass(frozen=True, kw_only=True, slots=True)
class PairConfig(TranslationConfig):
    """Options of pairs."""

    # a table: .csv, .tsv, .jsonl, .json or .parquet; other files have source TAB target per line
    path: str
    valid_path: str | None = None  # such a file for validation; None: a share of the first
    # the column of the sources; None: source, src, en, ... or the first of two
    source: str | None = None
    # the column of the targets; None: target, tgt, de, ... or the second of two
    target: str | None = None
    # whether the first row of a CSV or TSV file names the columns; None: recognised
    header: bool | None = None
    # share of the different sources kept for validation, if there is no valid_path
    share: float = 0.05
    # the side of which no text is in both training and validation
    split_by: Literal["source", "target"] = "source"
    # one row of characters, "source SEP target END"; false: translations, with the options above
    join: bool = True
    # with join=false, the folder of a translator whose tokenizers to use; None: train them
    tokens: str | None = None

    def __post_init__(self) -> None:
        TranslationConfig.__post_init__(self)  # super() loses its class when slots make a new one
        fraction(self, "share")
        if not self.join:
            return
        # joined pairs are characters, for which these options have no effect
        for option in ("vocabulary", "size", "minimum", "joint", "lower", "longest"):
            if getattr(self, option) != TranslationConfig.__dataclass_fields__[option].default:
                raise InputError(
                    f"{option} is for join=false: joined pairs are characters, and all of them are kept"
                )
        if self.tokens is not None:
            raise InputError("tokens is for join=false: joined pairs are characters")

    def read(self, root: Path | None) -> Split:
        """Return the training and validation pairs; a row without a source or a target is left out, and counted."""

        def read_file(path: str) -> RowsOfFile:
            wanted = (self.source, self.target)
            opened = open_columns(locate(path, root), PARALLEL, wanted, header=self.header)
            rows = lines_of(opened, skip_empty=True)
            columns = {"source": opened.first, "target": opened.second}
            return RowsOfFile(rows, opened.empty, columns)

        def divide(lines: list[Line]) -> tuple[list[Line], list[Line]]:
            # all pairs of one text of this side are in the same part
            train, valid = split_pairs(lines, self.share, self.split_by)
            if not train:
                raise DataError(f"{self.path}: share={self.share} leaves no pair to train on")
            return train, valid

        return split_files(
            self.path,
            self.valid_path,
            read_file,
            attrgetter(self.split_by),
            divide,
            f"share = {self.share} of the different {self.split_by}s",
            noun="pair",
            kind="pairs",
        )


class Pairs(Bucketed):
    """Joined pairs, of which the target and END are predicted; the ids of SEP and END follow those of the characters.

    END is also the padding. Every pair once per epoch. All targets of one source are in training, or all in validation.
    """

    keys = ("ids", "targets")
    hint = "Pairs with join=true are single rows of text; set data.join=false to give a translation model its source"
    tokens: Characters

    def __init__(self, config: PairConfig, *, seed: int, root: Path | None = None) -> None:
        self.config, self.seed = config, seed
        self.files = given_files(config.path, config.valid_path)
        train, valid, self.columns, self._split = config.read(root)
        # characters of both parts, for characters have no unknown token
        self.tokens = Characters.of(
            "".join({c for pair in (*train, *valid) for c in pair.source + pair.target})
        )
        self.sep, self.end = len(self.tokens), len(self.tokens) + 1
        self.sizes = {"vocab": len(self.tokens) + 2}
        self._encoded = (
            JoinedPairs(train, self.tokens, config),
            JoinedPairs(valid, self.tokens, config),
        )
        self._group()


class JoinedPairs:
    """Pairs as ids, "source SEP target END" concatenated, and their buckets."""

    def __init__(self, pairs: Sequence[Line], tokens: Characters, config: PairConfig) -> None:
        self.sources = np.array([len(pair.source) for pair in pairs], np.int64)
        # SEP and END are two more than the characters of both texts
        self.lengths = self.sources + np.array([len(pair.target) for pair in pairs], np.int64) + 2
        self.end = len(tokens) + 1
        ends = np.cumsum(self.lengths)
        self.starts = ends - self.lengths
        # the places of letters; SEP and END are put between them
        letter = np.ones(self.lengths.sum(), bool)
        letter[ends - 1] = letter[self.starts + self.sources] = False
        self.ids = np.empty(len(letter), np.int32)
        # one call for all texts, since each character is a token
        self.ids[letter] = tokens.encode("".join(pair.source + pair.target for pair in pairs))
        self.ids[self.starts + self.sources], self.ids[ends - 1] = len(tokens), self.end
        # the first row that is too long, with its place
        for i in np.flatnonzero(self.lengths - 1 > config.batch_tokens).tolist():
            raise DataError(
                f"{pairs[i].where}: this pair has {self.lengths[i] - 1} tokens: "
                f"expected batch_tokens={config.batch_tokens} or fewer"
            )
        self.group(config)

    def group(self, config: PairConfig) -> None:
        """Divide the pairs into buckets; END is never an input, so that a row is one shorter."""
        self.buckets = Buckets(self.lengths - 1, config.batch_tokens, config.rounding)

    def __len__(self) -> int:
        return len(self.lengths)

    def batch(self, bucket: int, order: NDArray[np.int64], rows: Rows) -> Batch:
        """Return rows of a bucket; `order` is the order of all pairs, of which each bucket takes a slice."""
        # (b, 1) and (width + 1,) -> (b, width + 1)
        chosen = order[self.buckets.starts[bucket] + rows][:, None]
        at = np.arange(self.buckets.batch_widths[bucket] + 1)
        inside = at < self.lengths[chosen]
        # clipped at the end of all ids; what lies beyond a row is overwritten
        whole = self.ids[np.minimum(self.starts[chosen] + at, len(self.ids) - 1)].astype(np.int64)
        whole[~inside] = self.end
        # the source is given: only the target and END are predicted
        counted = inside & (at > self.sources[chosen])
        return {
            "ids": whole[:, :-1].copy(),
            "targets": np.where(counted, whole, IGNORE)[:, 1:].copy(),
        }


def split_pairs(
    pairs: list[Line], share: float, by: Literal["source", "target"] = "source"
) -> tuple[list[Line], list[Line]]:
    """Return training and validation pairs: a share of the different texts of one side validates, with all pairs."""
    keys = [getattr(pair, by) for pair in pairs]
    # each text of this side once, in order of appearance
    number = {key: i for i, key in enumerate(dict.fromkeys(keys))}
    # exactly this share of the different texts, chosen at random with a fixed seed
    validates = np.zeros(len(number), bool)
    validates[counter_rng.permutation(0, 0, len(number), SPLIT)[: round(len(number) * share)]] = (
        True
    )
    parts: tuple[list[Line], list[Line]] = ([], [])
    for pair, key in zip(pairs, keys, strict=True):
        parts[int(validates[number[key]])].append(pair)
    return parts


Language = Literal["en", "de", "fr"]


@dataclass(frozen=True, kw_only=True, slots=True)
class Multi30kConfig(TranslationConfig):
    """Options of multi30k."""

    source: Language = "en"  # language of the source
    target: Language = "de"  # language of the target
    # (fewest, most) neighbouring sentences that are joined to an example
    join_sentences: tuple[int, int] = (1, 1)

    def __post_init__(self) -> None:
        TranslationConfig.__post_init__(self)  # super() loses its class when slots make a new one
        _check_languages(self.source, self.target)
        fewest, most = self.join_sentences
        if not 1 <= fewest <= most:
            raise InputError(
                f"join_sentences=[{fewest}, {most}]: expected [fewest, most], with fewest at least 1"
            )


@dataclass(frozen=True, kw_only=True, slots=True)
class TatoebaConfig(TranslationConfig):
    """Options of tatoeba."""

    source: Language = "en"  # language of the source; one of the two is en
    target: Language = "fr"  # language of the target
    valid_share: float = 0.01  # share of the different English sentences kept for validation
    test_share: float = 0.01  # share of them kept for testing, which no training sees

    def __post_init__(self) -> None:
        TranslationConfig.__post_init__(self)  # super() loses its class when slots make a new one
        _check_languages(self.source, self.target)
        if "en" not in (self.source, self.target):
            raise InputError(
                f"source={self.source!r} and target={self.target!r}: expected one of them to be 'en'"
            )
        _check_shares(self.valid_share, self.test_share)


@dataclass(frozen=True, kw_only=True, slots=True)
class TranslationMixtureConfig(TranslationConfig):
    """Options of translations."""

    # multi30k, tatoeba, and tables or files with source TAB target per line: all of them together
    of: tuple[str, ...]
    source: Language = "en"  # language of the source
    target: Language = "de"  # language of the target
    # share of tatoeba and of files kept for validation; multi30k has its own
    valid_share: float = 0.01
    test_share: float = 0.01  # share of tatoeba kept for testing

    def __post_init__(self) -> None:
        TranslationConfig.__post_init__(self)  # super() loses its class when slots make a new one
        _check_languages(self.source, self.target)
        _check_shares(self.valid_share, self.test_share)
        if not self.of:
            raise InputError(f"of is empty: expected some of {', '.join(SPLITS)}, and files")


class Translations(Bucketed):
    """Pairs of texts as ids: every example once per epoch, with tokenizers trained on the training text alone."""

    keys = ("ids", "targets", "source", "lengths")
    sets_context = False
    tokens: Pair

    def __init__(
        self,
        config: TranslationConfig,
        train: Sequence[Line],
        valid: Sequence[Line],
        *,
        seed: int,
        join: tuple[int, int] = (1, 1),
        tokens: tuple[Pair, Special] | None = None,
        description: str = "",
    ) -> None:
        self.config, self.seed = config, seed
        if not train:
            raise DataError("no pair is left to train on: expected a smaller share for validation")
        self.tokens, self.special = tokens or (config.pair(*_sides(train)), None)
        self.sizes = {"vocab": len(self.tokens.source)}
        # a checkpoint knows itself whether both sides have the same ids
        shared = config.joint if tokens is None else self.tokens.same_ids
        if not shared:  # else a model shares its embedding table, unless its recipe says otherwise
            self.sizes["target_vocab"] = len(self.tokens.target)
        # joined examples overlap in training, so that there are more of them, but not in validation
        training = EncodedPairs(
            train, self.tokens, config, _joined(len(train), *join, overlap=True), self.special
        )
        validation = EncodedPairs(
            valid, self.tokens, config, _joined(len(valid), *join, overlap=False), self.special
        )
        if not len(training):
            raise DataError(f"longest={config.longest} leaves no pair to train on")
        self.valid_texts = validation.texts(valid)
        # examples longer than config.longest
        self.left_out = training.left_out + validation.left_out
        self._encoded, self._split = (training, validation), description
        self._group()

    def _left_out(self) -> Sequence[str]:
        if not self.left_out:
            return ()
        longest = self.config.longest
        return (f"{counted(self.left_out, 'pair')} of more than {longest} tokens left out",)


def multi30k(config: Multi30kConfig, *, seed: int, root: Path | None = None) -> Translations:
    """Open Multi30k with its own validation part; neighbouring sentences are joined if join_sentences says so.

    In training every sentence begins an example of each length; in validation examples of one length do not overlap.
    """
    # the official validation part; the test parts are for evaluation
    train, valid = (
        read_multi30k(split, config.source, config.target, root) for split in ("train", "valid")
    )
    return Translations(config, train, valid, seed=seed, join=config.join_sentences)


def tatoeba(config: TatoebaConfig, *, seed: int, root: Path | None = None) -> Translations:
    """Open Tatoeba, split by the English side."""
    shares = {"valid_share": config.valid_share, "test_share": config.test_share}
    parts = read_tatoeba(config.source, config.target, root, **shares)
    return Translations(config, parts["train"], parts["valid"], seed=seed)


def mixture(
    config: TranslationMixtureConfig, *, seed: int, root: Path | None = None
) -> Translations:
    """Open several sets of translations as one."""
    train: list[Line] = []
    valid: list[Line] = []
    for name in config.of:
        if name == "multi30k":
            more = [
                read_multi30k(split, config.source, config.target, root)
                for split in ("train", "valid")
            ]
        elif name == "tatoeba":
            shares = {"valid_share": config.valid_share, "test_share": config.test_share}
            parts = read_tatoeba(config.source, config.target, root, **shares)
            more = [parts["train"], parts["valid"]]
        else:
            # a file has no parts of its own: a share of its sources validates
            more = list(split_pairs(read_pairs(locate(name, root)), config.valid_share))
        train += more[0]
        valid += more[1]
    data = Translations(config, train, valid, seed=seed)
    data.files = tuple(name for name in config.of if name not in SPLITS)
    return data


def pairs(config: PairConfig, *, seed: int, root: Path | None = None) -> Data:
    """Open a file of pairs: joined into single rows of characters, or as translations."""
    if config.join:
        return Pairs(config, seed=seed, root=root)
    # only the options that all translations share; the file has been read
    options = TranslationConfig(
        **{field.name: getattr(config, field.name) for field in fields(TranslationConfig)}
    )
    train, valid, columns, description = config.read(root)
    tokens = None if config.tokens is None else open_pair(config.tokens, root)
    data = Translations(options, train, valid, seed=seed, tokens=tokens, description=description)
    data.files = given_files(config.path, config.valid_path)
    data.columns = columns
    return data


class EncodedPairs:
    """Examples as ids, each of some neighbouring lines, and their buckets by the longer side."""

    def __init__(
        self,
        lines: Sequence[Line],
        tokens: Pair,
        config: TranslationConfig,
        joined: tuple[Rows, NDArray[np.int64]],
        special: Special | None = None,
    ) -> None:
        starts, counts = joined
        source_pad, pad = tokens.source.pad, tokens.target.pad
        assert source_pad is not None  # a Pair has both
        assert pad is not None
        self.source_pad, self.pad = source_pad, pad
        self.start, *first = decoder_prompt(tokens, special)
        if special is None:
            # neighbouring lines are joined, and both sides get an <end>
            source, target = (
                _examples(side, texts, starts, counts)
                for side, texts in zip((tokens.source, tokens.target), _sides(lines), strict=True)
            )
        else:  # as the checkpoint reads and writes them, which may put a language or <start> around them
            source = [tokens.read(line.source) for line in lines]
            target = [np.array([*first, *tokens.written(line.target)], np.int64) for line in lines]
        longer = np.array(
            [max(len(x), len(y)) for x, y in zip(source, target, strict=True)], np.int64
        )
        # None: no limit, and `default` where there is no example at all
        kept = np.flatnonzero(longer <= (config.longest or max(longer, default=0)))
        self.left_out = len(longer) - len(kept)  # examples of more than `longest` tokens
        # first line, and number of lines, of each example
        # kept for `texts`, which returns the words behind the ids
        self.starts, self.counts = starts[kept], counts[kept]
        # the first example that no batch can hold
        for i in kept[longer[kept] > config.batch_tokens][:1].tolist():
            raise DataError(
                f"{lines[starts[i]].where}: this pair has {longer[i]} tokens: "
                f"expected batch_tokens={config.batch_tokens} or fewer"
            )
        self.source, self.target = (
            Ragged([rows[i] for i in kept.tolist()]) for rows in (source, target)
        )
        self.lengths = longer[kept]
        self.group(config)

    def group(self, config: TranslationConfig) -> None:
        """Divide the examples into buckets by their longer sides."""
        self.buckets = Buckets(self.lengths, config.batch_tokens, config.rounding, config.longest)

    def __len__(self) -> int:
        return len(self.source.lengths)

    def texts(self, lines: Sequence[Line]) -> list[tuple[str, str]]:
        """Return the source and target text of each example, given the lines that it was made of."""
        texts = []
        for i, n in zip(self.starts.tolist(), self.counts.tolist(), strict=True):
            # n neighbouring lines make one example
            sources, targets = _sides(lines[i : i + n])
            texts.append((" ".join(sources), " ".join(targets)))
        return texts

    def batch(self, bucket: int, order: NDArray[np.int64], rows: Rows) -> Batch:
        """Return rows of a bucket, each side as wide as its longest row in the whole bucket."""
        whole, chosen = self.buckets.choose(bucket, order, rows)
        padded = []
        for side, fill in ((self.source, self.source_pad), (self.target, IGNORE)):
            # a width per side: the shorter side needs no padding up to the longer one
            width = self.buckets.width(bucket, side.lengths[whole])
            padded.append(side.padded(chosen, width, fill))
        source, target = padded
        # the decoder reads <start>, then each target one place later
        ids = np.full_like(target, self.start)
        ids[:, 1:] = target[:, :-1]
        # also overwrites <end>, which is a target but never an input
        ids[target == IGNORE] = self.pad
        return {
            "ids": ids,
            "targets": target,
            "source": source,
            "lengths": self.source.lengths[chosen],
        }


def _sides(lines: Sequence[Line]) -> tuple[list[str], list[str]]:
    """Return the sources and the targets of pairs."""
    return [line.source for line in lines], [line.target for line in lines]


def _examples(
    tokens: Tokenizer, texts: list[str], starts: Rows, counts: NDArray[np.int64]
) -> list[np.ndarray]:
    """Return the ids of neighbouring texts joined by spaces, then <end>: the same ids as those of the joined text."""
    first = encode_rows(tokens, texts)
    later = first
    if (counts > 1).any():  # a text inside an example follows a space
        later = encode_rows(tokens, [" " + text for text in texts])
    end = np.array([tokens.end], np.int64)
    return [
        # the first text begins the example; later ones were encoded with a space before
        np.concatenate([first[i], *later[i + 1 : i + n], end])
        for i, n in zip(starts.tolist(), counts.tolist(), strict=True)
    ]


def _joined(lines: int, fewest: int, most: int, *, overlap: bool) -> tuple[Rows, NDArray[np.int64]]:
    """Return the first line of each example of `fewest` to `most` lines, and its number of lines."""
    spans = []
    for n in range(fewest, most + 1):
        # without overlap, examples of n lines begin at every n-th line
        step = 1 if overlap else n
        spans += [(i, n) for i in range(0, lines - n + 1, step)]
    # reshape: without spans the array must still have two columns
    table = np.array(spans, np.int64).reshape(-1, 2)
    return table[:, 0], table[:, 1]


def _check_languages(source: str, target: str) -> None:
    if source == target:
        raise InputError(f"source and target are both {source!r}: expected two languages")


def _check_shares(valid: float, test: float) -> None:
    if not (valid >= 0 and test >= 0 and valid + test < 1):
        raise InputError(
            f"valid_share={valid} and test_share={test}: expected 0 or more, together less than 1"
        )
