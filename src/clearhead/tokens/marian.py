"""The tokenizers in a folder of Marian: two SentencePiece models, source.spm and target.spm, with ids of their own.

vocab.json            the ids of both sides, or those of the source
target_vocab.json     the ids of the target, if tokenizer_config.json has separate_vocabs
config.json           the id that decoding starts from, which is that of the padding unless the file says otherwise
"""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

from .. import config
from ..errors import InputError
from .pair import Pair
from .pieces import Pieces
from .sentencepiece import SentencePieceModel
from .special import first_known, read_special, tokenizer_settings

ENTRY = "source.spm"  # the file that a folder of Marian is recognised by
# Special tokens. Our name: their key, and the default token.
SPECIAL_TOKENS = {
    "pad": ("pad_token", "<pad>"),
    "end": ("eos_token", "</s>"),
    "unknown": ("unk_token", "<unk>"),
}


def read_marian(folder: Path, start: int | None = None) -> Pair:
    """Read the tokenizers of a folder; `start` is the id that decoding starts from, None: as config.json says."""
    settings = tokenizer_settings(folder)
    separate = bool(settings.get("separate_vocabs", False))
    file = "target_vocab.json" if separate else "vocab.json"
    # the start id may be named in config.json by an id that only the target's vocabulary explains
    target = _read_pieces(folder, "target", file, settings)
    if start is None:
        start = first_known(read_special(folder, target).start, target.pad)
    target = _read_pieces(folder, "target", file, settings, start)
    return Pair(_read_pieces(folder, "source", "vocab.json", settings), target)


def read_vocab(path: Path) -> dict[str, int]:
    """Read the tokens and their ids in a vocab.json."""
    table = config.load(path)
    for token, i in table.items():
        if type(i) is not int or not 0 <= i < 1 << 31:
            raise InputError(
                f"{table.origin.place((token,))}the token {token!r} has the id {i!r}: expected a number"
            )
    if len(set(table.values())) < len(table):
        raise InputError(f"{path}: two tokens have the same id")
    return dict(table)


def _read_pieces(
    folder: Path, side: str, file: str, settings: Mapping[str, Any], start: int | None = None
) -> Pieces:
    vocab = read_vocab(folder / file)
    special = {}
    if start is not None:
        special["start"] = start
    # their special tokens are named in the settings, and have ids in the vocabulary
    for name, (key, usual) in SPECIAL_TOKENS.items():
        token = settings.get(key) or usual
        if token not in vocab:
            raise InputError(f"{folder / file}: there is no {token}, the {name} token")
        special[name] = vocab[token]
    try:
        return Pieces(SentencePieceModel.read(folder / f"{side}.spm"), vocab, special=special)
    except FileNotFoundError as cause:
        raise InputError(f"{folder}: there is no {side}.spm in this folder") from cause
    except ValueError as cause:
        message = str(cause)
        if ".spm" not in message:
            # a message about the model itself names its file already
            message = f"{folder / file}: {message}"
        raise InputError(message) from cause
