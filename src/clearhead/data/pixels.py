"""Small images that all fit into memory: one table of pixels, which batches index by row number."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, Literal

import numpy as np
from jaxtyping import Int, UInt8

from .. import counter_rng
from ..checks import at_least
from ..errors import InputError
from .batches import Batch, Data, Rows
from .labelled_images import LabelledImages
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
        self, config: Any, train: Pictures, test: Pictures, *, classes: tuple[str, ...], preprocessing: Preprocessing,
        seed: int, description: str = "",
    ) -> None:  # fmt: skip
        self.config, self.seed, self.classes, self.preprocessing = config, seed, classes, preprocessing
        self.description = description
        if config.held_out:
            order = counter_rng.permutation(0, 0, len(train.labels), SPLIT)
            kept = np.sort(order[config.held_out :])
            test = _chosen(train, np.sort(order[: config.held_out]))
            train = _chosen(train, kept)
        self.train, self.count = len(train.labels), len(train.labels) + len(test.labels)
        if config.rows > self.train:
            raise InputError(f"rows={config.rows}: there are {self.train} training images")
        self.tables = {"images": np.concatenate([train.images, test.images])}
        self.labels = np.concatenate([train.labels, test.labels]).astype(np.int64)
        _, channels, height, width = train.images.shape
        self.sizes = {"classes": len(classes), "channels": channels}
        if height == width:
            self.defaults = {"size": height}
        self.steps_per_epoch = self.train // config.rows
        self.valid_batches = -(-(self.count - self.train) // config.valid_rows)
        self._order = (-1, np.zeros(0, np.int64))  # the last epoch, and its order

    def originals(self, which: Literal["train", "valid"]) -> LabelledImages:
        """Return the images of a part as arrays (height, width, 3), or (height, width) if they are grey."""
        part = slice(self.train) if which == "train" else slice(self.train, None)
        images = self.tables["images"][part].transpose(0, 2, 3, 1)
        images = images[..., 0] if images.shape[-1] == 1 else images
        labels = [self.classes[i] for i in self.labels[part].tolist()]
        return LabelledImages(labels=labels, opened=lambda i: images[i])

    def _class_numbers(self) -> Sequence[np.ndarray]:
        return (self.labels,)

    def _rows(self, step: int) -> int:
        return int(self.config.rows)

    def _train(self, step: int, rows: Rows) -> Batch:
        epoch, index = divmod(step, self.train // self.config.rows)
        if self._order[0] != epoch:
            self._order = (epoch, counter_rng.permutation(self.seed, epoch, self.train, ORDER))
        return self._numbered(self._order[1][index * self.config.rows + rows])

    def _valid_rows(self, index: int) -> int:
        return int(min(self.config.valid_rows, self.count - self.train - index * self.config.valid_rows))

    def _valid(self, index: int, rows: Rows) -> Batch:
        return self._numbered(self.train + index * self.config.valid_rows + rows)

    def _numbered(self, numbers: Rows) -> Batch:
        return {"images": numbers, "labels": self.labels[numbers]}


def _chosen(pictures: Pictures, numbers: Rows) -> Pictures:
    return Pictures(images=pictures.images[numbers], labels=pictures.labels[numbers])
