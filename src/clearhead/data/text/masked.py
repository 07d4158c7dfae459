"""Masked tokens: texts in which a model predicts tokens that were replaced (Devlin et al. 2019, section 3.1).

A share of the tokens becomes targets. Of these 80% are replaced by the mask token, 10% by a random token, and 10% are
left as they are, so that a model cannot tell which tokens are targets.

ids (b, t)   <start> x1 [MASK] .. xn <end> <pad>     targets (b, t)   -100 except at masked positions     lengths (b,)
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np

from ... import counter_rng
from ...checks import fraction
from ...errors import InputError
from ..data import IGNORE, Batch, Rows
from ..files import DataError, given_files, locate
from ..splits import RowsOfFile, Split, held_out, split_files
from ..tables.reading import is_table
from ..text_files import read_lines
from .documents import Documents, open_texts
from .labelled import EncodedTexts, TextRowConfig, TextRows, mask_of, read_sst2
from .plain import read_everyday

CHOICE, KINDS, OTHERS, SPLIT = 2, 3, 4, 5  # streams of random numbers, beside those of Bucketed
VALID_SEED = 0  # for the masks of validation


@dataclass(frozen=True, kw_only=True, slots=True)
class MaskedConfig(TextRowConfig):
    """Options of masked."""

    # sst2 (its training text without labels), everyday, tables, files with a text per line, or folders of them
    of: str | tuple[str, ...]
    # such files for validation; None: a share of the texts
    valid_path: str | tuple[str, ...] | None = None
    # the column of the texts in tables; None: text, sentence, review, ... or the only one
    column: str | None = None
    # whether the first row of a CSV or TSV file names the columns; None: recognised
    header: bool | None = None
    phrases: bool = False  # sst2: its 67,349 phrases too
    share: float = 0.15  # share of the tokens that become targets
    valid_share: float = 0.02  # share of the texts kept for validation, if there is no valid_path

    def __post_init__(self) -> None:
        TextRowConfig.__post_init__(self)  # super() loses its class when slots make a new one
        if not 0 < self.share < 1:
            raise InputError(f"share={self.share}: expected more than 0 and less than 1")
        fraction(self, "valid_share")
        if not self.of:
            raise InputError("of is empty: expected sst2, everyday, or files")


class Masked(TextRows):
    """Texts with masked tokens: every text once per epoch, masked differently each time."""

    keys = ("ids", "targets", "lengths")

    def __init__(self, config: MaskedConfig, *, seed: int, root: Path | None = None) -> None:
        self.config, self.seed = config, seed
        self.files = tuple(
            name for name in given_files(config.of, config.valid_path) if name not in SETS
        )
        train, valid, _, self._split = _divided(config, root)
        self.tokens = config.tokenizer(train, root)
        self.mask, vocab = mask_of(self.tokens)
        self.sizes = {"vocab": vocab}
        special = (self.tokens.start, self.tokens.end, self.tokens.pad, self.mask)
        self.never_masked = np.array([i for i in special if i is not None], np.int64)
        self._encoded = (
            EncodedTexts(train, self.tokens, config),
            EncodedTexts(valid, self.tokens, config),
        )
        self._group()

    def _train(self, step: int, rows: Rows) -> Batch:
        return self._masked(super()._train(step, rows), seed=self.seed, step=step)

    def _valid(self, index: int, rows: Rows) -> Batch:
        return self._masked(super()._valid(index, rows), seed=VALID_SEED, step=0)

    def _masked(self, batch: Batch, *, seed: int, step: int) -> Batch:
        """Mask some tokens of each row; which ones depends on (seed, step, number of the text) alone."""
        ids, lengths, chosen = batch["ids"], batch["lengths"], batch["number"]
        width = ids.shape[1]
        allowed = (np.arange(width) < lengths[:, None]) & ~np.isin(ids, self.never_masked)
        # 2 is above every random number: special tokens and padding are never masked
        # a number for each place of each text: independent of the batch it is in
        u = np.where(allowed, counter_rng.uniform(seed, step, chosen, width, CHOICE), 2.0)
        # at least one in a short text
        # `& allowed`: in a row of special tokens alone the smallest number is 2 everywhere
        masked = (u < self.config.share) | ((u == u.min(1, keepdims=True)) & allowed)
        # 80% become the mask, 10% a random token, and 10% stay
        how = counter_rng.uniform(seed, step, chosen, width, KINDS)
        other = counter_rng.integers(seed, step, chosen, width, 0, len(self.tokens), OTHERS)
        replaced = np.where(how < 0.8, self.mask, np.where(how < 0.9, other, ids))
        return {
            "ids": np.where(masked, replaced, ids),
            "targets": np.where(masked, ids, IGNORE),
            "lengths": lengths,
        }


def _divided(config: MaskedConfig, root: Path | None) -> Split:
    """Return the texts of training and validation, each once."""

    def divide(texts: list[str]) -> tuple[list[str], list[str]]:
        kept = held_out(texts, config.valid_share, SPLIT)
        train = [text for text in texts if text not in kept]
        if not train:
            raise DataError(f"valid_share={config.valid_share} leaves no text to train on")
        return train, [text for text in texts if text in kept]

    return split_files(
        config.of,
        config.valid_path,
        lambda of: _texts(config, of, root),
        str,
        divide,
        f"valid_share = {config.valid_share} of the different texts",
        noun="text",
        kind="text",
    )


def _texts(config: MaskedConfig, of: str | tuple[str, ...], root: Path | None) -> RowsOfFile:
    """Return the different texts of named sets and files, and the number of rows of tables that have none."""
    texts: dict[str, None] = {}
    empty = 0
    for name in given_files(of):
        if name in SETS:
            # a named set; everything else is a path
            texts |= dict.fromkeys(SETS[name](config, root))
            continue
        for path in Documents([locate(name, root)]).files:
            # a folder gives all of its files
            found, left_out = read_texts(path, config.column, header=config.header)
            texts |= dict.fromkeys(found)
            empty += left_out
    if not texts:
        raise DataError(f"{', '.join(given_files(of))}: expected at least one line of text")
    return RowsOfFile(list(texts), empty)


def read_texts(
    path: Path, column: str | None = None, *, header: bool | None = None
) -> tuple[list[str], int]:
    """Return the texts of a column of a table, and the number of rows without one; or the lines of another file.

    Args:
        path: The file.
        column: The column of a table; None: the one with a usual name, or the only one.
        header: Whether the first row of a CSV or TSV file has the names of the columns; None: it is recognised.
    """
    if not is_table(path):
        return [line for _, line in read_lines(path) if line.strip()], 0
    table, name = open_texts(path, column, header=header)
    texts, empty = [], 0
    for row in table.rows():
        if row.has(name):
            texts.append(row.text(name))
        else:
            empty += 1
    return texts, empty


# Texts that have a name.
SETS: dict[str, Callable[[MaskedConfig, Path | None], Sequence[str]]] = {
    "sst2": lambda config, root: [
        line.text for line in read_sst2("train", root, phrases=config.phrases)
    ],
    "everyday": lambda config, root: read_everyday(root),
}
