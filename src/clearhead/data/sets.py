"""Data sets by name: their options, and what opens them; and iris, a table of numbers."""

from __future__ import annotations

import csv
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from importlib import import_module
from pathlib import Path
from typing import Any

import numpy as np
from jaxtyping import Float

from .. import config
from ..errors import nearest
from .data import Data
from .files import check_root


@dataclass(frozen=True, slots=True)
class Opener:
    """Where the code of a data set is; the module is imported when the set is first used."""

    module: str
    config: str  # name of the dataclass of its options
    open: str  # name of the function or class that opens it
    summary: str


SETS = {
    "reverse": Opener("generated.sequences", "SequenceConfig", "Reverse",
        "symbols, then the same symbols backwards"),
    "copy": Opener("generated.sequences", "SequenceConfig", "Copy",
        "symbols, then the same symbols again"),
    "most": Opener("generated.sequences", "SequenceConfig", "Most",
        "the most frequent symbol of a row; order does not matter"),
    "recall": Opener("generated.sequences", "RecallConfig", "Recall",
        "the party: recall the marked guest after a number of others"),
    "identity": Opener("generated.sequences", "VectorConfig", "Identity",
        "random normal vectors, to be passed on unchanged"),
    "gaussians": Opener("generated.sequences", "GaussianConfig", "Gaussians",
        "points in the plane, normally distributed around centres on a circle"),
    "shakespeare": Opener("text.plain", "WindowConfig", "Shakespeare",
        "tiny Shakespeare, a million characters"),
    "everyday": Opener("text.plain", "EverydayConfig", "Everyday",
        "everyday English, 229,000 sentences, as subwords"),
    "text": Opener("text.plain", "TextConfig", "Text",
        "text files, folders of them, or tables, as characters, words or subwords"),
    "tokens": Opener("text.token_files", "TokenFileConfig", "Tokens",
        "a file of token ids of any size, as write_tokens writes it"),
    "pairs": Opener("text.translations", "PairConfig", "pairs",
        "pairs of texts in a table, joined or as translations"),
    "multi30k": Opener("text.translations", "Multi30kConfig", "multi30k",
        "29,000 image captions in English, German and French"),
    "tatoeba": Opener("text.translations", "TatoebaConfig", "tatoeba",
        "everyday sentences, English and French or German"),
    "translations": Opener("text.translations", "TranslationMixtureConfig", "mixture",
        "sets of translations, and tables, as one"),
    "masked": Opener("text.masked", "MaskedConfig", "Masked",
        "texts with masked tokens to predict: of sst2, everyday, tables or files"),
    "sst2": Opener("text.labelled", "Sst2Config", "sst2",
        "sentences of film reviews, positive or negative"),
    "labelled": Opener("text.labelled", "LabelledConfig", "labelled",
        "texts and labels in a table"),
    "chats": Opener("text.chats", "ChatsConfig", "ChatRows",
        "conversations, of which only the assistant's answers are targets"),
    "cifar10": Opener("images.in_memory", "Cifar10Config", "open_cifar10",
        "60,000 photographs of 32 x 32 pixels, of ten classes"),
    "mnist": Opener("images.in_memory", "PixelConfig", "open_mnist",
        "70,000 handwritten digits of 28 x 28 grey pixels"),
    "fashion-mnist": Opener("images.in_memory", "PixelConfig", "open_fashion",
        "70,000 articles of clothing of 28 x 28 grey pixels, of ten classes"),
    "imagenette": Opener("images.folders", "ImagenetteConfig", "open_imagenette",
        "13,394 photographs of ImageNet, of ten easily told classes"),
    "flickr8k": Opener("images.captions", "Flickr8kConfig", "open_flickr8k",
        "8,000 photographs with five captions each"),
    "scenes": Opener("generated.scenes", "SceneConfig", "Scenes",
        "coloured shapes with captions that say what and where, and their boxes"),
    "images": Opener("images.folders", "ImageConfig", "Images",
        "a folder or zip file of images, one folder per class, or a CSV of path and label"),
}  # fmt: skip


def names() -> dict[str, str]:
    """Return the names of all data sets, each with a one-line summary.

    Examples:
        >>> names()["shakespeare"]
        'tiny Shakespeare, a million characters'
    """
    return {name: opener.summary for name, opener in SETS.items()}


def data_config(name: str) -> type[Any]:
    """Return the dataclass of the options of a data set.

    Args:
        name: The name of the data set, one of `names()`.

    Examples:
        >>> [field.name for field in dataclasses.fields(data_config("identity"))]
        ['width', 'rows', 'valid_rows', 'valid_batches']
    """
    return _options_and_opener(name)[0]


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
    options_type, open_set = _options_and_opener(name)
    # options become the dataclass of this set: unknown or misspelt ones raise here
    return open_set(config.read(options_type, options, where="data"), seed=seed, root=root)


def _options_and_opener(name: str) -> tuple[type[Any], Callable[..., Data]]:
    if name not in SETS:
        raise config.ConfigError(
            f"no data {name!r}: expected one of {', '.join(SETS)}{nearest(name, SETS)}"
        )
    opener = SETS[name]
    # imported on demand: a set of text needs no image library
    module = import_module(f".{opener.module}", __package__)
    return getattr(module, opener.config), getattr(module, opener.open)


IRIS = Path(__file__).with_name("iris.csv")


def read_iris() -> tuple[Float[np.ndarray, "150 4"], list[str], list[str]]:
    """Return the 150 flowers of Fisher 1936: four lengths in centimetres, the species, and the names of the lengths.

    The values are those of scikit-learn.

    Examples:
        >>> values, species, names = read_iris()
        >>> values.shape, sorted(set(species)), names[0]
        ((150, 4), ['setosa', 'versicolor', 'virginica'], 'sepal length')
    """
    with IRIS.open(newline="") as file:
        head, *rows = list(csv.reader(file))
    return np.array([row[:4] for row in rows], dtype=float), [row[4] for row in rows], head[:4]
