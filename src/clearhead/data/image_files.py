"""Image files in a folder or a zip file, one folder per class: which there are, and how one becomes an array."""

from __future__ import annotations

import io
import math
import struct
import zipfile
import zlib
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import lru_cache
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

from ..errors import InputError
from .files import DataError

if TYPE_CHECKING:
    from PIL import Image

ImageLike = Any  # a path, the bytes of a file, a PIL image, or an array (height, width[, channels]) of bytes

SUFFIXES = (".bmp", ".gif", ".jpeg", ".jpg", ".png", ".ppm", ".tif", ".tiff", ".webp")
BESIDE = ("val", "valid", "validation", "test")  # what a folder to validate on is called, beside "train"
DRAWS = 5  # random numbers a picture: area, shape, left, top, mirror


@dataclass(frozen=True, kw_only=True, slots=True)
class Picture:
    """A file, and the class in whose folder it lies."""

    name: str  # its path in the folder or the zip file
    label: str


def find_pictures(root: Path) -> tuple[list[Picture], list[Picture]]:
    """Pictures to train and to validate on, sorted: "train/class/..." and "val/class/...", or "class/..." and none.

    A folder around everything, as zip files often have, does not count; files that are no pictures are passed over.
    """
    if root.is_dir():
        files = [path.relative_to(root).parts for path in root.rglob("*") if path.is_file()]
    else:
        files = [tuple(name.split("/")) for name in _open_zip(root).namelist() if not name.endswith("/")]
    shown = [file for file in files if not any(part.startswith((".", "__MACOSX")) for part in file)]
    pictures = sorted(file for file in shown if file[-1].lower().endswith(SUFFIXES))
    if not pictures:
        raise DataError(f"{root} holds no pictures: expected files {', '.join(SUFFIXES)} in one folder a class")
    around = len({file[0] for file in pictures}) == 1 and all(len(file) > 2 for file in pictures)
    depth = 1 if around and pictures[0][0] != "train" else 0
    tops = {file[depth] for file in pictures}
    if "train" not in tops:
        return _labelled(root, pictures, depth), []
    beside = [folder for folder in BESIDE if folder in tops]
    train, valid = ([file for file in pictures if file[depth] in folders] for folders in (["train"], beside[:1]))
    return _labelled(root, train, depth + 1), _labelled(root, valid, depth + 1)


def decode(
    root: str, names: Sequence[str], size: int, least: float | None, draws: NDArray[np.float64] | None
) -> NDArray[np.uint8]:
    """Pictures (b, 3, size, size), cut out and resized.

    Without draws (b, 5) it is the square in the middle. With draws it is a piece of a random share of the area, from
    `least` on, and of a random shape between 3:4 and 4:3 (Szegedy et al. 2015, section 6), or the middle where `least`
    is None; half of them are mirrored unless the last draw is negative.
    """
    rows = [None] * len(names) if draws is None else draws.tolist()
    return np.stack([_decode_one(root, name, size, least, row) for name, row in zip(names, rows, strict=True)])


def _decode_one(root: str, name: str, size: int, least: float | None, row: list[float] | None) -> NDArray[np.uint8]:
    from PIL import Image

    image = _opened_image(lambda: _bytes(root, name), f"{root}: {name}")
    crop = middle(*image.size) if row is None or least is None else piece(*image.size, least, row)
    image = image.resize((size, size), Image.Resampling.BILINEAR, box=crop)
    pixels = np.asarray(image).transpose(2, 0, 1)
    return pixels[:, :, ::-1] if row is not None and 0 <= row[4] < 0.5 else pixels


def open_image(image: ImageLike) -> Image.Image:
    """An RGB image from a path, the bytes of a file, a PIL image, or an array (height, width[, channels]) of bytes.

    It is turned upright as its EXIF data says.
    """
    from PIL import Image, ImageOps

    if isinstance(image, str | Path):
        path = Path(image)
        if not path.is_file():
            raise DataError(f"{path}: there is no such file: expected an image")
        return _opened_image(lambda: path, str(path))
    if isinstance(image, bytes):
        return _opened_image(lambda: io.BytesIO(image), "the image")
    if isinstance(image, np.ndarray):
        if image.dtype != np.uint8 or image.ndim not in (2, 3) or (image.ndim == 3 and image.shape[2] not in (3, 4)):
            raise InputError(
                f"an array of shape {image.shape} and type {image.dtype}: expected bytes (height, width), or with 3 or "
                "4 channels last"
            )
        return Image.fromarray(image).convert("RGB")
    if not isinstance(image, Image.Image):
        raise InputError(f"a {type(image).__name__}: expected a path, a PIL image or an array")
    return ImageOps.exif_transpose(image).convert("RGB")


def _opened_image(source: Callable[[], Any], name: str) -> Image.Image:
    """Read an image file; `name` is for the message if it is not one."""
    from PIL import Image, ImageOps

    try:
        with Image.open(source()) as file:
            return ImageOps.exif_transpose(file).convert("RGB")
    except (
        OSError, SyntaxError, ValueError, EOFError, struct.error, zlib.error, zipfile.BadZipFile, KeyError,
        Image.DecompressionBombError,
    ) as error:  # fmt: skip
        raise DataError(f"{name} is not a whole image: {error}") from error


def middle(width: int, height: int) -> tuple[float, float, float, float]:
    """The largest square in the middle: left, top, right, bottom."""
    edge = min(width, height)
    left, top = (width - edge) / 2, (height - edge) / 2
    return left, top, left + edge, top + edge


def piece(width: int, height: int, least: float, row: list[float]) -> tuple[float, float, float, float]:
    """A random piece of at least a share of the area, made to fit where its shape does not."""
    area = width * height * (least + (1 - least) * row[0])
    shape = math.exp((2 * row[1] - 1) * math.log(4 / 3))
    w, h = min(width, math.sqrt(area * shape)), min(height, math.sqrt(area / shape))
    left, top = (width - w) * row[2], (height - h) * row[3]
    return left, top, min(left + w, width), min(top + h, height)


def _labelled(root: Path, files: list[tuple[str, ...]], depth: int) -> list[Picture]:
    for file in files:
        if len(file) < depth + 2:
            raise DataError(f"{root}: {'/'.join(file)} lies in no class: expected one folder a class")
    return [Picture(name="/".join(file), label=file[depth]) for file in files]


def _bytes(root: str, name: str) -> io.BytesIO | Path:
    return Path(root, name) if Path(root).is_dir() else io.BytesIO(_open_zip(Path(root)).read(name))


def _open_zip(path: Path) -> zipfile.ZipFile:
    stat = path.stat()
    return _opened(path, stat.st_mtime_ns, stat.st_size)


@lru_cache(maxsize=4)  # a zip file's list of contents is read once a process, until the file changes
def _opened(path: Path, changed: int, size: int) -> zipfile.ZipFile:
    try:
        return zipfile.ZipFile(path)
    except zipfile.BadZipFile as error:
        raise DataError(f"{path} is neither a folder nor a whole zip file: {error}") from error
