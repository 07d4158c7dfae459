"""Image files in a folder or a zip file, one folder per class: find them, and decode them to arrays."""

from __future__ import annotations

import hashlib
import io
import json
import math
import os
import struct
import warnings
import zipfile
import zlib
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from dataclasses import dataclass
from functools import lru_cache
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

from ...errors import InputError, MissingFileError, nearest
from ...progress import progress_bar
from ..files import DataError, cached, file_facts
from ..tables.formats import read_quoted
from ..text_files import TextFile
from .preprocessing import Preprocessing, check_depth, to_rgb, with_alpha

if TYPE_CHECKING:
    from PIL import Image

# The example images that ship, by name: small photographs, free of copyright restrictions.


# with people or buildings, as in the photographs of caption data
SCENES = ("photographer", "parachute", "church")
FOLDER = Path(__file__).parents[2] / "explore" / "example_images"  # with their sources: LICENCE.txt


def example_images() -> dict[str, Path]:
    """The files of the images that ship, by name."""
    return {path.stem: path for path in sorted(FOLDER.glob("*.webp"))}


def image_path(given: str | Path) -> Path:
    """The path as it is if there is a file, otherwise the file of the image that ships under this name, if one does.

    Args:
        given: A path, or the name of an image that ships.
    """
    if os.path.exists(given):  # not Path.exists, which raises for long texts
        return Path(given)
    return example_images().get(str(given), Path(given))


def shipped_names(given: str | Path) -> str:
    """The end of a message about a missing file: the names of the images that ship, the nearest last."""
    names = example_images()
    return f"the name of an image that ships ({', '.join(names)}){nearest(str(given)[:60], names)}"


# A path or the name of an image that ships, an open file or its bytes, a PIL image, or a uint8 array
# (height, width[, channels]).
ImageLike = Any
# by a hash of files: what `unreadable` found in this process
_CHECKED: dict[str, dict[str, str]] = {}

SUFFIXES = (".bmp", ".gif", ".jpeg", ".jpg", ".png", ".ppm", ".tif", ".tiff", ".webp")
# names of a validation folder beside "train", best first
VALID_FOLDERS = ("val", "valid", "validation", "test")
LONGEST_EDGE = 1_000_000  # pixels; filters over a longer edge need more memory than its pixels
UNPACKED = 1 << 28  # largest number of bytes of a file in a zip file
ENCRYPTED = 1  # the flag of an encrypted file in a zip file
FEW = 1000  # images that are checked within seconds, so that the result is not kept on disk
THREADS = 8  # that check images
DRAWS = 5  # random numbers per image: area, aspect ratio, left, top, mirror


@dataclass(frozen=True, kw_only=True, slots=True)
class ImageFile:
    """An image file and its class."""

    name: str  # its path in the folder or the zip file
    label: str  # the name of its class's folder


def find_images(root: Path) -> tuple[list[ImageFile], list[ImageFile]]:
    """Return the training and validation images of a folder or zip file, sorted by name.

    They are those of "train/class/..." and "val/class/...", or those of "class/..." and none. A single folder around
    everything, as zip files often have, is skipped, and so are hidden files and files that are not images. A CSV file
    has the columns path, label and perhaps split (train, or a name of a validation folder), in this order or with a
    heading; paths are relative to its folder.
    """
    if root.suffix.lower() == ".csv":
        return _read_csv(root)
    images = _visible_images(root)
    if not images:
        raise DataError(
            f"{root} has no images: expected files {', '.join(SUFFIXES)} in one folder per class"
        )
    # a single folder around everything is skipped, unless it is that of training
    nested = len({file[0] for file in images}) == 1 and all(len(file) > 2 for file in images)
    # the depth at which train/, val/ or the classes are
    depth = int(nested and images[0][0] != "train")
    tops = {file[depth] for file in images}
    # no train/: the folders at this depth are classes
    if "train" not in tops:
        return _labelled(root, images, depth), []
    # the first of the usual names: a test/ beside val/ is not read
    valid_folders = [folder for folder in VALID_FOLDERS if folder in tops]
    train, valid = (
        [file for file in images if file[depth] in folders]
        for folders in (["train"], valid_folders[:1])
    )
    return _labelled(root, train, depth + 1), _labelled(root, valid, depth + 1)


def _visible_images(root: Path) -> list[tuple[str, ...]]:
    """The parts of the names of all images in a folder or zip file, sorted."""
    if root.is_dir():
        files = [path.relative_to(root).parts for path in root.rglob("*") if path.is_file()]
    else:
        files = [
            tuple(name.split("/")) for name in _open_zip(root).namelist() if not name.endswith("/")
        ]
    # hidden files, and those that macOS adds to zip files
    visible = [
        file for file in files if not any(part.startswith((".", "__MACOSX")) for part in file)
    ]
    return sorted(file for file in visible if file[-1].lower().endswith(SUFFIXES))


def images_in(folder: Path) -> list[Path]:
    """Return all image files of a folder and of those inside it, sorted; raises if there are none."""
    files = [folder.joinpath(*file) for file in _visible_images(folder)]
    if not files:
        raise DataError(f"{folder} has no images: expected files {', '.join(SUFFIXES)}")
    return files


def has_images(folder: Path) -> bool:
    """Return whether there is an image in a folder, or in those inside it."""
    return any(_visible_images(folder))


def loose_images(root: Path) -> list[str]:
    """Return the names of all images of a folder or zip file without classes: some lie in no folder of a class.

    The list is empty if every image has a class, or if the file is a CSV file, whose rows have labels.
    """
    if root.suffix.lower() == ".csv":
        return []
    images = _visible_images(root)
    # an image at the top: it has no folder that could be its class
    if any(len(file) == 1 for file in images):
        return ["/".join(file) for file in images]
    return []


def image_root(path: Path) -> Path:
    """Return the folder or zip file that the names of `find_images` are relative to."""
    if path.suffix.lower() == ".csv":
        # paths in a CSV file are relative to the folder that it is in
        return path.parent
    return path


def _read_csv(path: Path) -> tuple[list[ImageFile], list[ImageFile]]:
    # each with the line on which it begins
    rows = list(read_quoted(TextFile(path), ","))
    names = ["path", "label", "split"]
    # columns by their names, if the first row has them
    columns = [word.strip().lower() for _, row in rows[:1] for word in row]
    heading = {"path", "label"} <= set(columns)
    if heading:
        names = columns
    train, valid = list[ImageFile](), list[ImageFile]()
    for line, row in rows[heading:]:
        # a row may lack the split, or have further cells
        cells = {name: cell.strip() for name, cell in zip(names, row, strict=False)}
        if not cells.get("path") or not cells.get("label"):
            raise DataError(
                f"{path}:{line}: expected path,label[,split], got {','.join(row)[:60]!r}"
            )
        # checked now, not in the middle of a training
        if not (path.parent / cells["path"]).is_file():
            raise DataError(f"{path}:{line}: there is no file {path.parent / cells['path']}")
        part = cells.get("split") or "train"
        if part not in ("train", *VALID_FOLDERS):
            expected = ", ".join(("train", *VALID_FOLDERS))
            raise DataError(f"{path}:{line}: the split is {part!r}: expected one of {expected}")
        images = train if part == "train" else valid
        images.append(ImageFile(name=cells["path"], label=cells["label"]))
    if not train:
        raise DataError(f"{path} has no training image: expected lines path,label[,split]")
    return train, valid


def decode(
    root: str,
    names: Sequence[str],
    size: int,
    least: float | None,
    draws: NDArray[np.float64] | None,
) -> NDArray[np.uint8]:
    """Return images (b, 3, size, size), cropped and resized.

    Args:
        root: The folder or zip file.
        names: The files in it.
        size: The height and width of the result.
        least: The smallest share of the area that a random crop keeps; its aspect ratio is between 3:4 and 4:3
            (Szegedy et al. 2015, section 6). None: the centre, as `Preprocessing` crops it.
        draws: Uniform random numbers (b, 5) for the crop and the mirror; a negative last one forbids the mirror.
            None: the centre, not mirrored.
    """
    images = np.empty((len(names), 3, size, size), np.uint8)
    for i, name in enumerate(names):
        row = None if draws is None else draws[i].tolist()
        images[i] = _decode_one(root, name, size, least, row)
    return images


def _decode_one(
    root: str, name: str, size: int, least: float | None, row: list[float] | None
) -> NDArray[np.uint8]:
    from PIL import Image

    image = read_image(root, name)
    if row is None or least is None:
        # the centre, as in validation
        pixels = Preprocessing(resize=size, crop=(size, size)).pixels(image)
    else:
        # PIL resizes from the box in one step, without a cropped copy
        image = image.resize(
            (size, size), Image.Resampling.BILINEAR, box=random_crop(*image.size, least, row)
        )
        pixels = np.asarray(image).transpose(2, 0, 1)
    if row is not None and 0 <= row[4] < 0.5:  # mirrored, left to right
        # the last axis is x
        return pixels[:, :, ::-1]
    return pixels


def read_image(root: str, name: str) -> Image.Image:
    """Decode an image of a folder or zip file, upright and in RGB; errors name the file."""
    from PIL import Image

    with _naming_bad_images(f"{root}: {name}"), Image.open(_file(root, name)) as file:
        return _upright(file)


def unreadable(root: str, names: Sequence[str]) -> dict[str, str]:
    """Return why files cannot be read, by name: every file is decoded once, and again only when one has changed.

    Args:
        root: The folder or zip file.
        names: The files in it.
    """
    # the key: names, sizes and times of change, so that a changed file is decoded again
    digest = hashlib.sha256()
    for name in names:
        digest.update(f"{name}\0".encode("utf-8", "surrogateescape"))
    # a zip file changes as a whole
    if Path(root).is_dir():
        places = [Path(root, name) for name in names]
    else:
        places = [Path(root)]
    for fact in file_facts(places):
        digest.update(repr(fact).encode("utf-8", "surrogateescape"))
    key = digest.hexdigest()
    # few images: the memory of this process is enough
    if key not in _CHECKED and len(names) < FEW:
        _CHECKED[key] = _decoded_once(root, names)
    # many: the result is kept on disk for other processes, too
    elif key not in _CHECKED:

        def keep(folder: Path) -> None:
            (folder / "unreadable.json").write_text(
                json.dumps(_decoded_once(root, names)), encoding="utf-8"
            )

        place = cached({"images": key}, keep, kind="images")
        _CHECKED[key] = json.loads((place / "unreadable.json").read_text(encoding="utf-8"))
    return _CHECKED[key]


def _decoded_once(root: str, names: Sequence[str]) -> dict[str, str]:
    """Decode files, several at a time; returns why some cannot be read."""

    def problem(name: str) -> str | None:
        try:
            _check(root, name)
        except DataError as error:
            return str(error)
        return None

    bad: dict[str, str] = {}
    with ThreadPoolExecutor(THREADS) as pool, progress_bar() as stage:
        for number, (name, error) in enumerate(zip(names, pool.map(problem, names), strict=True)):
            stage("checking the images", number / len(names))
            if error is not None:
                bad[name] = error
    return bad


def _check(root: str, name: str) -> None:
    """Raise unless an image can be decoded; a JPEG is decoded at an eighth of its size, which is enough to know."""
    from PIL import Image

    # decoding is the only sure test: headers can be right in a truncated file
    with _naming_bad_images(f"{root}: {name}"), Image.open(_file(root, name)) as file:
        _check_edges(*file.size)
        check_depth(file)
        # broken EXIF data would fail only later, when the image is turned upright
        file.getexif()
        # a JPEG can be decoded at a fraction of its size; other formats ignore this
        file.draft(None, (1, 1))
        file.load()


def random_crop(
    width: int, height: int, least: float, row: list[float]
) -> tuple[float, float, float, float]:
    """Return a box (left, top, right, bottom) of at least a share of the area.

    Its aspect ratio is between 3:4 and 4:3, or that of a wider or taller image if it would not fit into it otherwise.
    """
    area = width * height * (least + (1 - least) * row[0])
    # the logarithm of width : height is uniform, so that 3:4 is as likely as 4:3
    ratio = math.exp((2 * row[1] - 1) * math.log(4 / 3))
    # width = sqrt(area ratio) <= image's, height = sqrt(area / ratio) <= image's
    ratio = min(max(ratio, area / height**2), width**2 / area)
    # rounding may exceed the image by a fraction of a pixel
    w, h = min(width, math.sqrt(area * ratio)), min(height, math.sqrt(area / ratio))
    # the remaining space is divided at random
    left, top = (width - w) * row[2], (height - h) * row[3]
    return left, top, min(left + w, width), min(top + h, height)


def open_image(image: ImageLike) -> Image.Image:
    """Return an RGB image, rotated upright as its EXIF data says, and on white where it is transparent.

    Args:
        image: A path, the name of an image that ships ("golf-ball", "cat"), an open file or its bytes, a PIL image, or
            a uint8 array (height, width[, channels]).
    """
    from PIL import Image

    if isinstance(image, str | Path):
        # a file of this name comes before an image that ships
        path = image_path(image)
        if not os.path.exists(path):  # not Path.exists, which raises for long texts
            raise MissingFileError(
                f"{str(path)[-200:]!r}: there is no such file: expected a path of an image, a PIL image, an array, or "
                f"{shipped_names(path)}"
            )
        if path.is_dir():
            raise DataError(f"{path} is a folder: expected an image file")
        with _naming_bad_images(str(path)), Image.open(path) as file:
            return _upright(file)
    if isinstance(image, io.IOBase):
        # the bytes that are left in an open file
        image = image.read()
    if isinstance(image, bytes):
        with (
            _naming_bad_images(f"an image of {len(image)} bytes"),
            Image.open(io.BytesIO(image)) as file,
        ):
            return _upright(file)
    if isinstance(image, np.ndarray):
        return _from_array(image)
    if not isinstance(image, Image.Image):
        raise InputError(
            f"a {type(image).__name__} is not an image: expected a path, an open file or its bytes, a PIL image or "
            "an array"
        )
    with _naming_bad_images(str(getattr(image, "filename", "")) or "a PIL image"):
        return _upright(image)


def _from_array(array: np.ndarray) -> Image.Image:
    from PIL import Image

    # grey, or with 1, 3 or 4 channels in the last axis
    known = array.ndim in (2, 3) and array.shape[2:] in ((), (1,), (3,), (4,))
    if not known or array.dtype != np.uint8 or not array.size:
        raise InputError(
            f"an array of shape {array.shape} and dtype {array.dtype} is not an image: expected uint8 "
            "(height, width), or (height, width, channels) with 1, 3 or 4 channels"
        )
    _check_edges(array.shape[1], array.shape[0])
    # PIL wants grey images without a channel axis
    if array.shape[2:] == (1,):
        array = array[:, :, 0]
    return to_rgb(Image.fromarray(array))


def _upright(image: Image.Image) -> Image.Image:
    from PIL import ImageOps

    _check_edges(*image.size)
    # with_alpha first: turning an image decodes it, which loses the lower halves of 16 bits
    return to_rgb(ImageOps.exif_transpose(with_alpha(image)))


def _check_edges(width: int, height: int) -> None:
    """Raise for an image with an edge so long that nothing can be seen in it."""
    if max(width, height) > LONGEST_EDGE:
        raise InputError(
            f"its size is {width} x {height} pixels: expected edges of at most {LONGEST_EDGE:,} pixels"
        )


@contextmanager
def _naming_bad_images(name: str) -> Iterator[None]:
    """Turn the many errors of a broken image file into a DataError that names the file."""
    from PIL import Image, UnidentifiedImageError

    try:
        with warnings.catch_warnings():
            # from half the size on that PIL refuses
            warnings.simplefilter("error", Image.DecompressionBombWarning)
            yield
    except UnidentifiedImageError as error:
        # its message repeats the name, or shows an address in memory
        raise DataError(f"{name} cannot be read as an image: its format is unknown") from error
    except (
        OSError,
        SyntaxError,
        ValueError,
        EOFError,
        struct.error,
        zlib.error,
        zipfile.BadZipFile,
        KeyError,
        NotImplementedError,  # an unusual compression in a zip file
        Image.DecompressionBombError,
        Image.DecompressionBombWarning,
    ) as error:
        raise DataError(f"{name} cannot be read as an image: {error}") from error


def _labelled(root: Path, files: list[tuple[str, ...]], depth: int) -> list[ImageFile]:
    for file in files:
        # a folder for the class, and the file itself
        if len(file) < depth + 2:
            raise DataError(f"{root}: {'/'.join(file)} has no class: expected one folder per class")
    return [ImageFile(name="/".join(file), label=file[depth]) for file in files]


def _file(root: str, name: str) -> io.BytesIO | Path:
    if Path(root).is_dir():
        return Path(root, name)
    return _unpacked(Path(root), name)


def _unpacked(path: Path, name: str) -> io.BytesIO:
    """The content of one file of a zip file; its size is limited, since a small file can inflate to gigabytes."""
    opened = _open_zip(path)
    entry = opened.getinfo(name)
    if entry.flag_bits & ENCRYPTED:
        raise DataError("it is encrypted: expected a zip file without a password")
    # before reading: a few kilobytes can inflate to gigabytes
    if entry.file_size > UNPACKED:
        raise DataError(
            f"it has {entry.file_size:,} bytes when unpacked: expected at most {UNPACKED:,}"
        )
    # read no more than the header promises, even if there is more
    with opened.open(entry) as file:
        return io.BytesIO(file.read(entry.file_size))


def _open_zip(path: Path) -> zipfile.ZipFile:
    stat = path.stat()
    # time and size are part of the key of the cache: a changed file is opened anew
    return _opened(path, stat.st_mtime_ns, stat.st_size)


# the directory of a zip file is read once per process, until the file changes
@lru_cache(maxsize=4)
def _opened(path: Path, changed: int, size: int) -> zipfile.ZipFile:
    try:
        return zipfile.ZipFile(path)
    except zipfile.BadZipFile as error:
        raise DataError(f"{path} is neither a folder nor a complete zip file: {error}") from error


# Images with a class each, opened when they are needed: what classifiers are evaluated on.


@dataclass(frozen=True, kw_only=True)
class LabelledImages:
    """Images as they are before a model's preprocessing, with the name of the class of each.

    Examples:
        >>> images = LabelledImages(labels=["cat", "dog", "cat"], opened=lambda i: np.zeros((4, 4, 3), np.uint8))
        >>> [len(some) for some in images.batches(2)]
        [2, 1]
    """

    labels: Sequence[str]  # the class of each image
    opened: Callable[[int], ImageLike]  # returns the image of a number
    names: Sequence[str] = ()  # the file of each, if they are files

    def batches(self, rows: int) -> Iterator[list[ImageLike]]:
        """Yield the images in order, some at a time.

        Args:
            rows: The number of images at a time; the last batch may have fewer.
        """
        for first in range(0, len(self.labels), rows):
            yield [self.opened(i) for i in range(first, min(first + rows, len(self.labels)))]


def labelled_files(
    root: Path, files: Sequence[ImageFile], labels: Sequence[str] | None = None
) -> LabelledImages:
    """Return image files of a folder or zip file as labelled images.

    Args:
        root: The folder or zip file that the names of the files are relative to.
        files: The files.
        labels: The class of each; the name of its folder if not given.
    """
    if labels is None:
        labels = [file.label for file in files]
    names = [file.name for file in files]
    return LabelledImages(
        labels=labels, opened=lambda i: read_image(str(root), names[i]), names=names
    )
