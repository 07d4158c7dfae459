"""Token files: little-endian ids that are memory-mapped, with a JSON header and the ends of the documents beside them.

x.bin        the ids, uint16 or uint32, document after document
x.bin.ends   for each document the place after its last id, int64
x.bin.json   the header: kind, dtype, tokens, documents, vocab
"""

from __future__ import annotations

import json
from collections.abc import Iterable
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Literal

import numpy as np

from ... import config
from ...atomic_files import atomic_write, replacing
from ...errors import InputError
from ..batching import WindowConfig, Windows
from ..files import DataError, locate


@dataclass(frozen=True, kw_only=True, slots=True)
class Header:
    """The header of a token file."""

    kind: Literal["clearhead tokens"] = "clearhead tokens"
    dtype: Literal["uint16", "uint32"]  # of an id, little-endian
    tokens: int  # number of ids in the file
    documents: int  # number of ends in the file of ends; 0: there is no such file
    vocab: int  # vocabulary size: every id is below it


@dataclass(frozen=True, kw_only=True, slots=True)
class TokenFileConfig(WindowConfig):
    """Options of tokens."""

    path: str  # the file of ids, as write_tokens writes it


class Tokens(Windows):
    """Windows on a token file of any size; each batch reads only its own windows."""

    def __init__(self, config: TokenFileConfig, *, seed: int, root: Path | None = None) -> None:
        path = locate(config.path, root)
        ids, ends, vocab = map_tokens(path)
        if config.documents and not len(ends):
            raise DataError(
                f"{path} has no ends of documents, as its header says: documents=true needs them"
            )
        super().__init__(config, seed=seed, ids=ids, ends=ends, vocab=vocab, name=str(path))
        self.files = (config.path,)


def map_tokens(path: Path) -> tuple[np.ndarray, np.ndarray, int]:
    """Map a token file into memory: its ids, the ends of its documents (none: an empty array), and its vocabulary."""
    # the header first: it says how the other files are to be read
    header = _read_header(path)
    ids = _map(path, np.dtype(header.dtype).newbyteorder("<"), header.tokens)
    # without an ends file all ids are one stream
    ends = np.zeros(0, np.int64)
    if header.documents:
        ends = _map(_beside(path, "ends"), np.dtype("<i8"), header.documents)
        # a truncated or foreign file of ends would cut documents anywhere
        if ends[-1] != header.tokens:
            raise DataError(
                f"{_beside(path, 'ends')} ends at {ends[-1]}: expected {header.tokens}, as in the header"
            )
    return ids, ends, header.vocab


def write_tokens(path: str | Path, documents: Iterable[np.ndarray], *, vocab: int) -> Path:
    """Write documents of token ids to a file that the data set "tokens" reads; they need not fit into memory together.

    Args:
        path: The file of ids; its header and the ends of the documents are written beside it.
        documents: For each document a row of ids; empty documents are omitted.
        vocab: The vocabulary size; every id must be below it.

    Returns:
        The path of the file of ids.

    Raises:
        InputError: An id is out of range, or there are no ids; existing files are unchanged.
        OSError: The files cannot be written, for example because the disk is full; `filename` names one of them.

    Examples:
        >>> path = write_tokens(tmp / "x.bin", [np.array([1, 2, 3]), np.array([4, 5])], vocab=6)
        >>> sorted(file.name for file in tmp.iterdir())
        ['x.bin', 'x.bin.ends', 'x.bin.json']
        >>> clearhead.data.make_data("tokens", {"path": str(path), "context": 2}, seed=0).sizes
        {'vocab': 6}
    """
    return write_parts(path, ((np.asarray(document), True) for document in documents), vocab=vocab)


def write_parts(path: str | Path, parts: Iterable[tuple[np.ndarray, bool]], *, vocab: int) -> Path:
    """`write_tokens` for documents in parts: each is a row of ids, and whether a document ends with it."""
    path = Path(path)
    dtype: Literal["uint16", "uint32"] = "uint16" if vocab <= 1 << 16 else "uint32"
    if not 1 <= vocab <= 1 << 32:
        raise InputError(f"vocab={vocab}: expected 1 to {1 << 32}")
    header = _beside(path, "json")
    tokens = count = number = end = 0  # ids and ends written, documents read, and the last end
    # both files get their names only when all has been written
    with replacing(_beside(path, "ends")) as ends_file, replacing(path) as ids_file:
        with ids_file.open("wb") as ids, ends_file.open("wb") as ends:
            # a large document comes in several parts
            for part, is_last in parts:
                # `number` is that of the document, for the message
                row = _checked(number, part, vocab)
                # the byte order is fixed, so that files can be moved between machines
                ids.write(row.astype(np.dtype(dtype).newbyteorder("<")).tobytes())
                tokens, number = tokens + row.size, number + is_last
                if is_last and tokens > end:  # not an empty document
                    ends.write(np.array([tokens], "<i8").tobytes())
                    count, end = count + 1, tokens
        if not tokens:
            raise InputError(f"no ids to write to {path}")
        header.unlink(missing_ok=True)  # an old header must never describe new ids
    # the header comes last: files without it are not read
    facts = asdict(Header(dtype=dtype, tokens=tokens, documents=count, vocab=vocab))
    atomic_write(header, (json.dumps(facts, indent=2) + "\n").encode())
    return path


def _checked(number: int, row: np.ndarray, vocab: int) -> np.ndarray:
    """Return a document, or raise if it is not a row of ids below `vocab`."""
    # an empty row may have any dtype, as np.array([]) is of floats
    if row.ndim != 1 or (row.size and row.dtype.kind not in "iu"):
        raise InputError(
            f"document {number} has shape {row.shape} and dtype {row.dtype}: expected a row of integers"
        )
    if row.size and not 0 <= row.min() <= row.max() < vocab:
        raise InputError(
            f"document {number} has ids from {row.min()} to {row.max()}: expected 0 to {vocab - 1}"
        )
    return row


def _read_header(path: Path) -> Header:
    beside = _beside(path, "json")
    if not beside.is_file():
        raise DataError(
            f"{path} has no header {beside.name} beside it: expected a file that write_tokens wrote"
        )
    return config.read(Header, config.load(beside))


def _map(path: Path, dtype: np.dtype, count: int) -> np.ndarray:
    """Map a file of numbers into memory, so that only the parts in use are read."""
    if not path.is_file():
        raise DataError(f"{path} is missing: the header says that there is such a file")
    size, expected = path.stat().st_size, count * dtype.itemsize
    # memmap would fail at an empty file with a message that says nothing
    if size != expected or count < 1:
        raise DataError(
            f"{path} has {size} bytes: its header says {count} numbers of {dtype.itemsize}, {expected} bytes"
        )
    return np.asarray(np.memmap(path, dtype, mode="r"))


def _beside(path: Path, suffix: str) -> Path:
    return path.with_name(f"{path.name}.{suffix}")
