"""Images with captions: a table of pixels that stays in memory, and every caption as ids.

images  (b, c, y, x) uint8, or row numbers of the table
ids     (b, t)   <start> y1 .. yn               targets (b, t)  y1 .. yn <end>, then -100

All batches have the same number of rows and the same width, so that a compiled model sees one shape.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal

import numpy as np
from jaxtyping import UInt8
from numpy.typing import NDArray

from .. import counter_rng
from ..checks import at_least
from ..errors import InputError
from ..tokens import Tokenizer
from .batches import IGNORE, Batch, Data, Rows
from .files import DataError
from .preprocessing import Preprocessing
from .ragged import Ragged
from .vocabulary import TokenizerConfig

ORDER, CHOICE = 0, 1  # streams of random numbers


@dataclass(frozen=True, kw_only=True, slots=True)
class CaptionConfig(TokenizerConfig):
    """Options of images with captions."""

    rows: int = 64  # captions per step, each with its image; those left over at the end of an epoch are skipped
    each: Literal["all", "one"] = "all"  # captions of each image in an epoch: all of them, or a random one
    longest: int | None = None  # largest number of tokens of a caption; longer ones are left out; None: no limit
    valid_rows: int = 256  # captions per validation batch
    valid_most: int | None = None  # largest number of validation batches; None: all

    def __post_init__(self) -> None:
        TokenizerConfig.__post_init__(self)  # super() loses its class when slots make a new one
        at_least(self, 1, "rows", "valid_rows")
        at_least(self, 0, "valid_most")
        if self.longest is not None and self.longest < 2:
            raise InputError(f"longest={self.longest}: expected 2 or more, of which one is <end>")


class Captions(Data):
    """Every caption once per epoch, or a random one of every image, in the order of (seed, epoch).

    Args:
        config: The options.
        images: The pixels of all images, those for training first.
        train: The captions of each training image.
        valid: The captions of each of the other images.
        preprocessing: How these images are normalised.
        seed: The seed of training.
        description: What the images are, for the facts of a run.

    Examples:
        >>> config = CaptionConfig(vocabulary="words", minimum=1, rows=2)
        >>> images = np.zeros((3, 3, 8, 8), np.uint8)
        >>> plain = clearhead.data.Preprocessing()
        >>> data = Captions(config, images, [["a dog"], ["a cat", "a pet"]], [["a dog"]], plain)
        >>> batch = data.batch(step=0)
        >>> batch["images"].shape, batch["ids"].shape, data.steps_per_epoch
        ((2, 3, 8, 8), (2, 3), 1)
    """

    keys = ("images", "ids", "targets")
    unit = "images"
    tokens: Tokenizer
    preprocessing: Preprocessing

    def __init__(
        self,
        config: CaptionConfig,
        images: UInt8[np.ndarray, "n c y x"],
        train: Sequence[Sequence[str]],
        valid: Sequence[Sequence[str]],
        preprocessing: Preprocessing,
        *,
        seed: int = 0,
        description: str = "",
    ) -> None:
        self.config, self.seed, self.preprocessing, self.description = config, seed, preprocessing, description
        self.tokens = config.tokenizer([text for texts in train for text in texts])
        self.training = EncodedCaptions(train, self.tokens, config.longest, first_image=0)
        self.validation = EncodedCaptions(valid, self.tokens, config.longest, first_image=len(train))
        if not len(self.training.images):
            raise DataError(f"longest={config.longest} leaves no caption to train on")
        self.left_out = self.training.left_out + self.validation.left_out  # captions longer than config.longest
        self.tables = {"images": images}
        self.sizes = {"vocab": len(self.tokens)}
        self.longest = max(self.training.width, self.validation.width)
        self.epoch_rows = len(self.training.images) if config.each == "all" else len(self.training.starts)
        if config.rows > self.epoch_rows:
            raise InputError(f"rows={config.rows}: an epoch has {self.epoch_rows} captions")
        self.steps_per_epoch = self.epoch_rows // config.rows
        batches = -(-len(self.validation.images) // config.valid_rows)
        self.valid_batches = batches if config.valid_most is None else min(batches, config.valid_most)
        self._order = (-1, np.zeros(0, np.int64))  # the last epoch, and its captions in order

    def _rows(self, step: int) -> int:
        return self.config.rows

    def _train(self, step: int, rows: Rows) -> Batch:
        epoch, index = divmod(step, self.epoch_rows // self.config.rows)
        if self._order[0] != epoch:
            order = counter_rng.permutation(self.seed, epoch, self.epoch_rows, ORDER)
            self._order = (epoch, order if self.config.each == "all" else self._one_each(epoch, order))
        return self.training.batch(self._order[1][index * self.config.rows + rows])

    def _one_each(self, epoch: int, images: NDArray[np.int64]) -> NDArray[np.int64]:
        """The number of a random caption of each of these images."""
        starts = self.training.starts
        counts = np.append(starts[1:], len(self.training.images)) - starts
        draws = counter_rng.uniform(self.seed, epoch, images, 1, CHOICE)[:, 0]
        return starts[images] + (draws * counts[images]).astype(np.int64)

    def _valid_rows(self, index: int) -> int:
        return min(self.config.valid_rows, len(self.validation.images) - index * self.config.valid_rows)

    def _valid(self, index: int, rows: Rows) -> Batch:
        return self.validation.batch(index * self.config.valid_rows + rows)


class EncodedCaptions:
    """Captions as ids, image after image; captions of more than `longest` tokens are left out."""

    def __init__(
        self, texts: Sequence[Sequence[str]], tokens: Tokenizer, longest: int | None, *, first_image: int
    ) -> None:
        pad, start, end = tokens.pad, tokens.start, tokens.end
        if pad is None or start is None or end is None:
            raise InputError(f"{tokens!r} has no <pad>, <start> and <end>: captions need them")
        self.pad, self.start = pad, start
        flat = tokens.encode_all([text for one in texts for text in one])
        owner = np.repeat(np.arange(len(texts)), [len(one) for one in texts])
        kept = [i for i, ids in enumerate(flat) if longest is None or len(ids) < longest]
        self.left_out = len(flat) - len(kept)
        self.ids = Ragged([np.append(flat[i], end) for i in kept])
        self.images = first_image + owner[kept]  # the image of each caption
        self.starts = np.flatnonzero(np.diff(self.images, prepend=-1))  # the first caption of each image that has one
        self.width = int(self.ids.lengths.max(initial=1))

    def batch(self, numbers: NDArray[np.int64]) -> Batch:
        """Return captions with the row numbers of their images."""
        targets = self.ids.padded(numbers, self.width, IGNORE)
        return {"images": self.images[numbers], **with_inputs(targets, self.pad, self.start)}


def with_inputs(targets: NDArray[np.int64], pad: int, start: int) -> Batch:
    """Return targets with the ids that a decoder reads: the same, one token later, after <start>."""
    ids = np.full_like(targets, start)
    ids[:, 1:] = targets[:, :-1]
    ids[targets == IGNORE] = pad  # also overwrites <end>, which is a target but never an input
    return {"ids": ids, "targets": targets}
