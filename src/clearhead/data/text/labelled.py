"""Texts with labels: SST-2, or the rows of a table.

ids (b, t)   <start> x1 .. xn <end> <pad>      lengths (b,)      labels (b,)
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Literal

import numpy as np
from numpy.typing import NDArray

from ...checks import at_least, fraction
from ...errors import InputError, nearest
from ...progress import in_parts
from ...tokens import Tokenizer
from ..batching import Bucketed, Buckets, Ragged
from ..data import Batch, Rows
from ..files import DataError, find, given_files, locate
from ..splits import RowsOfFile, Split, cut_told, held_out, split_files
from ..tables.reading import LABELLED, TwoColumns, open_columns
from .tokenizers import VocabularyConfig, find_tokenizer, open_tokenizer

# Texts as rows of ids, each with the special tokens that an encoder expects around it, in batches of similar length.
#
# ids (b, t)   <start> x1 .. xn <end>, padded with <pad>        lengths (b,)   n + 2


MASKS = ("[MASK]", "<mask>")  # names of the mask token


@dataclass(frozen=True, kw_only=True, slots=True)
class TextRowConfig:
    """Options of data with one row per text."""

    # folder with a tokenizer, such as a pretrained model's; None: train one on the text
    tokens: str | None = None
    # subwords are byte pair encoding
    vocabulary: Literal["subwords", "unigram", "words", "characters"] = "subwords"
    # largest number of tokens in the vocabulary, special tokens included; characters are all kept
    size: int = 8000
    # smallest number of occurrences of a word, or of a pair of pieces to be merged
    minimum: int = 2
    lower: bool = False  # ignore capitals
    batch_tokens: int = 2048  # largest number of tokens per step, padding included
    # rows are padded to multiples of this, so that there are few different widths
    rounding: int = 8
    longest: int = 128  # largest number of tokens per text; longer texts are cut
    valid_most: int | None = None  # largest number of validation batches; None: all

    def __post_init__(self) -> None:
        at_least(self, 1, "batch_tokens", "rounding")
        at_least(self, 0, "valid_most")
        if not 3 <= self.longest <= self.batch_tokens:
            raise InputError(
                f"longest={self.longest}: expected 3 or more, and at most batch_tokens={self.batch_tokens}"
            )
        self._vocabulary()

    def tokenizer(self, texts: Sequence[str], root: Path | None = None) -> Tokenizer:
        """Return the tokenizer of the folder `tokens`, or train one on these texts."""
        if self.tokens is None:
            return self._vocabulary().tokenizer(texts)
        return open_tokenizer(self.tokens, find_tokenizer(self.tokens, root))

    def _vocabulary(self) -> VocabularyConfig:
        return VocabularyConfig(
            vocabulary=self.vocabulary, size=self.size, minimum=self.minimum, lower=self.lower
        )


class TextRows(Bucketed):
    """Texts as ids; every text once per epoch."""

    tokens: Tokenizer
    _encoded: tuple[EncodedTexts, EncodedTexts]

    def _group(self) -> None:
        super()._group()
        self.longest = self.config.longest

    def _left_out(self) -> Sequence[str]:
        return (cut_told(sum(part.cut for part in self._encoded), self.config.longest),)


class EncodedTexts:
    """Texts as ids, and their buckets."""

    def __init__(self, texts: Sequence[str], tokens: Tokenizer, config: TextRowConfig) -> None:
        self.pad = tokens.pad or 0
        rows = encode_rows(tokens, texts)
        self.ids = Ragged([with_special(tokens, row, config.longest) for row in rows])
        # what is left for the text itself beside its start and end tokens
        room = config.longest - sum(i is not None for i in (tokens.start, tokens.end))
        # the number of texts that were longer than config.longest
        self.cut = sum(len(row) > room for row in rows)
        self.group(config)

    def group(self, config: TextRowConfig) -> None:
        """Divide the texts into buckets."""
        self.buckets = Buckets(
            self.ids.lengths, config.batch_tokens, config.rounding, config.longest
        )

    def __len__(self) -> int:
        return len(self.ids.lengths)

    def batch(self, bucket: int, order: NDArray[np.int64], rows: Rows) -> Batch:
        """Return rows of a bucket, as wide as its longest row, with their lengths and the numbers of their texts."""
        whole, chosen = self.buckets.choose(bucket, order, rows)
        width = self.buckets.width(bucket, self.ids.lengths[whole])
        ids = self.ids.padded(chosen, width, self.pad)
        return {"ids": ids, "lengths": self.ids.lengths[chosen], "number": chosen}


def encode_rows(tokens: Tokenizer, texts: Sequence[str]) -> list[np.ndarray]:
    """Return the ids of each text, without special ones; many texts have a progress bar."""
    return [row for some in in_parts(texts, "tokenizing") for row in tokens.encode_all(some)]


def with_special(tokens: Tokenizer, ids: np.ndarray, longest: int | None = None) -> np.ndarray:
    """Return the ids of a text between its start and end tokens, if the tokenizer has them; cut to `longest`."""
    # arrays of one id or none, so that they can be concatenated
    start = np.array([i for i in (tokens.start,) if i is not None], np.int64)
    end = np.array([i for i in (tokens.end,) if i is not None], np.int64)
    if longest is not None:
        # the text is cut, never its end token
        ids = ids[: longest - len(start) - len(end)]
    return np.concatenate([start, ids, end]).astype(np.int64)


def mask_of(tokens: Tokenizer) -> tuple[int, int]:
    """Return the id of the mask token and the vocabulary size with it; a missing mask token is added at the end."""
    # the tokenizer's own mask, as of a BERT
    for name in MASKS:
        if name in tokens.special_names:
            return tokens.special_names[name], len(tokens)
    # a new id after all others: the model gets one more embedding
    return len(tokens), len(tokens) + 1


def masked_ids(tokens: Tokenizer, text: str) -> tuple[np.ndarray, list[int]]:
    """The ids of a text with its special tokens and masks, which are written [MASK] or <mask>; and where masks are."""
    mask, _ = mask_of(tokens)
    # both spellings become the first
    for word in MASKS:
        text = text.replace(word, MASKS[0])
    first, *rest = text.split(MASKS[0])
    if not rest:
        # nothing to fill in
        return with_special(tokens, tokens.encode(text)), []
    # A mask stands for a word and the space before it, which byte-level and SentencePiece tokens contain.
    parts = [tokens.encode(p if tokens.spaces_are_tokens else p.rstrip()) for p in (first, *rest)]
    # parts and masks in turn: text, mask, text, mask, text
    inside = np.concatenate([parts[0], *(np.append([mask], part) for part in parts[1:])]).astype(
        np.int64
    )
    ids = with_special(tokens, inside)
    return ids, np.flatnonzero(ids == mask).tolist()


SENTIMENTS = ("negative", "positive")
SST2 = {"train": "train", "valid": "dev", "test": "test"}  # its parts, and the names of their files


@dataclass(frozen=True, kw_only=True, slots=True)
class Label:
    """A text and its label."""

    text: str
    label: str
    where: str  # file:line
    column: str = "label"  # the column of the label


@dataclass(frozen=True, kw_only=True, slots=True)
class Sst2Config(TextRowConfig):
    """Options of sst2."""

    # also train on the 67,349 phrases of the training sentences' parse trees, as GLUE does
    phrases: bool = False


@dataclass(frozen=True, kw_only=True, slots=True)
class LabelledConfig(TextRowConfig):
    """Options of labelled."""

    # a table: .csv, .tsv, .jsonl, .json or .parquet; other files have text TAB label per line
    path: str
    valid_path: str | None = None  # such a file for validation; None: a share of the first
    # the column of the texts; None: text, sentence, review, ... or the first of two
    text: str | None = None
    # the column of the labels; None: label, class, sentiment, ... or the second of two
    label: str | None = None
    # whether the first row of a CSV or TSV file names the columns; None: recognised
    header: bool | None = None
    share: float = 0.1  # share of the texts kept for validation, if there is no valid_path

    def __post_init__(self) -> None:
        TextRowConfig.__post_init__(self)  # super() loses its class when slots make a new one
        fraction(self, "share")


class Labelled(TextRows):
    """Texts as ids and labels as numbers; every text once per epoch."""

    keys = ("ids", "lengths", "labels")

    def __init__(
        self,
        config: TextRowConfig,
        train: Sequence[Label],
        valid: Sequence[Label],
        *,
        seed: int,
        root: Path | None = None,
        description: str = "",
    ) -> None:
        if not train:
            raise DataError("no text is left to train on: expected a smaller share for validation")
        self.config, self.seed = config, seed
        # from the training texts alone
        self.tokens = config.tokenizer([line.text for line in train], root)
        # sorted by name, so that the numbers do not depend on the order of the rows
        self.classes = tuple(sorted({line.label for line in train}))
        # A model that was or will be trained on masked tokens needs an embedding of the mask; a checkpoint has its own.
        if config.tokens is None:
            # a tokenizer without a mask gets one at the end
            vocab = mask_of(self.tokens)[1]
        else:
            vocab = len(self.tokens)
        self.sizes = {"vocab": vocab, "classes": len(self.classes)}
        numbers = {label: i for i, label in enumerate(self.classes)}
        for line in valid:
            if line.label not in numbers:
                raise DataError(
                    f"{line.where}: column {line.column!r}: no training text has the label {line.label!r}: expected "
                    f"one of {', '.join(self.classes[:20])}{nearest(line.label, self.classes)}"
                )
        # class numbers by the number of the text, which batches carry as `number`
        self._training, self._validation = (
            np.array([numbers[line.label] for line in lines], np.int64) for lines in (train, valid)
        )
        self._encoded = (
            EncodedTexts([line.text for line in train], self.tokens, config),
            EncodedTexts([line.text for line in valid], self.tokens, config),
        )
        self._split = description
        self._group()

    def _class_numbers(self) -> Sequence[np.ndarray]:
        return self._training, self._validation

    def _train(self, step: int, rows: Rows) -> Batch:
        batch = super()._train(step, rows)
        return batch | {"labels": self._training[batch.pop("number")]}

    def _valid(self, index: int, rows: Rows) -> Batch:
        batch = super()._valid(index, rows)
        return batch | {"labels": self._validation[batch.pop("number")]}


def sst2(config: Sst2Config, *, seed: int, root: Path | None = None) -> Labelled:
    """Open the Stanford Sentiment Treebank (Socher et al. 2013): two classes, with its own validation sentences."""
    train = read_sst2("train", root, phrases=config.phrases)
    return Labelled(config, train, read_sst2("valid", root), seed=seed, root=root)


def labelled(config: LabelledConfig, *, seed: int, root: Path | None = None) -> Labelled:
    """Open a table of texts and labels; the same text is never in both training and validation by a split made here."""
    train, valid, columns, description = divided(config, root)
    data = Labelled(config, train, valid, seed=seed, root=root, description=description)
    data.columns = columns
    data.files = given_files(config.path, config.valid_path)
    return data


def divided(config: LabelledConfig, root: Path | None) -> Split:
    """Return the training and validation texts of a table.

    A label that would be in validation alone stays in training with all its texts. A row without a text or a label is
    left out, and counted.
    """

    def read(path: str) -> RowsOfFile:
        wanted = (config.text, config.label)
        opened = open_columns(locate(path, root), LABELLED, wanted, header=config.header)
        rows = labels_of(opened, skip_empty=True)
        return RowsOfFile(rows, opened.empty, {"text": opened.first, "label": opened.second})

    def divide(lines: list[Label]) -> tuple[list[Label], list[Label]]:
        # by text, not by row: rows with the same text stay together
        kept = held_out((line.text for line in lines), config.share)
        # a label that training has not seen cannot be validated
        known = {line.label for line in lines if line.text not in kept}
        kept -= {line.text for line in lines if line.label not in known}
        train = [line for line in lines if line.text not in kept]
        return train, [line for line in lines if line.text in kept]

    return split_files(
        config.path,
        config.valid_path,
        read,
        lambda line: line.text,
        divide,
        f"share = {config.share} of the different texts",
        noun="text",
        kind="labelled",
    )


def read_sst2(part: str, root: Path | None = None, *, phrases: bool = False) -> list[Label]:
    """Return a part of SST-2 on sentence level: train (6,920 sentences), valid (872) or test (1,821).

    With `phrases` also those of GLUE's training part, except any that is a sentence of the other parts.
    """
    if part not in SST2:
        raise DataError(f"sst2 has no part {part!r}: expected one of {', '.join(SST2)}")
    lines = read_labels(find(f"sst2/{SST2[part]}", root))
    if phrases:
        # no phrase that is a sentence of the other parts, or that is there already
        others = {_bare(line.text) for name in ("valid", "test") for line in read_sst2(name, root)}
        known = {_bare(line.text) for line in lines} | others
        lines += [
            line
            for line in read_labels(find("sst2/glue-train", root))
            if _bare(line.text) not in known
        ]
    # "0" and "1" in the files
    names = {str(i): name for i, name in enumerate(SENTIMENTS)}
    return [
        Label(text=line.text, label=names.get(line.label, line.label), where=line.where)
        for line in lines
    ]


def read_labels(
    path: Path, text: str | None = None, label: str | None = None, *, header: bool | None = None
) -> list[Label]:
    """Return the texts and labels of a table; a file that has no suffix of a table has text TAB label per line.

    Args:
        path: The file.
        text: The column of the texts; None: it is found by its name, or the first of two.
        label: The column of the labels; None: likewise, or the second of two.
        header: Whether the first row of a CSV or TSV file has the names of the columns; None: it is recognised.
    """
    return labels_of(open_columns(path, LABELLED, (text, label), header=header))


def labels_of(columns: TwoColumns, *, skip_empty: bool = False) -> list[Label]:
    """Return the texts and labels of two columns; a row without one of them raises, or is left out and counted."""
    one, other = columns.first, columns.second
    return [
        Label(text=row.text(one).strip(), label=row.label(other), where=row.where, column=other)
        for row in columns.rows(skip_empty=skip_empty)
    ]


def _bare(text: str) -> str:
    """Return a text without spaces and capitals, because the two sets split words differently."""
    return "".join(text.split()).lower()
