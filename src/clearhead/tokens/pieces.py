"""Pieces: the tokens of a SentencePiece model, with its own numbers or with those of a list beside it (Marian's)."""

from __future__ import annotations

import base64
from collections.abc import Mapping
from functools import cached_property
from itertools import pairwise
from typing import Any

import numpy as np
from jaxtyping import Int

from ..errors import InputError
from .ids import NAMES, Ids, as_json, as_row, checked, words_of
from .sentencepiece import CONTROL, SPACE, UNKNOWN, Model
from .tokenizer import Tokenizer


class Pieces(Tokenizer):
    """What SentencePiece cuts a text into; an id is a piece's number in `vocab`, or in the model itself.

    A text may begin with what it shall become, where the list knows it: ">>fra<< A dog runs." What looks like another
    special token is text like any other. Not lossless: the model's rules normalise a text, and what neither the model
    nor the list knows is unknown.
    """

    kind = "pieces"

    def __init__(
        self,
        model: Model | bytes,
        vocab: Mapping[str, int] | None = None,
        *,
        special: Mapping[str, int] | None = None,  # ids of pad, start, end and unknown, where their names are others
        first: bool = False,  # a model is given <s> before a text
    ) -> None:
        self._model = Model.of(model) if isinstance(model, bytes) else model
        self.vocab = {p: i for i, p in enumerate(self._model.pieces)} if vocab is None else dict(vocab)
        self._own, self._first = vocab is None, first
        for piece, i in self.vocab.items():
            if type(i) is not int or i < 0:
                raise InputError(f"the piece {piece!r} has the number {i!r}: expected 0 or more")
        if len(set(self.vocab.values())) < len(self.vocab):
            raise InputError(
                f"{len(self.vocab)} pieces with {len(set(self.vocab.values()))} numbers: expected one each"
            )
        self._names = {i: piece for piece, i in self.vocab.items()}
        self._size = max(self._names, default=-1) + 1
        special = dict(special or {})
        for name in special:
            if name not in NAMES:
                raise InputError(f"special id {name}={special[name]}: expected one of {', '.join(NAMES)}")
        self._given = special
        self.pad, self.start, self.end, self.unknown = (
            special.get(name, next((self.vocab[word] for word in words if word in self.vocab), None))
            for name, words in NAMES.items()
        )
        if self.unknown is None:
            raise InputError("there is no piece for what is unknown: expected <unk>")
        self.codes = frozenset(piece for piece in self.vocab if piece.startswith(">>") and piece.endswith("<<"))
        self._special = frozenset(
            i
            for i in (self.pad, self.start, self.end, self.unknown, *map(self.vocab.get, self._control))
            if i is not None
        )

    def encode(self, text: str) -> Int[np.ndarray, "t"]:
        """The ids of a text, without special ones but for the unknown, and the language it may begin with."""
        text, ids = checked(text), []
        if self.codes and text.startswith(">>"):
            code = text[: text.find("<<") + 2]
            if code in self.codes:
                ids, text = [self.vocab[code]], text[len(code) :]
        unknown = self.unknown or 0
        ids += [self.vocab.get(piece, unknown) for piece in self._model.cut(text)]
        return np.array(ids, np.int64)

    def wrapped(self, text: str) -> Int[np.ndarray, "t"]:
        """The ids of a text with the special one that its model expects before it."""
        ids = self.encode(text)
        return ids if not self._first or self.start is None else np.insert(ids, 0, self.start)

    @property
    def special_names(self) -> dict[str, int]:
        return {self._names[i]: i for i in sorted(self._special) if i in self._names}

    def decode(self, ids: Ids) -> str:
        """The text of ids; special ids, and what is unknown, are left out."""
        row = as_row(ids, len(self)).tolist()
        return self._model.text([self._names.get(i, "") for i in row if i not in self._special])

    def pieces(self, ids: Ids) -> list[str]:
        """How each id looks, the special ones too: a space that begins a piece is kept."""
        return [self._names.get(i, "").replace(SPACE, " ") for i in as_row(ids, len(self)).tolist()]

    def words(self, given: str | Ids) -> list[int]:
        """For each id of a text, or each of given ids, the number of the word it begins in; -1 for none."""
        row = self.encode(given) if isinstance(given, str) else as_row(given, len(self))
        apart = {*self._special, *(self.vocab[code] for code in self.codes)} - {self.unknown}
        looks = ["" if i in apart else look for i, look in zip(row.tolist(), self.pieces(row), strict=True)]
        ends = np.cumsum([0, *map(len, looks)]).tolist()
        return words_of("".join(looks), list(pairwise(ends)))

    @property
    def model(self) -> Model:
        """What cuts a text."""
        return self._model

    def __len__(self) -> int:
        return self._size

    def __eq__(self, other: object) -> bool:
        return (
            isinstance(other, Pieces)
            and (self._model, self.vocab, self._given, self._first)
            == (other._model, other.vocab, other._given, other._first)
        )  # fmt: skip

    def __hash__(self) -> int:
        return hash((self._model.pieces, self._model.scores))

    def __reduce__(self) -> tuple[Any, ...]:
        return Pieces.from_dict, (self.to_dict(),)

    def __repr__(self) -> str:
        return f"Pieces({len(self)}: {self._model.kind})"

    def content(self) -> bytes:
        return as_json(self.to_dict())

    def to_dict(self) -> dict[str, Any]:
        """Plain data, for a JSON file; the model as the content of its own file, in base 64."""
        found: dict[str, Any] = {
            "kind": self.kind,
            "model": base64.b64encode(self._model.to_bytes()).decode(),
            "special": self._given,
        }
        found |= {"first": True} if self._first else {}
        return found if self._own else found | {"vocab": self.vocab}

    @classmethod
    def from_dict(cls, values: Mapping[str, Any]) -> Pieces:
        """What to_dict gave."""
        if set(values) - {"vocab", "first"} != {"kind", "model", "special"} or values["kind"] != cls.kind:
            raise InputError(f"expected kind = {cls.kind!r}, model, special and vocab, got {', '.join(values)}")
        model, vocab, special = values["model"], values.get("vocab"), values["special"]
        for name, table in (("vocab", vocab or {}), ("special", special)):
            if not isinstance(table, dict) or not all(type(i) is int for i in table.values()):
                raise InputError(f"{name} = {table!r:.200}: expected whole numbers by their names")
        if not isinstance(model, str):
            raise InputError(f"model = {model!r:.200}: expected text in base 64")
        return cls(base64.b64decode(model, validate=True), vocab, special=special, first=values.get("first") is True)

    @cached_property
    def _control(self) -> list[str]:
        both = zip(self._model.pieces, self._model.types, strict=True)
        return [piece for piece, kind in both if kind in (CONTROL, UNKNOWN)]
