"""Images with captions: a table of pixels that stays in memory, and every caption as ids.

images  (b, c, y, x) uint8, or row numbers of the table
ids     (b, t)   <start> y1 .. yn               targets (b, t)  y1 .. yn <end>, then -100

All batches have the same number of rows and the same width, so that a compiled model sees one shape.
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
from numpy.typing import NDArray

from ... import counter_rng
from ...checks import at_least
from ...errors import InputError, nearest
from ...tokens import Tokenizer
from ..batching import Ragged
from ..data import IGNORE, Batch, Data, Rows
from ..files import DataError, data_folders
from ..text.tokenizers import TokenizerConfig
from ..text_files import read_lines
from . import files as image_files
from .preprocessing import Channels, Preprocessing

ORDER, CHOICE = 0, 1  # streams of random numbers


@dataclass(frozen=True, kw_only=True, slots=True)
class CaptionConfig(TokenizerConfig):
    """Options of images with captions."""

    # captions per step, each with its image; those left over at the end of an epoch are skipped
    rows: int = 64
    # captions of each image in an epoch: all of them, or a random one
    each: Literal["all", "one"] = "all"
    # largest number of tokens of a caption; longer ones are left out; None: no limit
    longest: int | None = None
    valid_rows: int = 256  # captions per validation batch
    valid_most: int | None = None  # largest number of validation batches; None: all

    def __post_init__(self) -> None:
        TokenizerConfig.__post_init__(self)  # super() loses its class when slots make a new one
        at_least(self, 1, "rows", "valid_rows")
        at_least(self, 0, "valid_most")
        if self.longest is not None and self.longest < 2:
            raise InputError(f"longest={self.longest}: expected 2 or more, of which one is <end>")


class CaptionData(Data):
    """Every caption once per epoch, or a random one of every image, in the order of (seed, epoch).

    Args:
        config: The options.
        images: The pixels of all images, those for training first.
        train: The captions of each training image.
        valid: The captions of each of the other images.
        preprocessing: How these images are normalised.
        seed: The seed of training.
        description: What the images are, for the facts of a run.

    Examples:
        >>> config = CaptionConfig(vocabulary="words", minimum=1, rows=2)
        >>> images = np.zeros((3, 3, 8, 8), np.uint8)
        >>> plain = clearhead.data.Preprocessing()
        >>> data = CaptionData(config, images, [["a dog"], ["a cat", "a pet"]], [["a dog"]], plain)
        >>> batch = data.batch(step=0)
        >>> batch["images"].shape, batch["ids"].shape, data.steps_per_epoch
        ((2, 3, 8, 8), (2, 3), 1)
    """

    keys = ("images", "ids", "targets")
    unit = "images"
    tokens: Tokenizer
    preprocessing: Preprocessing

    def __init__(
        self,
        config: CaptionConfig,
        images: UInt8[np.ndarray, "n c y x"],
        train: Sequence[Sequence[str]],
        valid: Sequence[Sequence[str]],
        preprocessing: Preprocessing,
        *,
        seed: int = 0,
        description: str = "",
    ) -> None:
        self.config, self.seed = config, seed
        self.preprocessing, self.description = preprocessing, description
        # the vocabulary comes from the training captions alone
        self.tokens = config.tokenizer([text for texts in train for text in texts])
        self.training = EncodedCaptions(train, self.tokens, config.longest, first_image=0)
        self.validation = EncodedCaptions(
            valid, self.tokens, config.longest, first_image=len(train)
        )
        if not len(self.training.images):
            raise DataError(f"longest={config.longest} leaves no caption to train on")
        # captions longer than config.longest
        self.left_out = self.training.left_out + self.validation.left_out
        # one table for both parts: batches carry row numbers, and the pixels may live on the device
        self.tables = {"images": images}
        self.sizes = {"vocab": len(self.tokens)}
        self.longest = max(self.training.width, self.validation.width)
        # an epoch counts captions, or images of which each gives one caption
        if config.each == "all":
            self.epoch_rows = len(self.training.images)
        else:
            self.epoch_rows = len(self.training.starts)
        if config.rows > self.epoch_rows:
            # all batches have `rows` rows: an epoch without a full batch would have no step
            raise InputError(f"rows={config.rows}: an epoch has {self.epoch_rows} captions")
        self.steps_per_epoch = self.epoch_rows // config.rows
        # rounded up: the last validation batch may be smaller
        self.valid_batches = -(-len(self.validation.images) // config.valid_rows)
        if config.valid_most is not None:
            self.valid_batches = min(self.valid_batches, config.valid_most)
        self._order = (-1, np.zeros(0, np.int64))  # the last epoch, and its captions in order

    def _rows(self, step: int) -> int:
        return self.config.rows

    def _train(self, step: int, rows: Rows) -> Batch:
        epoch, index = divmod(step, self.epoch_rows // self.config.rows)
        # one permutation per epoch is kept, for steps come in order
        if self._order[0] != epoch:
            order = counter_rng.permutation(self.seed, epoch, self.epoch_rows, ORDER)
            if self.config.each == "one":  # an order of images
                # from numbers of images to numbers of captions
                order = self._one_each(epoch, order)
            self._order = (epoch, order)
        return self.training.batch(self._order[1][index * self.config.rows + rows])

    def _one_each(self, epoch: int, images: NDArray[np.int64]) -> NDArray[np.int64]:
        """The number of a random caption of each of these images."""
        starts = self.training.starts
        # captions per image: the differences of the starts, closed by the total
        counts = np.append(starts[1:], len(self.training.images)) - starts
        draws = counter_rng.uniform(self.seed, epoch, images, 1, CHOICE)[:, 0]
        # starts and counts are indexed by image, the draws by the place in this order
        return starts[images] + (draws * counts[images]).astype(np.int64)

    def _valid_rows(self, index: int) -> int:
        return min(
            self.config.valid_rows, len(self.validation.images) - index * self.config.valid_rows
        )

    def _valid(self, index: int, rows: Rows) -> Batch:
        return self.validation.batch(index * self.config.valid_rows + rows)


class EncodedCaptions:
    """Captions as ids, image after image; captions of more than `longest` tokens are left out."""

    def __init__(
        self,
        texts: Sequence[Sequence[str]],
        tokens: Tokenizer,
        longest: int | None,
        *,
        first_image: int,
    ) -> None:
        pad, start, end = tokens.pad, tokens.start, tokens.end
        if pad is None or start is None or end is None:
            raise InputError(f"{tokens!r} has no <pad>, <start> and <end>: captions need them")
        self.pad, self.start = pad, start
        flat = tokens.encode_all([text for one in texts for text in one])
        owner = np.repeat(np.arange(len(texts)), [len(one) for one in texts])
        # `<`, not `<=`: the <end> that follows counts as a token
        kept = [i for i, ids in enumerate(flat) if longest is None or len(ids) < longest]
        self.left_out = len(flat) - len(kept)
        self.ids = Ragged([np.append(flat[i], end) for i in kept])
        self.images = first_image + owner[kept]  # the image of each caption
        # the first caption of each image that has one
        # `images` is sorted, so that each change of its value begins another image
        self.starts = np.flatnonzero(np.diff(self.images, prepend=-1))
        self.width = int(self.ids.lengths.max(initial=1))

    def batch(self, numbers: NDArray[np.int64]) -> Batch:
        """Return captions with the row numbers of their images."""
        targets = self.ids.padded(numbers, self.width, IGNORE)
        return {"images": self.images[numbers], **with_inputs(targets, self.pad, self.start)}


def with_inputs(targets: NDArray[np.int64], pad: int, start: int) -> Batch:
    """Return targets with the ids that a decoder reads: the same, one token later, after <start>."""
    ids = np.full_like(targets, start)
    ids[:, 1:] = targets[:, :-1]
    ids[targets == IGNORE] = pad  # also overwrites <end>, which is a target but never an input
    return {"ids": ids, "targets": targets}


# Flickr8k: 8,000 photographs with five captions each, and its official split (Hodosh et al. 2013).
#
# A data folder has flickr8k/ with the captions (Flickr8k.token.txt), the three lists of images, and the images: a zip
# file or a folder. The images are for research.


# parts, and the names of their lists
LISTS = {"train": "trainImages", "valid": "devImages", "test": "testImages"}
# names of the images, best first
IMAGES = ("images-192.zip", "images.zip", "Flicker8k_Dataset", "images")
CAPTIONS = ("Flickr8k.token.txt.gz", "Flickr8k.token.txt")
WORD = re.compile(r"[^\W_]+(?:['-][^\W_]+)*")
THREADS = 8  # that decode images


@dataclass(frozen=True, kw_only=True, slots=True)
class Flickr8kConfig(CaptionConfig):
    """Options of flickr8k."""

    # subwords are byte pair encoding
    vocabulary: Literal["subwords", "unigram", "words", "characters"] = "words"
    # smallest number of occurrences of a word, or of a pair of pieces to be merged
    minimum: int = 5
    # largest number of tokens of a caption; longer ones are left out; None: no limit
    longest: int | None = 24
    # captions per step, each with its image; those left over at the end of an epoch are skipped
    rows: int = 256
    pixels: int = 192  # height and width of the images
    # of the channels (0 to 1), for normalising
    mean: tuple[float, float, float] = (0.485, 0.456, 0.406)
    # standard deviations of them, for normalising
    deviation: tuple[float, float, float] = (0.229, 0.224, 0.225)
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


def open_flickr8k(config: Flickr8kConfig, *, seed: int, root: Path | None = None) -> CaptionData:
    """Open Flickr8k: its training part, and its development part for validation.

    Args:
        config: The options.
        seed: The seed of training.
        root: A data folder that is searched first.
    """
    # the test part stays untouched: it is for evaluation alone
    train, valid = (read_flickr8k(part, root) for part in ("train", "valid"))
    size = (config.pixels, config.pixels)
    preprocessing = Preprocessing(
        resize=size, mean=config.mean, deviation=config.deviation, channels=config.channels
    )
    texts = []
    for part in (train, valid):
        texts.append([[plain_caption(text) for text in captions] for captions in part.captions])
    # training images first: EncodedCaptions numbers those of validation after them
    images = decode_all(str(train.root), [*train.names, *valid.names], preprocessing)
    description = f"Flickr8k, {len(train.names)} images to train on: {train.root.name}"
    return CaptionData(
        config, images, texts[0], texts[1], preprocessing, seed=seed, description=description
    )


def read_flickr8k(part: str, root: Path | None = None) -> CaptionedFiles:
    """Return the images of a part, train, valid or test, with their captions.

    Args:
        part: The part.
        root: A data folder that is searched first.
    """
    if part not in LISTS:
        raise InputError(f"split={part!r}: flickr8k has {', '.join(LISTS)}{nearest(part, LISTS)}")
    folder = _folder(root)
    # `_folder` has made sure that there is one of each
    images = next(folder / name for name in IMAGES if (folder / name).exists())
    captions: dict[str, list[str]] = {}
    where = next(folder / name for name in CAPTIONS if (folder / name).is_file())
    for place, line in read_lines(where):
        # a line is image.jpg#0 TAB caption: the number after # tells its five captions apart
        name, tab, text = line.partition("\t")
        if not tab:
            raise DataError(f"{place}: expected image#number TAB caption, got {line[:60]!r}")
        captions.setdefault(name.partition("#")[0], []).append(text)
    # by stem: a smaller version of an image may have another suffix
    files = {Path(name).stem: name for name in _names(images)}
    listed = [name for _, name in read_lines(folder / f"Flickr_8k.{LISTS[part]}.txt") if name]
    for name in listed:
        lacks = ""
        if name not in captions:
            lacks = "a caption"
        # a caption without its image, for instance in an incomplete zip file
        elif Path(name).stem not in files:
            lacks = f"an image in {images}"
        if lacks:
            raise DataError(f"{folder}: {name} of Flickr_8k.{LISTS[part]}.txt lacks {lacks}")
    names = [files[Path(name).stem] for name in listed]
    return CaptionedFiles(root=images, names=names, captions=[captions[name] for name in listed])


def plain_caption(text: str) -> str:
    """Return the words of a caption in lower case, without punctuation: what captioners are trained to write."""
    return " ".join(WORD.findall(text.lower()))


def decode_all(
    root: str, names: Sequence[str], preprocessing: Preprocessing
) -> UInt8[np.ndarray, "n c y x"]:
    """Return the pixels of many images of one size, decoded by several threads."""
    with ThreadPoolExecutor(THREADS) as pool:
        rows = pool.map(
            lambda name: preprocessing.pixels(image_files.read_image(root, name)), names
        )
        return np.stack(list(rows))


def _folder(root: Path | None) -> Path:
    folders = [folder / "flickr8k" for folder in data_folders(root)]
    for folder in folders:
        # the images and the captions, each under one of its usual names
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
