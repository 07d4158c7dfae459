"""Tokenizer: the interface that all tokenizers share."""

from __future__ import annotations

import re
from abc import ABC, abstractmethod
from collections.abc import Sequence
from functools import cached_property
from typing import ClassVar

import numpy as np
from jaxtyping import Int

from .ids import Ids, as_row

# Texts that another one is made to continue: the first with which no token crosses the border is taken.
_BEFORE = ("\n", ".", "0", "a", "-", '"')


class Tokenizer(ABC):
    """Base class of all tokenizers: encodes text into ids and decodes ids into text.

    A special id (`pad`, `start`, `end`, `unknown`) is None where the vocabulary has no such token. `len` is the size
    of the vocabulary.

    Examples:
        >>> tokens = Words.of(["a dog runs"])
        >>> isinstance(tokens, Tokenizer), len(tokens), tokens.end, tokens.special_names["<end>"]
        (True, 7, 2, 2)
        >>> tokens.marked("<start>a dog<end>").tolist()
        [1, 4, 5, 2]
    """

    kind: ClassVar[str]  # its name in tokens.json
    file: ClassVar[str] = "tokens.json"  # the file that `save` writes
    spaces_are_tokens: ClassVar[bool] = False  # whether every space of a text has an id of its own
    pad: int | None = None  # fills short rows
    start: int | None = None  # begins a text (BOS)
    end: int | None = None  # ends a text (EOS)
    unknown: int | None = None  # replaces what is not in the vocabulary

    @abstractmethod
    def __len__(self) -> int:
        """The size of the vocabulary."""

    @abstractmethod
    def encode(self, text: str) -> Int[np.ndarray, "t"]:
        """Encode a text, without special ids around it."""

    @abstractmethod
    def decode(self, ids: Ids) -> str:
        """Decode ids into a text; special ids are left out."""

    @abstractmethod
    def pieces(self, ids: Ids) -> list[str]:
        """The text of each id, special ids included."""

    @abstractmethod
    def words(self, text_or_ids: str | Ids) -> list[int]:
        """For each id, or each id of a text, the index of the word in which it begins; -1 for no word."""

    def _row(self, text_or_ids: str | Ids) -> Int[np.ndarray, "t"]:
        """The ids of a text, or ids as an array."""
        if isinstance(text_or_ids, str):
            return self.encode(text_or_ids)
        return as_row(text_or_ids, len(self))

    @abstractmethod
    def content(self) -> bytes:
        """The content of the file that `save` writes."""

    def files(self) -> dict[str, bytes]:
        """The content of every file that `save` writes, by name; `load` begins with the last."""
        return {self.file: self.content()}

    def encode_all(self, texts: Sequence[str]) -> list[np.ndarray]:
        """Encode each of several texts."""
        return [self.encode(text) for text in texts]

    def wrapped(self, text: str) -> Int[np.ndarray, "t"]:
        """Encode a text with the special ids that a language model expects around it."""
        return self.encode(text)

    def marked(self, text: str) -> Int[np.ndarray, "t"]:
        """Encode a text in which special tokens are written by their names, as chat templates do."""
        if not self.special_names:
            return self.encode(text)
        ids = [np.zeros(0, np.int64)]
        for i, part in enumerate(self._special_pattern.split(text)):
            if i % 2:  # the pattern has one group, so that every second part is a name
                ids.append(np.array([self.special_names[part]], np.int64))
            elif part:
                ids.append(self.encode(part))
        return np.concatenate(ids).astype(np.int64)

    def continued(self, text: str, *, marked: bool = False) -> Int[np.ndarray, "t"]:
        """Encode a text that continues another, without the space that SentencePiece puts before a text.

        Args:
            text: The text.
            marked: Whether special tokens are written by their names in it, as in `marked`.
        """
        encode = self.marked if marked else self.encode
        if not self.adds_space:
            return encode(text)
        # the text is encoded behind another one, whose ids are then cut off
        for before, alone in self._known_before:
            both = encode(before + text)
            # a merge across the border would change the ids of `before`: then another one is tried
            if np.array_equal(both[: len(alone)], alone):
                return both[len(alone) :]
        return encode(text)

    def continued_all(self, texts: Sequence[str]) -> list[np.ndarray]:
        """Encode each of several texts that continue others."""
        if not self.adds_space or not self._known_before:
            return self.encode_all(texts)
        # all in one batch behind the first of these texts; what crosses the border is encoded by itself
        before, alone = self._known_before[0]
        rows = self.encode_all([before + text for text in texts])
        continued = []
        for text, row in zip(texts, rows, strict=True):
            if np.array_equal(row[: len(alone)], alone):
                continued.append(row[len(alone) :])
            else:
                continued.append(self.continued(text))
        return continued

    @property
    def adds_space(self) -> bool:
        """Whether a text is encoded with a space before it, as SentencePiece does."""
        return False

    @cached_property
    def _known_before(self) -> list[tuple[str, np.ndarray]]:
        """The texts of _BEFORE without unknown tokens (several in a row may become one), each with its ids."""
        known = []
        for text in _BEFORE:
            ids = self.encode(text)
            if len(ids) and self.unknown not in ids.tolist():
                known.append((text, ids))
        return known

    @property
    def special_names(self) -> dict[str, int]:
        """The ids of the special tokens, by name."""
        return {}

    @cached_property
    def _special_pattern(self) -> re.Pattern[str]:
        # the longest first, since one name may begin another
        names = sorted(self.special_names, key=len, reverse=True)
        return re.compile(f"({'|'.join(map(re.escape, names))})")
