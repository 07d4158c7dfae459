"""Augmentation: random changes of training images, on the device, each a function of (seed, step, row).

It stands between the feed and the objective, so that a batch stays a function of (seed, step) and a training resumes to
the bit. An augmentation takes uint8 images (b, c, y, x) and returns uint8 images.
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

FIRST_STREAM = 1 << 20  # augmentations use the streams of random numbers from here on


@dataclass(frozen=True, kw_only=True, slots=True)
class FlipConfig:
    """Mirror images left to right."""

    chance: float = 0.5  # share of the images that are mirrored

    def __post_init__(self) -> None:
        if not 0.0 <= self.chance <= 1.0:
            raise InputError(f"chance={self.chance}: expected a share from 0 to 1")


class Flip:
    """Mirror some images left to right."""

    Config: ClassVar[type[Any]] = FlipConfig

    def __init__(self, config: FlipConfig) -> None:
        self.config = config

    def __call__(self, images: UInt8[Tensor, "b c y x"], moment: Moment, stream: int) -> UInt8[Tensor, "b c y x"]:
        chosen = moment.rng(stream).uniform(1)[:, 0] < self.config.chance
        return torch.where(chosen[:, None, None, None], images.flip(-1), images)


@dataclass(frozen=True, kw_only=True, slots=True)
class ShiftConfig:
    """Shift images by a few pixels, filling the border with black."""

    pixels: int = 4  # the most that an image moves, up, down, left or right

    def __post_init__(self) -> None:
        at_least(self, 0, "pixels")


class Shift:
    """Pad images and cut out a window of their size at a random place (He et al. 2016, 4.2)."""

    Config: ClassVar[type[Any]] = ShiftConfig

    def __init__(self, config: ShiftConfig) -> None:
        self.config = config

    def __call__(self, images: UInt8[Tensor, "b c y x"], moment: Moment, stream: int) -> UInt8[Tensor, "b c y x"]:
        n = self.config.pixels
        if not n:
            return images
        height, width = images.shape[-2:]
        moved = (moment.rng(stream).uniform(2) * (2 * n + 1)).long()  # (b, 2) the window's corner
        rows = (moved[:, 0, None] + torch.arange(height, device=images.device))[:, None, :, None]
        columns = (moved[:, 1, None] + torch.arange(width, device=images.device))[:, None, None, :]
        b, c = torch.arange(len(images), device=images.device), torch.arange(images.shape[1], device=images.device)
        return F.pad(images, (n, n, n, n))[b[:, None, None, None], c[:, None, None], rows, columns]


AUGMENTATIONS: dict[str, Any] = {"flip": Flip, "shift": Shift}


def make_augmentations(tables: Sequence[tuple[str, Any]]) -> list[Any]:
    """The augmentations of (name, options) pairs, in order."""
    return [AUGMENTATIONS[name](options) for name, options in tables]


def augment(images: UInt8[Tensor, "b c y x"], augmentations: Sequence[Any], moment: Moment) -> Tensor:
    """Apply augmentations in order, each with random numbers of its own."""
    for i, one in enumerate(augmentations):
        images = one(images, moment, FIRST_STREAM + i)
    return images


def normalise(
    images: UInt8[Tensor, "b c y x"], preprocessing: Preprocessing, dtype: torch.dtype
) -> Float[Tensor, "b c y x"]:
    """Scale and normalise pixels as a model's preprocessing does."""
    mean, deviation = (
        torch.tensor(x, device=images.device, dtype=torch.float32)[:, None, None]
        for x in (preprocessing.mean, preprocessing.deviation)
    )
    return ((images.to(torch.float32) * preprocessing.scale - mean) / deviation).to(dtype)
