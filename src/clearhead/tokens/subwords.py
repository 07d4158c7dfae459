"""Subwords: frequent pieces of words, down to single bytes, learned from text by the tokenizers library.

bpe       byte pair encoding (Sennrich et al. 2016) on bytes (Radford et al. 2019): the most frequent pair is merged
unigram   a language model of pieces (Kudo 2018), on the same bytes: the most probable way to cut a word

Bytes make both lossless: decode(encode(text)) == text for every text, whatever they were learned from.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Sequence
from functools import cached_property
from itertools import pairwise
from pathlib import Path
from typing import Any

import numpy as np
from jaxtyping import Int
from tokenizers import Tokenizer as Backend
from tokenizers import decoders, models, normalizers, pre_tokenizers, trainers

from ..errors import InputError
from .ids import NAMES, SPECIAL, UNKNOWN, Ids, as_row, checked, words_of
from .tokenizer import Tokenizer

_BYTES = 256


class Subwords(Tokenizer):
    """A tokenizer.json, ours or another's. What looks like a special token in a text is text like any other."""

    kind = "subwords"

    def __init__(self, content: str) -> None:
        try:
            self._tokenizer = Backend.from_str(content)
        except Exception as cause:  # the library raises this very class
            raise InputError(f"not a tokenizer: {cause}") from cause
        self._tokenizer.no_truncation()
        self._tokenizer.no_padding()
        self._tokenizer.encode_special_tokens = True
        known = self._tokenizer.get_vocab(with_added_tokens=True)
        self._size = max(known.values(), default=-1) + 1
        self.pad, self.start, self.end, self.unknown = (
            next((known[name] for name in names if name in known), None) for names in NAMES.values()
        )
        added = self._tokenizer.get_added_tokens_decoder()
        self._special = frozenset(i for i, token in added.items() if token.special)

    @classmethod
    def of(
        cls, texts: Iterable[str], *, size: int = 8000, kind: str = "bpe", lower: bool = False, minimum: int = 2
    ) -> Subwords:
        """Learn `size` pieces at most, the special ones and the bytes among them; the same texts give the same.

        `minimum` is how often a pair must stand in the texts to be merged (bpe). With `lower`, case is gone.
        """
        if kind not in ("bpe", "unigram"):
            raise InputError(f"kind={kind!r}: expected bpe or unigram")
        if size < _BYTES + len(SPECIAL):
            raise InputError(f"size={size}: expected {_BYTES + len(SPECIAL)} or more, the bytes and the special ids")
        if minimum < 1:
            raise InputError(f"minimum={minimum}: expected 1 or more")
        if isinstance(texts, str):
            raise InputError(f"expected several texts, got one: {texts[:40]!r}")
        texts = [checked(text) for text in texts]
        settings: dict[str, Any] = {
            "vocab_size": size,
            "special_tokens": list(SPECIAL),
            "initial_alphabet": sorted(pre_tokenizers.ByteLevel.alphabet()),
            "show_progress": False,
        }
        learned = _bare(models.BPE() if kind == "bpe" else models.Unigram(), lower)
        if kind == "bpe":
            learned.train_from_iterator(texts, trainers.BpeTrainer(min_frequency=minimum, **settings))
            return cls(learned.to_str())
        if not any(text.strip() for text in texts):
            raise InputError("the texts are empty: unigram has nothing to learn pieces from")
        learned.train_from_iterator(texts, trainers.UnigramTrainer(unk_token=SPECIAL[UNKNOWN], **settings))
        same = _bare(models.Unigram(_in_order(json.loads(learned.to_str())["model"]["vocab"]), UNKNOWN), lower)
        same.add_special_tokens(list(SPECIAL))
        return cls(same.to_str())

    @classmethod
    def read(cls, path: str | Path) -> Subwords:
        """A tokenizer.json, whoever wrote it."""
        try:
            return cls(Path(path).read_text(encoding="utf-8"))
        except ValueError as cause:
            raise InputError(f"{path}: {cause}") from cause

    def encode(self, text: str) -> Int[np.ndarray, "t"]:
        """The ids of a text, without special ones."""
        return np.array(self._tokenizer.encode(checked(text), add_special_tokens=False).ids, np.int64)

    def wrapped(self, text: str) -> Int[np.ndarray, "t"]:
        """The ids of a text with the special ones that its model expects around it: [CLS] ... [SEP], <s> ..."""
        return np.array(self._tokenizer.encode(checked(text)).ids, np.int64)

    def marked(self, text: str) -> Int[np.ndarray, "t"]:
        """The ids of a text in which special tokens are written out, as a chat template does."""
        return np.array(self._marking.encode(checked(text), add_special_tokens=False).ids, np.int64)

    def encode_all(self, texts: Sequence[str]) -> list[np.ndarray]:
        """The ids of each of many texts, on all processors."""
        found = self._tokenizer.encode_batch_fast([checked(text) for text in texts], add_special_tokens=False)
        return [np.array(one.ids, np.int64) for one in found]

    def decode(self, ids: Ids) -> str:
        """The text of ids; special ids are left out, and half a character is shown as U+FFFD."""
        return str(self._tokenizer.decode(as_row(ids, len(self)).tolist(), skip_special_tokens=True))

    def pieces(self, ids: Ids) -> list[str]:
        """How each id looks, the special ones too: a space that begins a piece is kept, half a character is <c3>."""
        row = as_row(ids, len(self)).tolist()
        if not self._bytewise:
            return [self._name(i).replace("▁", " ") for i in row]
        return [self._name(i) if i in self._special else _look(self._raw(i)) for i in row]

    def words(self, given: str | Ids) -> list[int]:
        """For each id of a text, or each of given ids, the number of the word it begins in; -1 for none.

        The words are those of `split`: runs of letters and digits, and every other mark by itself.
        """
        row = self.encode(given) if isinstance(given, str) else as_row(given, len(self))
        if self._bytewise:
            parts = [b"" if i in self._special else self._raw(i) for i in row.tolist()]
            text = b"".join(parts).decode("utf-8", "surrogateescape")  # a byte that is no character stays one sign
            starts = np.cumsum([0, *(len(c.encode("utf-8", "surrogateescape")) for c in text)])
            ends = np.cumsum([len(part) for part in parts]).tolist()
            first = [
                int(np.searchsorted(starts, end - len(p), "right")) - 1 for p, end in zip(parts, ends, strict=True)
            ]
            last = [int(np.searchsorted(starts, end, "left")) for end in ends]
            spans = [(a, b if part else a) for part, a, b in zip(parts, first, last, strict=True)]
            return words_of(text, spans)
        looks = ["" if i in self._special else look for i, look in zip(row.tolist(), self.pieces(row), strict=True)]
        ends = np.cumsum([0, *map(len, looks)]).tolist()
        return words_of("".join(looks), list(pairwise(ends)))

    @property
    def special_names(self) -> dict[str, int]:
        return {self._name(i): i for i in sorted(self._special)}

    def content(self) -> bytes:
        return self.to_str().encode()

    def to_str(self) -> str:
        """The content of a tokenizer.json."""
        return str(self._tokenizer.to_str(pretty=True))

    def __len__(self) -> int:
        return self._size

    def __eq__(self, other: object) -> bool:
        return isinstance(other, Subwords) and self.to_str() == other.to_str()

    def __hash__(self) -> int:
        return hash(self.to_str())

    def __reduce__(self) -> tuple[Any, ...]:
        return Subwords, (self.to_str(),)

    def __repr__(self) -> str:
        return f"Subwords({len(self)}: {type(self._tokenizer.model).__name__})"

    @cached_property
    def _marking(self) -> Backend:
        """A second one: whether special tokens are seen in a text is a state of the library's object."""
        made = Backend.from_str(self.to_str())
        made.encode_special_tokens = False
        return made

    @cached_property
    def _bytewise(self) -> bool:
        return '"ByteLevel"' in json.dumps(json.loads(self.to_str())["decoder"])

    def _name(self, i: int) -> str:
        return self._tokenizer.id_to_token(i) or ""  # a foreign vocabulary may have gaps

    def _raw(self, i: int) -> bytes:
        """The bytes of an id; what a foreign tokenizer adds as whole text is that text."""
        token = self._name(i)
        try:
            return bytes(_BYTE_OF[sign] for sign in token)
        except KeyError:
            return token.encode()


def _bare(model: Any, lower: bool) -> Backend:
    """A tokenizer that cuts at spaces and marks as GPT-2 does, on bytes written as letters."""
    made = Backend(model)
    if lower:
        made.normalizer = normalizers.Lowercase()
    made.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    made.decoder = decoders.ByteLevel()
    return made


def _in_order(vocab: Iterable[Sequence[Any]]) -> list[tuple[str, float]]:
    """Unigram's pieces, the same for the same texts: the library walks through hash tables that differ each time.

    It shows in the last bits of the scores, which are cut, and in the bytes that no text had, which it puts in that
    order just above the least score: they share one below it. Ties go by name.
    """
    pieces = [(str(piece), float(score)) for piece, score in vocab]
    special, learned = pieces[: len(SPECIAL)], pieces[len(SPECIAL) :]
    least = min(score for _, score in learned)
    cut = [
        (piece, round(least - 1 if len(piece) == 1 and score < least + 1e-4 * _BYTES else score, 6))
        for piece, score in learned
    ]
    return special + sorted(cut, key=lambda pair: (-pair[1], pair[0]))


def _look(raw: bytes) -> str:
    text = raw.decode("utf-8", "surrogateescape")
    return "".join(f"<{ord(c) - 0xDC00:02x}>" if 0xDC80 <= ord(c) <= 0xDCFF else c for c in text)


def _byte_of() -> dict[str, int]:
    """GPT-2's way to write a byte as a letter: itself where it can be seen, else the next sign from U+0100 on."""
    seen = {*range(0x21, 0x7F), *range(0xA1, 0xAD), *range(0xAE, 0x100)}
    unseen = [byte for byte in range(_BYTES) if byte not in seen]
    return {chr(byte): byte for byte in seen} | {chr(0x100 + i): byte for i, byte in enumerate(unseen)}


_BYTE_OF = _byte_of()
