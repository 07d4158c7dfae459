"""Pair: the tokenizers of a translation."""

from __future__ import annotations

import json
from dataclasses import dataclass
from typing import ClassVar

import numpy as np
from jaxtyping import Int

from ..errors import InputError
from .pieces import Pieces
from .tokenizer import Tokenizer


@dataclass(frozen=True)
class Pair:
    """The tokenizers of a translation's source and target.

    Args:
        source: The tokenizer of the text that the encoder reads.
        target: The tokenizer of the text that the decoder writes; if it equals `source`, both sides may share one
            embedding table.
        before: The id of a source's language, which it begins with, or ends with after <end> if its tokenizer puts
            that there (mBART); None: what its tokenizer puts there.

    Raises:
        InputError: One of them has no `pad` or no `end`.

    Examples:
        >>> pair = Pair(Words(["a", "dog"]), Words(["ein", "Hund"]))
        >>> pair.read("a dog").tolist(), pair.written("ein Hund").tolist()
        ([4, 5, 2], [4, 5, 2])
        >>> pair.joint
        False
    """

    kind: ClassVar[str] = "pair"  # its name in tokens.json
    file: ClassVar[str] = "tokens.json"  # names the file of each side
    source: Tokenizer
    target: Tokenizer
    before: int | None = None

    def __post_init__(self) -> None:
        for side, tokens in self._sides.items():
            if tokens.pad is None or tokens.end is None:
                raise InputError(
                    f"the {side} tokens, {tokens!r}, have no <pad> and <end>: a translation needs them"
                )

    @property
    def joint(self) -> bool:
        """Whether both sides have the same tokens."""
        return self.source is self.target or self.source == self.target

    @property
    def same_ids(self) -> bool:
        """Whether an id means the same token on both sides, even if each splits text in its own way, as in Marian."""
        one, other = self.source, self.target
        return self.joint or (
            isinstance(one, Pieces) and isinstance(other, Pieces) and one.vocab == other.vocab
        )

    def read(self, text: str) -> Int[np.ndarray, "s"]:
        """Encode a source text for the encoder, with <end>, and with what its tokenizer puts around a text."""
        end = self.source.end or 0
        if self.before is not None:
            ids, around = self.source.encode(text).tolist(), self.source.wrapped("").tolist()
            is_last = len(around) > 1 and around[0] == end  # </s> language, as in mBART
            row = [*ids, end, self.before] if is_last else [self.before, *ids, end]
            return np.array(row, np.int64)
        # an M2M-100 puts its language before the text, an mBART behind </s>
        ids = self.source.wrapped(text)
        if end in ids:
            return ids
        return np.append(ids, np.int64(end))

    def written(self, text: str) -> Int[np.ndarray, "t"]:
        """Encode a target text as the decoder should write it, with <end>."""
        return np.append(self.target.encode(text), np.int64(self.target.end or 0))

    def files(self) -> dict[str, bytes]:
        """The content of every file that `save` writes, by name; `load` begins with the last."""
        names = {side: f"{side}.{tokens.file}" for side, tokens in self._sides.items()}
        if self.joint:
            file = self.source.file
            if file == self.file:
                # tokens.json is the pair's own file
                file = f"both.{file}"
            names = dict.fromkeys(names, file)
        files = {names[side]: tokens.content() for side, tokens in self._sides.items()}
        return files | {self.file: (json.dumps({"kind": self.kind, **names}) + "\n").encode()}

    @property
    def _sides(self) -> dict[str, Tokenizer]:
        return {"source": self.source, "target": self.target}
