"""Characters: the simplest tokens. Every distinct character of a text is one id, and nothing is lost."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any

import numpy as np
from jaxtyping import Int


class Characters:
    """A fixed alphabet: the id of a character is its place in `symbols`. decode(encode(text)) == text."""

    kind = "characters"

    def __init__(self, symbols: Iterable[str]) -> None:
        self.symbols = tuple(symbols)
        for place, symbol in enumerate(self.symbols):
            if len(symbol) != 1:
                raise ValueError(f"symbol {place} is {symbol!r}: expected one character")
        if len(set(self.symbols)) < len(self.symbols):
            twice = next(symbol for symbol in self.symbols if self.symbols.count(symbol) > 1)
            raise ValueError(f"the symbol {twice!r} is given twice")
        self._points = _points("".join(self.symbols))
        # An id for each code point up to the greatest in use, -1 where there is none: encoding is one lookup.
        self._ids = np.full(int(self._points.max(initial=0)) + 2, -1, dtype=np.int64)
        self._ids[self._points] = np.arange(len(self.symbols))

    @classmethod
    def of(cls, text: str) -> Characters:
        """The alphabet of a text: its distinct characters, sorted."""
        return cls(sorted(set(text)))

    def encode(self, text: str) -> Int[np.ndarray, "t"]:
        """The ids of a text; a character outside the alphabet raises, with its place."""
        points = _points(text)
        ids = self._ids[np.minimum(points, len(self._ids) - 1)]  # the last entry is always -1
        if ids.min(initial=0) < 0:
            at = int(np.argmax(ids < 0))
            before = text[:at]
            raise ValueError(
                f"the character {text[at]!r} at {at} (line {before.count(chr(10)) + 1}, column "
                f"{at - before.rfind(chr(10))}) is not one of the {len(self)} that are known: {self._preview()}"
            )
        return ids

    def decode(self, ids: np.ndarray | Iterable[int]) -> str:
        """The text of ids."""
        found = np.asarray(ids if isinstance(ids, np.ndarray) else list(ids))
        if found.size and found.dtype.kind not in "iu":
            raise ValueError(f"ids of type {found.dtype}: expected whole numbers")
        if found.ndim != 1:
            raise ValueError(f"ids of shape {found.shape}: expected one row")
        wrong = np.flatnonzero((found < 0) | (found >= len(self)))
        if len(wrong):
            raise ValueError(f"id {found[wrong[0]]} at {wrong[0]}: expected 0 to {len(self) - 1}")
        return self._points[found.astype(np.int64)].tobytes().decode("utf-32-le", "surrogatepass")

    def __len__(self) -> int:
        return len(self.symbols)

    def __eq__(self, other: object) -> bool:
        return isinstance(other, Characters) and self.symbols == other.symbols

    def __hash__(self) -> int:
        return hash(self.symbols)

    def __reduce__(self) -> tuple[Any, ...]:
        return Characters, (self.symbols,)  # worker processes are sent the alphabet, not its tables

    def __repr__(self) -> str:
        return f"Characters({self._preview()})"

    def to_dict(self) -> dict[str, Any]:
        """Plain data, for a JSON file."""
        return {"kind": self.kind, "symbols": list(self.symbols)}

    @classmethod
    def from_dict(cls, values: Mapping[str, Any]) -> Characters:
        """What to_dict gave."""
        symbols = values.get("symbols")
        if set(values) != {"kind", "symbols"} or values["kind"] != cls.kind:
            raise ValueError(f"expected kind = {cls.kind!r} and symbols, got {dict(values)!r:.200}")
        if not isinstance(symbols, list) or not all(isinstance(symbol, str) for symbol in symbols):
            raise ValueError(f"symbols = {symbols!r:.200}: expected a list of characters")
        return cls(symbols)

    def _preview(self) -> str:
        text = "".join(self.symbols)
        return repr(text if len(text) <= 80 else text[:80] + "...")


def _points(text: str) -> np.ndarray:
    """The code points of a text, one a character."""
    return np.frombuffer(text.encode("utf-32-le", "surrogatepass"), dtype="<u4")
