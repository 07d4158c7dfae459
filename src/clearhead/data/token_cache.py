"""Folders in the user's cache that are made once, named by a hash of all that their content depends on."""

from __future__ import annotations

import hashlib
import json
import os
import shutil
from collections.abc import Callable, Iterable
from pathlib import Path
from typing import Any

from .fetch import cache_folder


def cached(key: dict[str, Any], make: Callable[[Path], None], *, kind: str = "tokens") -> Path:
    """Return the folder of a key; if it does not exist, `make` fills one, which then gets its name.

    Of several processes one makes the folder, and the others wait for it. If `make` is interrupted, no folder of that
    name exists, and what it has left is removed now or by the next process.

    Args:
        key: JSON values that the content depends on.
        make: Called with an empty folder.
        kind: What it contains; the folder of the cache that it is in.
    """
    from filelock import FileLock

    digest = hashlib.sha256(json.dumps(key, sort_keys=True).encode()).hexdigest()[:32]
    target = cache_folder() / kind / digest
    if target.is_dir():
        return target
    target.parent.mkdir(parents=True, exist_ok=True)
    with FileLock(f"{target}.lock"):
        if target.is_dir():
            return target
        part = target.with_name(f"{digest}.part")
        shutil.rmtree(part, ignore_errors=True)  # of a process that was killed
        part.mkdir()
        try:
            make(part)
            os.replace(part, target)
        finally:
            shutil.rmtree(part, ignore_errors=True)
    return target


def file_facts(files: Iterable[Path]) -> list[tuple[str, int, int]]:
    """The name, size and time of change of each file, which tell whether it is still the same."""
    facts = []
    for file in files:
        stat = file.stat()
        facts.append((str(file.resolve()), stat.st_size, stat.st_mtime_ns))
    return facts
