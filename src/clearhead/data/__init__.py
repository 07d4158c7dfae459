"""data: files and thin air -> batches of numpy arrays, each a pure function of (seed, step). Imports no torch."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

from .. import config
from ..errors import nearest
from . import labelled, translations
from .batches import IGNORE, Batch, Data, share_rows
from .fetch import find
from .files import DataError
from .images import ImageFolder, Images
from .labelled import Labels, Sst2
from .masked import Gaps, Masked
from .pairs import PairFile
from .parallel import load_split
from .synthetic import Copy, Gaussians, Identity, Most, Party, Recall, Reverse, Sequences, Vectors
from .synthetic import Mixture as GaussianMixture
from .text import Everyday, Files, Shakespeare, Subworded, Text
from .token_files import TokenFile, Tokens, write_tokens
from .translations import Mixture, Multi30k, Tatoeba
from .windows import Windowing

__all__ = [
    "IGNORE",
    "Batch",
    "Data",
    "DataError",
    "data_config",
    "find",
    "load_split",
    "make_data",
    "names",
    "share_rows",
    "write_tokens",
]

_KINDS: dict[str, tuple[type[Any], Callable[..., Data], str]] = {  # name: its options, what opens it, what it is
    "reverse": (Sequences, Reverse, "symbols, then the same symbols backwards"),
    "copy": (Sequences, Copy, "symbols, then the same symbols again"),
    "most": (Sequences, Most, "which symbol of a bag is there most often; order does not matter"),
    "recall": (Party, Recall, "the party: who was the important guest, so many guests ago"),
    "identity": (Vectors, Identity, "vectors of normal numbers, to be passed on unchanged"),
    "gaussians": (GaussianMixture, Gaussians, "points around the centres of a mixture of normal distributions"),
    "shakespeare": (Windowing, Shakespeare, "tiny Shakespeare, a million characters"),
    "everyday": (Subworded, Everyday, "everyday English, 229,000 sentences, as subwords"),
    "text": (Files, Text, "plain text files, as characters"),
    "tokens": (TokenFile, Tokens, "a file of ids, as write_tokens writes it, of any size"),
    "pairs": (PairFile, translations.pairs, "pairs of texts, source TAB target a line, joined or as translations"),
    "multi30k": (Multi30k, translations.multi30k, "29,000 captions of photographs in English, German and French"),
    "tatoeba": (Tatoeba, translations.tatoeba, "everyday sentences, English and French or German"),
    "translations": (Mixture, translations.mixture, "several sets of translations, and files, together"),
    "masked": (Gaps, Masked, "texts with gaps, and what stood in them: sst2's, or those of files"),
    "sst2": (Sst2, labelled.sst2, "sentences about films, which praise or blame"),
    "labelled": (Labels, labelled.labelled, "texts with labels, text TAB label a line"),
    "images": (ImageFolder, Images, "a folder or zip file of pictures, one folder a class"),
}


def names() -> dict[str, str]:
    """The names of all data, each with a line on what it is."""
    return {name: what for name, (_, _, what) in _KINDS.items()}


def data_config(name: str) -> type[Any]:
    """The dataclass of the options of a kind of data."""
    return _kind(name)[0]


def make_data(name: str, options: Mapping[str, Any], *, seed: int, root: Path | None = None) -> Data:
    """Open data by name. `seed` is that of training; `root` is a folder in which files are looked for first."""
    options_type, opened, _ = _kind(name)
    return opened(config.read(options_type, options, where="data"), seed=seed, root=root)


def _kind(name: str) -> tuple[type[Any], Callable[..., Data], str]:
    if name not in _KINDS:
        raise config.ConfigError(f"no data {name!r}: expected one of {', '.join(_KINDS)}{nearest(name, _KINDS)}")
    return _KINDS[name]
