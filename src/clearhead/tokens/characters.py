"""Characters: one id for every distinct character of a text; lossless."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any

import numpy as np
from jaxtyping import Int

from ..errors import InputError
from .ids import END, PAD, SPECIAL, START, UNKNOWN, Ids, as_json, as_row, words_of
from .tokenizer import Tokenizer


class Characters(Tokenizer):
    """A tokenizer with one id per character of a fixed alphabet; decode(encode(text)) == text.

    Args:
        symbols: The characters of the alphabet; the id of a character is its index here.
        special: Put <pad> <start> <end> <unk> before the alphabet, so that the first character has the id 4.
            Characters outside the alphabet are then encoded as <unk> and decoded as U+FFFD; otherwise they raise.

    Examples:
        >>> letters = Characters.of("to be or not to be")
        >>> letters
        Characters(' benort')
        >>> letters.encode("be not").tolist()
        [1, 2, 0, 3, 4, 6]
        >>> letters.decode([1, 2, 2])
        'bee'
        >>> Characters("ab", special=True).encode("abc").tolist()
        [4, 5, 3]
    """

    kind = "characters"
    spaces_are_tokens = True

    def __init__(self, symbols: Iterable[str], *, special: bool = False) -> None:
        self.symbols, self.special = tuple(symbols), special
        for i, symbol in enumerate(self.symbols):
            if len(symbol) != 1:
                raise InputError(f"symbol {i} is {symbol!r}: expected one character")
        if len(set(self.symbols)) < len(self.symbols):
            twice = next(symbol for symbol in self.symbols if self.symbols.count(symbol) > 1)
            raise InputError(f"the symbol {twice!r} is given twice: expected each once")
        self._first = 0
        if special:
            self.pad, self.start, self.end, self.unknown = PAD, START, END, UNKNOWN
            # special ids come first
            self._first = len(SPECIAL)
        points = _points("".join(self.symbols))
        # A table from code point to id, -1 for those outside the alphabet, so that encoding is one lookup.
        self._ids = np.full(int(points.max(initial=0)) + 2, -1, dtype=np.int64)
        self._ids[points] = self._first + np.arange(len(self.symbols))
        # the way back, from id to code point; special ids have none
        self._points = np.concatenate([_points("\ufffd" * self._first), points])

    @classmethod
    def of(cls, text: str, *, special: bool = False) -> Characters:
        """Make a tokenizer of the distinct characters of a text, sorted.

        Args:
            text: The text whose characters become the alphabet.
            special: Put <pad> <start> <end> <unk> before them.
        """
        return cls(sorted(set(text)), special=special)

    def encode(self, text: str) -> Int[np.ndarray, "t"]:
        """Encode a text; a character outside the alphabet becomes <unk>, or raises if there is no <unk>."""
        points = _points(text)
        ids = self._ids[np.minimum(points, len(self._ids) - 1)]  # the last entry is always -1
        if self.special:
            # -1 is a character outside the alphabet
            return np.where(ids < 0, UNKNOWN, ids)
        if ids.min(initial=0) < 0:
            at = int(np.argmax(ids < 0))
            # the message says where in the file the character is
            before = text[:at]
            raise InputError(
                f"the character {text[at]!r} at {at} (line {before.count(chr(10)) + 1}, column "
                f"{at - before.rfind(chr(10))}) is not in the alphabet of {len(self)} characters: {self._preview()}"
            )
        return ids

    def decode(self, ids: Ids) -> str:
        """Decode ids into a text; special ids are left out, except <unk>, which is shown as U+FFFD."""
        row = as_row(ids, len(self))
        if self.special:
            # <pad>, <start> and <end> have no text
            row = row[row >= UNKNOWN]
        # code points are UTF-32; lone surrogates are kept, so that decoding returns the same text
        return self._points[row].tobytes().decode("utf-32-le", "surrogatepass")

    def pieces(self, ids: Ids) -> list[str]:
        """The character of each id, or the name of a special id."""
        names = (*SPECIAL[: self._first], *self.symbols)
        return [names[i] for i in as_row(ids, len(self)).tolist()]

    def words(self, text_or_ids: str | Ids) -> list[int]:
        """For each id, or each id of a text, the index of its word; -1 for spaces and special ids."""
        row = self._row(text_or_ids)
        # ids below <unk> have no text; without special ids every id has
        is_text = row >= min(UNKNOWN, self._first)
        # special ids have no character in the decoded text
        ends: np.ndarray = np.cumsum(is_text)
        starts: np.ndarray = ends - is_text
        spans = zip(starts.tolist(), ends.tolist(), strict=True)
        return words_of(self.decode(row), list(spans))

    def __len__(self) -> int:
        return self._first + len(self.symbols)

    def __eq__(self, other: object) -> bool:
        if not isinstance(other, Characters):
            return False
        return (self.symbols, self.special) == (other.symbols, other.special)

    def __hash__(self) -> int:
        return hash((self.symbols, self.special))

    def __reduce__(self) -> tuple[Any, ...]:
        return Characters.from_dict, (self.to_dict(),)  # pickle the alphabet without its tables

    def __repr__(self) -> str:
        options = ", special=True" if self.special else ""
        return f"Characters({self._preview()}{options})"

    @property
    def special_names(self) -> dict[str, int]:
        if self.special:
            return dict(zip(SPECIAL, range(len(SPECIAL)), strict=True))
        return {}

    def content(self) -> bytes:
        return as_json(self.to_dict())

    def to_dict(self) -> dict[str, Any]:
        """The values that tokens.json holds."""
        values: dict[str, Any] = {"kind": self.kind, "symbols": list(self.symbols)}
        if self.special:
            values["special"] = True
        return values

    @classmethod
    def from_dict(cls, values: Mapping[str, Any]) -> Characters:
        """Make a tokenizer from the result of `to_dict`."""
        symbols, special = values.get("symbols"), values.get("special", False)
        if set(values) - {"special"} != {"kind", "symbols"} or values["kind"] != cls.kind:
            raise InputError(f"expected kind = {cls.kind!r} and symbols, got {dict(values)!r:.200}")
        if not isinstance(symbols, list) or not all(isinstance(symbol, str) for symbol in symbols):
            raise InputError(f"symbols = {symbols!r:.200}: expected a list of characters")
        if not isinstance(special, bool):
            raise InputError(f"special = {special!r}: expected true or false")
        return cls(symbols, special=special)

    def _preview(self) -> str:
        text = "".join(self.symbols)
        if len(text) > 80:
            text = text[:80] + "..."
        return repr(text)


def _points(text: str) -> np.ndarray:
    """The code point of each character of a text."""
    return np.frombuffer(text.encode("utf-32-le", "surrogatepass"), dtype="<u4")
