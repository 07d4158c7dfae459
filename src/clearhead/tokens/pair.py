"""Pair: the tokens of a translation, those that are read and those that are written."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from jaxtyping import Int

from ..errors import InputError
from .tokenizer import Tokenizer


@dataclass(frozen=True)
class Pair:
    """The tokens of both sides; where they are the same, one table of embeddings may serve both."""

    source: Tokenizer
    target: Tokenizer

    def __post_init__(self) -> None:
        for side in ("source", "target"):
            tokens = getattr(self, side)
            if tokens.pad is None or tokens.end is None:
                raise InputError(f"the {side} tokens, {tokens!r}, have no <pad> and <end>: a translation needs them")

    @property
    def joint(self) -> bool:
        """Whether both sides have the same tokens."""
        return self.source is self.target or self.source == self.target

    def read(self, text: str) -> Int[np.ndarray, "s"]:
        """What an encoder is given: the ids of the source, then <end>."""
        return np.append(self.source.encode(text), np.int64(self.source.end or 0))

    def written(self, text: str) -> Int[np.ndarray, "t"]:
        """What a decoder must write: the ids of the target, then <end>."""
        return np.append(self.target.encode(text), np.int64(self.target.end or 0))
