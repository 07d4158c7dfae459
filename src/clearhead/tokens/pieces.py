"""Pieces: the tokenizer of a SentencePiece model, with the model's own ids or those of another vocabulary (Marian)."""

from __future__ import annotations

import base64
from collections.abc import Iterable, Mapping
from functools import cached_property
from itertools import pairwise
from typing import Any

import numpy as np
from jaxtyping import Int

from ..errors import InputError
from .ids import NAMES, Ids, as_json, as_row, checked, words_of
from .sentencepiece import CONTROL, SPACE, UNKNOWN, SentencePieceModel
from .tokenizer import Tokenizer


class Pieces(Tokenizer):
    """The tokenizer of a SentencePiece model.

    A text may begin with the code of its target language if the vocabulary has it: ">>fra<< A dog runs." Names of
    other special tokens in a text are encoded like any text. Not lossless: the model normalises the text, and pieces
    outside the vocabulary become <unk>.

    Args:
        model: A SentencePiece model, or the content of its file.
        vocab: The id of each piece; None: its index in the model.
        special: Ids of pad, start, end and unknown that their usual names in the vocabulary do not give.
        first: `wrapped` puts <s> before a text.
        last: `wrapped` puts </s> after a text.
        languages: Pieces of the vocabulary that name a language, as special tokens (M2M-100).

    Examples:
        >>> from clearhead.tokens.sentencepiece import SentencePieceModel
        >>> pieces, scores = ("<unk>", "<s>", "</s>", "▁a", "▁do", "g"), (0.0, 0.0, 0.0, -1.0, -2.0, -3.0)
        >>> tokens = Pieces(SentencePieceModel(pieces=pieces, scores=scores, types=(2, 3, 3, 1, 1, 1)), first=True)
        >>> tokens.encode("a dog").tolist(), tokens.wrapped("a dog").tolist()
        ([3, 4, 5], [1, 3, 4, 5])
        >>> tokens.decode([3, 4, 5, 2])
        'a dog'
    """

    kind = "pieces"

    def __init__(
        self,
        model: SentencePieceModel | bytes,
        vocab: Mapping[str, int] | None = None,
        *,
        special: Mapping[str, int] | None = None,
        first: bool = False,
        last: bool = False,
        languages: Iterable[str] = (),
    ) -> None:
        self._model = SentencePieceModel.of(model) if isinstance(model, bytes) else model
        if vocab is None:
            self.vocab = {p: i for i, p in enumerate(self._model.pieces)}
        else:
            self.vocab = dict(vocab)
        self._own = vocab is None  # the ids are those of the model
        self._first, self._last = first, last
        for piece, i in self.vocab.items():
            if type(i) is not int or i < 0:
                raise InputError(
                    f"the piece {piece!r} has the id {i!r}: expected a whole number, 0 or more"
                )
        if len(set(self.vocab.values())) < len(self.vocab):
            raise InputError(
                f"{len(self.vocab)} pieces with {len(set(self.vocab.values()))} numbers: expected an id for each"
            )
        self._names = {i: piece for piece, i in self.vocab.items()}
        # ids may have gaps
        self._size = max(self._names, default=-1) + 1
        self._overrides = dict(special or {})
        for name, i in self._overrides.items():
            if name not in NAMES:
                raise InputError(f"special id {name}={i}: expected one of {', '.join(NAMES)}")
        special_by_name: dict[str, int | None] = {}
        for name, words in NAMES.items():
            # an id that is given counts before the usual names
            usual = next((self.vocab[word] for word in words if word in self.vocab), None)
            special_by_name[name] = self._overrides.get(name, usual)
        self.pad, self.start, self.end, self.unknown = special_by_name.values()
        # text outside the vocabulary must have an id
        if self.unknown is None:
            raise InputError("there is no piece for what is unknown: expected <unk>")
        self.codes = frozenset(filter(_is_code, self.vocab))
        types = zip(self._model.pieces, self._model.types, strict=True)
        control = [self.vocab.get(piece) for piece, type_ in types if type_ in (CONTROL, UNKNOWN)]
        self.languages = tuple(languages)
        for name in self.languages:
            if name not in self.vocab:
                raise InputError(f"the language {name!r} has no id in the vocabulary")
        # what decoding leaves out: special ids, control pieces, languages
        named = (self.vocab[name] for name in self.languages)
        special_ids = (self.pad, self.start, self.end, self.unknown, *control, *named)
        self._special = frozenset(i for i in special_ids if i is not None)

    def encode(self, text: str) -> Int[np.ndarray, "t"]:
        """Encode a text, with the id of the language code that it may begin with."""
        text, ids = checked(text), []
        if self.codes and text.startswith(">>"):
            # without a << this is a single >, which is no code
            code = text[: text.find("<<") + 2]
            if code in self.codes:
                ids, text = [self.vocab[code]], text[len(code) :]
        unknown = self.unknown or 0
        # in Marian the vocabulary lacks some pieces of the model
        ids += [self.vocab.get(piece, unknown) for piece in self._model.cut(text)]
        return np.array(ids, np.int64)

    def wrapped(self, text: str) -> Int[np.ndarray, "t"]:
        """Encode a text, with <s> before it and </s> after it if its language model expects that."""
        before = [self.start] if self._first and self.start is not None else []
        after = [self.end] if self._last and self.end is not None else []
        return np.array([*before, *self.encode(text), *after], np.int64)

    @cached_property
    def adds_space(self) -> bool:
        """Whether a text is encoded with a space before it, as SentencePiece does."""
        return "".join(self.pieces(self.encode("a"))).startswith(" ")

    @property
    def special_names(self) -> dict[str, int]:
        return {self._names[i]: i for i in sorted(self._special) if i in self._names}

    def decode(self, ids: Ids) -> str:
        """The text of ids; special ids and unknown tokens are left out."""
        row = as_row(ids, len(self)).tolist()
        text = self._model.text([self._names.get(i, "") for i in row if i not in self._special])
        # Such a model encodes no space at the end of a text: one there belongs to an unknown word that was left out.
        if self._model.tidy and not self._model.suffix:
            return text.rstrip(" ")
        return text

    def pieces(self, ids: Ids) -> list[str]:
        """The text of each id, with the space that belongs to it, or the name of a special id."""
        return [self._names.get(i, "").replace(SPACE, " ") for i in as_row(ids, len(self)).tolist()]

    def words(self, text_or_ids: str | Ids) -> list[int]:
        """For each id, or each id of a text, the index of the word in which it begins; -1 for no word."""
        row = self._row(text_or_ids)
        # <unk> stands for a word of the text
        codes = {self.vocab[code] for code in self.codes}
        not_text = (self._special | codes) - {self.unknown}
        parts = self.pieces(row)
        for at, i in enumerate(row.tolist()):
            if i in not_text:
                # no text, so that it belongs to no word
                parts[at] = ""
        ends = np.cumsum([0, *map(len, parts)]).tolist()
        return words_of("".join(parts), list(pairwise(ends)))

    @property
    def model(self) -> SentencePieceModel:
        """The SentencePiece model."""
        return self._model

    def __len__(self) -> int:
        return self._size

    def __eq__(self, other: object) -> bool:
        return isinstance(other, Pieces) and self._state == other._state

    @property
    def _state(self) -> tuple[Any, ...]:
        around = (self._overrides, self._first, self._last, self.languages)
        return (self._model, self.vocab, *around)

    def __hash__(self) -> int:
        return hash((self._model.pieces, self._model.scores))

    def __reduce__(self) -> tuple[Any, ...]:
        return Pieces.from_dict, (self.to_dict(),)

    def __repr__(self) -> str:
        return f"Pieces({len(self)}: {self._model.kind})"

    def content(self) -> bytes:
        return as_json(self.to_dict())

    def to_dict(self) -> dict[str, Any]:
        """The values that tokens.json holds; the model is the content of its own file, in base 64."""
        values: dict[str, Any] = {
            "kind": self.kind,
            "model": base64.b64encode(self._model.to_bytes()).decode(),
            # the ids that were given; all others follow from the usual names
            "special": self._overrides,
        }
        if self._first:
            values["first"] = True
        if self._last:
            values["last"] = True
        if self.languages:
            values["languages"] = list(self.languages)
        if not self._own:
            # ids of their own; otherwise they follow from the order of the pieces
            values["vocab"] = self.vocab
        return values

    @classmethod
    def from_dict(cls, values: Mapping[str, Any]) -> Pieces:
        """Make a tokenizer from the result of `to_dict`."""
        optional = {"vocab", "first", "last", "languages"}
        if set(values) - optional != {"kind", "model", "special"} or values["kind"] != cls.kind:
            raise InputError(
                f"expected kind = {cls.kind!r}, model, special and vocab, got {', '.join(values)}"
            )
        model, vocab, special = values["model"], values.get("vocab"), values["special"]
        for name, table in (("vocab", vocab or {}), ("special", special)):
            if not isinstance(table, dict) or not all(type(i) is int for i in table.values()):
                raise InputError(f"{name} = {table!r:.200}: expected whole numbers by their names")
        if not isinstance(model, str):
            raise InputError(f"model = {model!r:.200}: expected text in base 64")
        languages = values.get("languages", [])
        if not isinstance(languages, list):
            raise InputError(f"languages = {languages!r:.200}: expected a list of pieces")
        return cls(
            base64.b64decode(model, validate=True),
            vocab,
            special=special,
            first=values.get("first") is True,
            last=values.get("last") is True,
            languages=languages,
        )


def _is_code(piece: str) -> bool:
    """Whether a piece names the target's language, as >>fra<< of opus-mt."""
    return piece.startswith(">>") and piece.endswith("<<")
