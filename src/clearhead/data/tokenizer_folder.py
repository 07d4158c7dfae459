"""The tokenizer of a folder: that of a checkpoint, or of a run."""

from __future__ import annotations

from pathlib import Path

from .. import config, tokens
from ..tokens import Pair, Tokenizer
from ..tokens.special import Special, read_special
from .files import DataError


def find_tokenizer(name: str, root: Path | None, expected: str = "") -> Path:
    """Return the folder that has a tokenizer: the one of this name, the one in the data folder, or that of a run.

    Args:
        name: The folder.
        root: The data folder.
        expected: What else the option may be, for the message.
    """
    folder = Path(name).expanduser()
    folder = folder if root is None or folder.is_dir() else root / name
    for place in (folder, folder / "model"):  # the second is that of a run folder
        if tokens.saved(place) is not None:
            return place
    raise DataError(f"tokens={name!r}: there is no tokenizer in such a folder{expected}")


def open_tokenizer(name: str, folder: Path) -> Tokenizer:
    """Load the tokenizer of a folder; `name` is the option that gave it."""
    tokenizer = tokens.load(folder)
    if isinstance(tokenizer, Pair):
        raise DataError(f"tokens={name!r} has the tokenizers of a translation model: expected one tokenizer")
    return tokenizer


def open_pair(name: str, root: Path | None) -> tuple[Pair, Special]:
    """Load the tokenizers of a translator, and its special ids: the decoder may start from the padding, as in Marian.

    Args:
        name: The folder; one tokenizer in it is that of both sides.
        root: The data folder.
    """
    folder = find_tokenizer(name, root)
    found = tokens.load(folder)
    pair = found if isinstance(found, Pair) else Pair(found, found)
    return pair, read_special(folder, pair.target)


def vocabulary_size(folder: Path, tokenizer: Tokenizer) -> int:
    """Return the vocabulary of the model in a folder, which may have more embeddings than its tokenizer has tokens."""
    path = folder / "config.json"
    table = config.load(path) if path.is_file() else config.Table()
    size = table["options"].get("vocab") if "clearhead" in table else table.get("vocab_size")
    return max(len(tokenizer), size) if isinstance(size, int) else len(tokenizer)
