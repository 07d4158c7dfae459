"""Masked words: texts with gaps, and what stood in them (Devlin et al. 2019, section 3.1).

A share of the tokens is asked for. Of these 80% are replaced by the mask, 10% by any other token and 10% by nothing,
so that a model cannot tell which tokens it will be asked for.

ids (b, t)   <start> x1 [MASK] .. xn <end> <pad>       targets (b, t)   -100 but where it is asked       lengths (b,)
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np

from .. import counter_rng
from ..errors import InputError
from ..tokens import Tokenizer
from .batches import IGNORE, Batch, Rows
from .bucketed import Bucketed
from .files import DataError, as_lines, locate, read_text
from .labelled import read_sst2
from .text import read_everyday
from .text_rows import Read, Reading, mask_of

GAPS, KINDS, OTHERS, SPLIT = 2, 3, 4, 5  # streams of random numbers, beside those of Bucketed
VALID = 0  # the seed of the gaps of validation


@dataclass(frozen=True, kw_only=True, slots=True)
class Gaps(Reading):
    """Options of masked words."""

    of: str | tuple[str, ...]  # sst2, its training text without labels; everyday; or UTF-8 files, a text a line
    phrases: bool = False  # sst2: its 67,349 phrases too
    share: float = 0.15  # part of the tokens that is asked for
    valid_share: float = 0.02  # part of the texts kept for validation

    def __post_init__(self) -> None:
        Reading.__post_init__(self)
        if not 0 < self.share < 1:
            raise InputError(f"share={self.share}: expected more than 0 and less than 1")
        if not 0 <= self.valid_share < 1:
            raise InputError(f"valid_share={self.valid_share}: expected 0 or more and less than 1")
        if not self.of:
            raise InputError("of is empty: expected sst2, everyday, or files")


class Masked(Bucketed):
    """Texts with gaps: every text once an epoch, with other gaps each time."""

    keys = ("ids", "targets", "lengths")
    tokens: Tokenizer

    def __init__(self, config: Gaps, *, seed: int, root: Path | None = None) -> None:
        self.config = config
        texts = list(dict.fromkeys(_texts(config, root)))
        kept = counter_rng.uniform(VALID, 0, np.arange(len(texts)), 1, SPLIT)[:, 0] >= config.valid_share
        train = [one for one, keep in zip(texts, kept, strict=True) if keep]
        if not train:
            raise DataError(f"valid_share={config.valid_share} leaves no text to train on")
        self.tokens = config.make(train, root)
        self.mask, vocab = mask_of(self.tokens)
        self.sizes = {"vocab": vocab}
        special = (self.tokens.start, self.tokens.end, self.tokens.pad, self.mask)
        self.special = np.array([i for i in special if i is not None], np.int64)
        valid = [one for one, keep in zip(texts, kept, strict=True) if not keep]
        self.longest = config.longest
        self._open(
            Read(train, self.tokens, config), Read(valid, self.tokens, config), seed=seed, valid_most=config.valid_most
        )

    def _train(self, step: int, rows: Rows) -> Batch:
        return self._gaps(super()._train(step, rows), seed=self.seed, step=step)

    def _valid(self, index: int, rows: Rows) -> Batch:
        return self._gaps(super()._valid(index, rows), seed=VALID, step=0)

    def _gaps(self, batch: Batch, *, seed: int, step: int) -> Batch:
        """Some rows with gaps. Which, depends on (seed, step, the text's number) alone."""
        ids, lengths, chosen = batch["ids"], batch["lengths"], batch["number"]
        width = ids.shape[1]
        can = (np.arange(width) < lengths[:, None]) & ~np.isin(ids, self.special)
        u = np.where(can, counter_rng.uniform(seed, step, chosen, width, GAPS), 2.0)
        asked = (u < self.config.share) | ((u == u.min(1, keepdims=True)) & can)  # a short text has a gap too
        how = counter_rng.uniform(seed, step, chosen, width, KINDS)
        other = counter_rng.integers(seed, step, chosen, width, 0, len(self.tokens), OTHERS)
        shown = np.where(how < 0.8, self.mask, np.where(how < 0.9, other, ids))
        return {
            "ids": np.where(asked, shown, ids),
            "targets": np.where(asked, ids, IGNORE),
            "lengths": lengths,
        }


def _texts(config: Gaps, root: Path | None) -> Sequence[str]:
    names = (config.of,) if isinstance(config.of, str) else config.of
    found: list[str] = []
    for name in names:
        if name == "sst2":
            found += [line.text for line in read_sst2("train", root, phrases=config.phrases)]
        elif name == "everyday":
            found += read_everyday(root)
        else:
            found += [line for line in as_lines(read_text(locate(name, root))) if line.strip()]
    if not found:
        raise DataError(f"{', '.join(names)}: there is no text in it")
    return found
