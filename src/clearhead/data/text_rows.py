"""Texts as rows of ids, each with the special tokens that an encoder expects around it, in batches of similar length.

ids (b, t)   <start> x1 .. xn <end>, padded with <pad>        lengths (b,)   n + 2
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Literal

import numpy as np
from numpy.typing import NDArray

from ..checks import at_least
from ..errors import InputError
from ..tokens import Tokenizer
from .batches import Batch, Rows
from .bucketed import Buckets
from .progress import in_parts
from .ragged import Ragged
from .tokenizer_folder import find_tokenizer, open_tokenizer
from .vocabulary import VocabularyConfig

MASKS = ("[MASK]", "<mask>")  # names of the mask token


@dataclass(frozen=True, kw_only=True, slots=True)
class TextRowConfig:
    """Options of data with one row per text."""

    tokens: str | None = None  # folder with a tokenizer, such as a pretrained model's; None: train one on the text
    vocabulary: Literal["subwords", "unigram", "words", "characters"] = "subwords"  # subwords are byte pair encoding
    size: int = 8000  # largest number of tokens in the vocabulary, special tokens included; characters are all kept
    minimum: int = 2  # smallest number of occurrences of a word, or of a pair of pieces to be merged
    lower: bool = False  # ignore capitals
    batch_tokens: int = 2048  # largest number of tokens per step, padding included
    rounding: int = 8  # rows are padded to multiples of this, so that there are few different widths
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
        return VocabularyConfig(vocabulary=self.vocabulary, size=self.size, minimum=self.minimum, lower=self.lower)


class EncodedTexts:
    """Texts as ids, and their buckets."""

    def __init__(self, texts: Sequence[str], tokens: Tokenizer, config: TextRowConfig) -> None:
        self.pad = tokens.pad or 0
        rows = encode_rows(tokens, texts)
        self.ids = Ragged([with_special(tokens, row, config.longest) for row in rows])
        room = config.longest - sum(i is not None for i in (tokens.start, tokens.end))
        self.cut = sum(len(row) > room for row in rows)  # the number of texts that were longer than config.longest
        self.rounding = config.rounding
        self.buckets = Buckets(self.ids.lengths, config.batch_tokens, config.rounding, config.longest)

    def __len__(self) -> int:
        return len(self.ids.lengths)

    def batch(self, bucket: int, order: NDArray[np.int64], rows: Rows) -> Batch:
        """Return rows of a bucket, as wide as its longest row, with their lengths and the numbers of their texts."""
        whole = order[self.buckets.starts[bucket] : self.buckets.ends[bucket]]
        chosen = whole[rows]
        width = -(-int(self.ids.lengths[whole].max()) // self.rounding) * self.rounding
        ids = self.ids.padded(chosen, min(width, self.buckets.batch_widths[bucket]), self.pad)
        return {"ids": ids, "lengths": self.ids.lengths[chosen], "number": chosen}


def encode_rows(tokens: Tokenizer, texts: Sequence[str]) -> list[np.ndarray]:
    """Return the ids of each text, without special ones; many texts have a progress bar."""
    return [row for some in in_parts(texts, "tokenizing") for row in tokens.encode_all(some)]


def with_special(tokens: Tokenizer, ids: np.ndarray, longest: int | None = None) -> np.ndarray:
    """Return the ids of a text between its start and end tokens, if the tokenizer has them; cut to `longest`."""
    start, end = (np.array([] if i is None else [i], np.int64) for i in (tokens.start, tokens.end))
    inside = ids if longest is None else ids[: longest - len(start) - len(end)]
    return np.concatenate([start, inside, end]).astype(np.int64)


def mask_of(tokens: Tokenizer) -> tuple[int, int]:
    """Return the id of the mask token and the vocabulary size with it; a missing mask token is added at the end."""
    for name in MASKS:
        if name in tokens.special_names:
            return tokens.special_names[name], len(tokens)
    return len(tokens), len(tokens) + 1


def masked_ids(tokens: Tokenizer, text: str) -> tuple[np.ndarray, list[int]]:
    """The ids of a text with its special tokens and masks, which are written [MASK] or <mask>; and where masks are."""
    mask, _ = mask_of(tokens)
    for word in MASKS:
        text = text.replace(word, MASKS[0])
    first, *rest = text.split(MASKS[0])
    if not rest:
        return with_special(tokens, tokens.encode(text)), []
    # A mask stands for a word and the space before it, which byte-level and SentencePiece tokens contain.
    parts = [tokens.encode(p if tokens.spaces_are_tokens else p.rstrip()) for p in (first, *rest)]
    inside = np.concatenate([parts[0], *(np.append([mask], part) for part in parts[1:])]).astype(np.int64)
    ids = with_special(tokens, inside)
    return ids, np.flatnonzero(ids == mask).tolist()
