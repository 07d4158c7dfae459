"""Characters: the simplest tokens. Every distinct character of a text is one id, and nothing is lost."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any

import numpy as np
from jaxtyping import Int

from ..errors import InputError
from .ids import END, PAD, SPECIAL, START, UNKNOWN, Ids, as_json, as_row, words_of
from .tokenizer import Tokenizer


class Characters(Tokenizer):
    """A fixed alphabet: the id of a character is its place in `symbols`. decode(encode(text)) == text.

    With `special`, <pad> <start> <end> <unk> come first: the id of a character is its place and four, and one that is
    not in the alphabet is <unk>, shown as the sign for that, U+FFFD.
    """

    kind = "characters"
    spaces_are_tokens = True

    def __init__(self, symbols: Iterable[str], *, special: bool = False) -> None:
        self.symbols, self.special = tuple(symbols), special
        for place, symbol in enumerate(self.symbols):
            if len(symbol) != 1:
                raise InputError(f"symbol {place} is {symbol!r}: expected one character")
        if len(set(self.symbols)) < len(self.symbols):
            twice = next(symbol for symbol in self.symbols if self.symbols.count(symbol) > 1)
            raise InputError(f"the symbol {twice!r} is given twice")
        self.pad, self.start = (PAD, START) if special else (None, None)
        self.end, self.unknown = (END, UNKNOWN) if special else (None, None)
        self._first = len(SPECIAL) if special else 0
        points = _points("".join(self.symbols))
        # An id for each code point up to the greatest in use, -1 where there is none: encoding is one lookup.
        self._ids = np.full(int(points.max(initial=0)) + 2, -1, dtype=np.int64)
        self._ids[points] = self._first + np.arange(len(self.symbols))
        self._points = np.concatenate([_points("\ufffd" * self._first), points])

    @classmethod
    def of(cls, text: str, *, special: bool = False) -> Characters:
        """The alphabet of a text: its distinct characters, sorted."""
        return cls(sorted(set(text)), special=special)

    def encode(self, text: str) -> Int[np.ndarray, "t"]:
        """The ids of a text; a character outside the alphabet raises, with its place, unless there is <unk> for it."""
        points = _points(text)
        ids = self._ids[np.minimum(points, len(self._ids) - 1)]  # the last entry is always -1
        if self.special:
            return np.where(ids < 0, UNKNOWN, ids)
        if ids.min(initial=0) < 0:
            at = int(np.argmax(ids < 0))
            before = text[:at]
            raise InputError(
                f"the character {text[at]!r} at {at} (line {before.count(chr(10)) + 1}, column "
                f"{at - before.rfind(chr(10))}) is not one of the {len(self)} that are known: {self._preview()}"
            )
        return ids

    def decode(self, ids: Ids) -> str:
        """The text of ids; special ids are left out, but <unk> is shown."""
        found = as_row(ids, len(self))
        if self.special:
            found = found[found >= UNKNOWN]
        return self._points[found].tobytes().decode("utf-32-le", "surrogatepass")

    def pieces(self, ids: Ids) -> list[str]:
        """How each id looks, the special ones too."""
        looks = (*SPECIAL[: self._first], *self.symbols)
        return [looks[i] for i in as_row(ids, len(self)).tolist()]

    def words(self, given: str | Ids) -> list[int]:
        """For each id of a text, or each of given ids, the number of its word; -1 for spaces and special ids."""
        row = self.encode(given) if isinstance(given, str) else as_row(given, len(self))
        real = row >= min(UNKNOWN, self._first)
        ends = np.cumsum(real)
        return words_of(self.decode(row), list(zip((ends - real).tolist(), ends.tolist(), strict=True)))

    def __len__(self) -> int:
        return self._first + len(self.symbols)

    def __eq__(self, other: object) -> bool:
        return isinstance(other, Characters) and (self.symbols, self.special) == (other.symbols, other.special)

    def __hash__(self) -> int:
        return hash((self.symbols, self.special))

    def __reduce__(self) -> tuple[Any, ...]:
        return Characters.from_dict, (self.to_dict(),)  # worker processes are sent the alphabet, not its tables

    def __repr__(self) -> str:
        return f"Characters({self._preview()}{', special=True' if self.special else ''})"

    @property
    def special_names(self) -> dict[str, int]:
        return dict(zip(SPECIAL, range(len(SPECIAL)), strict=True)) if self.special else {}

    def content(self) -> bytes:
        return as_json(self.to_dict())

    def to_dict(self) -> dict[str, Any]:
        """Plain data, for a JSON file."""
        return {"kind": self.kind, "symbols": list(self.symbols)} | ({"special": True} if self.special else {})

    @classmethod
    def from_dict(cls, values: Mapping[str, Any]) -> Characters:
        """What to_dict gave."""
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
        return repr(text if len(text) <= 80 else text[:80] + "...")


def _points(text: str) -> np.ndarray:
    """The code points of a text, one a character."""
    return np.frombuffer(text.encode("utf-32-le", "surrogatepass"), dtype="<u4")
