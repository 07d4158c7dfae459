"""Model: a SentencePiece model, from its file to pieces and back to text."""

from __future__ import annotations

import re
import struct
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path

from ...errors import InputError
from ...protobuf import as_bytes, read_fields, write_field
from .bpe import BytePairs
from .kinds import BYTE, CONTROL, DEFINED, NORMAL, SPACE, UNKNOWN
from .normaliser import Normaliser
from .unigram import Unigram

_KINDS = {1: "unigram", 2: "bpe", 3: "word", 4: "char"}  # by the numbers of the file format
_SEGMENTERS: dict[str, type[Unigram] | type[BytePairs]] = {"unigram": Unigram, "bpe": BytePairs}
# where the library looks for its special ids
_SPECIAL_FIELDS = {41: "<s>", 42: "</s>", 43: "<pad>"}


@dataclass(frozen=True, kw_only=True)
class Model:
    """The content of a SentencePiece file; the defaults are those of its format."""

    pieces: tuple[str, ...]  # by id
    scores: tuple[float, ...]  # log-probabilities (unigram), or the order of merging (bpe)
    types: tuple[int, ...]  # NORMAL, UNKNOWN, CONTROL, DEFINED, UNUSED or BYTE for each piece
    kind: str = "unigram"  # unigram or bpe
    suffix: bool = False  # a space belongs to the word before it (treat_whitespace_as_suffix)
    bytewise: bool = False  # unknown characters become bytes (byte_fallback)
    rules: bytes = b""  # compiled normalisation rules
    lead: bool = True  # add a space before a text (add_dummy_prefix)
    # remove spaces at the ends, and all but one of several (remove_extra_whitespaces)
    tidy: bool = True
    escape: bool = True  # write spaces as U+2581 (escape_whitespaces)

    def __post_init__(self) -> None:
        if self.kind not in _SEGMENTERS:
            raise InputError(
                f"a SentencePiece model of kind {self.kind!r}: expected unigram or bpe"
            )
        if self.types.count(UNKNOWN) != 1:
            raise InputError(
                f"a SentencePiece model with {self.types.count(UNKNOWN)} unknown pieces: expected one"
            )

    @classmethod
    def of(cls, data: bytes) -> Model:
        """Parse the content of a .spm file, or of a tokenizer.model: a protocol buffer."""
        try:
            return cls._parse(data)
        except (IndexError, struct.error, UnicodeDecodeError) as cause:
            raise InputError(
                f"not a whole SentencePiece model ({cause or type(cause).__name__})"
            ) from cause

    @classmethod
    def read(cls, path: str | Path) -> Model:
        """Read a .spm file, or a tokenizer.model."""
        try:
            return cls.of(Path(path).read_bytes())
        except ValueError as cause:
            raise InputError(f"{path}: {cause}") from cause

    @classmethod
    def _parse(cls, data: bytes) -> Model:
        pieces, scores, types = [], [], []
        trainer: dict[int, int | bytes] = {}
        normalizer: dict[int, int | bytes] = {}
        for number, value in read_fields(data):
            if number == 1:
                piece = dict(read_fields(as_bytes(value)))
                pieces.append(as_bytes(piece.get(1, b"")).decode())
                scores.append(struct.unpack("<f", as_bytes(piece.get(2, bytes(4))))[0])
                types.append(int(piece.get(3, NORMAL)))
            elif number == 2:
                trainer = dict(read_fields(as_bytes(value)))
            elif number == 3:
                normalizer = dict(read_fields(as_bytes(value)))
            elif number == 5 and dict(read_fields(as_bytes(value))).get(2):
                raise InputError("a SentencePiece model with denormalisation rules: expected none")
        if not pieces:
            raise InputError("not a SentencePiece model: there are no pieces")
        kind = int(trainer.get(3, 1))
        return cls(
            pieces=tuple(pieces),
            scores=tuple(scores),
            types=tuple(types),
            kind=_KINDS.get(kind, str(kind)),
            suffix=bool(trainer.get(24, 0)),
            bytewise=bool(trainer.get(35, 0)),
            rules=as_bytes(normalizer.get(2, b"")),
            lead=bool(normalizer.get(3, 1)),
            tidy=bool(normalizer.get(4, 1)),
            escape=bool(normalizer.get(5, 1)),
        )

    def to_bytes(self) -> bytes:
        """The content of a .spm file with this model."""
        numbers, ids = (
            {name: number for number, name in _KINDS.items()},
            {p: i for i, p in enumerate(self.pieces)},
        )
        trainer = [
            (3, numbers[self.kind]),
            (24, int(self.suffix)),
            (35, int(self.bytewise)),
            (40, self.types.index(UNKNOWN)),
            *((number, ids.get(name, -1)) for number, name in _SPECIAL_FIELDS.items()),
        ]
        normalizer: list[tuple[int, int | bytes]] = [
            (1, b"identity" if not self.rules else b"own"),
            (2, self.rules),
            (3, int(self.lead)),
            (4, int(self.tidy)),
            (5, int(self.escape)),
        ]
        parts = [
            write_field(
                1, write_field(1, piece.encode()) + write_field(2, score) + write_field(3, kind)
            )
            for piece, score, kind in zip(self.pieces, self.scores, self.types, strict=True)
        ]
        parts.append(write_field(2, b"".join(write_field(*field) for field in trainer)))
        parts.append(write_field(3, b"".join(write_field(*field) for field in normalizer)))
        return b"".join(parts)

    def cut(self, text: str) -> list[str]:
        """Encode a text into pieces; unknown characters in a row are one piece, or their bytes if `bytewise`."""
        out: list[str] = []
        after_unknown = False
        for piece, known in self._segment(self.normalise(text)):
            if known:
                out.append(piece)
            elif self.bytewise:
                out += [f"<0x{byte:02X}>" for byte in piece.encode()]
            elif after_unknown:
                out[-1] += piece
            else:
                out.append(piece)
            after_unknown = not known
        return out

    def normalise(self, text: str) -> str:
        """The text that is cut into pieces, its spaces written as U+2581."""
        return self._normaliser(text)

    def text(self, pieces: list[str]) -> str:
        """Decode pieces into a text, as the library does; control pieces and the unknown piece give no text.

        Spaces are dropped at the beginning only: the one that `lead` added, or with `tidy` all of them.
        """
        out: list[str] = []
        run = bytearray()  # of byte pieces, which may share characters
        dropping = self.lead or self.tidy
        for piece in pieces:
            kind = self._types.get(piece, NORMAL)
            if kind == BYTE:
                run.append(int(piece[3:5], 16))
                continue
            if run:
                out.append(_from_utf8(run))
                run.clear()
            if kind in (CONTROL, UNKNOWN):
                continue
            dropping = dropping and not out
            if dropping and piece.startswith(SPACE):
                piece, dropping = piece[1:], self.tidy
            if piece:
                out.append(piece.replace(SPACE, " "))
        return "".join([*out, _from_utf8(run)])

    @cached_property
    def _types(self) -> dict[str, int]:
        return dict(zip(self.pieces, self.types, strict=True))

    @cached_property
    def _normaliser(self) -> Normaliser:
        defined = [piece for piece, kind in self._types.items() if kind == DEFINED]
        return Normaliser(
            self.rules,
            defined,
            lead=self.lead,
            tidy=self.tidy,
            escape=self.escape,
            suffix=self.suffix,
        )

    @cached_property
    def _segment(self) -> Unigram | BytePairs:
        return _SEGMENTERS[self.kind](zip(self.pieces, self.scores, self.types, strict=True))


def _from_utf8(data: bytes | bytearray) -> str:
    """The text of bytes; each byte that is part of no character becomes U+FFFD."""
    return re.sub("[\udc80-\udcff]", "\ufffd", bytes(data).decode("utf-8", "surrogateescape"))
