"""Symbols: the tokenizer of generated sequences, whose ids have no text of their own: letters, or numbers."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from string import ascii_lowercase as LETTERS
from typing import Any

import numpy as np
from jaxtyping import Int

from ..errors import InputError
from .ids import Ids, as_json, as_row
from .tokenizer import Tokenizer


class Symbols(Tokenizer):
    """A tokenizer of symbols 0, 1, ..., written as letters a, b, ... or, if there are more than 26, as numbers.

    White space between symbols is ignored, and needed between numbers.

    Args:
        count: The number of symbols; their ids are 0 to count - 1.
        marks: Further symbols with the ids that follow, each one character: a separator, for example.

    Examples:
        >>> tokens = Symbols(5, "|")
        >>> tokens.encode("abe|").tolist(), tokens.decode([4, 1, 0])
        ([0, 1, 4, 5], 'eba')
        >>> Symbols(100, "|").encode("7 42 | 42 7").tolist()
        [7, 42, 100, 42, 7]
    """

    kind = "symbols"

    def __init__(self, count: int, marks: Iterable[str] = "") -> None:
        self.count, self.marks = count, tuple(marks)
        if count < 1:
            raise InputError(f"count={count}: expected 1 symbol or more")
        for mark in self.marks:
            if len(mark) != 1 or mark.isalnum() or mark.isspace():
                raise InputError(
                    f"the mark {mark!r}: expected one character that is no letter, digit or space"
                )
        if len(set(self.marks)) < len(self.marks):
            raise InputError(f"marks={self.marks}: expected each once")
        self.letters = count <= len(LETTERS)
        names = LETTERS[:count] if self.letters else map(str, range(count))
        self._names = [*names, *self.marks]
        self._ids = {name: i for i, name in enumerate(self._names)}

    def encode(self, text: str) -> Int[np.ndarray, "t"]:
        """Encode symbols; anything else raises."""
        for mark in self.marks:
            # marks need no space around them
            text = text.replace(mark, f" {mark} ")
        names = text.split()
        if self.letters:
            # letters need no space between them, numbers do
            names = [name for part in names for name in part]
        for at, name in enumerate(names):
            if name not in self._ids:
                known = ", ".join(
                    [f"{self._names[0]} to {self._names[self.count - 1]}", *self.marks]
                )
                raise InputError(f"symbol {at} is {name!r}: expected {known}")
        return np.array([self._ids[name] for name in names], np.int64)

    def decode(self, ids: Ids) -> str:
        """The symbols of ids: letters without spaces, numbers with a space between two."""
        between = "" if self.letters else " "
        return between.join(self.pieces(ids))

    def pieces(self, ids: Ids) -> list[str]:
        """The letter, number or mark of each id."""
        return [self._names[i] for i in as_row(ids, len(self)).tolist()]

    def words(self, text_or_ids: str | Ids) -> list[int]:
        """For each id, or each id of a text, its own index: every symbol is a word."""
        return list(range(len(self._row(text_or_ids))))

    def __len__(self) -> int:
        return len(self._names)

    def __eq__(self, other: object) -> bool:
        return isinstance(other, Symbols) and (self.count, self.marks) == (other.count, other.marks)

    def __hash__(self) -> int:
        return hash((self.count, self.marks))

    def __reduce__(self) -> tuple[Any, ...]:
        return Symbols, (self.count, self.marks)

    def __repr__(self) -> str:
        return f"Symbols({self.count}, {''.join(self.marks)!r})"

    def content(self) -> bytes:
        return as_json(self.to_dict())

    def to_dict(self) -> dict[str, Any]:
        """The values that tokens.json holds."""
        return {"kind": self.kind, "count": self.count, "marks": list(self.marks)}

    @classmethod
    def from_dict(cls, values: Mapping[str, Any]) -> Symbols:
        """Make a tokenizer from the result of `to_dict`."""
        if set(values) != {"kind", "count", "marks"} or values["kind"] != cls.kind:
            raise InputError(
                f"expected kind = {cls.kind!r}, count and marks, got {dict(values)!r:.200}"
            )
        count, marks = values["count"], values["marks"]
        if type(count) is not int:
            raise InputError(f"count = {count!r:.200}: expected a whole number")
        if not isinstance(marks, list) or not all(isinstance(mark, str) for mark in marks):
            raise InputError(f"marks = {marks!r:.200}: expected a list of characters")
        return cls(count, marks)
