"""SentencePiece's models (Kudo and Richardson 2018), read and run without its library: a .spm file's pieces of text.

unigram   the most probable way to cut a text into pieces (Kudo 2018)
bpe       of all neighbours that make a piece the best are joined, until none do (Sennrich et al. 2016)

A text is first normalised by the rules that the file carries, and its spaces are written as U+2581. Sums are rounded
as the library rounds them, so that near ties are cut alike.
"""

from __future__ import annotations

import heapq
import struct
from collections.abc import Iterator
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path

import numpy as np

from ..errors import InputError
from ..protobuf import as_bytes, read_fields, write_field

SPACE = "\u2581"
NORMAL, UNKNOWN, CONTROL, DEFINED, UNUSED, BYTE = range(1, 7)  # what a piece may be
KINDS = {1: "unigram", 2: "bpe", 3: "word", 4: "char"}
_PENALTY = 10.0  # an unknown character is so much less probable than the least probable piece


@dataclass(frozen=True, kw_only=True)
class Model:
    """What a file says; the defaults are those of its format."""

    pieces: tuple[str, ...]
    scores: tuple[float, ...]  # logarithms of probabilities (unigram), or the order of joining (bpe)
    types: tuple[int, ...]
    kind: str = "unigram"
    suffix: bool = False  # a space belongs to the word before it
    bytewise: bool = False  # what is unknown is written as bytes
    rules: bytes = b""  # of normalising: a trie of what is replaced, and what it is replaced by
    lead: bool = True  # a space is put before a text
    tidy: bool = True  # spaces at the ends, and all but one in a row, are left out
    escape: bool = True  # spaces are written as U+2581

    def __post_init__(self) -> None:
        if self.kind not in ("unigram", "bpe"):
            raise InputError(f"a SentencePiece model of kind {self.kind!r}: expected unigram or bpe")
        if self.types.count(UNKNOWN) != 1:
            raise InputError(f"a SentencePiece model with {self.types.count(UNKNOWN)} unknown pieces: expected one")

    @classmethod
    def of(cls, data: bytes) -> Model:
        """The content of a .spm file, or a tokenizer.model: a protocol buffer."""
        try:
            return cls._of(data)
        except (IndexError, struct.error, UnicodeDecodeError) as cause:
            raise InputError(f"not a whole SentencePiece model ({cause or type(cause).__name__})") from cause

    @classmethod
    def read(cls, path: str | Path) -> Model:
        """A file."""
        try:
            return cls.of(Path(path).read_bytes())
        except ValueError as cause:
            raise InputError(f"{path}: {cause}") from cause

    @classmethod
    def _of(cls, data: bytes) -> Model:
        pieces, scores, types = [], [], []
        trainer: dict[int, int | bytes] = {}
        normalizer: dict[int, int | bytes] = {}
        for number, value in read_fields(data):
            if number == 1:
                one = dict(read_fields(as_bytes(value)))
                pieces.append(as_bytes(one.get(1, b"")).decode())
                scores.append(struct.unpack("<f", as_bytes(one.get(2, bytes(4))))[0])
                types.append(int(one.get(3, NORMAL)))
            elif number == 2:
                trainer = dict(read_fields(as_bytes(value)))
            elif number == 3:
                normalizer = dict(read_fields(as_bytes(value)))
            elif number == 5 and dict(read_fields(as_bytes(value))).get(2):
                raise InputError("a SentencePiece model with rules for what it writes: expected none")
        if not pieces:
            raise InputError("not a SentencePiece model: there are no pieces")
        return cls(
            pieces=tuple(pieces), scores=tuple(scores), types=tuple(types), kind=KINDS[int(trainer.get(3, 1))],
            suffix=bool(trainer.get(24, 0)), bytewise=bool(trainer.get(35, 0)), rules=as_bytes(normalizer.get(2, b"")),
            lead=bool(normalizer.get(3, 1)), tidy=bool(normalizer.get(4, 1)), escape=bool(normalizer.get(5, 1)),
        )  # fmt: skip

    def to_bytes(self) -> bytes:
        """A file that says the same."""
        kinds = {name: number for number, name in KINDS.items()}
        trainer = [(3, kinds[self.kind]), (24, int(self.suffix)), (35, int(self.bytewise))]
        special = {40: "<unk>", 41: "<s>", 42: "</s>", 43: "<pad>"}  # where the library looks for its special ids
        places = {piece: i for i, piece in enumerate(self.pieces)}
        trainer += [(40, self.types.index(UNKNOWN))]
        trainer += [(number, places.get(name, -1)) for number, name in special.items() if number > 40]
        normalizer: list[tuple[int, int | bytes]] = [
            (1, b"identity" if not self.rules else b"own"), (2, self.rules), (3, int(self.lead)), (4, int(self.tidy)),
            (5, int(self.escape)),
        ]  # fmt: skip
        parts = [
            write_field(1, write_field(1, piece.encode()) + write_field(2, score) + write_field(3, kind))
            for piece, score, kind in zip(self.pieces, self.scores, self.types, strict=True)
        ]
        return b"".join(
            [
                *parts,
                write_field(2, b"".join(write_field(*f) for f in trainer)),
                write_field(3, b"".join(write_field(*f) for f in normalizer)),
            ]
        )

    def cut(self, text: str) -> list[str]:
        """The pieces of a text; what is unknown is one piece as far as it goes, or its bytes."""
        text = self.normalise(text)
        found = self._likeliest(text) if self.kind == "unigram" else self._joined(text)
        out: list[str] = []
        fresh = True  # the next unknown character begins a piece
        for piece, known in found:
            if known or fresh or self.bytewise:
                out += [piece] if known or not self.bytewise else [f"<0x{byte:02X}>" for byte in piece.encode()]
            else:
                out[-1] += piece
            fresh = known
        return out

    def normalise(self, text: str) -> str:
        """The text that is cut."""
        parts = list(self._replaced(text))
        if not parts or (self.tidy and all(part == " " for part in parts)):
            return ""
        if self.tidy:
            tidied, after_space = [], True
            for part in parts:
                part = part.lstrip(" ") if after_space else part
                after_space = part[-1] == " " if part else after_space
                tidied.append(part)
            parts = tidied
        text = "".join([" ", *parts] if self.lead and not self.suffix else parts)
        text = text.replace(" ", SPACE) if self.escape else text
        space = SPACE if self.escape else " "
        text = text.rstrip(space) if self.tidy else text
        return text + space if self.lead and self.suffix else text

    def _replaced(self, text: str) -> Iterator[str]:
        """The text as its rules have it, part by part: the longest that has a rule is replaced, one time."""
        data, at = text.encode(), 0
        while at < len(data):
            for length in self._lengths:  # what a user defined is left alone
                if data[at : at + length] in self._defined:
                    yield data[at : at + length].decode()
                    at += length
                    break
            else:
                length, new = self._rule(data, at)
                if not length:
                    first = data[at]
                    length = 1 if first < 0x80 else 2 if first < 0xE0 else 3 if first < 0xF0 else 4
                    new = data[at : at + length].decode()
                yield new
                at += length

    def _rule(self, data: bytes, at: int) -> tuple[int, str]:
        """How many bytes the longest rule at a place takes, 0 if there is none, and what it makes of them.

        The trie is a double array (Aoe 1989): the unit of a child is at the exclusive or of its parent's offset and
        its byte. A unit has its byte in bits 0 to 7, whether a key ends there in bit 8, and its offset above, in
        steps of 256 if bit 9 is set; a key's value is in the unit at the offset itself.
        """
        units, length, value = self._trie, 0, 0
        if not len(units):
            return 0, ""
        node = _offset(units[0])
        for i in range(at, len(data)):
            node ^= data[i]
            if node >= len(units) or units[node] & 0x800000FF != data[i]:
                break
            ends, node = units[node] >> 8 & 1, node ^ _offset(units[node])
            if ends:
                length, value = i + 1 - at, units[node] & 0x7FFFFFFF
        if not length:
            return 0, ""
        return length, self._texts[value : self._texts.index(b"\0", value)].decode()

    def _likeliest(self, text: str) -> list[tuple[str, bool]]:
        """Viterbi's way through all pieces, from the left; which of them are known."""
        known, single = self._known, np.float32
        total, before = [0.0] + [0.0] * len(text), [0] + [-1] * len(text)
        for at in range(len(text)):
            here, one, end = total[at], False, at + 1
            while True:
                piece = text[at:end]
                if end > len(text) or piece not in known:  # nothing begins so
                    break
                score = known[piece]
                if score is not None:
                    reached = float(single(here + score))
                    if before[end] < 0 or reached > total[end]:
                        total[end], before[end] = reached, at
                    one = one or end == at + 1
                end += 1
            if not one:
                reached = float(single(here + self._unknown))
                if before[at + 1] < 0 or reached > total[at + 1]:
                    total[at + 1], before[at + 1] = reached, at
        found, end = [], len(text)
        while end:
            piece = text[before[end] : end]
            found.append((piece, known.get(piece) is not None))
            end = before[end]
        return found[::-1]

    def _joined(self, text: str) -> list[tuple[str, bool]]:
        """Neighbours joined, the best first and of equals the leftmost; which of the pieces are known."""
        parts, at = [], 0
        frozen = []
        while at < len(text):
            whole = next((n for n in self._widths if text[at : at + n] in self._marks), 0)
            parts.append(text[at : at + (whole or 1)])
            frozen.append(whole > 0)
            at += whole or 1
        before, after = list(range(-1, len(parts) - 1)), [*range(1, len(parts)), -1]
        after = after if parts else []
        waiting: list[tuple[float, int, int, str]] = []
        source: dict[str, tuple[str, str]] = {}  # what pieces that are out of use were made of

        def offer(left: int, right: int) -> None:
            if left < 0 or right < 0 or frozen[left] or frozen[right]:
                return
            piece = parts[left] + parts[right]
            found = self._ranks.get(piece)
            if found is not None:
                heapq.heappush(waiting, (-found[0], left, right, piece))
                if found[1]:
                    source[piece] = parts[left], parts[right]

        for i in range(len(parts) - 1):
            offer(i, i + 1)
        while waiting:
            _, left, right, piece = heapq.heappop(waiting)
            if not parts[left] or not parts[right] or len(parts[left]) + len(parts[right]) != len(piece):
                continue  # one of them was joined to another since
            parts[left], parts[right] = piece, ""
            after[left] = after[right]
            if after[left] >= 0:
                before[after[left]] = left
            offer(before[left], left)
            offer(left, after[left])
        out: list[tuple[str, bool]] = []
        stack = [part for part in reversed(parts) if part]
        while stack:
            piece = stack.pop()
            if piece in source:
                stack += source[piece][::-1]
            else:
                out.append((piece, piece in self._ranks))
        return out

    def text(self, pieces: list[str]) -> str:
        """The text that pieces make; control pieces are none of it."""
        out: list[bytes] = []
        for piece in pieces:
            kind = self._kinds.get(piece, NORMAL)
            if kind == BYTE:
                out.append(bytes([int(piece[3:5], 16)]))
            elif kind not in (CONTROL, UNKNOWN):
                out.append(piece.encode())
        text = b"".join(out).decode("utf-8", "replace").replace(SPACE, " ")
        if self.tidy:
            return text.strip()
        return text.removesuffix(" ") if self.suffix and self.lead else text.removeprefix(" ") if self.lead else text

    @cached_property
    def _kinds(self) -> dict[str, int]:
        return dict(zip(self.pieces, self.types, strict=True))

    @cached_property
    def _marks(self) -> frozenset[str]:
        return frozenset(piece for piece, kind in self._kinds.items() if kind == DEFINED)

    @cached_property
    def _widths(self) -> list[int]:
        return sorted({len(piece) for piece in self._marks}, reverse=True)

    @cached_property
    def _defined(self) -> frozenset[bytes]:
        return frozenset(piece.encode() for piece in self._marks)

    @cached_property
    def _lengths(self) -> list[int]:
        return sorted({len(piece) for piece in self._defined}, reverse=True)

    @cached_property
    def _unknown(self) -> float:
        normal = [score for score, kind in zip(self.scores, self.types, strict=True) if kind == NORMAL]
        return float(np.float32(min(normal, default=0.0)) - np.float32(_PENALTY))

    @cached_property
    def _known(self) -> dict[str, float | None]:
        """The score of every piece that may be taken; None for what only begins one."""
        found: dict[str, float | None] = {}
        for piece, score, kind in zip(self.pieces, self.scores, self.types, strict=True):
            if kind in (NORMAL, DEFINED):
                for end in range(1, len(piece)):
                    found.setdefault(piece[:end], None)
                found[piece] = _bonus(piece) if kind == DEFINED else score
        return found

    @cached_property
    def _ranks(self) -> dict[str, tuple[float, bool]]:
        """The score of every piece that neighbours may make, and whether it is out of use."""
        all_of = zip(self.pieces, self.scores, self.types, strict=True)
        return {piece: (score, kind == UNUSED) for piece, score, kind in all_of if kind in (NORMAL, DEFINED, UNUSED)}

    @cached_property
    def _trie(self) -> list[int]:
        size = struct.unpack_from("<I", self.rules)[0] if self.rules else 0
        return np.frombuffer(self.rules, "<u4", size // 4, 4).tolist() if size else []

    @cached_property
    def _texts(self) -> bytes:
        return self.rules[4 + 4 * len(self._trie) :]


def _bonus(piece: str) -> float:
    """The score of what a user defined: above that of any probability, and the longer the better."""
    return float(np.float32(0.1 * (len(piece.encode()) - 1)))


def _offset(unit: int) -> int:
    return unit >> 10 << ((unit & 0x200) >> 6)
