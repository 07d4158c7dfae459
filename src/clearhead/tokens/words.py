"""Words: one id per word; rare and unseen words are <unk>."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Mapping
from typing import Any

import numpy as np
from jaxtyping import Int

from ..errors import InputError
from .ids import APOSTROPHES, END, PAD, SPECIAL, START, UNKNOWN, Ids, as_json, as_row, split
from .tokenizer import Tokenizer

# no space after, no space before
_OPENING, _CLOSING = frozenset("([{¿¡„“«"), frozenset(".,;:!?)]}%…”»")


class Words(Tokenizer):
    """A tokenizer with one id per word of a fixed list, after <pad> <start> <end> <unk>.

    Not lossless: white space is normalised, words outside the list become <unk>, and `lower` drops case.

    Args:
        symbols: The words, in the order of their ids; the first has the id 4.
        counts: How often each word occurred; None: not known (0).
        lower: Lowercase every text before it is split.

    Examples:
        >>> words = Words.of(["A dog runs.", "A cat runs."])
        >>> words.symbols
        ('<pad>', '<start>', '<end>', '<unk>', '.', 'A', 'runs', 'cat', 'dog')
        >>> words.encode("A fox runs.").tolist()
        [5, 3, 6, 4]
        >>> words.decode([5, 3, 6, 4])
        'A <unk> runs.'
    """

    kind = "words"
    pad, start, end, unknown = PAD, START, END, UNKNOWN

    def __init__(
        self, symbols: Iterable[str], counts: Iterable[int] | None = None, *, lower: bool = False
    ) -> None:
        words = tuple(symbols)
        self.symbols = (*SPECIAL, *words)
        if counts is None:
            self.counts = (0,) * len(self.symbols)
        else:
            self.counts = (0,) * len(SPECIAL) + tuple(counts)
        self.lower = lower
        for word in words:
            # an empty word is refused as well
            if word.split() != [word]:
                raise InputError(f"{word!r} is not one word: expected no white space")
        if len(self.counts) != len(self.symbols):
            raise InputError(
                f"{len(self.counts) - len(SPECIAL)} counts for {len(words)} words: expected one for each word"
            )
        self._ids = {word: i for i, word in enumerate(self.symbols)}
        if len(self._ids) < len(self.symbols):
            twice = next(word for word, count in Counter(self.symbols).items() if count > 1)
            raise InputError(f"the word {twice!r} is given twice: expected each once")

    @classmethod
    def of(
        cls, texts: Iterable[str], *, minimum: int = 1, most: int | None = None, lower: bool = False
    ) -> Words:
        """Make a tokenizer of the most frequent words of the texts, in order of falling count, then alphabetically.

        Args:
            texts: The texts whose words are counted.
            minimum: Leave out words that occur fewer times.
            most: The largest number of words, special ones not counted; None: all.
            lower: Lowercase the texts.
        """
        if minimum < 1:
            raise InputError(f"minimum={minimum}: expected 1 or more")
        if most is not None and most < 0:
            raise InputError(f"most={most}: expected 0 or more")
        counts: Counter[str] = Counter()
        for text in _texts(texts):
            counts.update(_split(text, lower))
        kept = [word for word, count in counts.items() if count >= minimum]
        # alphabetical among equal counts, so that the same texts give the same ids
        kept = sorted(kept, key=lambda word: (-counts[word], word))[:most]
        return cls(kept, (counts[word] for word in kept), lower=lower)

    def encode(self, text: str) -> Int[np.ndarray, "t"]:
        """Encode the words of a text; words outside the list become <unk>."""
        # unknown words keep their place in the text
        words = _split(text, self.lower)
        return np.fromiter((self._ids.get(word, UNKNOWN) for word in words), np.int64, len(words))

    def decode(self, ids: Ids) -> str:
        """Join words with spaces, but none around punctuation; special ids are left out, except <unk>."""
        # quoted: inside "..."; closed: the next word follows without a space
        text, quoted, closed = "", False, True
        for i in as_row(ids, len(self)).tolist():
            # <pad>, <start> and <end> have no text
            if i < UNKNOWN:
                continue
            word = self.symbols[i]
            # no space before 's, a closing mark, a hyphen, or the quotation mark that closes
            is_clitic = word[0] in APOSTROPHES and len(word) > 1
            joins = is_clitic or word in _CLOSING or word == "-" or (word == '"' and quoted)
            text += word if closed or joins else " " + word
            # quotation marks open and close in turn
            quoted ^= word == '"'
            # and none after l', an opening mark, a hyphen, or the quotation mark that opens
            is_elided = word[-1] in APOSTROPHES and len(word) > 1
            closed = is_elided or word in _OPENING or word == "-" or (word == '"' and quoted)
        return text

    def pieces(self, ids: Ids) -> list[str]:
        """The word of each id, or the name of a special id."""
        return [self.symbols[i] for i in as_row(ids, len(self)).tolist()]

    def words(self, text_or_ids: str | Ids) -> list[int]:
        """For each id, or each id of a text, the index of its word; -1 for special ids except <unk>."""
        row = self._row(text_or_ids)
        is_word = row >= UNKNOWN
        return np.where(is_word, np.cumsum(is_word) - 1, -1).tolist()

    def __len__(self) -> int:
        return len(self.symbols)

    def __eq__(self, other: object) -> bool:
        if not isinstance(other, Words):
            return False
        mine = (self.symbols, self.counts, self.lower)
        return mine == (other.symbols, other.counts, other.lower)

    def __hash__(self) -> int:
        return hash((self.symbols, self.lower))

    def __reduce__(self) -> tuple[Any, ...]:
        return Words.from_dict, (self.to_dict(),)

    def __repr__(self) -> str:
        few = " ".join(self.symbols[len(SPECIAL) : len(SPECIAL) + 5])
        more = " ..." if len(self) > len(SPECIAL) + 5 else ""
        return f"Words({len(self)}: {few}{more})"

    @property
    def special_names(self) -> dict[str, int]:
        return dict(zip(SPECIAL, range(len(SPECIAL)), strict=True))

    def content(self) -> bytes:
        return as_json(self.to_dict())

    def to_dict(self) -> dict[str, Any]:
        """The values that tokens.json holds; the special words are left out, because they are always the same."""
        first = len(SPECIAL)
        return {
            "kind": self.kind,
            "symbols": list(self.symbols[first:]),
            "counts": list(self.counts[first:]),
            "lower": self.lower,
        }

    @classmethod
    def from_dict(cls, values: Mapping[str, Any]) -> Words:
        """Make a tokenizer from the result of `to_dict`."""
        if set(values) != {"kind", "symbols", "counts", "lower"} or values["kind"] != cls.kind:
            raise InputError(
                f"expected kind = {cls.kind!r}, symbols, counts and lower, got {dict(values)!r:.200}"
            )
        symbols, counts, lower = values["symbols"], values["counts"], values["lower"]
        if not isinstance(symbols, list) or not all(isinstance(symbol, str) for symbol in symbols):
            raise InputError(f"symbols = {symbols!r:.200}: expected a list of words")
        if not isinstance(counts, list) or not all(type(count) is int for count in counts):
            raise InputError(f"counts = {counts!r:.200}: expected a list of whole numbers")
        if not isinstance(lower, bool):
            raise InputError(f"lower = {lower!r}: expected true or false")
        return cls(symbols, counts, lower=lower)


def _split(text: str, lower: bool) -> list[str]:
    """The words of a text, without capitals if `lower`."""
    if lower:
        text = text.lower()
    return split(text)


def _texts(texts: Iterable[str]) -> Iterable[str]:
    if isinstance(texts, str):
        raise InputError(f"expected several texts, got one: {texts[:40]!r}")
    return texts
