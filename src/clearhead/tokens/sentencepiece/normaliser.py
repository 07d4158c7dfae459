"""Normaliser: what SentencePiece does to a text before it is encoded."""

from __future__ import annotations

import struct
from collections.abc import Iterable, Iterator

import numpy as np

from .kinds import SPACE


class Normaliser:
    """Replaces parts of a text by the rules of a model and writes its spaces as U+2581.

    Args:
        rules: A compiled table: the size in bytes of a trie, the trie, and the texts it points to. Empty: no rules.
        defined: Pieces added by the user, which no rule changes.
        lead: Add a space before a text (after it, with `suffix`).
        tidy: Remove spaces at both ends, and all but one of several spaces.
        escape: Write spaces as U+2581.
        suffix: A space belongs to the word before it.
    """

    def __init__(
        self,
        rules: bytes,
        defined: Iterable[str],
        *,
        lead: bool,
        tidy: bool,
        escape: bool,
        suffix: bool,
    ) -> None:
        self.lead, self.tidy, self.suffix = lead, tidy, suffix
        self.space = SPACE if escape else " "
        size = struct.unpack_from("<I", rules)[0] if rules else 0
        self._units: list[int] = np.frombuffer(rules, "<u4", size // 4, 4).tolist() if size else []
        self._texts = rules[4 + 4 * len(self._units) :]
        self._defined = frozenset(piece.encode() for piece in defined)
        self._lengths = sorted({len(piece) for piece in self._defined}, reverse=True)

    def __call__(self, text: str) -> str:
        """The normalised text."""
        parts = list(self._replaced(text))
        if not parts or (self.tidy and all(part == " " for part in parts)):
            return ""
        if self.tidy:
            parts = _without_extra_spaces(parts)
        text = "".join([" ", *parts] if self.lead and not self.suffix else parts).replace(
            " ", self.space
        )
        if self.tidy:
            text = text.rstrip(self.space)
        if self.lead and self.suffix:
            return text + self.space
        return text

    def _replaced(self, text: str) -> Iterator[str]:
        """The text with its rules applied, part by part: the longest match is replaced, once."""
        data, at = text.encode(), 0
        while at < len(data):
            length = next((n for n in self._lengths if data[at : at + n] in self._defined), 0)
            if length:
                yield data[at : at + length].decode()
            else:
                length, new = self._rule(data, at)
                if not length:
                    first = data[at]
                    if first < 0x80:
                        length = 1
                    elif first < 0xE0:
                        length = 2
                    elif first < 0xF0:
                        length = 3
                    else:
                        length = 4
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
            if node >= len(units) or units[node] & 0x800000FF != data[i]:
                break
            ends, node = units[node] >> 8 & 1, node ^ _offset(units[node])
            if ends:
                length, value = i + 1 - at, units[node] & 0x7FFFFFFF
        if not length:
            return 0, ""
        return length, self._texts[value : self._texts.index(b"\0", value)].decode()


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
