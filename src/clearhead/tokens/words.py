"""Words: every distinct word of the texts is one id; what was too rare, or never seen, is <unk>."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Mapping
from typing import Any

import numpy as np
from jaxtyping import Int

from ..errors import InputError
from .ids import APOSTROPHES, END, PAD, SPECIAL, START, UNKNOWN, Ids, as_json, as_row, split
from .tokenizer import Tokenizer

_OPENING, _CLOSING = frozenset("([{¿¡„“«"), frozenset(".,;:!?)]}%…”»")


class Words(Tokenizer):
    """A fixed list of words: an id is a word's place in `symbols`, which begins with <pad> <start> <end> <unk>.

    Not lossless: white space is made even, words that are not known are <unk>, and with `lower` case is gone.
    """

    kind = "words"
    pad, start, end, unknown = PAD, START, END, UNKNOWN

    def __init__(self, symbols: Iterable[str], counts: Iterable[int] | None = None, *, lower: bool = False) -> None:
        words = tuple(symbols)
        self.symbols = (*SPECIAL, *words)
        self.counts = (0,) * len(self.symbols) if counts is None else (0,) * len(SPECIAL) + tuple(counts)
        self.lower = lower
        for word in words:
            if word.split() != [word]:
                raise InputError(f"{word!r} is not one word: expected no white space")
        if len(self.counts) != len(self.symbols):
            raise InputError(f"{len(self.counts) - len(SPECIAL)} counts for {len(words)} words: expected as many")
        self._ids = {word: i for i, word in enumerate(self.symbols)}
        if len(self._ids) < len(self.symbols):
            twice = next(word for word, count in Counter(self.symbols).items() if count > 1)
            raise InputError(f"the word {twice!r} is given twice")

    @classmethod
    def of(cls, texts: Iterable[str], *, minimum: int = 1, most: int | None = None, lower: bool = False) -> Words:
        """The words that stand `minimum` times or more in the texts, the `most` frequent of them.

        Ids are by falling count, then by the alphabet; `most` does not count the special ids.
        """
        if minimum < 1:
            raise InputError(f"minimum={minimum}: expected 1 or more")
        if most is not None and most < 0:
            raise InputError(f"most={most}: expected 0 or more")
        counts: Counter[str] = Counter()
        for text in _texts(texts):
            counts.update(split(text.lower() if lower else text))
        kept = sorted((word for word, n in counts.items() if n >= minimum), key=lambda word: (-counts[word], word))
        kept = kept[:most]
        return cls(kept, (counts[word] for word in kept), lower=lower)

    def encode(self, text: str) -> Int[np.ndarray, "t"]:
        """The ids of a text's words, without special ones but for <unk>."""
        words = split(text.lower() if self.lower else text)
        return np.fromiter((self._ids.get(word, UNKNOWN) for word in words), np.int64, len(words))

    def decode(self, ids: Ids) -> str:
        """Words with spaces between them, closed up at punctuation; special ids are left out, but <unk> is shown."""
        text, quoted, closed = "", False, True  # closed: the next word follows without a space
        for i in as_row(ids, len(self)).tolist():
            if i < UNKNOWN:
                continue
            word = self.symbols[i]
            clitic = word[0] in APOSTROPHES and len(word) > 1
            ending = clitic or word in _CLOSING or word == "-" or (word == '"' and quoted)
            text += word if closed or ending else " " + word
            quoted ^= word == '"'
            elided = word[-1] in APOSTROPHES and len(word) > 1
            closed = elided or word in _OPENING or word == "-" or (word == '"' and quoted)
        return text

    def pieces(self, ids: Ids) -> list[str]:
        """How each id looks, the special ones too."""
        return [self.symbols[i] for i in as_row(ids, len(self)).tolist()]

    def words(self, given: str | Ids) -> list[int]:
        """For each id of a text, or each of given ids, the number of its word; -1 for special ids, but for <unk>."""
        row = self.encode(given) if isinstance(given, str) else as_row(given, len(self))
        real = row >= UNKNOWN
        return np.where(real, np.cumsum(real) - 1, -1).tolist()

    def __len__(self) -> int:
        return len(self.symbols)

    def __eq__(self, other: object) -> bool:
        return (
            isinstance(other, Words)
            and (self.symbols, self.counts, self.lower) == (other.symbols, other.counts, other.lower)
        )  # fmt: skip

    def __hash__(self) -> int:
        return hash((self.symbols, self.lower))

    def __reduce__(self) -> tuple[Any, ...]:
        return Words.from_dict, (self.to_dict(),)

    def __repr__(self) -> str:
        few = " ".join(self.symbols[len(SPECIAL) : len(SPECIAL) + 5])
        return f"Words({len(self)}: {few}{' ...' if len(self) > len(SPECIAL) + 5 else ''})"

    @property
    def special_names(self) -> dict[str, int]:
        return dict(zip(SPECIAL, range(len(SPECIAL)), strict=True))

    def content(self) -> bytes:
        return as_json(self.to_dict())

    def to_dict(self) -> dict[str, Any]:
        """Plain data, for a JSON file; the special words are not written, they are always the same."""
        first = len(SPECIAL)
        return {
            "kind": self.kind,
            "symbols": list(self.symbols[first:]),
            "counts": list(self.counts[first:]),
            "lower": self.lower,
        }

    @classmethod
    def from_dict(cls, values: Mapping[str, Any]) -> Words:
        """What to_dict gave."""
        if set(values) != {"kind", "symbols", "counts", "lower"} or values["kind"] != cls.kind:
            raise InputError(f"expected kind = {cls.kind!r}, symbols, counts and lower, got {dict(values)!r:.200}")
        symbols, counts, lower = values["symbols"], values["counts"], values["lower"]
        if not isinstance(symbols, list) or not all(isinstance(symbol, str) for symbol in symbols):
            raise InputError(f"symbols = {symbols!r:.200}: expected a list of words")
        if not isinstance(counts, list) or not all(type(count) is int for count in counts):
            raise InputError(f"counts = {counts!r:.200}: expected a list of whole numbers")
        if not isinstance(lower, bool):
            raise InputError(f"lower = {lower!r}: expected true or false")
        return cls(symbols, counts, lower=lower)


def _texts(texts: Iterable[str]) -> Iterable[str]:
    if isinstance(texts, str):
        raise InputError(f"expected several texts, got one: {texts[:40]!r}")
    return texts
