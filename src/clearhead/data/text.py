"""Plain text: files or tiny Shakespeare as characters, everyday English as subwords."""

from __future__ import annotations

import hashlib
from dataclasses import dataclass
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from ..errors import InputError
from ..tokens import Characters, Subwords
from .fetch import find
from .files import locate, read_text
from .parallel import load_split
from .windows import WindowConfig, Windows

SENTENCES = (("tatoeba", "fr"), ("tatoeba", "de"), ("multi30k", "de"))  # sets whose English side is everyday English


@dataclass(frozen=True, kw_only=True, slots=True)
class TextConfig(WindowConfig):
    """Options of text."""

    path: str | tuple[str, ...]  # one or many UTF-8 files, plain or .gz, which are concatenated
    separator: str | None = None  # ends a document, as does the end of a file; None: each file is a document

    def __post_init__(self) -> None:
        WindowConfig.__post_init__(self)  # super() loses its class when slots make a new one
        if not self.path:
            raise InputError("path is empty: expected a text file, or several")
        if self.separator == "":
            raise InputError("separator is empty: expected at least one character")


class Text(Windows):
    """Text files, one token per character."""

    def __init__(self, config: TextConfig, *, seed: int, root: Path | None = None) -> None:
        paths = (config.path,) if isinstance(config.path, str) else config.path
        texts = [read_text(locate(path, root)) for path in paths]
        self._open(config, seed, texts, config.separator, ", ".join(paths))

    def _open(self, config: WindowConfig, seed: int, texts: list[str], separator: str | None, name: str) -> None:
        whole = "".join(texts)
        self.tokens = Characters.of(whole)
        ids = self.tokens.encode(whole).astype(np.min_scalar_type(len(self.tokens)))
        ends = document_ends(texts, separator)
        super().__init__(config, seed=seed, ids=ids, ends=ends, vocab=len(self.tokens), name=name)


class Shakespeare(Text):
    """Tiny Shakespeare (Karpathy 2015), a million characters; the speeches, separated by empty lines, are documents."""

    def __init__(self, config: WindowConfig, *, seed: int, root: Path | None = None) -> None:
        self._open(config, seed, [read_text(find("shakespeare", root))], "\n\n", "shakespeare")


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


def document_ends(texts: list[str], separator: str | None) -> NDArray[np.int64]:
    """Return where the documents of concatenated texts end; a separator belongs to the document before it."""
    sizes: list[int] = []
    for text in texts:
        if separator is None:
            sizes.append(len(text))
            continue
        pieces = text.split(separator)
        sizes += [len(piece) + len(separator) for piece in pieces[:-1]]
        sizes += [len(pieces[-1])] if pieces[-1] else []
    return np.cumsum(sizes, dtype=np.int64)
