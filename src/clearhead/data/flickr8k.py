"""Flickr8k: 8,000 photographs with five captions each, and its official split (Hodosh et al. 2013).

A data folder has flickr8k/ with the captions (Flickr8k.token.txt), the three lists of images, and the images: a zip
file or a folder. The images are for research.
"""

from __future__ import annotations

import re
import zipfile
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path
from typing import Literal

import numpy as np
from jaxtyping import UInt8

from ..checks import at_least
from ..errors import InputError, nearest
from . import image_files
from .captions import CaptionConfig, Captions
from .fetch import data_folders
from .files import DataError, as_lines, read_text
from .preprocessing import Channels, Preprocessing

LISTS = {"train": "trainImages", "valid": "devImages", "test": "testImages"}  # parts, and the names of their lists
IMAGES = ("images-192.zip", "images.zip", "Flicker8k_Dataset", "images")  # names of the images, best first
CAPTIONS = ("Flickr8k.token.txt.gz", "Flickr8k.token.txt")
WORD = re.compile(r"[^\W_]+(?:['-][^\W_]+)*")
THREADS = 8  # that decode images


@dataclass(frozen=True, kw_only=True, slots=True)
class Flickr8kConfig(CaptionConfig):
    """Options of flickr8k."""

    vocabulary: Literal["subwords", "unigram", "words", "characters"] = "words"  # subwords are byte pair encoding
    minimum: int = 5  # smallest number of occurrences of a word, or of a pair of pieces to be merged
    longest: int | None = 24  # largest number of tokens of a caption; longer ones are left out; None: no limit
    rows: int = 256  # captions per step, each with its image; those left over at the end of an epoch are skipped
    pixels: int = 192  # height and width of the images
    mean: tuple[float, float, float] = (0.485, 0.456, 0.406)  # of the channels (0 to 1), for normalising
    deviation: tuple[float, float, float] = (0.229, 0.224, 0.225)  # standard deviations of them, for normalising
    channels: Channels = "rgb"  # order of the channels

    def __post_init__(self) -> None:
        CaptionConfig.__post_init__(self)  # super() loses its class when slots make a new one
        at_least(self, 1, "pixels")
        if min(self.deviation) <= 0:
            raise InputError(f"deviation={self.deviation}: expected three numbers above 0")


@dataclass(frozen=True, kw_only=True, slots=True)
class CaptionedFiles:
    """Images of a folder or zip file with their captions."""

    root: Path  # the folder or zip file
    names: list[str]  # the files in it
    captions: list[list[str]]  # of each image, as they were written


def open_flickr8k(config: Flickr8kConfig, *, seed: int, root: Path | None = None) -> Captions:
    """Open Flickr8k: its training part, and its development part for validation.

    Args:
        config: The options.
        seed: The seed of training.
        root: A data folder that is searched first.
    """
    train, valid = (read_flickr8k(part, root) for part in ("train", "valid"))
    size = (config.pixels, config.pixels)
    preprocessing = Preprocessing(
        resize=size, mean=config.mean, deviation=config.deviation, channels=config.channels
    )  # fmt: skip
    texts = [[[plain_caption(text) for text in one] for one in part.captions] for part in (train, valid)]
    images = decode_all(str(train.root), [*train.names, *valid.names], preprocessing)
    description = f"Flickr8k, {len(train.names)} images to train on: {train.root.name}"
    return Captions(config, images, texts[0], texts[1], preprocessing, seed=seed, description=description)


def read_flickr8k(part: str, root: Path | None = None) -> CaptionedFiles:
    """Return the images of a part, train, valid or test, with their captions.

    Args:
        part: The part.
        root: A data folder that is searched first.
    """
    if part not in LISTS:
        raise InputError(f"split={part!r}: flickr8k has {', '.join(LISTS)}{nearest(part, LISTS)}")
    folder = _folder(root)
    images = next(folder / name for name in IMAGES if (folder / name).exists())
    captions: dict[str, list[str]] = {}
    where = next(folder / name for name in CAPTIONS if (folder / name).is_file())
    for number, line in enumerate(as_lines(read_text(where)), 1):
        name, tab, text = line.partition("\t")
        if not tab:
            raise DataError(f"{where}:{number}: expected image#number TAB caption, got {line[:60]!r}")
        captions.setdefault(name.partition("#")[0], []).append(text)
    files = {Path(name).stem: name for name in _names(images)}
    listed = [name for name in as_lines(read_text(folder / f"Flickr_8k.{LISTS[part]}.txt")) if name]
    for name in listed:
        if name not in captions or Path(name).stem not in files:
            missing = "a caption" if name not in captions else f"an image in {images}"
            raise DataError(f"{folder}: {name} of Flickr_8k.{LISTS[part]}.txt lacks {missing}")
    names = [files[Path(name).stem] for name in listed]
    return CaptionedFiles(root=images, names=names, captions=[captions[name] for name in listed])


def plain_caption(text: str) -> str:
    """Return the words of a caption in lower case, without punctuation: what captioners are trained to write."""
    return " ".join(WORD.findall(text.lower()))


def decode_all(root: str, names: Sequence[str], preprocessing: Preprocessing) -> UInt8[np.ndarray, "n c y x"]:
    """Return the pixels of many images of one size, decoded by several threads."""
    with ThreadPoolExecutor(THREADS) as pool:
        rows = pool.map(lambda name: preprocessing.pixels(image_files.read_image(root, name)), names)
        return np.stack(list(rows))


def _folder(root: Path | None) -> Path:
    folders = [folder / "flickr8k" for folder in data_folders(root)]
    for folder in folders:
        if all(any((folder / name).exists() for name in names) for names in (IMAGES, CAPTIONS)):
            return folder
    raise DataError(
        f"no Flickr8k in {', '.join(map(str, folders))}: expected {CAPTIONS[1]}, Flickr_8k.trainImages.txt and the "
        f"other lists, and the images as {', '.join(IMAGES)}"
    )


def _names(images: Path) -> list[str]:
    if images.is_dir():
        return [str(path.relative_to(images)) for path in images.rglob("*") if path.is_file()]
    with zipfile.ZipFile(images) as file:
        return [name for name in file.namelist() if not name.endswith("/")]
