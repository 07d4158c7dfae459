"""Text <-> ids. Every kind of tokens can encode, decode, tell its size by len(), and be plain data.

Characters   one id a character

save, load   any kind, as tokens.json in a folder
"""

from __future__ import annotations

import json
from pathlib import Path

from ..config import atomic_write
from .characters import Characters

__all__ = ["Characters", "load", "save"]

_KINDS = {Characters.kind: Characters}


def save(tokens: Characters, folder: str | Path) -> Path:
    """Write tokens.json in a folder, which is made where there is none."""
    path = Path(folder) / "tokens.json"
    path.parent.mkdir(parents=True, exist_ok=True)
    atomic_write(path, (json.dumps(tokens.to_dict()) + "\n").encode())  # ASCII: half a surrogate pair is kept too
    return path


def load(folder: str | Path) -> Characters:
    """The tokens that were saved in a folder, whatever their kind."""
    path = Path(folder) / "tokens.json"
    try:
        values = json.loads(path.read_bytes())
    except FileNotFoundError as cause:
        raise ValueError(f"{folder}: there is no tokens.json in this folder") from cause
    except ValueError as cause:
        raise ValueError(f"{path}: not a JSON file: {cause}") from cause
    kind = values.get("kind") if isinstance(values, dict) else None
    if not isinstance(kind, str) or kind not in _KINDS:
        raise ValueError(f"{path}: kind = {kind!r}: expected one of {', '.join(_KINDS)}")
    try:
        return _KINDS[kind].from_dict(values)
    except ValueError as cause:
        raise ValueError(f"{path}: {cause}") from cause
