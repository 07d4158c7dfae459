"""Facts about the data of a run, kept with its checkpoints: a later attempt notices by them that the data has changed.

Ids and class numbers of a model mean what they meant in training, so another tokenizer or other classes are refused;
other changes are stated.
"""

from __future__ import annotations

import hashlib
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any

from ..data import Data
from ..data.files import locate
from ..data.fingerprints import fingerprint
from ..errors import MissingFileError
from ..tokens import Pair, Tokenizer
from .run_folder import FolderError

NUMBERS = ("steps per epoch", "validation batches")
SHOWN = 10  # classes that a message lists


def data_facts(data: Data, feeds: Iterable[Data], root: Path | None) -> dict[str, Any]:
    """Return the sizes, the classes, a hash of the tokenizer, and the fingerprints of the files of a run's data."""
    names = dict.fromkeys(name for one in (data, *feeds) for name in one.files)
    return {
        "steps per epoch": data.steps_per_epoch,
        "validation batches": data.valid_batches,
        "classes": None if data.classes is None else list(data.classes),
        "tokenizer": None if data.tokens is None else tokenizer_hash(data.tokens),
        "files": {name: fingerprint(locate(name, root)) for name in names},
    }


def tokenizer_hash(tokens: Tokenizer | Pair) -> str:
    """Return a hash of what the files of a tokenizer contain."""
    digest = hashlib.sha256()
    for name, content in sorted(tokens.files().items()):
        digest.update(f"{name}\0{len(content)}\0".encode() + content)
    return digest.hexdigest()[:16]


def check_same_meaning(was: Mapping[str, Any], now: Mapping[str, Any], folder: Path) -> None:
    """Raise if the classes or the tokenizer of the data are not those that a run was trained with.

    Args:
        was: The facts in the run's checkpoint; older ones may have fewer.
        now: The facts of the data as it is.
        folder: The run folder.
    """
    if was.get("classes") is not None and was["classes"] != now["classes"]:
        problem = (
            f"was trained on the classes {_listed(was['classes'])}, and the data now has {_listed(now['classes'])}"
        )
    elif was.get("tokenizer") is not None and was["tokenizer"] != now["tokenizer"]:
        problem = "was trained with another tokenizer than the data now gives, so that its ids mean other tokens"
    else:
        return
    changed = [name for name, mark in was.get("files", {}).items() if now["files"].get(name, mark) != mark]
    files = f" ({', '.join(changed)} changed)" if changed else ""
    raise FolderError(
        f"{folder} {problem}{files}. Expected the data of its first attempt, or another folder for a new training"
    )


def changes(was: Mapping[str, Any], now: Mapping[str, Any]) -> list[str]:
    """Return each change of the data as a text that begins with "data"."""
    found = [
        f"data had {was[name]} {name}, now {now[name]}" for name in NUMBERS if was.get(name, now[name]) != now[name]
    ]
    kept = was.get("files", {})
    return found + [f"data file {name}" for name, mark in now["files"].items() if kept.get(name, mark) != mark]


def changed_files(was: Mapping[str, Any], root: Path | None) -> list[str]:
    """Return a sentence for each file of a run that is no longer as it was, without opening the data."""
    found = []
    for name, mark in was.get("files", {}).items():
        try:
            place = locate(name, root)
        except MissingFileError:
            found.append(f"{name} is no longer there")
            continue
        if fingerprint(place) != mark:
            found.append(f"{name} has changed")
    return found


def _listed(classes: list[str] | None) -> str:
    if classes is None:
        return "none"
    more = f" and {len(classes) - SHOWN} more" if len(classes) > SHOWN else ""
    return ", ".join(classes[:SHOWN]) + more
