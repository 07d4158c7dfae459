"""Plain text as characters: files of one's own, or tiny Shakespeare."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from ..tokens import Characters
from .fetch import find
from .files import locate, read_text
from .windows import Windowing, Windows


@dataclass(frozen=True, kw_only=True, slots=True)
class Files(Windowing):
    """Options of text."""

    path: str | tuple[str, ...]  # one or many UTF-8 files, plain or .gz, read one after the other
    separator: str | None = None  # documents end with it, or with the file; None: each file is a document

    def __post_init__(self) -> None:
        Windowing.__post_init__(self)  # super() loses its class when slots make a new one
        if not self.path:
            raise ValueError("path is empty: expected a text file, or several")
        if self.separator == "":
            raise ValueError("separator is empty: expected at least one character")


class Text(Windows):
    """Text files, a character a token."""

    def __init__(self, config: Files, *, seed: int, root: Path | None = None) -> None:
        paths = (config.path,) if isinstance(config.path, str) else config.path
        texts = [read_text(locate(path, root)) for path in paths]
        self._open(config, seed, texts, config.separator, ", ".join(paths))

    def _open(self, config: Windowing, seed: int, texts: list[str], separator: str | None, name: str) -> None:
        whole = "".join(texts)
        self.tokens = Characters.of(whole)
        ids = self.tokens.encode(whole).astype(np.min_scalar_type(len(self.tokens)))
        ends = document_ends(texts, separator)
        super().__init__(config, seed=seed, ids=ids, ends=ends, vocab=len(self.tokens), name=name)


class Shakespeare(Text):
    """Tiny Shakespeare (Karpathy 2015): a million characters; the speeches, parted by empty lines, are documents."""

    def __init__(self, config: Windowing, *, seed: int, root: Path | None = None) -> None:
        self._open(config, seed, [read_text(find("shakespeare", root))], "\n\n", "shakespeare")


def document_ends(texts: list[str], separator: str | None) -> NDArray[np.int64]:
    """Where the documents of texts put one after the other end; a separator belongs to the document before it."""
    sizes: list[int] = []
    for text in texts:
        if separator is None:
            sizes.append(len(text))
            continue
        pieces = text.split(separator)
        sizes += [len(piece) + len(separator) for piece in pieces[:-1]]
        sizes += [len(pieces[-1])] if pieces[-1] else []
    return np.cumsum(sizes, dtype=np.int64)
