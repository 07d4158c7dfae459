"""Plain text: files, folders and tables as characters, words or subwords; tiny Shakespeare; everyday English."""

from __future__ import annotations

import hashlib
from bisect import bisect_left
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from ... import config
from ... import tokens as text
from ...errors import InputError, nearest
from ...progress import Stage, progress_bar
from ...tokens import Characters, Subwords, Tokenizer
from ...tokens.chat_template import read_template
from ...tokens.special import Special, read_special
from ..batching import WindowConfig, Windows
from ..files import cached, file_facts, find, given_files
from ..splits import counted, left_out_told
from .documents import DocumentPart, Documents, find_files
from .parallel import load_split
from .token_files import map_tokens, write_parts
from .tokenizers import TokenizerConfig, find_tokenizer, open_tokenizer, vocabulary_size

# Documents as ids, with a given tokenizer or one that is trained on their training part.
#
# A small text is kept in memory. One of more than LARGE bytes is tokenized once, into a memory-mapped token file in the
# user's cache folder; only a piece of it is in memory at a time.


LARGE = 1 << 26  # bytes of text above which a token file is written
# most characters that a tokenizer is trained on, evenly spread over the training part
SAMPLE = 1 << 25
BATCH = 1 << 20  # characters that are encoded at once
VERSION = 2  # of the folders in the cache


@dataclass(frozen=True, kw_only=True, slots=True)
class Facts:
    """What is known about tokenized documents beside their ids."""

    characters: int | None = None  # number of characters; None: not counted
    # number of characters that the tokenizer was trained on; None: it was given
    sampled: int | None = None
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


class TokenizerSample:
    """What a tokenizer is trained on: the different characters of documents, and a sample of their text."""

    def __init__(self, documents: Documents, share: float, stage: Stage) -> None:
        self.documents, self.share, self.stage = documents, share, stage
        self.sampled: int | None = None

    @cached_property
    def alphabet(self) -> set[str]:
        """All different characters, those of validation too."""
        found: set[str] = set()
        # fills the cache of the property `characters`, which would read everything once more
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
        # validation comes last: its text must not shape the vocabulary
        for piece, trains in split_at(self._pieces(), self.limit):
            if not trains:
                break
            seen += len(piece.text)
            # taken / seen stays at or below SAMPLE / limit, so that the sample is spread evenly
            if (taken + len(piece.text)) * self.limit <= SAMPLE * seen or self.limit <= SAMPLE:
                chosen.append(piece.text)
                taken += len(piece.text)
        self.sampled = taken
        self.stage("training the tokenizer", 0.0)
        return chosen

    def _pieces(self) -> Iterator[DocumentPart]:
        for piece in self.documents.pieces():
            self.stage("reading the text", self.documents.share_read)
            yield piece


Learn = Callable[[TokenizerSample], Tokenizer]  # trains a tokenizer
Source = Tokenizer | Learn


def tokenize(
    documents: Documents,
    source: Source,
    *,
    share: float,
    key: dict[str, Any],
    special: Special | None = None,
) -> Tokenized:
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
    # too large for memory: everything that the ids depend on is in the key of the cache
    ids_of = None if special is None else config.dump(special)
    whole = {
        "version": VERSION,
        "files": file_facts(documents.files),
        "share": share,
        "special": ids_of,
        **key,
    }
    folder = cached(whole, lambda folder: _write(documents, source, share, special, folder))
    tokens = text.load(folder)
    assert isinstance(tokens, Tokenizer)
    ids, ends, _ = map_tokens(folder / "ids.bin")
    return Tokenized(
        tokens=tokens,
        ids=ids,
        ends=ends,
        facts=config.read(Facts, config.load(folder / "facts.json")),
    )


def _in_memory(
    documents: Documents, source: Source, share: float, special: Special | None
) -> Tokenized:
    with progress_bar() as stage:
        encoder = Encoder(documents, source, share, special, stage)
        # the smallest integers that hold all ids: one or two bytes for most vocabularies
        dtype = np.min_scalar_type(len(encoder.tokens))
        rows, ends, size = [np.zeros(0, dtype)], [0], 0
        for row, is_last in encoder.rows():
            rows.append(row.astype(dtype))
            size += len(row)
            # a document without ids has no end of its own
            if is_last and size > ends[-1]:
                ends.append(size)
    return Tokenized(
        tokens=encoder.tokens,
        ids=np.concatenate(rows),
        ends=np.array(ends[1:], np.int64),
        facts=encoder.facts,
    )


def _write(
    documents: Documents, source: Source, share: float, special: Special | None, folder: Path
) -> None:
    """Fill a folder with a token file, its tokenizer and its facts."""
    with progress_bar() as stage:
        encoder = Encoder(documents, source, share, special, stage)
        write_parts(folder / "ids.bin", encoder.rows(), vocab=len(encoder.tokens))
    text.save(encoder.tokens, folder)
    config.write(config.dump(encoder.facts), folder / "facts.json")


class Encoder:
    """Encodes documents, each with the special ids around it that language models expect."""

    def __init__(
        self,
        documents: Documents,
        source: Source,
        share: float,
        special: Special | None,
        stage: Stage,
    ) -> None:
        self.documents, self.special, self.stage = documents, special, stage
        self.facts, self.limit = Facts(), None
        if isinstance(source, Tokenizer):
            self.tokens = source
            return
        reading = TokenizerSample(documents, share, stage)
        # after the training: the characters may have been counted on the way
        self.tokens, self.limit = source(reading), reading.limit
        self.facts = Facts(characters=reading.characters, sampled=reading.sampled)

    def rows(self) -> Iterator[tuple[np.ndarray, bool]]:
        """Yield rows of ids, and whether a document ends with each; completes `facts`."""
        # BOS and EOS, each a row of one id or none
        first, last = around(self.tokens, self.special)
        has_ids = False  # whether the current document has ids
        trained = 0  # ids of the training part
        continues = False  # whether the next piece continues a document
        for pieces in _batches(split_at(self.documents.pieces(), self.limit)):
            self.stage("tokenizing", self.documents.share_read)
            encoded = self._encode(pieces, continues)
            continues = not pieces[-1][0].ends
            for (piece, trains), row in zip(pieces, encoded, strict=True):
                # special ids go around a document only once it has ids: an empty one stays empty
                if len(row) and not has_ids:
                    row, has_ids = np.concatenate([first, row]), True
                if piece.ends and has_ids:
                    row, has_ids = np.concatenate([row, last]), False
                if trains:
                    trained += len(row)
                yield row, piece.ends
        # without a limit in characters, the split is a share of the ids
        cut = trained if self.limit is not None else None
        self.facts = replace(self.facts, empty=self.documents.empty, cut=cut)

    def _encode(self, pieces: list[tuple[DocumentPart, bool]], continues: bool) -> list[np.ndarray]:
        """Encode pieces, of which the first continues a document or not; pieces of a document join without a space."""
        begins: list[str] = []  # texts that begin a document, encoded together
        goes_on: list[str] = []  # texts that continue one
        groups = []  # the group of each piece
        for piece, _ in pieces:
            # a list itself stands for the group, so that the order is restored below
            groups.append(goes_on if continues else begins)
            groups[-1].append(piece.text)
            continues = not piece.ends
        # two calls for all pieces: a text that continues gets no start or leading space
        first_rows = iter(self.tokens.encode_all(begins))
        later_rows = iter(self.tokens.continued_all(goes_on))
        return [next(later_rows if group is goes_on else first_rows) for group in groups]


def around(
    tokens: Tokenizer, special: Special | None = None
) -> tuple[NDArray[np.int64], NDArray[np.int64]]:
    """The ids before and after a document: BOS where the tokenizer begins texts with it, and EOS if there is one."""
    given = special or Special.of(tokens)
    before: list[int] = []
    # a model may have BOS although its tokenizer does not write it, as that of GPT-2
    if given.start is not None and given.start in tokens.wrapped("").tolist():
        # only where the tokenizer writes it in front of any text
        before = [given.start]
    after = list(given.ends[:1])
    if tokens.end is not None:
        after = [tokens.end]
    return np.array(before, np.int64), np.array(after, np.int64)


def split_at(
    pieces: Iterator[DocumentPart], limit: int | None
) -> Iterator[tuple[DocumentPart, bool]]:
    """Yield pieces, and whether each is in the first `limit` characters; the piece that crosses them is divided."""
    seen = 0  # characters of the pieces so far
    for piece in pieces:
        size = len(piece.text)
        room = size
        if limit is not None:
            # 0 or less when the limit has been passed
            room = limit - seen
        # this piece crosses the limit; its first half does not end the document
        if 0 < room < size:
            yield DocumentPart(piece.text[:room], ends=False), True
            yield DocumentPart(piece.text[room:], ends=piece.ends), False
        else:
            yield piece, room >= size
        seen += size


def _batches(
    pieces: Iterator[tuple[DocumentPart, bool]],
) -> Iterator[list[tuple[DocumentPart, bool]]]:
    """Group pieces that are encoded together, in parallel."""
    batch: list[tuple[DocumentPart, bool]] = []
    size = 0
    for piece in pieces:
        batch.append(piece)
        size += len(piece[0].text)
        if size >= BATCH:
            yield batch
            batch, size = [], 0
    if batch:
        yield batch


# sets whose English side is everyday English
SENTENCES = (("tatoeba", "fr"), ("tatoeba", "de"), ("multi30k", "de"))


@dataclass(frozen=True, kw_only=True, slots=True)
class TextConfig(WindowConfig):
    """Options of text."""

    # one or many files, folders of text files, or tables; compressed or not
    path: str | tuple[str, ...]
    # such files for validation; None: a share of the first, at the end
    valid_path: str | tuple[str, ...] | None = None
    # ends a document, as does the end of a file; None: each file is a document
    separator: str | None = None
    # column of a table whose rows are documents; None: one that is called text, or the only
    column: str | None = None
    # whether the first row of a CSV or TSV file names the columns; None: recognised
    header: bool | None = None
    # characters, words, bpe, or the folder of a tokenizer, such as a checkpoint's
    tokens: str = "characters"
    size: int = 8000  # largest number of tokens of words and bpe, special tokens included
    # smallest number of occurrences of a word, or of a pair of pieces to be merged (bpe)
    minimum: int = 2
    lower: bool = False  # ignore capitals (words and bpe)

    def __post_init__(self) -> None:
        WindowConfig.__post_init__(self)  # super() loses its class when slots make a new one
        if not self.path:
            raise InputError("path is empty: expected a text file, or several")
        if self.separator == "":
            raise InputError("separator is empty: expected at least one character")
        if self.tokens in LEARNED:
            self.vocabulary()

    def vocabulary(self) -> TokenizerConfig:
        """The options of a tokenizer that is trained; raises if they do not fit together."""
        kind: Any = {"bpe": "subwords"}.get(self.tokens, self.tokens)
        return TokenizerConfig(
            vocabulary=kind, size=self.size, minimum=self.minimum, lower=self.lower
        )


def _alphabet(config: TextConfig, reading: TokenizerSample) -> Tokenizer:
    return Characters(sorted(reading.alphabet))


def _trained(config: TextConfig, reading: TokenizerSample) -> Tokenizer:
    return config.vocabulary().tokenizer(reading.sample())


# Tokenizers that are made of the text itself.
LEARNED: Mapping[str, Callable[[TextConfig, TokenizerSample], Tokenizer]] = {
    "characters": _alphabet,
    "words": _trained,
    "bpe": _trained,
}


class Text(Windows):
    """Text files, one token per character, word or subword.

    Where the tokenizer has an end token, it follows each document, in place of the separator. Words and subwords are
    trained on the training part, or on a sample of it.
    """

    def __init__(self, config: TextConfig, *, seed: int, root: Path | None = None) -> None:
        paths = config.path
        if isinstance(paths, str):
            paths = (paths,)
        self.files = given_files(config.path, config.valid_path)
        learned = config.tokens in LEARNED
        vocab: int | None = None
        if learned:
            source: Source = lambda sample: LEARNED[config.tokens](config, sample)  # noqa: E731
            tokens_key: list[Any] = [config.tokens, config.size, config.minimum, config.lower]
        else:
            # the folder of a tokenizer, which brings its chat template and special ids
            expected = f": expected {', '.join(LEARNED)}, or a folder with one{nearest(config.tokens, LEARNED)}"
            folder = find_tokenizer(config.tokens, root, expected)
            source = open_tokenizer(config.tokens, folder)
            self.chat, self.special = read_template(folder), read_special(folder, source)
            # the content of the tokenizer, wherever its folder lies
            tokens_key = [hashlib.sha256(source.content()).hexdigest()]
            vocab = vocabulary_size(folder, source)
        joined = _joined(config, source if isinstance(source, Tokenizer) else None, self.special)
        how_read: dict[str, Any] = {
            "separator": config.separator,
            "column": config.column,
            "header": config.header,
        }

        def documents(path: str | Sequence[str]) -> Documents:
            return Documents(find_files(path, root), joined=joined, **how_read)

        key = {"tokens": tokens_key, **how_read}
        if config.valid_path is None:
            made = tokenize(
                documents(paths), source, share=config.share, key=key, special=self.special
            )
            # validation is the end of the same text
            own = None
        else:
            # validation has files of its own, read like the others
            valid = documents(config.valid_path)
            if config.tokens == "characters":
                # no character of validation may be unknown
                # sorted, because the list is a part of the cache's key
                others = sorted(alphabet(valid))
                source = lambda sample: Characters(sorted({*sample.alphabet, *others}))  # noqa: E731
                key["others"] = others
            # a file for validation: all of the text trains, and the tokenizer is learned from it
            made = tokenize(documents(paths), source, share=0.0, key=key, special=self.special)
            key = {"tokens": [hashlib.sha256(made.tokens.content()).hexdigest()], **how_read}
            own = tokenize(valid, made.tokens, share=0.0, key=key, special=self.special)
        if learned and made.tokens.end is not None:  # an empty prompt begins where a document ends
            self.special = Special(
                pad=made.tokens.pad, start=made.tokens.end, ends=(made.tokens.end,)
            )
        self.description = _described(made, config, own)
        self._open(config, seed, made, ", ".join(paths), vocab=vocab, own=own)

    def _open(
        self,
        config: WindowConfig,
        seed: int,
        made: Tokenized,
        name: str,
        *,
        vocab: int | None = None,
        own: Tokenized | None = None,
    ) -> None:
        """Cut the ids into windows; `own` has the ids of a validation file, `vocab` defaults to the tokenizer's."""
        self.tokens = made.tokens
        valid = None
        if own is not None:
            valid = own.ids, own.ends
        super().__init__(
            config,
            seed=seed,
            ids=made.ids,
            ends=made.ends,
            vocab=vocab or len(made.tokens),
            name=name,
            cut=made.facts.cut,
            valid=valid,
        )


def _joined(config: TextConfig, tokens: Tokenizer | None, special: Special | None) -> bool:
    """Whether the separator of documents stays in the text; `tokens` is None where a tokenizer is trained."""
    if tokens is None:
        # words and subwords have an end token in its place
        return config.tokens == "characters"
    # without EOS the separator tells documents apart
    _, end = around(tokens, special)
    return not len(end)


def validation_start(
    config: WindowConfig, path: Path, tokens: Tokenizer, special: Special | None
) -> int:
    """Return the place in a text file of the first character that training kept for validation.

    Args:
        config: The options of the training's data: text, or shakespeare.
        path: The file.
        tokens: The tokenizer of the training.
        special: The special ids of the trained model.
    """
    learned = not isinstance(config, TextConfig) or config.tokens in LEARNED
    joined, separator = True, ""
    if isinstance(config, TextConfig):
        joined = _joined(config, None if learned else tokens, special)
        separator = config.separator or ""
    documents = Documents([path], separator=separator or None, joined=joined)
    pieces = list(documents.pieces())
    # the share is one of characters where a tokenizer was trained, else one of ids
    if learned:
        sizes = [len(piece.text) for piece in pieces]
    else:
        with progress_bar() as stage:
            encoder = Encoder(documents, tokens, config.share, special, stage)
            sizes = [len(row) for row, _ in encoder.rows()]
    room = int(sum(sizes) * (1 - config.share))
    place = 0  # characters of the file before the piece
    for piece, size in zip(pieces, sizes, strict=True):
        if room < size:
            if learned:
                return place + room
            return place + _characters_of(tokens, piece.text, room)
        room -= size
        place += len(piece.text)
        if piece.ends and not joined:
            place += len(separator)
    return place


def _characters_of(tokens: Tokenizer, text: str, count: int) -> int:
    """The number of characters that so many ids are made of."""
    # longer beginnings have more ids
    return bisect_left(
        range(len(text)), count, key=lambda size: len(tokens.encode_all([text[:size]])[0])
    )


def _described(made: Tokenized, config: TextConfig, own: Tokenized | None) -> str:
    """A sentence about the text: its size, its split, and what was left out."""
    facts = made.facts
    size = f"{counted(len(made.ends), 'document')} of {len(made.ids):,} tokens"
    if facts.characters is not None:
        # counted only where a tokenizer was trained
        size += f" ({facts.characters:,} characters)"
    empty = facts.empty
    if own is None:
        split = f"the last {config.share:.0%} are for validation"
    else:
        source = ", ".join(given_files(config.valid_path))
        split = f"{len(own.ids):,} tokens for validation (from {source})"
        # rows without text of both files
        empty += own.facts.empty
    parts = [size, split]
    if facts.sampled is not None:
        parts.append(
            f"a vocabulary of {len(made.tokens):,} tokens, learned from {facts.sampled:,} characters"
        )
    if empty:
        parts.append(left_out_told(empty, "text"))
    return "; ".join(parts)


class Shakespeare(Text):
    """Tiny Shakespeare (Karpathy 2015), a million characters; the speeches, separated by empty lines, are documents."""

    def __init__(self, config: WindowConfig, *, seed: int, root: Path | None = None) -> None:
        documents = Documents([find("shakespeare", root)], separator="\n\n")
        made = tokenize(
            documents,
            lambda reading: Characters(sorted(reading.alphabet)),
            share=config.share,
            key={},
        )
        self._open(config, seed, made, "shakespeare")


@dataclass(frozen=True, kw_only=True, slots=True)
class EverydayConfig(WindowConfig):
    """Options of everyday."""

    size: int = 2000  # number of subwords, special tokens included


class Everyday(Windows):
    """The English sentences of Tatoeba and Multi30k: each once, one per line, in a fixed random order.

    The subwords are trained on the training part.
    """

    def __init__(self, config: EverydayConfig, *, seed: int, root: Path | None = None) -> None:
        sentences = read_everyday(root)
        # the same share as the windows keep, in sentences instead of ids
        train = sentences[: max(int(len(sentences) * (1 - config.share)), 1)]
        self.tokens = Subwords.of(train, size=config.size)
        rows = self.tokens.encode_all([f"{line}\n" for line in sentences])
        ids = np.concatenate(rows).astype(np.min_scalar_type(len(self.tokens)))
        ends = np.cumsum([len(row) for row in rows], dtype=np.int64)
        super().__init__(
            config, seed=seed, ids=ids, ends=ends, vocab=len(self.tokens), name="everyday"
        )


def read_everyday(root: Path | None = None) -> list[str]:
    """Return the sentences of everyday, each once, in the order of their hashes."""
    lines: set[str] = set()
    for name, other in SENTENCES:
        english, _ = load_split(name, "train", target=other, root=root)
        lines.update(english)
    # a hash mixes the sets, and does not depend on the order of the files
    return sorted(lines, key=lambda line: hashlib.blake2b(line.encode()).digest())
