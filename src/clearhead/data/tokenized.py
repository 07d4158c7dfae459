"""Documents as ids, with a given tokenizer or one that is trained on their training part.

A small text is kept in memory. One of more than LARGE bytes is tokenized once, into a memory-mapped token file in the
user's cache folder; only a piece of it is in memory at a time.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from .. import config
from .. import tokens as text
from ..tokens import Tokenizer
from ..tokens.special import Special
from .documents import Documents, Piece
from .progress import Stage, progress_bar
from .token_cache import cached, file_facts
from .token_files import map_tokens, write_parts

LARGE = 1 << 26  # bytes of text above which a token file is written
SAMPLE = 1 << 25  # most characters that a tokenizer is trained on, evenly spread over the training part
BATCH = 1 << 20  # characters that are encoded at once
VERSION = 2  # of the folders in the cache


@dataclass(frozen=True, kw_only=True, slots=True)
class Facts:
    """What is known about tokenized documents beside their ids."""

    characters: int | None = None  # number of characters; None: not counted
    sampled: int | None = None  # number of characters that the tokenizer was trained on; None: it was given
    cut: int | None = None  # number of ids of the training part; None: a share of the ids
    empty: int = 0  # rows without text, which were left out


@dataclass(frozen=True, kw_only=True)
class Tokenized:
    """Documents as one row of ids."""

    tokens: Tokenizer
    ids: np.ndarray
    ends: NDArray[np.int64]  # for each document the place after its last id
    facts: Facts


def alphabet(documents: Documents) -> set[str]:
    """Return all different characters of documents."""
    found: set[str] = set()
    for piece in documents.pieces():
        found.update(piece.text)
    return found


class Reading:
    """The first readings of documents, for a tokenizer that is trained: their characters, and a sample of them."""

    def __init__(self, documents: Documents, share: float, stage: Stage) -> None:
        self.documents, self.share, self.stage = documents, share, stage
        self.sampled: int | None = None

    @cached_property
    def alphabet(self) -> set[str]:
        """All different characters, those of validation too."""
        found: set[str] = set()
        self.characters = 0
        for piece in self._pieces():
            found.update(piece.text)
            self.characters += len(piece.text)
        return found

    @cached_property
    def characters(self) -> int:
        """The number of characters."""
        return sum(len(piece.text) for piece in self._pieces())

    @property
    def limit(self) -> int:
        """The number of characters of the training part."""
        return int(self.characters * (1 - self.share))

    def sample(self) -> list[str]:
        """Texts of the training part: all of it, or up to SAMPLE characters of it at even distances."""
        chosen, taken, seen = [], 0, 0
        for piece, trains in split_at(self._pieces(), self.limit):
            if not trains:
                break
            seen += len(piece.text)
            if (taken + len(piece.text)) * self.limit <= SAMPLE * seen or self.limit <= SAMPLE:
                chosen.append(piece.text)
                taken += len(piece.text)
        self.sampled = taken
        self.stage("training the tokenizer", 0.0)
        return chosen

    def _pieces(self) -> Iterator[Piece]:
        for piece in self.documents.pieces():
            self.stage("reading the text", self.documents.share_read)
            yield piece


Learn = Callable[[Reading], Tokenizer]  # trains a tokenizer
Source = Tokenizer | Learn


def tokenize(
    documents: Documents, source: Source, *, share: float, key: dict[str, Any], special: Special | None = None
) -> Tokenized:  # fmt: skip
    """Return documents as ids, in memory or in a token file.

    Args:
        documents: The documents.
        source: A tokenizer, or a function that trains one.
        share: The share of the characters, at the end, that is kept for validation.
        key: The options that the ids depend on; the files, the share and the special ids are added.
        special: Special ids of the tokenizer's model; None: those of the tokenizer.
    """
    if documents.bytes <= LARGE:
        return _in_memory(documents, source, share, special)
    ids_of = None if special is None else config.dump(special)
    whole = {"version": VERSION, "files": file_facts(documents.files), "share": share, "special": ids_of, **key}
    folder = cached(whole, lambda folder: _write(documents, source, share, special, folder))
    tokens = text.load(folder)
    assert isinstance(tokens, Tokenizer)
    ids, ends, _ = map_tokens(folder / "ids.bin")
    return Tokenized(tokens=tokens, ids=ids, ends=ends, facts=config.read(Facts, config.load(folder / "facts.json")))


def _in_memory(documents: Documents, source: Source, share: float, special: Special | None) -> Tokenized:
    with progress_bar() as stage:
        encoder = Encoder(documents, source, share, special, stage)
        dtype = np.min_scalar_type(len(encoder.tokens))
        rows, ends, size = [np.zeros(0, dtype)], [0], 0
        for row, is_last in encoder.rows():
            rows.append(row.astype(dtype))
            size += len(row)
            if is_last and size > ends[-1]:
                ends.append(size)
    return Tokenized(
        tokens=encoder.tokens, ids=np.concatenate(rows), ends=np.array(ends[1:], np.int64), facts=encoder.facts
    )


def _write(documents: Documents, source: Source, share: float, special: Special | None, folder: Path) -> None:
    """Fill a folder with a token file, its tokenizer and its facts."""
    with progress_bar() as stage:
        encoder = Encoder(documents, source, share, special, stage)
        write_parts(folder / "ids.bin", encoder.rows(), vocab=len(encoder.tokens))
    text.save(encoder.tokens, folder)
    config.write(config.dump(encoder.facts), folder / "facts.json")


class Encoder:
    """Encodes documents, each with the special ids around it that language models expect."""

    def __init__(
        self, documents: Documents, source: Source, share: float, special: Special | None, stage: Stage
    ) -> None:  # fmt: skip
        self.documents, self.special, self.stage = documents, special, stage
        self.facts, self.limit = Facts(), None
        if isinstance(source, Tokenizer):
            self.tokens = source
            return
        reading = Reading(documents, share, stage)
        self.tokens, self.limit = source(reading), reading.limit
        self.facts = Facts(characters=reading.characters, sampled=reading.sampled)

    def rows(self) -> Iterator[tuple[np.ndarray, bool]]:
        """Yield rows of ids, and whether a document ends with each; completes `facts`."""
        first, last = around(self.tokens, self.special)
        filled, cut = False, 0  # whether the current document has ids; ids of the training part
        continues = False  # whether the next piece continues a document
        for pieces in _batches(split_at(self.documents.pieces(), self.limit)):
            self.stage("tokenizing", self.documents.share_read)
            encoded = self._encode(pieces, continues)
            continues = not pieces[-1][0].ends
            for (piece, trains), ids in zip(pieces, encoded, strict=True):
                row = np.concatenate([first, ids]) if len(first) and len(ids) and not filled else ids
                filled = filled or len(ids) > 0
                if piece.ends:
                    row, filled = np.concatenate([row, last]) if filled else row, False
                cut += len(row) * trains
                yield row, piece.ends
        self.facts = Facts(
            characters=self.facts.characters, sampled=self.facts.sampled, empty=self.documents.empty,
            cut=None if self.limit is None else cut,
        )  # fmt: skip

    def _encode(self, pieces: list[tuple[Piece, bool]], continues: bool) -> list[np.ndarray]:
        """Encode pieces, of which the first continues a document or not; pieces of a document join without a space."""
        later = [continues, *(not piece.ends for piece, _ in pieces[:-1])]
        texts = [piece.text for piece, _ in pieces]
        firsts = iter(self.tokens.encode_all([text for text, more in zip(texts, later, strict=True) if not more]))
        others = iter(self.tokens.continued_all([text for text, more in zip(texts, later, strict=True) if more]))
        return [next(others if more else firsts) for more in later]


def around(tokens: Tokenizer, special: Special | None = None) -> tuple[NDArray[np.int64], NDArray[np.int64]]:
    """The ids before and after a document: BOS where the tokenizer begins texts with it, and EOS if there is one."""
    given = special or Special.of(tokens)
    ends = given.ends[:1] if tokens.end is None else (tokens.end,)
    begins = given.start is not None and given.start in tokens.wrapped("").tolist()
    return np.array([given.start] if begins else [], np.int64), np.array(ends, np.int64)


def split_at(pieces: Iterator[Piece], limit: int | None) -> Iterator[tuple[Piece, bool]]:
    """Yield pieces, and whether each is in the first `limit` characters; the piece that crosses them is divided."""
    seen = 0
    for piece in pieces:
        room, size = (len(piece.text) if limit is None else limit - seen), len(piece.text)
        if 0 < room < size:
            yield Piece(piece.text[:room], ends=False), True
            yield Piece(piece.text[room:], ends=piece.ends), False
        else:
            yield piece, room >= size
        seen += size


def _batches(pieces: Iterator[tuple[Piece, bool]]) -> Iterator[list[tuple[Piece, bool]]]:
    """Group pieces that are encoded together, in parallel."""
    batch: list[tuple[Piece, bool]] = []
    size = 0
    for piece in pieces:
        batch.append(piece)
        size += len(piece[0].text)
        if size >= BATCH:
            yield batch
            batch, size = [], 0
    if batch:
        yield batch
