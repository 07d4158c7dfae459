"""SentencePiece models (Kudo and Richardson 2018): their files, a text into pieces, and pieces back into a text.

A text is normalised (rules of the model, spaces written as U+2581) and then cut: into the most probable pieces
(unigram, Kudo 2018) or by merging neighbours (bpe, Sennrich et al. 2016).

Done here and not by the sentencepiece library: models in GGUF files have no file that it could read, saving a model
needs the file format anyway, and the library would be one more compiled dependency.
"""

from __future__ import annotations

import heapq
import re
import struct
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path

import numpy as np

from ..errors import InputError
from ..protobuf import as_bytes, read_fields, write_field

SPACE = "\u2581"  # how pieces write a space
# The types of pieces, by the numbers that a file gives them. DEFINED: added by the user, never split or normalised.
NORMAL, UNKNOWN, CONTROL, DEFINED, UNUSED, BYTE = range(1, 7)
_KINDS = {1: "unigram", 2: "bpe", 3: "word", 4: "char"}  # by the numbers of the file format
# where the library looks for its special ids
_SPECIAL_FIELDS = {41: "<s>", 42: "</s>", 43: "<pad>"}
_PENALTY = 10.0  # unigram: an unknown character scores this much below the least probable piece

Piece = tuple[str, float, int]  # its text, its score, its type


@dataclass(frozen=True, kw_only=True)
class SentencePieceModel:
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
        if self.kind not in ("unigram", "bpe"):
            raise InputError(
                f"a SentencePiece model of kind {self.kind!r}: expected unigram or bpe"
            )
        if self.types.count(UNKNOWN) != 1:
            raise InputError(
                f"a SentencePiece model with {self.types.count(UNKNOWN)} unknown pieces: expected one"
            )

    @classmethod
    def of(cls, data: bytes) -> SentencePieceModel:
        """Parse the content of a .spm file, or of a tokenizer.model: a protocol buffer."""
        try:
            return cls._parse(data)
        except (IndexError, struct.error, UnicodeDecodeError) as cause:
            reason = str(cause) or type(cause).__name__
            raise InputError(f"not a whole SentencePiece model ({reason})") from cause

    @classmethod
    def read(cls, path: str | Path) -> SentencePieceModel:
        """Read a .spm file, or a tokenizer.model."""
        try:
            return cls.of(Path(path).read_bytes())
        except ValueError as cause:
            raise InputError(f"{path}: {cause}") from cause

    @classmethod
    def _parse(cls, data: bytes) -> SentencePieceModel:
        pieces, scores, types = [], [], []
        trainer: dict[int, int | bytes] = {}
        normalizer: dict[int, int | bytes] = {}
        # Fields are known by number (sentencepiece_model.proto).
        for number, value in read_fields(data):
            if number == 1:
                # the text, the score and the type of a piece
                piece = dict(read_fields(as_bytes(value)))
                pieces.append(as_bytes(piece.get(1, b"")).decode())
                scores.append(struct.unpack("<f", as_bytes(piece.get(2, bytes(4))))[0])
                types.append(int(piece.get(3, NORMAL)))
            elif number == 2:
                # trainer_spec
                trainer = dict(read_fields(as_bytes(value)))
            elif number == 3:
                # normalizer_spec
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
            # a field that is missing has the default of the format
            suffix=bool(trainer.get(24, 0)),
            bytewise=bool(trainer.get(35, 0)),
            rules=as_bytes(normalizer.get(2, b"")),
            lead=bool(normalizer.get(3, 1)),
            tidy=bool(normalizer.get(4, 1)),
            escape=bool(normalizer.get(5, 1)),
        )

    def to_bytes(self) -> bytes:
        """The content of a .spm file with this model."""
        numbers = {name: number for number, name in _KINDS.items()}
        ids = {piece: i for i, piece in enumerate(self.pieces)}
        trainer = [
            write_field(3, numbers[self.kind]),
            write_field(24, int(self.suffix)),
            write_field(35, int(self.bytewise)),
            write_field(40, self.types.index(UNKNOWN)),
        ]
        for number, name in _SPECIAL_FIELDS.items():
            # -1: the model has no such piece
            trainer.append(write_field(number, ids.get(name, -1)))
        rules = b"own" if self.rules else b"identity"
        normalizer = [
            write_field(1, rules),
            write_field(2, self.rules),
            write_field(3, int(self.lead)),
            write_field(4, int(self.tidy)),
            write_field(5, int(self.escape)),
        ]
        parts = []
        for piece, score, type_ in zip(self.pieces, self.scores, self.types, strict=True):
            fields = write_field(1, piece.encode()) + write_field(2, score) + write_field(3, type_)
            parts.append(write_field(1, fields))
        parts.append(write_field(2, b"".join(trainer)))
        parts.append(write_field(3, b"".join(normalizer)))
        return b"".join(parts)

    def cut(self, text: str) -> list[str]:
        """Encode a text into pieces; unknown characters in a row are one piece, or their bytes if `bytewise`."""
        out: list[str] = []
        after_unknown = False
        for piece, known in self._segment(self.normalise(text)):
            if known:
                out.append(piece)
            elif self.bytewise:
                # a piece for each byte of its UTF-8
                out += [f"<0x{byte:02X}>" for byte in piece.encode()]
            elif after_unknown:
                # a run of unknown characters is one unknown piece
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
            type_ = self._types.get(piece, NORMAL)
            if type_ == BYTE:
                run.append(int(piece[3:5], 16))  # <0xE2>
                continue
            if run:
                # a character ends with the byte pieces at the latest
                out.append(_from_utf8(run))
                run.clear()
            if type_ in (CONTROL, UNKNOWN):
                continue
            dropping = dropping and not out
            if dropping and piece.startswith(SPACE):
                # without `tidy` only the one space that `lead` added goes
                piece, dropping = piece[1:], self.tidy
            if piece:
                out.append(piece.replace(SPACE, " "))
        return "".join([*out, _from_utf8(run)])

    @cached_property
    def _types(self) -> dict[str, int]:
        return dict(zip(self.pieces, self.types, strict=True))

    @cached_property
    def _normaliser(self) -> _Normaliser:
        defined = [piece for piece, type_ in self._types.items() if type_ == DEFINED]
        return _Normaliser(self, defined)

    @cached_property
    def _segment(self) -> _Unigram | _BytePairs:
        pieces = list(zip(self.pieces, self.scores, self.types, strict=True))
        return _Unigram(pieces) if self.kind == "unigram" else _BytePairs(pieces)


def _from_utf8(data: bytes | bytearray) -> str:
    """The text of bytes; each byte that is part of no character becomes U+FFFD."""
    return re.sub("[\udc80-\udcff]", "\ufffd", bytes(data).decode("utf-8", "surrogateescape"))


class _Normaliser:
    """Replaces parts of a text by the rules of a model and writes its spaces as U+2581.

    Args:
        model: Its rules are a compiled table: the size in bytes of a trie, the trie, and the texts it points to.
        defined: Pieces added by the user, which no rule changes.
    """

    def __init__(self, model: SentencePieceModel, defined: Iterable[str]) -> None:
        self.lead, self.tidy, self.suffix = model.lead, model.tidy, model.suffix
        self.space = SPACE if model.escape else " "
        self._units: list[int] = []
        if model.rules:
            # the bytes of the trie, the trie itself, then the replacements
            size = struct.unpack_from("<I", model.rules)[0]
            self._units = np.frombuffer(model.rules, "<u4", size // 4, 4).tolist()
        self._texts = model.rules[4 + 4 * len(self._units) :]
        self._defined = frozenset(piece.encode() for piece in defined)
        self._lengths = sorted({len(piece) for piece in self._defined}, reverse=True)

    def __call__(self, text: str) -> str:
        """The normalised text."""
        parts = list(self._replaced(text))
        if not parts or (self.tidy and all(part == " " for part in parts)):
            return ""
        if self.tidy:
            parts = _without_extra_spaces(parts)
        if self.lead and not self.suffix:
            parts.insert(0, " ")
        text = "".join(parts).replace(" ", self.space)
        if self.tidy:
            text = text.rstrip(self.space)
        if self.lead and self.suffix:  # the space that `lead` adds is behind the text
            text += self.space
        return text

    def _replaced(self, text: str) -> Iterator[str]:
        """The text with its rules applied, part by part: the longest match is replaced, once."""
        data, at = text.encode(), 0
        while at < len(data):
            # pieces added by the user are kept as they are
            length = next((n for n in self._lengths if data[at : at + n] in self._defined), 0)
            if length:
                yield data[at : at + length].decode()
            else:
                length, new = self._rule(data, at)
                if not length:  # no rule: the character stays
                    length = _utf8_length(data[at])
                    new = data[at : at + length].decode()
                yield new
            at += length

    def _rule(self, data: bytes, at: int) -> tuple[int, str]:
        """The number of bytes that the longest rule at a position replaces (0: no rule), and the replacement.

        The trie is a double array (Aoe 1989): the unit of a child is at the exclusive or of its parent's offset and
        its byte. A unit has its byte in bits 0 to 7, whether a key ends there in bit 8, and its offset above, in
        steps of 256 if bit 9 is set; a key's value is in the unit at the offset itself.
        """
        units, length, value = self._units, 0, 0
        if not units:
            return 0, ""
        node = _offset(units[0])
        for i in range(at, len(data)):
            node ^= data[i]
            # not a child: another byte led to this unit, or it holds a value (bit 31)
            if node >= len(units) or units[node] & 0x800000FF != data[i]:
                break
            ends, node = units[node] >> 8 & 1, node ^ _offset(units[node])
            if ends:
                # the longest match so far; its replacement begins at this place in the texts
                length, value = i + 1 - at, units[node] & 0x7FFFFFFF
        if not length:
            return 0, ""
        return length, self._texts[value : self._texts.index(b"\0", value)].decode()


def _utf8_length(first: int) -> int:
    """The number of bytes of a character in UTF-8, by its first byte."""
    if first < 0x80:
        return 1
    if first < 0xE0:
        return 2
    if first < 0xF0:
        return 3
    return 4


def _without_extra_spaces(parts: Iterable[str]) -> list[str]:
    """The parts without spaces at the beginning of the text and after another space."""
    out, after_space = [], True
    for part in parts:
        if after_space:
            part = part.lstrip(" ")
        if part:
            after_space = part[-1] == " "
        out.append(part)
    return out


def _offset(unit: int) -> int:
    return unit >> 10 << ((unit & 0x200) >> 6)


class _Unigram:
    """Cuts a text by the Viterbi algorithm, where a piece's score is its log-probability.

    Sums are rounded to float32 as the library rounds them, so that near ties are cut alike.
    """

    def __init__(self, pieces: Iterable[Piece]) -> None:
        # The score of every piece that may be used; None for a text that only begins one.
        self._scores: dict[str, float | None] = {}
        normal = []
        for piece, score, type_ in pieces:
            if type_ == NORMAL:
                normal.append(score)
            if type_ in (NORMAL, DEFINED):
                # beginnings are in the table, too: the search stops where none goes on
                for end in range(1, len(piece)):
                    self._scores.setdefault(piece[:end], None)
                if type_ == DEFINED:
                    score = _defined_score(piece)
                self._scores[piece] = score
        self._unknown = float(np.float32(min(normal, default=0.0)) - np.float32(_PENALTY))

    def __call__(self, text: str) -> list[tuple[str, bool]]:
        """The pieces of a text, each with whether it is in the vocabulary."""
        scores, float32 = self._scores, np.float32
        # of the best way to each position: its score, and where its last piece begins (-1: there is none yet)
        best, origin = [0.0] * (len(text) + 1), [0] + [-1] * len(text)
        for at in range(len(text)):
            here, is_known, end = best[at], False, at + 1
            while True:
                piece = text[at:end]
                if end > len(text) or piece not in scores:  # no piece begins like this
                    break
                score = scores[piece]
                if score is not None:
                    total = float(float32(here + score))
                    # of equal ways the first one stays, which has the longest last piece
                    if origin[end] < 0 or total > best[end]:
                        best[end], origin[end] = total, at
                    # the character by itself is a piece
                    is_known = is_known or end == at + 1
                end += 1
            if not is_known:  # the character itself is unknown
                total = float(float32(here + self._unknown))
                if origin[at + 1] < 0 or total > best[at + 1]:
                    best[at + 1], origin[at + 1] = total, at
        # back along the best way
        pieces, end = [], len(text)
        while end:
            piece = text[origin[end] : end]
            pieces.append((piece, scores.get(piece) is not None))
            end = origin[end]
        return pieces[::-1]


def _defined_score(piece: str) -> float:
    """The score of a piece added by the user: above every log-probability, and higher for a longer piece."""
    return float(np.float32(0.1 * (len(piece.encode()) - 1)))


class _BytePairs:
    """Cuts a text by merging neighbours into the piece with the highest score; of equals, the leftmost.

    UNUSED pieces only lead to larger pieces: one that remains is split again.
    """

    def __init__(self, pieces: Iterable[Piece]) -> None:
        pieces = list(pieces)
        mergeable = (NORMAL, DEFINED, UNUSED)
        self._scores = {piece: score for piece, score, type_ in pieces if type_ in mergeable}
        self._unused = frozenset(piece for piece, _, type_ in pieces if type_ == UNUSED)
        self._defined = frozenset(piece for piece, _, type_ in pieces if type_ == DEFINED)
        self._lengths = sorted({len(piece) for piece in self._defined}, reverse=True)

    def __call__(self, text: str) -> list[tuple[str, bool]]:
        """The pieces of a text, each with whether it is in the vocabulary."""
        symbols, is_whole = self._symbols(text)
        # the neighbours of each symbol; -1: none. A symbol that was merged into its left neighbour is "".
        before, after = list(range(-1, len(symbols) - 1)), [*range(1, len(symbols)), -1]
        queue: list[tuple[float, int, int, str]] = []
        halves: dict[str, tuple[str, str]] = {}  # what each unused piece was merged from

        def offer(left: int, right: int) -> None:
            # the end of the text, or a piece of the user's, which is never merged
            if left < 0 or right < 0 or is_whole[left] or is_whole[right]:
                return
            piece = symbols[left] + symbols[right]
            score = self._scores.get(piece)
            if score is not None:
                # the smallest is popped first: the highest score, and of equals the leftmost
                heapq.heappush(queue, (-score, left, right, piece))
                if piece in self._unused:
                    halves[piece] = symbols[left], symbols[right]

        for i in range(len(symbols) - 1):
            offer(i, i + 1)
        while queue:
            _, left, right, piece = heapq.heappop(queue)
            is_gone = not symbols[left] or not symbols[right]
            if is_gone or len(symbols[left]) + len(symbols[right]) != len(piece):
                continue  # one of them has been merged with another neighbour
            symbols[left], symbols[right] = piece, ""
            after[left] = after[right]
            if after[left] >= 0:
                before[after[left]] = left
            # the merged symbol makes new pairs with its neighbours
            offer(before[left], left)
            offer(left, after[left])
        return self._split_unused(symbols, halves)

    def _symbols(self, text: str) -> tuple[list[str], list[bool]]:
        """The characters of a text, pieces added by the user in one; and which symbols those are."""
        symbols, is_whole, at = [], [], 0
        while at < len(text):
            length = next((n for n in self._lengths if text[at : at + n] in self._defined), 0)
            symbols.append(text[at : at + (length or 1)])
            is_whole.append(length > 0)
            at += length or 1
        return symbols, is_whole

    def _split_unused(
        self, symbols: list[str], halves: dict[str, tuple[str, str]]
    ) -> list[tuple[str, bool]]:
        out: list[tuple[str, bool]] = []
        stack = [symbol for symbol in reversed(symbols) if symbol]
        while stack:
            piece = stack.pop()
            if piece in halves:
                stack += halves[piece][::-1]  # the left half is on top, and comes out first
            else:
                out.append((piece, piece in self._scores))
        return out
