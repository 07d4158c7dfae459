"""Example images, and those that were uploaded: checked, turned upright, and kept in memory within a limit."""

from __future__ import annotations

import io
import secrets
import threading
from collections import OrderedDict
from dataclasses import dataclass
from functools import cache

from PIL import Image, UnidentifiedImageError

from ..data.images.files import open_image
from ..errors import InputError
from . import answers
from .examples import NAMES, example_file
from .store import UnknownError

PIXELS = 40_000_000  # most pixels of an image, checked before it is decoded
MOST_IMAGES = 64  # images to keep
MEMORY = 64 << 20  # bytes of images to keep
VIEW = 2048  # most pixels per side of the image that is sent to the page
LOSSLESS = 1 << 18  # images of at most so many pixels are sent as PNG, larger ones as WebP
# Of the formats that Pillow reads, those of photographs and drawings; some of the others start other programs.
FORMATS = ("BMP", "GIF", "JPEG", "PNG", "PPM", "TIFF", "WEBP")


@dataclass(frozen=True, kw_only=True, eq=False)
class StoredImage:
    """An uploaded image."""

    file: bytes  # as it was uploaded: models read this
    width: int  # of the upright image
    height: int
    view: bytes  # the upright image as the page shows it
    media_type: str  # of `view`

    @property
    def size(self) -> int:
        """Bytes that it holds."""
        return len(self.file) + len(self.view)


class ImageStore:
    """Uploaded images by random ids, of which the least recently used are dropped, and examples by their names."""

    def __init__(self, memory: int = MEMORY, most: int = MOST_IMAGES) -> None:
        self.memory, self.most = memory, most
        self._kept: OrderedDict[str, StoredImage] = OrderedDict()
        self._lock = threading.Lock()

    def keep(self, file: bytes) -> answers.ImageShape:
        """Check and keep an image file; returns its id and the size of the upright image."""
        image = stored(file)
        id_ = secrets.token_urlsafe(12)
        with self._lock:
            # The newest image is at the end and stays unless it alone exceeds the limit.
            self._kept[id_] = image
            while (
                sum(one.size for one in self._kept.values()) > self.memory
                or len(self._kept) > self.most
            ):
                self._kept.popitem(last=False)
        return {"id": id_, "width": image.width, "height": image.height}

    def __getitem__(self, id_: str) -> StoredImage:
        if id_ in NAMES:
            return _example(id_)
        with self._lock:
            if id_ not in self._kept:
                raise UnknownError("this image was uploaded and is no longer kept: choose an image")
            # Reading it counts as use: it moves to the end, away from eviction.
            self._kept.move_to_end(id_)
            return self._kept[id_]

    def __len__(self) -> int:
        return len(self._kept)


@cache
def _example(name: str) -> StoredImage:
    return stored(example_file(name))


def stored(file: bytes) -> StoredImage:
    """Decode an image file, once; raises InputError if it is no image, is damaged or is too large."""
    # The size in the header is tested before decoding: a small file may unpack to gigabytes.
    _check_header(file)
    try:
        image = open_image(file)
    except MemoryError as problem:
        raise InputError("the image does not fit into memory: expected a smaller one") from problem
    width, height = image.size
    if max(width, height) > VIEW:
        # Shrinks in place and keeps the aspect ratio; width and height above stay those of the original.
        image.thumbnail((VIEW, VIEW), Image.Resampling.LANCZOS)
    view, small = io.BytesIO(), image.width * image.height <= LOSSLESS
    # PNG keeps pixel art and digits sharp, which WebP would blur.
    if small:
        image.save(view, "PNG")
    else:
        image.save(view, "WEBP", quality=90, method=2)
    return StoredImage(
        file=file,
        width=width,
        height=height,
        view=view.getvalue(),
        media_type=f"image/{'png' if small else 'webp'}",
    )


def _check_header(file: bytes) -> None:
    """Raise unless the file begins as an image of a known format and of a size that can be decoded."""
    if not file:
        raise InputError("the file is empty: expected an image")
    try:
        with Image.open(io.BytesIO(file), formats=FORMATS) as image:
            width, height = image.size
    except UnidentifiedImageError as problem:
        known = ", ".join("WebP" if name == "WEBP" else name for name in FORMATS)
        raise InputError(
            f"the file is no image that can be read: expected one of {known}"
        ) from problem
    # Pillow's limits are higher
    except (Image.DecompressionBombError, Image.DecompressionBombWarning) as problem:
        raise InputError(f"the image has too many pixels: expected at most {PIXELS:,}") from problem
    except Exception as problem:  # damaged headers raise almost any error
        raise InputError(f"the file cannot be read as an image: {problem}") from problem
    if width < 1 or height < 1:
        raise InputError(f"the image has {width} x {height} pixels: expected one or more")
    if width * height > PIXELS:
        raise InputError(
            f"the image has {width} x {height} pixels: expected at most {PIXELS:,} in all"
        )
