"""Plain text: files, folders and tables as characters, words or subwords; tiny Shakespeare; everyday English."""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from ..errors import InputError, nearest
from ..tokens import Characters, Subwords, Tokenizer
from ..tokens.chat_template import read_template
from ..tokens.special import Special, read_special
from .documents import Documents, find_files
from .fetch import find
from .files import given_files
from .parallel import load_split
from .splits import counted, left_out_told
from .tokenized import Reading, Source, Tokenized, alphabet, around, tokenize
from .tokenizer_folder import find_tokenizer, open_tokenizer, vocabulary_size
from .vocabulary import TokenizerConfig
from .windows import WindowConfig, Windows

SENTENCES = (("tatoeba", "fr"), ("tatoeba", "de"), ("multi30k", "de"))  # sets whose English side is everyday English


@dataclass(frozen=True, kw_only=True, slots=True)
class TextConfig(WindowConfig):
    """Options of text."""

    path: str | tuple[str, ...]  # one or many files, folders of text files, or tables; compressed or not
    valid_path: str | tuple[str, ...] | None = None  # such files for validation; None: a share of the first, at the end
    separator: str | None = None  # ends a document, as does the end of a file; None: each file is a document
    column: str | None = None  # column of a table whose rows are documents; None: one that is called text, or the only
    header: bool | None = None  # whether the first row of a CSV or TSV file names the columns; None: recognised
    tokens: str = "characters"  # characters, words, bpe, or the folder of a tokenizer, such as a checkpoint's
    size: int = 8000  # largest number of tokens of words and bpe, special tokens included
    minimum: int = 2  # smallest number of occurrences of a word, or of a pair of pieces to be merged (bpe)
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
        return TokenizerConfig(vocabulary=kind, size=self.size, minimum=self.minimum, lower=self.lower)


def _alphabet(config: TextConfig, reading: Reading) -> Tokenizer:
    return Characters(sorted(reading.alphabet))


def _trained(config: TextConfig, reading: Reading) -> Tokenizer:
    return config.vocabulary().tokenizer(reading.sample())


# Tokenizers that are made of the text itself.
LEARNED: Mapping[str, Callable[[TextConfig, Reading], Tokenizer]] = {
    "characters": _alphabet, "words": _trained, "bpe": _trained
}  # fmt: skip


class Text(Windows):
    """Text files, one token per character, word or subword.

    Where the tokenizer has an end token, it follows each document, in place of the separator. Words and subwords are
    trained on the training part, or on a sample of it.
    """

    def __init__(self, config: TextConfig, *, seed: int, root: Path | None = None) -> None:
        paths = (config.path,) if isinstance(config.path, str) else config.path
        learned = config.tokens in LEARNED
        if learned:
            source: Source = lambda reading: LEARNED[config.tokens](config, reading)  # noqa: E731
            joined, how = config.tokens == "characters", [config.tokens, config.size, config.minimum, config.lower]
        else:
            expected = f": expected {', '.join(LEARNED)}, or a folder with one{nearest(config.tokens, LEARNED)}"
            folder = find_tokenizer(config.tokens, root, expected)
            source = open_tokenizer(config.tokens, folder)
            self.chat, self.special = read_template(folder), read_special(folder, source)
            joined, how = not len(around(source, self.special)[1]), [hashlib.sha256(source.content()).hexdigest()]
            vocab = vocabulary_size(folder, source)
        how_read: dict[str, Any] = {"separator": config.separator, "column": config.column, "header": config.header}

        def documents(path: str | Sequence[str]) -> Documents:
            return Documents(find_files(path, root), joined=joined, **how_read)

        valid, key = None if config.valid_path is None else documents(config.valid_path), {"tokens": how, **how_read}
        if valid is not None and config.tokens == "characters":  # those of validation must not be unknown
            others = sorted(alphabet(valid))
            source, key["others"] = lambda reading: Characters(sorted({*reading.alphabet, *others})), others
        share = config.share if valid is None else 0.0
        made = tokenize(documents(paths), source, share=share, key=key, special=self.special)
        own = None
        if valid is not None:
            key = {"tokens": [hashlib.sha256(made.tokens.content()).hexdigest()], **how_read}
            own = tokenize(valid, made.tokens, share=0.0, key=key, special=self.special)
        if learned and made.tokens.end is not None:  # an empty prompt begins where a document ends
            self.special = Special(pad=made.tokens.pad, start=made.tokens.end, ends=(made.tokens.end,))
        self.description, self.files = _described(made, config, own), given_files(paths, config.valid_path)
        self._open(config, seed, made, ", ".join(paths), vocab=len(made.tokens) if learned else vocab, own=own)

    def _open(
        self, config: WindowConfig, seed: int, made: Tokenized, name: str, *, vocab: int, own: Tokenized | None = None
    ) -> None:
        self.tokens = made.tokens
        super().__init__(
            config, seed=seed, ids=made.ids, ends=made.ends, vocab=vocab, name=name, cut=made.facts.cut,
            valid=None if own is None else (own.ids, own.ends),
        )  # fmt: skip


def _described(made: Tokenized, config: TextConfig, own: Tokenized | None) -> str:
    """A sentence about the text: its size, its split, and what was left out."""
    facts = made.facts
    size = f"{counted(len(made.ends), 'document')} of {len(made.ids):,} tokens"
    parts = [size if facts.characters is None else f"{size} ({facts.characters:,} characters)"]
    parts.append(
        f"the last {config.share:.0%} are for validation" if own is None
        else f"{len(own.ids):,} tokens for validation (from {', '.join(given_files(config.valid_path))})"
    )  # fmt: skip
    if facts.sampled is not None:
        parts.append(f"a vocabulary of {len(made.tokens):,} tokens, learned from {facts.sampled:,} characters")
    if empty := facts.empty + (0 if own is None else own.facts.empty):
        parts.append(left_out_told(empty, "text"))
    return "; ".join(parts)


class Shakespeare(Text):
    """Tiny Shakespeare (Karpathy 2015), a million characters; the speeches, separated by empty lines, are documents."""

    def __init__(self, config: WindowConfig, *, seed: int, root: Path | None = None) -> None:
        documents = Documents([find("shakespeare", root)], separator="\n\n")
        made = tokenize(documents, lambda reading: Characters(sorted(reading.alphabet)), share=config.share, key={})
        self._open(config, seed, made, "shakespeare", vocab=len(made.tokens))


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
        train = sentences[: max(int(len(sentences) * (1 - config.share)), 1)]
        self.tokens = Subwords.of(train, size=config.size)
        rows = self.tokens.encode_all([f"{line}\n" for line in sentences])
        ids = np.concatenate(rows).astype(np.min_scalar_type(len(self.tokens)))
        ends = np.cumsum([len(row) for row in rows], dtype=np.int64)
        super().__init__(config, seed=seed, ids=ids, ends=ends, vocab=len(self.tokens), name="everyday")


def read_everyday(root: Path | None = None) -> list[str]:
    """Return the sentences of everyday, each once, in the order of their hashes."""
    lines = {line for name, other in SENTENCES for line in load_split(name, "train", target=other, root=root)[0]}
    return sorted(lines, key=lambda line: hashlib.blake2b(line.encode()).digest())
