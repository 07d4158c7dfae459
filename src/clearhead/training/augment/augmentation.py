"""Augmentation of training images on the device, with random numbers keyed by (seed, step, row).

So a batch is a function of (seed, step), and a resumed training equals an uninterrupted one. An augmentation is a pure
function of uint8 images (b, c, y, x) and of as many uniform random numbers per image as its `draws` says, (b, draws).
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import cache
from typing import Any, ClassVar

import torch
import torch.nn.functional as F
from jaxtyping import Bool, Float, UInt8
from torch import Tensor

from ...checks import at_least
from ...data.images.preprocessing import Preprocessing
from ...errors import InputError
from ..objectives.objective import Moment
from .operations import (
    BLEND,
    OPERATIONS,
    apply_chosen,
    brightness,
    colour,
    contrast,
    grey,
    resample,
    smooth,
    solarise,
)

# augmentation i uses the random stream FIRST_STREAM + i, and for feed n (n + 1) times as much
FIRST_STREAM = 1 << 20


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
    draws = 1

    def __init__(self, config: FlipConfig) -> None:
        self.config = config

    def __call__(
        self, images: UInt8[Tensor, "b c y x"], u: Float[Tensor, "b n"]
    ) -> UInt8[Tensor, "b c y x"]:
        chosen = u[:, 0] < self.config.chance
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
    draws = 2

    def __init__(self, config: ShiftConfig) -> None:
        self.config = config

    def __call__(
        self, images: UInt8[Tensor, "b c y x"], u: Float[Tensor, "b n"]
    ) -> UInt8[Tensor, "b c y x"]:
        n = self.config.pixels
        if not n:
            return images
        height, width = images.shape[-2:]
        corner = (u * (2 * n + 1)).long()  # (b, 2) of the crop
        rows = (corner[:, 0, None] + torch.arange(height, device=images.device))[:, None, :, None]
        columns = (corner[:, 1, None] + torch.arange(width, device=images.device))[:, None, None, :]
        b, c = (
            torch.arange(len(images), device=images.device),
            torch.arange(images.shape[1], device=images.device),
        )
        return F.pad(images, (n, n, n, n))[b[:, None, None, None], c[:, None, None], rows, columns]


@dataclass(frozen=True, kw_only=True, slots=True)
class CropConfig:
    """Options of Crop."""

    least: float = 0.25  # smallest share of the area that a crop keeps
    stretch: float = 4 / 3  # largest ratio of width and height

    def __post_init__(self) -> None:
        if not 0.0 < self.least <= 1.0 or self.stretch < 1.0:
            raise InputError(
                f"least={self.least}, stretch={self.stretch}: expected a share above 0 and at most 1, and a ratio of "
                "at least 1"
            )


class Crop:
    """Cut out a random part and resize it to the size of the image (Szegedy et al. 2015, section 6)."""

    Config: ClassVar[type[Any]] = CropConfig
    draws = 4

    def __init__(self, config: CropConfig) -> None:
        self.config = config

    def __call__(
        self, images: UInt8[Tensor, "b c y x"], u: Float[Tensor, "b n"]
    ) -> UInt8[Tensor, "b c y x"]:
        area = self.config.least + (1 - self.config.least) * u[:, 0]
        ratio = self.config.stretch ** (2 * u[:, 1] - 1)
        ratio = ratio.clamp(area, 1 / area)  # so that the crop fits
        # width, height
        size = torch.stack([(area * ratio).sqrt(), (area / ratio).sqrt()], dim=1).clamp(max=1.0)
        middle = (2 * u[:, 2:] - 1) * (1 - size)
        matrix = torch.cat([torch.diag_embed(size), middle[..., None]], dim=-1)
        return to_uint8(resample(images.float(), matrix, outside="border"))


@dataclass(frozen=True, kw_only=True, slots=True)
class RandAugmentConfig:
    """Options of RandAugment."""

    count: int = 2  # operations per image, one after the other
    strength: float = 0.3  # strength of each operation, from 0 to 1
    # draw each strength from 0 to `strength`; with count = 1, strength = 1: TrivialAugment
    random: bool = False

    def __post_init__(self) -> None:
        at_least(self, 1, "count")
        if not 0.0 <= self.strength <= 1.0:
            raise InputError(f"strength={self.strength}: expected a share from 0 to 1")


class RandAugment:
    """Apply random operations, in random directions (Cubuk et al. 2020; TrivialAugment: Mueller and Hutter 2021)."""

    Config: ClassVar[type[Any]] = RandAugmentConfig

    def __init__(self, config: RandAugmentConfig) -> None:
        self.config, self.draws = config, 3 * config.count

    def __call__(
        self, images: UInt8[Tensor, "b c y x"], u: Float[Tensor, "b n"]
    ) -> UInt8[Tensor, "b c y x"]:
        c = self.config
        u = u.view(-1, c.count, 3)
        chosen = (u[..., 0] * len(OPERATIONS)).long()
        sign = torch.where(u[..., 1] < 0.5, -1.0, 1.0)
        amount = sign * c.strength * (u[..., 2] if c.random else 1.0)
        x = images.float()
        for i in range(c.count):
            x = apply_chosen(x, chosen[:, i], amount[:, i], OPERATIONS).round()
        return to_uint8(x)


@dataclass(frozen=True, kw_only=True, slots=True)
class ThreeAugmentConfig:
    """Options of ThreeAugment."""

    jitter: float = 0.3  # largest change of brightness, contrast and colour, as a share

    def __post_init__(self) -> None:
        if not 0.0 <= self.jitter <= BLEND:
            raise InputError(f"jitter={self.jitter}: expected a share from 0 to {BLEND}")


class ThreeAugment:
    """Remove the colour, solarise, or blur each image, then change brightness, contrast and colour (DeiT III, 3.2).

    Touvron et al. 2022. The blur averages each pixel with its neighbours instead of a Gaussian of random width.
    """

    Config: ClassVar[type[Any]] = ThreeAugmentConfig
    draws = 4

    def __init__(self, config: ThreeAugmentConfig) -> None:
        self.config = config

    def __call__(
        self, images: UInt8[Tensor, "b c y x"], u: Float[Tensor, "b n"]
    ) -> UInt8[Tensor, "b c y x"]:
        half = torch.full_like(u[:, 0], 0.5)  # solarise: the threshold 128
        three = (lambda x, _: grey(x), solarise, lambda x, _: smooth(x))
        x = apply_chosen(images.float(), (3 * u[:, 0]).long(), half, three)
        for i, change in enumerate((brightness, contrast, colour)):
            x = change(x, (2 * u[:, i + 1] - 1) * self.config.jitter / BLEND)
        return to_uint8(x)


@dataclass(frozen=True, kw_only=True, slots=True)
class EraseConfig:
    """Options of Erase."""

    chance: float = 0.25  # probability that an image is changed
    most: float = 0.33  # largest share of the area that is erased
    stretch: float = 3.3  # largest ratio of width and height

    def __post_init__(self) -> None:
        if not 0.0 <= self.chance <= 1.0 or not 0.02 < self.most <= 1.0 or self.stretch < 1.0:
            raise InputError(
                f"chance={self.chance}, most={self.most}, stretch={self.stretch}: expected a probability, a share "
                "above 0.02, and a ratio of at least 1"
            )


class Erase:
    """Replace a random rectangle by a random colour (Zhong et al. 2020, Algorithm 1, with one colour per image)."""

    Config: ClassVar[type[Any]] = EraseConfig
    draws = 8

    def __init__(self, config: EraseConfig) -> None:
        self.config = config

    def __call__(
        self, images: UInt8[Tensor, "b c y x"], u: Float[Tensor, "b n"]
    ) -> UInt8[Tensor, "b c y x"]:
        (_, channels, height, width), c = images.shape, self.config
        area = 0.02 + (c.most - 0.02) * u[:, 1]
        ratio = c.stretch ** (2 * u[:, 2] - 1)
        inside = rectangle(u[:, 3:5], (area * ratio).sqrt(), (area / ratio).sqrt(), height, width)
        inside = inside & (u[:, 0] < c.chance)[:, None, None]
        return torch.where(
            inside[:, None], (u[:, 5 : 5 + channels] * 256).to(torch.uint8)[..., None, None], images
        )


def rectangle(
    corner: Float[Tensor, "b 2"],
    tall: Float[Tensor, "b"],
    wide: Float[Tensor, "b"],
    height: int,
    width: int,
) -> Bool[Tensor, "b y x"]:
    """Which pixels lie in a rectangle of the given height and width, as shares of the image, at a random corner."""
    rows = (tall.clamp(max=1) * height).round()[:, None]
    columns = (wide.clamp(max=1) * width).round()[:, None]
    top = (corner[:, :1] * (height - rows + 1)).floor()
    left = (corner[:, 1:] * (width - columns + 1)).floor()
    y, x = torch.arange(height, device=corner.device), torch.arange(width, device=corner.device)
    return ((y >= top) & (y < top + rows))[:, :, None] & ((x >= left) & (x < left + columns))[
        :, None, :
    ]


def to_uint8(images: Float[Tensor, "b c y x"]) -> UInt8[Tensor, "b c y x"]:
    """Round pixel values."""
    return images.round().clamp(0, 255).to(torch.uint8)


AUGMENTATIONS: dict[str, Any] = {
    "flip": Flip,
    "shift": Shift,
    "crop": Crop,
    "randaugment": RandAugment,
    "three-augment": ThreeAugment,
    "erase": Erase,
}


def make_augmentations(tables: Sequence[tuple[str, Any]]) -> list[Any]:
    """Build augmentations from (name, options) pairs, in order."""
    return [AUGMENTATIONS[name](options) for name, options in tables]


def augment(
    images: UInt8[Tensor, "b c y x"],
    augmentations: Sequence[Any],
    moment: Moment,
    dataset: int = 0,
    *,
    compiled: bool = False,
) -> UInt8[Tensor, "b c y x"]:
    """Apply augmentations in order, with a random stream for each and for each dataset, by its number."""
    first = (dataset + 1) * FIRST_STREAM
    draws = [moment.rng(first + i).uniform(one.draws) for i, one in enumerate(augmentations)]
    return (_compiled() if compiled else _apply)(images, augmentations, draws)


def _apply(images: Tensor, augmentations: Sequence[Any], draws: list[Tensor]) -> Tensor:
    for one, u in zip(augmentations, draws, strict=True):
        images = one(images, u)
    return images


@cache
def _compiled() -> Any:
    """_apply with its many small operations as few kernels."""
    return torch.compile(_apply)


def normalise(
    images: UInt8[Tensor, "b c y x"], preprocessing: Preprocessing, dtype: torch.dtype
) -> Float[Tensor, "b c y x"]:
    """Scale and normalise pixels like a model's preprocessing; on a GPU with channels last, as convolutions read."""
    mean, deviation = (
        torch.tensor(x, dtype=torch.float32)[:, None, None].to(images.device, non_blocking=True)
        for x in (preprocessing.mean, preprocessing.deviation)
    )
    if images.is_cuda:
        layout = torch.channels_last
    else:
        layout = torch.contiguous_format
    out = (images.to(torch.float32) * preprocessing.scale - mean) / deviation
    return out.to(dtype).contiguous(memory_format=layout)
