"""Fingerprints of users' files and folders, by which a resumed training notices that they have changed."""

from __future__ import annotations

import hashlib
import os
from collections.abc import Iterator
from pathlib import Path

WHOLE = 1 << 26  # bytes up to which all of a file is hashed
BLOCK = 1 << 20  # bytes of a block of a larger file
BLOCKS = 32  # blocks of a larger file that are hashed, at even distances, the first and the last among them
CONTENTS = 1000  # files of a folder up to which their contents are hashed; of more only names and sizes


def fingerprint(path: Path) -> str:
    """Return the size of a file and a hash of its content; of a folder those of all visible files in it.

    Of a large file some blocks are hashed, so that it takes no time.

    Examples:
        >>> _ = (tmp / "a.txt").write_text("hello")
        >>> fingerprint(tmp / "a.txt")
        '5 bytes, sha256 2cf24dba5fb0a30e'
    """
    if not path.is_dir():
        return f"{path.stat().st_size} bytes, sha256 {_hashed(path)}"
    files = list(_files(path))
    digest, size = hashlib.sha256(), 0
    for name in files:
        bytes_of = (path / name).stat().st_size
        size += bytes_of
        content = _hashed(path / name) if len(files) <= CONTENTS else ""
        digest.update(f"{name}\0{bytes_of}\0{content}\0".encode("utf-8", "surrogateescape"))
    return f"{len(files)} files, {size} bytes, sha256 {digest.hexdigest()[:16]}"


def _hashed(path: Path) -> str:
    size, digest = path.stat().st_size, hashlib.sha256()
    with path.open("rb") as file:
        if size <= WHOLE:
            while block := file.read(BLOCK):
                digest.update(block)
        else:
            for i in range(BLOCKS):
                file.seek((size - BLOCK) * i // (BLOCKS - 1))
                digest.update(file.read(BLOCK))
    return digest.hexdigest()[:16]


def _files(folder: Path) -> Iterator[str]:
    """Yield the names of the files in a folder and in those inside it, in order; hidden ones are left out."""
    for place, folders, files in os.walk(folder):
        folders[:] = sorted(name for name in folders if not name.startswith("."))
        for name in sorted(files):
            path = Path(place) / name
            if not name.startswith(".") and path.is_file():
                yield path.relative_to(folder).as_posix()
