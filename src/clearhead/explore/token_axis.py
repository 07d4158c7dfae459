"""Axis: the tokens along one side of an attention map, with readable names, special tokens, words and image patches."""

from __future__ import annotations

import re
import unicodedata
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np

from ..data.text_rows import MASKS
from ..tokens import Tokenizer

_BYTE = re.compile(r"<(?:0x)?([0-9A-Fa-f]{2})>")  # how tokenizers name a byte that is part of no character


@dataclass(frozen=True, kw_only=True, eq=False)
class Axis:
    """The tokens of a map's queries or keys: their names, and how they are arranged."""

    names: list[str]  # one per token
    special: list[int] = field(default_factory=list)  # indices of special tokens: start, end, padding, mask
    grid: tuple[int, int] | None = None  # height and width, if the other tokens are patches of an image, row by row
    words: list[list[int]] | None = None  # token indices of each word
    word_names: list[str] | None = None  # one per word

    def __len__(self) -> int:
        return len(self.names)

    def to_dict(self) -> dict[str, Any]:
        """Plain values, for JSON."""
        return {"names": self.names, "special": self.special, "grid": self.grid}


def text_axis(
    tokens: Tokenizer, ids: Sequence[int], words: list[list[int]] | None = None, mask: int | None = None
) -> Axis:
    """The axis of a text's tokens.

    Args:
        tokens: The tokenizer.
        ids: The tokens of the text.
        words: The token indices of each word, if maps can be joined by word.
        mask: The id of the mask token, which may follow the tokenizer's own ids.
    """
    ids = [int(i) for i in ids]
    names, special = token_names(tokens, ids), special_ids(tokens) | {mask}
    if mask is not None and mask >= len(tokens):
        names = [MASKS[0] if i == mask else name for i, name in zip(ids, names, strict=True)]
    return Axis(
        names=names, special=[at for at, i in enumerate(ids) if i in special], words=words,
        word_names=None if words is None else [_word_name(tokens, names, ids, word) for word in words],
    )  # fmt: skip


def special_ids(tokens: Tokenizer) -> frozenset[int]:
    """The ids of a tokenizer's special tokens; <unk> is not one of them, because it stands for a part of the text."""
    named = {tokens.pad, tokens.start, tokens.end, *tokens.special_names.values()}
    return frozenset(int(i) for i in named if i is not None and i != tokens.unknown)


def token_names(tokens: Tokenizer, ids: Sequence[int]) -> list[str]:
    """The text of each token in visible characters.

    The bytes of an incomplete character are written as ⟨F0⟩, invisible characters by their code points as ⟨U+200B⟩, and
    an id without a text as ⟨id 7⟩. White space stays as it is.
    """
    numbers, size = [int(i) for i in ids], len(tokens)
    if max(numbers, default=0) >= size:  # a model may have more embeddings than there are tokens
        return [token_names(tokens, [i])[0] if i < size else f"⟨id {i}⟩" for i in numbers]
    pieces = tokens.pieces(np.array(numbers, np.int64))
    return [_visible(tokens, i, piece) for i, piece in zip(numbers, pieces, strict=True)]


def spaces_before(tokens: Tokenizer, ids: Sequence[int]) -> list[int]:
    """The indices of tokens that follow a space which no token holds, as between the ids of whole words."""
    numbers, found, end = [int(i) for i in ids], [], 0
    if max(numbers, default=0) >= len(tokens):
        return []
    row = np.array(numbers, np.int64)
    text, special = tokens.decode(row), special_ids(tokens)
    for at, piece in enumerate(tokens.pieces(row)):
        if numbers[at] in special:
            continue
        if text.startswith(f" {piece}", end):
            found.append(at)
            end += 1
        elif not text.startswith(piece, end):
            return []  # tokens that are parts of characters, or that hold their spaces
        end += len(piece)
    return found


def _visible(tokens: Tokenizer, i: int, piece: str) -> str:
    if piece.isascii() and piece.isprintable() and "<" not in piece and piece:
        return piece
    if not piece:
        return f"⟨id {i}⟩"
    # A piece may also be the text "<dd>": only bytes that are no character decode to U+FFFD.
    if _BYTE.search(piece) and "\ufffd" in tokens.decode([i]):
        return _BYTE.sub(lambda match: f"⟨{match[1].upper()}⟩", piece)
    if all(_is_invisible(c) for c in piece):
        return "".join(f"⟨U+{ord(c):04X}⟩" for c in piece)
    text = piece.lstrip(" ")
    if text and unicodedata.category(text[0]).startswith("M"):  # a combining mark without its letter
        return piece[: len(piece) - len(text)] + "◌" + text
    return piece


def _is_invisible(c: str) -> bool:
    return unicodedata.category(c) in ("Cc", "Cf", "Cn", "Co", "Cs") and c not in "\n\t"


def _word_name(tokens: Tokenizer, names: list[str], ids: list[int], word: list[int]) -> str:
    joined = "".join(names[at] for at in word).strip()
    if "⟨" not in joined:
        return joined
    return tokens.decode([ids[at] for at in word]).strip() or joined  # bytes that make up whole characters
