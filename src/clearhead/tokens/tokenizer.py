"""Tokenizer: what every kind of tokens can do."""

from __future__ import annotations

import re
from abc import ABC, abstractmethod
from collections.abc import Sequence
from functools import cached_property
from typing import ClassVar

import numpy as np
from jaxtyping import Int

from .ids import Ids


class Tokenizer(ABC):
    """Text <-> ids. Subclasses encode and decode; the special ids are None where a vocabulary has no such token."""

    kind: ClassVar[str]
    spaces_are_tokens: ClassVar[bool] = False  # every space of a text is an id of its own
    pad: int | None = None  # fills short rows
    start: int | None = None  # begins a text (BOS)
    end: int | None = None  # ends a text (EOS)
    unknown: int | None = None  # stands for what is not in the vocabulary

    @abstractmethod
    def __len__(self) -> int:
        """The size of the vocabulary."""

    @abstractmethod
    def encode(self, text: str) -> Int[np.ndarray, "t"]:
        """The ids of a text, without special ones."""

    @abstractmethod
    def decode(self, ids: Ids) -> str:
        """The text of ids; special ids are left out."""

    @abstractmethod
    def pieces(self, ids: Ids) -> list[str]:
        """The text of each id, special ones included."""

    @abstractmethod
    def words(self, given: str | Ids) -> list[int]:
        """For each id of a text, or each of given ids, the number of the word it begins in; -1 for none."""

    @abstractmethod
    def content(self) -> bytes:
        """The content of the file that `save` writes."""

    def encode_all(self, texts: Sequence[str]) -> list[np.ndarray]:
        """The ids of each of many texts."""
        return [self.encode(text) for text in texts]

    def wrapped(self, text: str) -> Int[np.ndarray, "t"]:
        """The ids of a text with the special ones that a language model expects around it."""
        return self.encode(text)

    def marked(self, text: str) -> Int[np.ndarray, "t"]:
        """The ids of a text in which special tokens are written out, as chat templates do."""
        if not self.special_names:
            return self.encode(text)
        parts = self._special_pattern.split(text)
        ids = [[self.special_names[part]] if i % 2 else self.encode(part) for i, part in enumerate(parts) if part]
        return np.concatenate([np.zeros(0, np.int64), *ids]).astype(np.int64)

    @property
    def special_names(self) -> dict[str, int]:
        """The special tokens by their names."""
        return {}

    @cached_property
    def _special_pattern(self) -> re.Pattern[str]:
        names = sorted(self.special_names, key=len, reverse=True)
        return re.compile(f"({'|'.join(map(re.escape, names))})")
