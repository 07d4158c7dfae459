"""Understand a folder, zip file or CSV file of images: its classes, how it is divided, and its [data] section."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from .files import locate
from .image_files import find_images, has_images, image_root, loose_images, read_image, unreadable
from .images import CropConfig, none_readable
from .splits import counted

SAMPLE = 20  # images that are opened


@dataclass(frozen=True, kw_only=True, slots=True)
class UnderstoodImages:
    """What is in a folder, zip file or CSV file of images.

    Examples:
        >>> from PIL import Image
        >>> for name in ("cat/1.png", "dog/1.png", "dog/2.png"):
        ...     (tmp / "pets" / name).parent.mkdir(parents=True, exist_ok=True)
        ...     Image.new("RGB", (8, 6)).save(tmp / "pets" / name)
        >>> found = understand_images("pets", tmp)
        >>> found.images, found.labels, found.sizes
        (3, {'dog': 2, 'cat': 1}, {'8 x 6': 3})
    """

    path: str  # what was given
    images: int  # the number of images
    labels: dict[str, int]  # the number of images of each class, most frequent first; none if some have no class
    sizes: dict[str, int]  # width x height of the first images, most frequent first
    split: str  # how training and validation are divided
    options: dict[str, Any]  # a [data] section
    bad: tuple[str, ...] = ()  # the files that cannot be read

    def to_dict(self) -> dict[str, Any]:
        """Return the fields as JSON values."""
        return asdict(self)


def is_images(path: str | Path, root: Path | None = None) -> bool:
    """Return whether a path is that of a zip file, or of a folder with images in it."""
    place = locate(path, root)
    return place.suffix.lower() == ".zip" or (place.is_dir() and has_images(place))


def understand_images(
    path: str | Path, root: Path | None = None, *, given: Mapping[str, Any] | None = None
) -> UnderstoodImages:
    """Check all images, read the sizes of the first, and say what they are.

    Args:
        path: A folder or zip file with a folder per class, or with train/ and val/; or a CSV file of path and label.
        root: A data folder in which the path is searched too.
        given: Options for the [data] section, such as skip_bad.

    Raises:
        DataError: There are no images, or none of them can be read.
    """
    place = locate(path, root)
    loose = loose_images(place)
    train, valid = ([], []) if loose else find_images(place)
    names = loose or [file.name for file in (*train, *valid)]
    labels = Counter(file.label for file in (*train, *valid))
    bad = tuple(unreadable(str(image_root(place)), names))
    if len(bad) == len(names):
        raise none_readable(image_root(place), bad)
    good = [name for name in names if name not in bad]
    opened = (read_image(str(image_root(place)), name) for name in good[:SAMPLE])
    sizes = Counter(f"{image.width} x {image.height}" for image in opened)
    return UnderstoodImages(
        path=str(path), images=len(names), labels=dict(labels.most_common()), sizes=dict(sizes.most_common()),
        split=_split(len(train), len(valid)), options={"name": "images", "path": str(path), **(given or {})}, bad=bad,
    )  # fmt: skip


def _split(train: int, valid: int) -> str:
    if not train:
        return "none: some images are in no folder of a class, so that there is nothing to learn from them"
    if valid:
        return f"{counted(train, 'image')} for training, {counted(valid, 'image')} for validation"
    share = CropConfig().share
    return f"share = {share} of the images is kept for validation: about {round(share * train):,} of {train:,}"
