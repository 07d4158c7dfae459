"""data: files and generated tasks -> batches of numpy arrays, each a function of (seed, step). Imports no torch."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

from .. import config
from ..errors import nearest
from .batching import WindowConfig
from .data import IGNORE, Batch, Data, share_rows
from .files import DataError, check_root, find
from .generated.scenes import SceneConfig, Scenes
from .generated.sequences import (
    Copy,
    GaussianConfig,
    Gaussians,
    Identity,
    Most,
    Recall,
    RecallConfig,
    Reverse,
    SequenceConfig,
    VectorConfig,
)
from .images.captions import Flickr8kConfig, open_flickr8k
from .images.folders import ImageConfig, ImagenetteConfig, Images, open_imagenette
from .images.in_memory import Cifar10Config, PixelConfig, open_cifar10, open_fashion, open_mnist
from .images.preprocessing import Preprocessing
from .tables.iris import read_iris
from .tables.understand import Understood, understand
from .text import labelled, translations
from .text.chats import ChatRows, ChatsConfig
from .text.labelled import LabelledConfig, Sst2Config
from .text.masked import Masked, MaskedConfig
from .text.parallel import load_split
from .text.plain import Everyday, EverydayConfig, Shakespeare, Text, TextConfig
from .text.token_files import TokenFileConfig, Tokens, write_tokens
from .text.translations import Multi30kConfig, PairConfig, TatoebaConfig, TranslationMixtureConfig

__all__ = [
    "IGNORE",
    "Batch",
    "Data",
    "DataError",
    "Preprocessing",
    "Understood",
    "data_config",
    "find",
    "load_split",
    "make_data",
    "names",
    "read_iris",
    "share_rows",
    "understand",
    "write_tokens",
]

# name: (options, function that opens it, summary)
_KINDS: dict[str, tuple[type[Any], Callable[..., Data], str]] = {
    "reverse": (SequenceConfig, Reverse, "symbols, then the same symbols backwards"),
    "copy": (SequenceConfig, Copy, "symbols, then the same symbols again"),
    "most": (SequenceConfig, Most, "the most frequent symbol of a row; order does not matter"),
    "recall": (RecallConfig, Recall, "the party: recall the marked guest after a number of others"),
    "identity": (VectorConfig, Identity, "random normal vectors, to be passed on unchanged"),
    "gaussians": (
        GaussianConfig,
        Gaussians,
        "points in the plane, normally distributed around centres on a circle",
    ),
    "shakespeare": (WindowConfig, Shakespeare, "tiny Shakespeare, a million characters"),
    "everyday": (EverydayConfig, Everyday, "everyday English, 229,000 sentences, as subwords"),
    "text": (
        TextConfig,
        Text,
        "text files, folders of them, or tables, as characters, words or subwords",
    ),
    "tokens": (
        TokenFileConfig,
        Tokens,
        "a file of token ids of any size, as write_tokens writes it",
    ),
    "pairs": (
        PairConfig,
        translations.pairs,
        "pairs of texts in a table, joined or as translations",
    ),
    "multi30k": (
        Multi30kConfig,
        translations.multi30k,
        "29,000 image captions in English, German and French",
    ),
    "tatoeba": (
        TatoebaConfig,
        translations.tatoeba,
        "everyday sentences, English and French or German",
    ),
    "translations": (
        TranslationMixtureConfig,
        translations.mixture,
        "sets of translations, and tables, as one",
    ),
    "masked": (
        MaskedConfig,
        Masked,
        "texts with masked tokens to predict: of sst2, everyday, tables or files",
    ),
    "sst2": (Sst2Config, labelled.sst2, "sentences of film reviews, positive or negative"),
    "labelled": (LabelledConfig, labelled.labelled, "texts and labels in a table"),
    "chats": (
        ChatsConfig,
        ChatRows,
        "conversations, of which only the assistant's answers are targets",
    ),
    "cifar10": (
        Cifar10Config,
        open_cifar10,
        "60,000 photographs of 32 x 32 pixels, of ten classes",
    ),
    "mnist": (PixelConfig, open_mnist, "70,000 handwritten digits of 28 x 28 grey pixels"),
    "fashion-mnist": (
        PixelConfig,
        open_fashion,
        "70,000 articles of clothing of 28 x 28 grey pixels, of ten classes",
    ),
    "imagenette": (
        ImagenetteConfig,
        open_imagenette,
        "13,394 photographs of ImageNet, of ten easily told classes",
    ),
    "flickr8k": (Flickr8kConfig, open_flickr8k, "8,000 photographs with five captions each"),
    "scenes": (
        SceneConfig,
        Scenes,
        "coloured shapes with captions that say what and where, and their boxes",
    ),
    "images": (
        ImageConfig,
        Images,
        "a folder or zip file of images, one folder per class, or a CSV of path and label",
    ),
}


def names() -> dict[str, str]:
    """Return the names of all data sets, each with a one-line summary.

    Examples:
        >>> names()["shakespeare"]
        'tiny Shakespeare, a million characters'
    """
    return {name: summary for name, (_, _, summary) in _KINDS.items()}


def data_config(name: str) -> type[Any]:
    """Return the dataclass of the options of a data set.

    Args:
        name: The name of the data set, one of `names()`.

    Examples:
        >>> [field.name for field in dataclasses.fields(data_config("identity"))]
        ['width', 'rows', 'valid_rows', 'valid_batches']
    """
    return _kind(name)[0]


def make_data(
    name: str, options: Mapping[str, Any], *, seed: int, root: Path | None = None
) -> Data:
    """Open a data set by name.

    Args:
        name: The name of the data set, one of `names()`.
        options: Its options, as in the [data] section of a recipe; `data_config(name)` has their defaults.
        seed: The seed of training; validation does not depend on it.
        root: A data folder in which files are searched first.

    Examples:
        >>> data = make_data("reverse", {"symbols": 9, "length": 3, "rows": 2}, seed=12)
        >>> batch = data.batch(step=0)
        >>> batch["ids"]
        array([[3, 7, 1, 9, 1, 7],
               [4, 8, 5, 9, 5, 8]])
        >>> batch["targets"]
        array([[-100, -100, -100,    1,    7,    3],
               [-100, -100, -100,    5,    8,    4]])
    """
    check_root(root)
    options_type, opened, _ = _kind(name)
    return opened(config.read(options_type, options, where="data"), seed=seed, root=root)


def _kind(name: str) -> tuple[type[Any], Callable[..., Data], str]:
    if name not in _KINDS:
        raise config.ConfigError(
            f"no data {name!r}: expected one of {', '.join(_KINDS)}{nearest(name, _KINDS)}"
        )
    return _KINDS[name]
