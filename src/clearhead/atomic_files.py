"""Files that are written completely or not at all, so that a crash leaves the old content or the new one."""

from __future__ import annotations

import os
import shutil
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from .errors import InputError


def atomic_write(path: Path, data: bytes) -> None:
    """Write a file so that a reader, or a crash at any moment, sees the old content or the new one.

    Args:
        path: The file to write or replace.
        data: The new content.

    Raises:
        OSError: The file cannot be written, for example because the disk is full; `filename` is `path`.

    Examples:
        >>> atomic_write(tmp / "a.txt", b"new")
        >>> (tmp / "a.txt").read_bytes()
        b'new'
    """
    with replacing(path) as temporary:
        temporary.write_bytes(data)


@contextmanager
def replacing(path: Path) -> Iterator[Path]:
    """Yield the name of a temporary file beside `path`, which replaces `path` at the end of the block.

    If the block raises, the temporary file is removed and `path` is unchanged.

    Args:
        path: The file to write or replace.

    Raises:
        OSError: The file cannot be written, for example because the disk is full; `filename` is `path`.

    Examples:
        >>> with replacing(tmp / "a.txt") as temporary:
        ...     _ = temporary.write_text("new")
        >>> [file.name for file in tmp.iterdir()]
        ['a.txt']
    """
    temporary = path.with_name(f".{path.stem}.{os.getpid()}.tmp{path.suffix}")
    try:
        yield temporary
        with open(temporary, "rb+") as file:  # Windows syncs only files that are open for writing
            os.fsync(file.fileno())
        # after fsync: the name must never point to content that is not on the disk
        os.replace(temporary, path)
    except OSError as error:
        # A failed write has no name at all, and the temporary name would mean nothing to a user.
        if error.filename is None or str(error.filename) == str(temporary):
            error.filename = str(path)
            del error.filename2
        raise
    finally:
        temporary.unlink(missing_ok=True)
    sync_folder(path.parent)


@contextmanager
def new_folder(path: Path) -> Iterator[Path]:
    """Yield a temporary folder beside `path`, which gets the name `path` at the end of the block.

    If the block raises, the temporary folder is removed.

    Args:
        path: The folder to create; it may exist if it is empty.

    Raises:
        InputError: There is a file, or a folder that is not empty.

    Examples:
        >>> with new_folder(tmp / "new") as temporary:
        ...     _ = (temporary / "a.txt").write_text("new")
        >>> [file.name for file in (tmp / "new").iterdir()]
        ['a.txt']
    """
    if path.exists() and not path.is_dir():
        raise InputError(f"{path} is a file: expected a new or an empty folder")
    if path.is_dir() and any(path.iterdir()):
        raise InputError(
            f"{path} is not empty, and is not overwritten: expected a new or an empty folder"
        )
    path.parent.mkdir(parents=True, exist_ok=True)
    place = path.resolve()  # "." has no name
    temporary = place.with_name(f".{place.name}.{os.getpid()}.tmp")
    temporary.mkdir()
    try:
        yield temporary
        if place.is_dir():
            place.rmdir()  # raises if it was filled meanwhile
        # a rename within one folder is atomic: nobody sees the folder half full
        os.rename(temporary, place)
    finally:
        shutil.rmtree(temporary, ignore_errors=True)
    sync_folder(place.parent)


def sync_folder(path: Path) -> None:
    """Make the entries of a folder durable; does nothing on Windows, which cannot open folders.

    Args:
        path: The folder.

    Examples:
        >>> sync_folder(tmp)
    """
    if os.name != "nt":
        handle = os.open(path, os.O_RDONLY)
        try:
            os.fsync(handle)
        finally:
            os.close(handle)
