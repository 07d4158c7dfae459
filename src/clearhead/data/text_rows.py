"""Whole texts as rows of ids, with the special tokens that an encoder expects around them, in batches of like lengths.

ids (b, t)   <start> x1 .. xn <end>, filled up with <pad>        lengths (b,)   n + 2
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Literal

import numpy as np
from numpy.typing import NDArray

from .. import tokens as text
from ..errors import InputError
from ..tokens import Pair, Tokenizer
from .batches import Batch, Buckets, Rows
from .files import DataError
from .translations import Ragged
from .vocabulary import Vocabulary

MASKS = ("[MASK]", "<mask>")  # names of the mask token


@dataclass(frozen=True, kw_only=True, slots=True)
class Reading:
    """Options of whole texts."""

    tokens: str | None = None  # a folder with tokens, such as a pretrained model's; None: made from the training text
    vocabulary: Literal["subwords", "unigram", "words", "characters"] = "subwords"  # subwords are byte pair encoding
    size: int = 8000  # tokens at most, the special ones among them; characters are all kept
    minimum: int = 2  # how often a word, or a pair of pieces to be merged, must stand in the training text
    lower: bool = False  # capitals are forgotten
    batch_tokens: int = 2048  # tokens a step at most, padding counted
    rounding: int = 8  # rows are padded to multiples of this, so that there are few different widths
    longest: int = 128  # tokens a text; longer ones are cut there
    valid_most: int | None = None  # validation batches at most; None: all

    def __post_init__(self) -> None:
        for name in ("batch_tokens", "rounding"):
            if getattr(self, name) < 1:
                raise InputError(f"{name}={getattr(self, name)}: expected 1 or more")
        if not 3 <= self.longest <= self.batch_tokens:
            raise InputError(f"longest={self.longest}: expected 3 or more, and no more than batch_tokens")
        if self.valid_most is not None and self.valid_most < 0:
            raise InputError(f"valid_most={self.valid_most}: expected 0 or more")
        self._vocabulary()

    def make(self, texts: Sequence[str], root: Path | None = None) -> Tokenizer:
        """The tokens of a folder, or of the training text."""
        if self.tokens is None:
            return self._vocabulary()._one(texts)
        folder = Path(self.tokens) if root is None or Path(self.tokens).is_dir() else root / self.tokens
        if text.saved(folder) is None and text.saved(folder / "model") is not None:
            folder = folder / "model"  # a run's
        if text.saved(folder) is None:
            raise DataError(f"tokens={self.tokens!r}: there are no tokens in such a folder")
        found = text.load(folder)
        if isinstance(found, Pair):
            raise DataError(f"tokens={self.tokens!r}: these are of a translation, expected those of one language")
        return found

    def _vocabulary(self) -> Vocabulary:
        return Vocabulary(vocabulary=self.vocabulary, size=self.size, minimum=self.minimum, lower=self.lower)


class Read:
    """Texts as ids, and their buckets."""

    def __init__(self, texts: Sequence[str], tokens: Tokenizer, config: Reading) -> None:
        self.pad = tokens.pad or 0
        self.ids = Ragged([with_special(tokens, row, config.longest) for row in tokens.encode_all(list(texts))])
        self.rounding = config.rounding
        self.buckets = Buckets(self.ids.lengths, config.batch_tokens, config.rounding)

    def __len__(self) -> int:
        return len(self.ids.lengths)

    def batch(self, bucket: int, order: NDArray[np.int64], rows: Rows) -> Batch:
        """Rows of a bucket, as wide as the whole bucket's, their lengths, and the numbers of their texts."""
        whole = order[self.buckets.starts[bucket] : self.buckets.ends[bucket]]
        chosen = whole[rows]
        width = -(-int(self.ids.lengths[whole].max()) // self.rounding) * self.rounding
        ids = self.ids.padded(chosen, min(width, self.buckets.batch_widths[bucket]), self.pad)
        return {"ids": ids, "lengths": self.ids.lengths[chosen], "number": chosen}


def with_special(tokens: Tokenizer, ids: np.ndarray, longest: int | None = None) -> np.ndarray:
    """The ids of a text between its start and end tokens, where there are such tokens; cut to `longest`."""
    start, end = (np.array([] if i is None else [i], np.int64) for i in (tokens.start, tokens.end))
    inside = ids if longest is None else ids[: longest - len(start) - len(end)]
    return np.concatenate([start, inside, end]).astype(np.int64)


def mask_of(tokens: Tokenizer) -> tuple[int, int]:
    """The id of the mask token (the last, if the vocabulary has none), and the size of the vocabulary with it."""
    for name in MASKS:
        if name in tokens.special_names:
            return tokens.special_names[name], len(tokens)
    return len(tokens), len(tokens) + 1
