"""Images with a class each, opened when they are needed: what classifiers are evaluated on."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

from .image_files import ImageFile, ImageLike, read_image


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


def labelled_files(root: Path, files: Sequence[ImageFile], labels: Sequence[str] | None = None) -> LabelledImages:
    """Return image files of a folder or zip file as labelled images.

    Args:
        root: The folder or zip file that the names of the files are relative to.
        files: The files.
        labels: The class of each; the name of its folder if not given.
    """
    named = [file.label for file in files] if labels is None else labels
    names = [file.name for file in files]
    return LabelledImages(labels=named, opened=lambda i: read_image(str(root), names[i]), names=names)
