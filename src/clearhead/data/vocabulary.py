"""How both sides of a translation become ids: a vocabulary made from the training text when a run starts."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal

from ..errors import InputError
from ..tokens import Characters, Pair, Subwords, Tokenizer, Words
from ..tokens.ids import SPECIAL


@dataclass(frozen=True, kw_only=True, slots=True)
class Vocabulary:
    """Options of the tokens of a translation."""

    vocabulary: Literal["subwords", "unigram", "words", "characters"] = "subwords"  # subwords are byte pair encoding
    size: int = 8000  # tokens a side at most, the special ones among them; characters are all kept
    minimum: int = 2  # how often a word, or a pair of pieces to be merged, must stand in the training text
    joint: bool = False  # one vocabulary for both sides, so that they may share a table of embeddings
    lower: bool = False  # capitals are forgotten, in what is read and in what is written

    def __post_init__(self) -> None:
        least = 256 + len(SPECIAL) if self.vocabulary in ("subwords", "unigram") else len(SPECIAL) + 1
        if self.size < least:
            raise InputError(f"size={self.size}: expected {least} or more for {self.vocabulary}")
        if self.minimum < 1:
            raise InputError(f"minimum={self.minimum}: expected 1 or more")
        if self.lower and self.vocabulary == "characters":
            raise InputError("lower=true is for words and subwords: characters are kept as they are")

    def make(self, sources: Sequence[str], targets: Sequence[str]) -> Pair:
        """The tokens of texts: the same texts and options give the same tokens."""
        if self.joint:
            both = self._one([*sources, *targets])
            return Pair(both, both)
        return Pair(self._one(sources), self._one(targets))

    def _one(self, texts: Sequence[str]) -> Tokenizer:
        if self.vocabulary == "characters":
            return Characters.of("".join({c for text in texts for c in text} | {" "}), special=True)
        if self.vocabulary == "words":
            return Words.of(texts, minimum=self.minimum, most=self.size - len(SPECIAL), lower=self.lower)
        kind = "bpe" if self.vocabulary == "subwords" else "unigram"
        return Subwords.of(texts, size=self.size, kind=kind, lower=self.lower, minimum=self.minimum)


@dataclass(frozen=True, kw_only=True, slots=True)
class Translating(Vocabulary):
    """Options of all translations."""

    batch_tokens: int = 4096  # tokens a step at most on the longer side, padding counted
    rounding: int = 8  # rows are padded to multiples of this, so that there are few different widths
    longest: int | None = None  # tokens a side; longer pairs are left out of training and validation; None: no limit
    valid_most: int | None = None  # validation batches at most; None: all

    def __post_init__(self) -> None:
        Vocabulary.__post_init__(self)
        for name in ("batch_tokens", "rounding"):
            if getattr(self, name) < 1:
                raise InputError(f"{name}={getattr(self, name)}: expected 1 or more")
        if self.longest is not None and self.longest < 2:
            raise InputError(f"longest={self.longest}: expected 2 or more, of which one is <end>")
        if self.valid_most is not None and self.valid_most < 0:
            raise InputError(f"valid_most={self.valid_most}: expected 0 or more")
