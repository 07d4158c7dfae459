"""Subwords: frequent pieces of words, down to single bytes, learned from text by the tokenizers library.

bpe       byte pair encoding (Sennrich et al. 2016) on bytes (Radford et al. 2019): the most frequent pair is merged
unigram   a language model of pieces (Kudo 2018), on the same bytes: a word is cut in the most probable way

Bytes make both lossless: decode(encode(text)) == text for every text, whatever they were learned from.
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterable, Mapping, Sequence
from functools import cached_property
from itertools import pairwise
from pathlib import Path
from typing import Any, AnyStr

import numpy as np
from jaxtyping import Int
from tokenizers import Tokenizer as Backend
from tokenizers import decoders, models, normalizers, pre_tokenizers, trainers

from ..errors import InputError
from .ids import NAMES, SPECIAL, UNKNOWN, Ids, as_row, checked, words_of
from .special import tokenizer_settings
from .tokenizer import Tokenizer

_BYTES = 256


class Subwords(Tokenizer):
    """The tokenizer of a tokenizer.json, learned here by `of` or written elsewhere.

    Names of special tokens in a text are encoded like any text, except by `marked`.

    Args:
        content: The content of a tokenizer.json.

    Examples:
        >>> tokens = Subwords.of(["low lower lowest"] * 3, size=266)
        >>> tokens.pieces(tokens.encode("low lower slow"))
        ['low', ' lower', ' ', 's', 'low']
        >>> tokens.decode(tokens.encode("any text: größer"))
        'any text: größer'
        >>> Subwords(tokens.to_str()) == tokens
        True
    """

    kind = "subwords"
    file = "tokenizer.json"

    def __init__(self, content: str) -> None:
        try:
            self._tokenizer = Backend.from_str(content)
        except Exception as cause:  # the library raises no narrower class
            raise InputError(f"not a tokenizer: {cause}") from cause
        # lengths are the model's business, and padding that of batches
        self._tokenizer.no_truncation()
        self._tokenizer.no_padding()
        # a name of a special token in a text is text: nobody can type a special id
        self._tokenizer.encode_special_tokens = True
        vocab = self._tokenizer.get_vocab(with_added_tokens=True)
        # ids may have gaps
        self._size = max(vocab.values(), default=-1) + 1
        self.pad, self.start, self.end, self.unknown = (
            next((vocab[name] for name in names if name in vocab), None) for names in NAMES.values()
        )
        added = self._tokenizer.get_added_tokens_decoder()
        self._special = frozenset(i for i, token in added.items() if token.special)

    @classmethod
    def of(
        cls,
        texts: Iterable[str],
        *,
        size: int = 8000,
        kind: str = "bpe",
        lower: bool = False,
        minimum: int = 2,
    ) -> Subwords:
        """Learn a tokenizer from texts; the same texts always give the same tokenizer.

        Args:
            texts: The texts to learn from.
            size: The largest size of the vocabulary, with the special tokens and the 256 bytes.
            kind: bpe or unigram.
            lower: Lowercase every text.
            minimum: How often a pair must occur to be merged (bpe).
        """
        if kind not in ("bpe", "unigram"):
            raise InputError(f"kind={kind!r}: expected bpe or unigram")
        if size < _BYTES + len(SPECIAL):
            raise InputError(
                f"size={size}: expected {_BYTES + len(SPECIAL)} or more, the bytes and the special ids"
            )
        if minimum < 1:
            raise InputError(f"minimum={minimum}: expected 1 or more")
        if isinstance(texts, str):
            raise InputError(f"expected several texts, got one: {texts[:40]!r}")
        texts = [checked(text) for text in texts]
        # every byte is in the vocabulary from the start, so that no text is unknown
        settings: dict[str, Any] = {
            "vocab_size": size,
            "special_tokens": list(SPECIAL),
            "initial_alphabet": sorted(pre_tokenizers.ByteLevel.alphabet()),
            "show_progress": False,
        }
        if kind == "bpe":
            learned = _byte_level(models.BPE(), lower)
            trainer = trainers.BpeTrainer(min_frequency=minimum, **settings)
            learned.train_from_iterator(texts, trainer)
            return cls(learned.to_str())
        if not any(text.strip() for text in texts):
            raise InputError("the texts are empty: unigram has nothing to learn pieces from")
        learned = _byte_level(models.Unigram(), lower)
        unigram = trainers.UnigramTrainer(unk_token=SPECIAL[UNKNOWN], **settings)
        learned.train_from_iterator(texts, unigram)
        # built again with its pieces in an order that does not depend on the process
        pieces = _in_order(json.loads(learned.to_str())["model"]["vocab"])
        backend = _byte_level(models.Unigram(pieces, UNKNOWN), lower)
        backend.add_special_tokens(list(SPECIAL))
        return cls(backend.to_str())

    @classmethod
    def read(cls, path: str | Path) -> Subwords:
        """Read a tokenizer.json; settings of a tokenizer_config.json beside it win, as in transformers."""
        path = Path(path)
        settings = tokenizer_settings(path.parent) if path.name == cls.file else {}
        try:
            return cls(with_settings(path.read_text(encoding="utf-8"), settings))
        except ValueError as cause:
            raise InputError(f"{path}: {cause}") from cause

    def encode(self, text: str) -> Int[np.ndarray, "t"]:
        """Encode a text, without special ids."""
        return np.array(
            self._tokenizer.encode(checked(text), add_special_tokens=False).ids, np.int64
        )

    def wrapped(self, text: str) -> Int[np.ndarray, "t"]:
        """Encode a text with the special ids that its model expects around it: [CLS] ... [SEP], <s> ..."""
        return np.array(self._tokenizer.encode(checked(text)).ids, np.int64)

    def marked(self, text: str) -> Int[np.ndarray, "t"]:
        """Encode a text in which special tokens are written by their names, as chat templates do."""
        return np.array(self._marking.encode(checked(text), add_special_tokens=False).ids, np.int64)

    def encode_all(self, texts: Sequence[str]) -> list[np.ndarray]:
        """Encode each of several texts, in parallel."""
        rows = self._tokenizer.encode_batch_fast(
            [checked(text) for text in texts], add_special_tokens=False
        )
        return [np.array(row.ids, np.int64) for row in rows]

    def decode(self, ids: Ids) -> str:
        """Decode ids into a text; special ids are left out, incomplete characters become U+FFFD."""
        return str(
            self._tokenizer.decode(as_row(ids, len(self)).tolist(), skip_special_tokens=True)
        )

    def pieces(self, ids: Ids) -> list[str]:
        """The text of each id, with the space that belongs to it; the bytes of an incomplete character as <c3>."""
        row = as_row(ids, len(self)).tolist()
        if not self._bytewise:
            return [self._name(i).replace("▁", " ") for i in row]
        return [self._name(i) if i in self._special else _show(self._raw(i)) for i in row]

    def words(self, text_or_ids: str | Ids) -> list[int]:
        """For each id, or each id of a text, the index of the word in which it begins; -1 for no word.

        The words are those of `split`: runs of letters and digits, and each punctuation mark by itself.
        """
        row = self._row(text_or_ids)
        is_special = [i in self._special for i in row.tolist()]
        if self._bytewise:
            # a piece may begin within a character, so that spans are found on the bytes
            raw = [self._raw(i) for i in row.tolist()]
            return words_of(*_characters(_without(raw, is_special)))
        parts = _without(self.pieces(row), is_special)
        ends = np.cumsum([0, *map(len, parts)]).tolist()
        return words_of("".join(parts), list(pairwise(ends)))

    @cached_property
    def adds_space(self) -> bool:
        """Whether a text is encoded with a space before it, as SentencePiece does."""
        return "".join(self.pieces(self.encode("a"))).startswith(" ")

    @property
    def special_names(self) -> dict[str, int]:
        return {self._name(i): i for i in sorted(self._special)}

    def content(self) -> bytes:
        return self.to_str().encode()

    def to_str(self) -> str:
        """The content of the tokenizer.json."""
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
        """A second tokenizer, which recognises special tokens in a text: that is a state of the library's object."""
        marking = Backend.from_str(self.to_str())
        marking.encode_special_tokens = False
        return marking

    @cached_property
    def _bytewise(self) -> bool:
        """Whether its pieces are bytes written as letters."""
        return '"ByteLevel"' in json.dumps(json.loads(self.to_str())["decoder"])

    def _name(self, i: int) -> str:
        return self._tokenizer.id_to_token(i) or ""  # a foreign vocabulary may have gaps

    def _raw(self, i: int) -> bytes:
        """The bytes of an id; a token that a foreign tokenizer has added as plain text gives its UTF-8."""
        token = self._name(i)
        try:
            return bytes(_BYTE_OF[letter] for letter in token)
        except KeyError:
            # a letter that stands for no byte
            return token.encode()


def _byte_level(model: Any, lower: bool) -> Backend:
    """A tokenizer that splits at spaces and punctuation as GPT-2 does, on bytes written as letters."""
    backend = Backend(model)
    if lower:
        backend.normalizer = normalizers.Lowercase()
    backend.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    backend.decoder = decoders.ByteLevel()
    return backend


def _in_order(vocab: Iterable[Sequence[Any]]) -> list[tuple[str, float]]:
    """The pieces of a unigram model in an order, and with scores, that are the same in every process.

    The library iterates over hash tables, whose order changes from process to process. That affects the last bits of
    the scores, which are rounded away here, and the scores of the bytes that no text had, which the library puts in
    that order just above the least score: here they share one score below it. Ties are sorted by name.
    """
    pieces = [(str(piece), float(score)) for piece, score in vocab]
    special, learned = pieces[: len(SPECIAL)], pieces[len(SPECIAL) :]
    least = min(score for _, score in learned)
    rounded = []
    for piece, score in learned:
        # a byte that no text had, which the library puts just above the least score
        is_unseen = len(piece) == 1 and score < least + 1e-4 * _BYTES
        if is_unseen:
            score = least - 1
        rounded.append((piece, round(score, 6)))
    return special + sorted(rounded, key=lambda pair: (-pair[1], pair[0]))


def _without(parts: Sequence[AnyStr], is_hidden: Sequence[bool]) -> list[AnyStr]:
    """The parts of a text, with an empty one in place of each that is hidden."""
    return [part[:0] if hidden else part for part, hidden in zip(parts, is_hidden, strict=True)]


def _characters(parts: Sequence[bytes]) -> tuple[str, list[tuple[int, int]]]:
    """The text of consecutive bytes, and for each part the span of the characters that it touches."""
    # a byte that is no character stays one character
    text = b"".join(parts).decode("utf-8", "surrogateescape")
    starts = np.cumsum([0, *(len(c.encode("utf-8", "surrogateescape")) for c in text)])
    spans, at = [], 0
    for part in parts:
        # the character in which the part begins, and that after the one in which it ends
        first = int(np.searchsorted(starts, at, "right")) - 1
        at += len(part)
        last = int(np.searchsorted(starts, at, "left")) if part else first
        spans.append((first, last))
    return text, spans


def _show(raw: bytes) -> str:
    """The text of bytes; a byte that is part of no character as <c3>."""
    text = raw.decode("utf-8", "surrogateescape")
    # a byte b without a character is decoded to U+DC00 + b
    return re.sub("[\udc80-\udcff]", lambda match: f"<{ord(match[0]) - 0xDC00:02x}>", text)


def _byte_of() -> dict[str, int]:
    """GPT-2's letters for bytes: a printable byte is its own character, the others follow from U+0100 on."""
    printable = {*range(0x21, 0x7F), *range(0xA1, 0xAD), *range(0xAE, 0x100)}
    others = [byte for byte in range(_BYTES) if byte not in printable]
    letters = {chr(byte): byte for byte in printable}
    return letters | {chr(0x100 + i): byte for i, byte in enumerate(others)}


_BYTE_OF = _byte_of()


# Settings of a tokenizer_config.json win over the tokenizer.json beside it, as in transformers:
#
#     class of transformers      setting                                              what it changes
#     BertTokenizer and others   do_lower_case, strip_accents, tokenize_chinese_chars the normaliser
#     GPT2Tokenizer and others   add_prefix_space                                     a space before a text
#
# A class that is named there has its own defaults. Without one only what is given counts.

# Setting: the key of the normaliser, and the default of the class.
_NORMALISER = {
    "do_lower_case": ("lowercase", True),
    "strip_accents": ("strip_accents", None),
    "tokenize_chinese_chars": ("handle_chinese_chars", True),
}
_SPACE = {"add_prefix_space": ("add_prefix_space", False)}
_WORD_PIECES = (
    "BertTokenizer", "DistilBertTokenizer", "ElectraTokenizer", "MobileBertTokenizer", "MPNetTokenizer",
)  # fmt: skip
_BYTE_PAIRS = (
    "GPT2Tokenizer", "RobertaTokenizer", "BartTokenizer", "LongformerTokenizer", "LEDTokenizer",
)  # fmt: skip
# Part of a tokenizer.json: its type, the settings of it, and the classes that have them.
_PARTS: dict[str, tuple[str, Mapping[str, tuple[str, Any]], tuple[str, ...]]] = {
    "normalizer": ("BertNormalizer", _NORMALISER, _WORD_PIECES),
    "pre_tokenizer": ("ByteLevel", _SPACE, _BYTE_PAIRS),
}


def with_settings(content: str, settings: Mapping[str, Any]) -> str:
    """The content of a tokenizer.json with the settings of the tokenizer_config.json beside it.

    Args:
        content: The content of the tokenizer.json.
        settings: The keys of the other file.

    Examples:
        >>> tokens = Subwords.of(["a b"], size=260)
        >>> spaced = Subwords(with_settings(tokens.to_str(), {"add_prefix_space": True}))
        >>> spaced.pieces(spaced.encode("a"))
        [' ', 'a']
    """
    class_name = str(settings.get("tokenizer_class")).removesuffix("Fast")
    changes: dict[str, dict[str, bool | None]] = {}
    for part, (_, known, classes) in _PARTS.items():
        if class_name not in (*classes, "None"):
            # settings of a class that this part of the file does not belong to
            continue
        for name, (key, default) in known.items():
            given = settings.get(name)
            if name in settings or class_name in classes:
                # what is not given, or null, has the default of the class
                value = given if isinstance(given, bool) else default
                changes.setdefault(part, {})[key] = value
    if not changes:
        return content
    try:
        table = json.loads(content)
    except ValueError:
        return content  # which the tokenizers library refuses
    for part, values in changes.items():
        section = table.get(part) if isinstance(table, dict) else None
        # another kind of normaliser or pre-tokenizer has no such settings
        if isinstance(section, dict) and section.get("type") == _PARTS[part][0]:
            section |= values
    return json.dumps(table, ensure_ascii=False)


def lowered(content: str) -> str:
    """The content of a tokenizer.json that lowercases a text first."""
    table = json.loads(content)
    steps = [{"type": "Lowercase"}]
    if table.get("normalizer") is not None:
        # lowercase first, then the steps of the file
        steps.append(table["normalizer"])
    return json.dumps(table | {"normalizer": {"type": "Sequence", "normalizers": steps}})
