"""Files of ids: little-endian integers mapped into memory, with a JSON header and the ends of the documents beside.

x.bin        the ids, uint16 or uint32, document after document
x.bin.ends   for each document the place after its last id, int64
x.bin.json   the header: kind, dtype, tokens, documents, vocab
"""

from __future__ import annotations

import json
import os
from collections.abc import Iterable
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Literal

import numpy as np

from .. import config
from ..errors import InputError
from .files import DataError, locate
from .windows import Windowing, Windows


@dataclass(frozen=True, kw_only=True, slots=True)
class Header:
    """What a file of ids says of itself."""

    kind: Literal["clearhead tokens"] = "clearhead tokens"
    dtype: Literal["uint16", "uint32"]  # of an id, little-endian
    tokens: int  # ids in the file
    documents: int  # ends in the file of ends; 0: there is no such file
    vocab: int  # every id is below it


@dataclass(frozen=True, kw_only=True, slots=True)
class TokenFile(Windowing):
    """Options of tokens."""

    path: str  # the file of ids, as write_tokens wrote it


class Tokens(Windows):
    """Windows on a file of ids of any size: only what a batch needs is read."""

    def __init__(self, config: TokenFile, *, seed: int, root: Path | None = None) -> None:
        path = locate(config.path, root)
        header = _header(path)
        ids = _map(path, np.dtype(header.dtype).newbyteorder("<"), header.tokens)
        ends = np.zeros(0, np.int64)
        if header.documents:
            ends = _map(_beside(path, "ends"), np.dtype("<i8"), header.documents)
            if ends[-1] != header.tokens:
                raise DataError(
                    f"{_beside(path, 'ends')} ends at {ends[-1]}: expected {header.tokens}, as in the header"
                )
        elif config.documents:
            raise DataError(f"{path} tells no documents apart, as its header says: documents=true needs their ends")
        super().__init__(config, seed=seed, ids=ids, ends=ends, vocab=header.vocab, name=str(path))


def write_tokens(path: str | Path, documents: Iterable[np.ndarray], *, vocab: int) -> Path:
    """Write documents, each a row of ids below `vocab`, one at a time; an empty one is left out."""
    path = Path(path)
    dtype: Literal["uint16", "uint32"] = "uint16" if vocab <= 1 << 16 else "uint32"
    if not 1 <= vocab <= 1 << 32:
        raise InputError(f"vocab={vocab}: expected 1 to {1 << 32}")
    parts = {target: target.with_name(target.name + ".part") for target in (path, _beside(path, "ends"))}
    tokens = count = 0
    try:
        with parts[path].open("wb") as ids, parts[_beside(path, "ends")].open("wb") as ends:
            for number, document in enumerate(documents):
                row = np.asarray(document)
                if row.ndim != 1 or (row.size and row.dtype.kind not in "iu"):
                    raise InputError(
                        f"document {number} has shape {row.shape} and type {row.dtype}: expected a row of integers"
                    )
                if row.size and not 0 <= row.min() <= row.max() < vocab:
                    raise InputError(
                        f"document {number} has ids from {row.min()} to {row.max()}: expected 0 to {vocab - 1}"
                    )
                if row.size:
                    ids.write(row.astype(np.dtype(dtype).newbyteorder("<")).tobytes())
                    tokens, count = tokens + row.size, count + 1
                    ends.write(np.array([tokens], "<i8").tobytes())
        if not tokens:
            raise InputError(f"no ids to write to {path}")
        _beside(path, "json").unlink(missing_ok=True)  # an old header must never stand beside new ids
        for target, part in parts.items():
            os.replace(part, target)
    finally:
        for part in parts.values():
            part.unlink(missing_ok=True)
    header = _beside(path, "json")
    new = header.with_name(header.name + ".part")
    new.write_text(
        json.dumps(asdict(Header(dtype=dtype, tokens=tokens, documents=count, vocab=vocab)), indent=2) + "\n"
    )
    os.replace(new, header)
    return path


def _header(path: Path) -> Header:
    beside = _beside(path, "json")
    if not beside.is_file():
        raise DataError(f"{path} has no header {beside.name} beside it: write_tokens writes both")
    return config.read(Header, config.load(beside))


def _map(path: Path, dtype: np.dtype, count: int) -> np.ndarray:
    """A file of numbers as an array that is read where it is looked at."""
    if not path.is_file():
        raise DataError(f"{path} is missing: the header speaks of it")
    size, expected = path.stat().st_size, count * dtype.itemsize
    if size != expected or count < 1:
        raise DataError(
            f"{path} has {size} bytes: its header says {count} numbers of {dtype.itemsize}, {expected} bytes"
        )
    return np.asarray(np.memmap(path, dtype, mode="r"))


def _beside(path: Path, what: str) -> Path:
    return path.with_name(f"{path.name}.{what}")
