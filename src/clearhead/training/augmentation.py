"""Augmentation of training images on the device, with random numbers keyed by (seed, step, row).

So a batch is a function of (seed, step), and a resumed training equals an uninterrupted one. An augmentation takes and
returns uint8 images (b, c, y, x).
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, ClassVar

import torch
import torch.nn.functional as F
from jaxtyping import Float, UInt8
from torch import Tensor

from ..checks import at_least
from ..data.preprocessing import Preprocessing
from ..errors import InputError
from .objectives.objective import Moment

FIRST_STREAM = 1 << 20  # augmentation i uses the random stream FIRST_STREAM + i, and for feed n (n + 1) times as much


@dataclass(frozen=True, kw_only=True, slots=True)
class FlipConfig:
    """Options of Flip."""

    chance: float = 0.5  # probability that an image is mirrored

    def __post_init__(self) -> None:
        if not 0.0 <= self.chance <= 1.0:
            raise InputError(f"chance={self.chance}: expected a share from 0 to 1")


class Flip:
    """Mirror a random share of the images left to right."""

    Config: ClassVar[type[Any]] = FlipConfig

    def __init__(self, config: FlipConfig) -> None:
        self.config = config

    def __call__(self, images: UInt8[Tensor, "b c y x"], moment: Moment, stream: int) -> UInt8[Tensor, "b c y x"]:
        chosen = moment.rng(stream).uniform(1)[:, 0] < self.config.chance
        return torch.where(chosen[:, None, None, None], images.flip(-1), images)


@dataclass(frozen=True, kw_only=True, slots=True)
class ShiftConfig:
    """Options of Shift."""

    pixels: int = 4  # largest shift in each direction, in pixels

    def __post_init__(self) -> None:
        at_least(self, 0, "pixels")


class Shift:
    """Shift images randomly: pad with black, and crop at a random position (He et al. 2016, 4.2)."""

    Config: ClassVar[type[Any]] = ShiftConfig

    def __init__(self, config: ShiftConfig) -> None:
        self.config = config

    def __call__(self, images: UInt8[Tensor, "b c y x"], moment: Moment, stream: int) -> UInt8[Tensor, "b c y x"]:
        n = self.config.pixels
        if not n:
            return images
        height, width = images.shape[-2:]
        corner = (moment.rng(stream).uniform(2) * (2 * n + 1)).long()  # (b, 2) of the crop
        rows = (corner[:, 0, None] + torch.arange(height, device=images.device))[:, None, :, None]
        columns = (corner[:, 1, None] + torch.arange(width, device=images.device))[:, None, None, :]
        b, c = torch.arange(len(images), device=images.device), torch.arange(images.shape[1], device=images.device)
        return F.pad(images, (n, n, n, n))[b[:, None, None, None], c[:, None, None], rows, columns]


AUGMENTATIONS: dict[str, Any] = {"flip": Flip, "shift": Shift}


def make_augmentations(tables: Sequence[tuple[str, Any]]) -> list[Any]:
    """Build augmentations from (name, options) pairs, in order."""
    return [AUGMENTATIONS[name](options) for name, options in tables]


def augment(
    images: UInt8[Tensor, "b c y x"], augmentations: Sequence[Any], moment: Moment, dataset: int = 0
) -> Tensor:  # fmt: skip
    """Apply augmentations in order, with a random stream for each and for each dataset, by its number."""
    for i, one in enumerate(augmentations):
        images = one(images, moment, (dataset + 1) * FIRST_STREAM + i)
    return images


def normalise(
    images: UInt8[Tensor, "b c y x"], preprocessing: Preprocessing, dtype: torch.dtype
) -> Float[Tensor, "b c y x"]:
    """Scale and normalise pixels like a model's preprocessing."""
    mean, deviation = (
        torch.tensor(x, device=images.device, dtype=torch.float32)[:, None, None]
        for x in (preprocessing.mean, preprocessing.deviation)
    )
    return ((images.to(torch.float32) * preprocessing.scale - mean) / deviation).to(dtype)
