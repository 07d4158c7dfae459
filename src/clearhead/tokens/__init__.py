"""Text <-> ids. Every kind can encode, decode, tell its size by len(), its special ids, and how each id looks.

Characters   one id a character; nothing is lost
Words        one id a word; what is rare is <unk>
Subwords     learned pieces of words, down to bytes; nothing is lost
Pieces       those of a SentencePiece model
Pair         the tokens of a translation: source and target

save, load   any of them, in a folder:
    tokens.json        characters, words and SentencePiece's pieces
    tokenizer.json     subwords, as the tokenizers library and its friends read it
    a Pair             tokens.json names the file of each side: source.tokens.json, target.tokenizer.json and so on;
                       tokens that both share are one file, tokenizer.json or both.tokens.json
"""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

from ..atomic_files import atomic_write
from ..errors import InputError
from .characters import Characters
from .ids import split
from .pair import Pair
from .pieces import Pieces
from .subwords import Subwords
from .tokenizer import Tokenizer
from .words import Words

__all__ = ["Characters", "Pair", "Pieces", "Subwords", "Tokenizer", "Words", "load", "remove", "save", "saved", "split"]

_KINDS: dict[str, Any] = {Characters.kind: Characters, Words.kind: Words, Pieces.kind: Pieces}
_ENTRIES = ("tokens.json", "tokenizer.json")  # where loading begins
_PARTS = tuple(f"{side}.{entry}" for side in ("source", "target", "both") for entry in _ENTRIES)


def save(tokens: Tokenizer | Pair, folder: str | Path) -> Path:
    """Write tokens into a folder, which is made where there is none; the file to begin reading with is returned."""
    folder = Path(folder)
    folder.mkdir(parents=True, exist_ok=True)
    if isinstance(tokens, Pair):
        entry, names = "tokens.json", _names(tokens)
        for side, name in names.items():
            atomic_write(folder / name, getattr(tokens, side).content())
        atomic_write(folder / entry, (json.dumps({"kind": "pair", **names}) + "\n").encode())
        kept = {entry, *names.values()}
    else:
        entry = "tokenizer.json" if isinstance(tokens, Subwords) else "tokens.json"
        atomic_write(folder / entry, tokens.content())
        kept = {entry}
    remove(folder, keep=kept)
    return folder / entry


def load(folder: str | Path) -> Tokenizer | Pair:
    """The tokens that were saved in a folder, whatever their kind; also those of another's tokenizer.json."""
    folder = Path(folder)
    path = saved(folder)
    if path is None:
        raise InputError(f"{folder}: there is no tokens.json in this folder, and no tokenizer.json")
    values = None if path.name == "tokenizer.json" else _json(path)
    if not isinstance(values, dict) or values.get("kind") != "pair":
        return _one(path)
    names: dict[str, Any] = {side: values.get(side) for side in ("source", "target")}
    for side, name in names.items():
        if name not in ("tokenizer.json", *_PARTS):
            known = ", ".join(("tokenizer.json", *_PARTS))
            raise InputError(f"{path}: {side} = {name!r}: expected a file beside it, one of {known}")
        if not (folder / name).is_file():
            raise InputError(f"{path}: {side} = {name!r}: there is no such file")
    source = _one(folder / names["source"])
    return Pair(source, source if names["source"] == names["target"] else _one(folder / names["target"]))


def saved(folder: str | Path) -> Path | None:
    """The file that a folder's tokens begin with; None if it has no tokens."""
    return next((Path(folder) / entry for entry in _ENTRIES if (Path(folder) / entry).is_file()), None)


def remove(folder: str | Path, keep: set[str] | None = None) -> None:
    """Take the files of tokens out of a folder, but for some."""
    for name in (*_ENTRIES, *_PARTS):
        if name not in (keep or ()):
            (Path(folder) / name).unlink(missing_ok=True)


def _names(pair: Pair) -> dict[str, str]:
    """The file of each side."""
    endings = {side: _ENTRIES[isinstance(getattr(pair, side), Subwords)] for side in ("source", "target")}
    if pair.joint:
        return dict.fromkeys(endings, "tokenizer.json" if isinstance(pair.source, Subwords) else "both.tokens.json")
    return {side: f"{side}.{ending}" for side, ending in endings.items()}


def _one(path: Path) -> Tokenizer:
    if path.name.endswith("tokenizer.json"):
        return Subwords.read(path)
    values = _json(path)
    kind = values.get("kind") if isinstance(values, dict) else None
    if not isinstance(kind, str) or kind not in _KINDS:
        raise InputError(f"{path}: kind = {kind!r}: expected one of {', '.join(_KINDS)}, pair")
    try:
        made: Characters | Words | Pieces = _KINDS[kind].from_dict(values)
    except ValueError as cause:
        raise InputError(f"{path}: {cause}") from cause
    return made


def _json(path: Path) -> Any:
    try:
        return json.loads(path.read_bytes())
    except ValueError as cause:
        raise InputError(f"{path}: not a JSON file: {cause}") from cause
