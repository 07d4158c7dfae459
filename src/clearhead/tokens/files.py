"""Saving tokenizers in a folder, and loading them.

tokens.json        characters, words, symbols and SentencePiece pieces, distinguished by their `kind`; or a pair
tokenizer.json     subwords, in the format of the tokenizers library
a Pair             tokens.json names the file of each side: source.tokens.json, target.tokenizer.json and so on;
                   tokens that both sides share are one file, tokenizer.json or both.tokens.json
source.spm         a pair from elsewhere: the SentencePiece models of Marian (marian.py)
"""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

from ..atomic_files import atomic_write
from ..errors import InputError
from . import marian
from .characters import Characters
from .pair import Pair
from .pieces import Pieces
from .subwords import Subwords
from .symbols import Symbols
from .tokenizer import Tokenizer
from .words import Words

# The tokenizers that are kept in tokens.json.
_BY_KIND: dict[str, Any] = {cls.kind: cls for cls in (Characters, Words, Pieces, Symbols)}
# the files that loading begins with, the first that is there
_ENTRIES = (Tokenizer.file, marian.ENTRY, Subwords.file)
_SIDES = tuple(
    f"{s}.{entry}"
    for s in ("source", "target", "both")
    for entry in (Tokenizer.file, Subwords.file)
)


def save(tokens: Tokenizer | Pair, folder: str | Path) -> Path:
    """Write a tokenizer into a folder, in place of any other tokenizer there.

    Args:
        tokens: A tokenizer, or the pair of a translation.
        folder: The folder, which is created if it does not exist.

    Returns:
        The file that `load` begins with.

    Examples:
        >>> save(Characters("abc"), tmp / "model").name
        'tokens.json'
        >>> load(tmp / "model")
        Characters('abc')
    """
    folder = Path(folder)
    folder.mkdir(parents=True, exist_ok=True)
    files = tokens.files()
    # the new files first, and then those of another tokenizer are removed
    for name, content in files.items():
        atomic_write(folder / name, content)
    remove(folder, keep=set(files))
    return folder / tokens.file


def load(folder: str | Path) -> Tokenizer | Pair:
    """Load the tokenizer of a folder, whatever its kind.

    Args:
        folder: A folder that `save` has written, or one with a tokenizer.json or the source.spm and target.spm of
            Marian from elsewhere.

    Raises:
        InputError: The folder has no tokenizer, or a damaged one.

    Examples:
        >>> words = Words(["a", "dog"])
        >>> path = save(Pair(words, words), tmp)
        >>> load(tmp).joint
        True
    """
    folder = Path(folder)
    path = saved(folder)
    if path is None:
        raise InputError(f"{folder}: there is no tokens.json in this folder, and no tokenizer.json")
    if path.name == marian.ENTRY:
        return marian.read_marian(folder)
    # a pair's tokens.json only names the files of its sides
    values = _read_json(path) if path.name == Pair.file else None
    if not isinstance(values, dict) or values.get("kind") != Pair.kind:
        return _load_one(path)
    names: dict[str, Any] = {side: values.get(side) for side in ("source", "target")}
    # a name from a file: only files that `save` writes are opened
    for side, name in names.items():
        if name not in (Subwords.file, *_SIDES):
            expected = ", ".join((Subwords.file, *_SIDES))
            raise InputError(
                f"{path}: {side} = {name!r}: expected a file beside it, one of {expected}"
            )
        if not (folder / name).is_file():
            raise InputError(f"{path}: {side} = {name!r}: there is no such file")
    source = _load_one(folder / names["source"])
    if names["source"] == names["target"]:
        # one object for both sides
        return Pair(source, source)
    return Pair(source, _load_one(folder / names["target"]))


def saved(folder: str | Path) -> Path | None:
    """The file of a folder that `load` would begin with; None if the folder has no tokenizer.

    Args:
        folder: Any folder.

    Examples:
        >>> saved(tmp) is None
        True
        >>> path = save(Characters("abc"), tmp)
        >>> saved(tmp).name
        'tokens.json'
    """
    for entry in _ENTRIES:
        if (Path(folder) / entry).is_file():
            return Path(folder) / entry
    return None


def remove(folder: str | Path, keep: set[str] | None = None) -> None:
    """Delete the tokenizer files of a folder.

    Args:
        folder: Any folder.
        keep: Names of files to keep; None: none.

    Examples:
        >>> path = save(Characters("abc"), tmp)
        >>> remove(tmp)
        >>> path.exists()
        False
    """
    for name in (*_ENTRIES, *_SIDES):
        if name not in (keep or ()):
            (Path(folder) / name).unlink(missing_ok=True)


def _load_one(path: Path) -> Tokenizer:
    if path.name.endswith(Subwords.file):
        # also a side of a pair, as in source.tokenizer.json
        return Subwords.read(path)
    values = _read_json(path)
    kind = values.get("kind") if isinstance(values, dict) else None
    if not isinstance(kind, str) or kind not in _BY_KIND:
        raise InputError(
            f"{path}: kind = {kind!r}: expected one of {', '.join(_BY_KIND)}, {Pair.kind}"
        )
    try:
        tokenizer: Tokenizer = _BY_KIND[kind].from_dict(values)
    except ValueError as cause:
        raise InputError(f"{path}: {cause}") from cause
    return tokenizer


def _read_json(path: Path) -> Any:
    try:
        return json.loads(path.read_bytes())
    except ValueError as cause:
        raise InputError(f"{path}: not a JSON file: {cause}") from cause
