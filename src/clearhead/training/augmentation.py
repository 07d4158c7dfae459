"""Augmentation of training images on the device, with random numbers keyed by (seed, step, row).

So a batch is a function of (seed, step), and a resumed training equals an uninterrupted one. An augmentation is a pure
function of uint8 images (b, c, y, x) and of as many uniform random numbers per image as its `draws` says, (b, draws).
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import cache
from typing import Any, ClassVar

import torch
import torch.nn.functional as F
from jaxtyping import Bool, Float, UInt8
from torch import Tensor

from ..checks import at_least
from ..data.images.preprocessing import Preprocessing
from ..errors import InputError
from .moment import Moment

Images = Float[Tensor, "b c y x"]
Amount = Float[Tensor, "b"]
Operation = Callable[[Tensor, Tensor], Tensor]

SHEAR, SHIFT, TURN, BLEND = 0.3, 150 / 331, math.radians(30), 0.9  # what an amount of 1 means
LUMINANCE = (0.299, 0.587, 0.114)  # shares of red, green and blue in a grey value (ITU-R 601)


def resample(
    images: Images,
    matrix: Float[Tensor, "b 2 3"],
    outside: str = "zeros",
    size: tuple[int, int] | None = None,
) -> Float[Tensor, "b c height width"]:
    """Move images by an affine map from places of the output to places of the input.

    Args:
        images: float images.
        matrix: maps (x, y, 1), where -1 and 1 are the edges of an image, to (x, y).
        outside: what is outside the image: "zeros", black, or "border", its nearest pixel.
        size: height and width of the output; by default those of the images.
    """
    height, width = size or images.shape[-2:]
    at = F.affine_grid(matrix, [*images.shape[:2], height, width], align_corners=False)
    return F.grid_sample(images, at, mode="bilinear", padding_mode=outside, align_corners=False)


def _matrix(rows: list[list[Tensor | float]], like: Amount) -> Float[Tensor, "b 2 3"]:
    # every entry as (b,): constants are the same for all images
    columns = [[torch.zeros_like(like) + x for x in row] for row in rows]
    return torch.stack([torch.stack(row, dim=-1) for row in columns], dim=-2)


def shear_x(images: Images, amount: Amount) -> Images:
    """Shift every row to the side, in proportion to its distance from the middle."""
    tall = images.shape[-2] / images.shape[-1]
    return resample(images, _matrix([[1.0, SHEAR * amount * tall, 0.0], [0.0, 1.0, 0.0]], amount))


def shear_y(images: Images, amount: Amount) -> Images:
    """Shift every column up or down, in proportion to its distance from the middle."""
    wide = images.shape[-1] / images.shape[-2]
    return resample(images, _matrix([[1.0, 0.0, 0.0], [SHEAR * amount * wide, 1.0, 0.0]], amount))


def shift_x(images: Images, amount: Amount) -> Images:
    """Shift images to the side."""
    return resample(images, _matrix([[1.0, 0.0, 2 * SHIFT * amount], [0.0, 1.0, 0.0]], amount))


def shift_y(images: Images, amount: Amount) -> Images:
    """Shift images up or down."""
    return resample(images, _matrix([[1.0, 0.0, 0.0], [0.0, 1.0, 2 * SHIFT * amount]], amount))


def rotate(images: Images, amount: Amount) -> Images:
    """Rotate images around their middle."""
    angle, wide = TURN * amount, images.shape[-1] / images.shape[-2]
    # a rotation in pixels, where x and y are in units of the sides
    cos, sin = angle.cos(), angle.sin()
    return resample(images, _matrix([[cos, -sin / wide, 0.0], [sin * wide, cos, 0.0]], amount))


def grey(images: Images) -> Images:
    """Images without colour, with the same number of channels."""
    if images.shape[1] != 3:
        # not RGB: the mean of all channels
        return images.mean(1, keepdim=True).expand_as(images)
    red, green, blue = images.unbind(1)
    value = LUMINANCE[0] * red + LUMINANCE[1] * green + LUMINANCE[2] * blue
    return value[:, None].expand_as(images)


def smooth(images: Images) -> Images:
    """Images with each pixel averaged with its neighbours, except at the edges (PIL's filter SMOOTH)."""
    if min(images.shape[-2:]) < 3:  # all of it is edges
        return images
    # SMOOTH: a 3 x 3 mean in which the pixel itself counts 5 of 13
    near = F.avg_pool2d(images, 3, stride=1) * 9
    inner = (near + 4 * images[..., 1:-1, 1:-1]) / 13
    return torch.cat(
        [
            images[..., :1, :],
            torch.cat([images[..., 1:-1, :1], inner, images[..., 1:-1, -1:]], dim=-1),
            images[..., -1:, :],
        ],
        dim=-2,
    )


def _blend(base: Tensor, images: Images, amount: Amount) -> Images:
    """From `base` (a factor of 0) through the images (1) and beyond; an amount of -1 to 1 is a factor of 0.1 to 1.9."""
    factor = (1 + BLEND * amount)[:, None, None, None]
    return (base + factor * (images - base)).clamp(0, 255)


def brightness(images: Images, amount: Amount) -> Images:
    """Make images darker or brighter."""
    return _blend(torch.zeros_like(images), images, amount)


def colour(images: Images, amount: Amount) -> Images:
    """Take colour away, or add to it."""
    return _blend(grey(images), images, amount)


def contrast(images: Images, amount: Amount) -> Images:
    """Move all pixels towards the mean grey value of their image, or away from it."""
    return _blend(grey(images).mean((1, 2, 3), keepdim=True), images, amount)


def sharpness(images: Images, amount: Amount) -> Images:
    """Blur or sharpen images."""
    return _blend(smooth(images), images, amount)


def posterise(images: Images, amount: Amount) -> Images:
    """Keep only the highest 8 to 4 bits of each value."""
    size = 2 ** (4 * amount.abs()).round()[:, None, None, None]
    return (images / size).floor() * size


def solarise(images: Images, amount: Amount) -> Images:
    """Invert all values from a threshold on, which falls from 255 to 0."""
    threshold = 255 * (1 - amount.abs())[:, None, None, None]
    return torch.where(images >= threshold, 255 - images, images)


def autocontrast(images: Images, amount: Amount) -> Images:
    """Stretch each channel so that its values reach from 0 to 255."""
    least, most = images.amin((2, 3), keepdim=True), images.amax((2, 3), keepdim=True)
    stretched = (images - least) * (255 / (most - least).clamp(min=1))
    return torch.where(most > least, stretched, images)


def equalise(images: Images, amount: Amount) -> Images:
    """Spread the values of each channel so that all grey values are about equally frequent."""
    # the cumulative histogram of each channel, from the sorted values
    flat = images.flatten(2).round()  # (b, c, n)
    ordered = flat.sort(dim=-1).values
    before = torch.searchsorted(ordered, flat)  # pixels with a lower value
    most = ordered[..., -1:].contiguous()
    step = torch.searchsorted(ordered, most) // 255  # without the pixels of the highest value
    spread = ((before + step // 2) // step.clamp(min=1)).clamp(max=255)
    return torch.where(step > 0, spread.to(flat.dtype), flat).view_as(images)


def identity(images: Images, amount: Amount) -> Images:
    """The images themselves."""
    return images


OPERATIONS: tuple[Operation, ...] = (
    identity, shear_x, shear_y, shift_x, shift_y, rotate, brightness, colour, contrast, sharpness, posterise, solarise,
    autocontrast, equalise,
)  # fmt: skip


def apply_chosen(
    images: Images, chosen: Tensor, amount: Amount, operations: tuple[Operation, ...]
) -> Images:
    """Apply to each image the operation with the number `chosen`.

    Every operation is computed for all images and the chosen one is kept: no image waits for another, no shape depends
    on a random number, and small images cost little.
    """
    out = images
    for i, operation in enumerate(operations):
        if operation is not identity:
            out = torch.where((chosen == i)[:, None, None, None], operation(images, amount), out)
    return out


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
        b, c, y, x = (torch.arange(size, device=images.device) for size in images.shape)
        corner = (u * (2 * n + 1)).long()  # (b, 2) of the crop in the padded image
        rows = (corner[:, 0, None] + y)[:, None, :, None]  # (b, 1, y, 1)
        columns = (corner[:, 1, None] + x)[:, None, None, :]  # (b, 1, 1, x)
        # every corner from 0 to 2n is possible; n is the image unshifted
        padded = F.pad(images, (n, n, n, n))
        # the four indices broadcast to (b, c, y, x)
        return padded[b[:, None, None, None], c[:, None, None], rows, columns]


@dataclass(frozen=True, kw_only=True, slots=True)
class RandomCropConfig:
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

    Config: ClassVar[type[Any]] = RandomCropConfig
    draws = 4

    def __init__(self, config: RandomCropConfig) -> None:
        self.config = config

    def __call__(
        self, images: UInt8[Tensor, "b c y x"], u: Float[Tensor, "b n"]
    ) -> UInt8[Tensor, "b c y x"]:
        c = self.config
        return to_uint8(random_part(images.float(), u, least=c.least, stretch=c.stretch))


def random_part(
    images: Images,
    u: Float[Tensor, "b 4"],
    *,
    least: float,
    most: float = 1.0,
    stretch: float = 4 / 3,
    size: tuple[int, int] | None = None,
) -> Float[Tensor, "b c height width"]:
    """Cut a random part out of each image, and resize it.

    Args:
        images: float images.
        u: uniform random numbers: the area, the ratio, and the middle (2).
        least: smallest share of the area.
        most: largest share of the area.
        stretch: largest ratio of width and height, or of height and width.
        size: height and width of the output; by default those of the images.
    """
    area = least + (most - least) * u[:, 0]
    ratio = stretch ** (2 * u[:, 1] - 1)
    ratio = ratio.clamp(area, 1 / area)  # so that the part fits
    width, height = (area * ratio).sqrt(), (area / ratio).sqrt()  # as shares of the image's
    sides = torch.stack([width, height], dim=1).clamp(max=1.0)  # (b, 2)
    middle = (2 * u[:, 2:] - 1) * (1 - sides)  # where the edges of the image are at -1 and 1
    # (b, 2, 3): scale by `sides`, then shift to `middle`
    matrix = torch.cat([torch.diag_embed(sides), middle[..., None]], dim=-1)
    return resample(images, matrix, outside="border", size=size)


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
        u = u.view(-1, c.count, 3)  # per operation: which, its direction, its strength
        chosen = (u[..., 0] * len(OPERATIONS)).long()
        sign = torch.where(u[..., 1] < 0.5, -1.0, 1.0)
        amount = sign * c.strength  # (b, count)
        if c.random:
            amount = amount * u[..., 2]
        # rounded after each operation, as PIL's uint8 images are
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
            # divided by BLEND, so that the factor lies in 1 - jitter to 1 + jitter
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
        # u: whether, area, ratio, corner (2), colour (3)
        area = 0.02 + (c.most - 0.02) * u[:, 1]
        ratio = c.stretch ** (2 * u[:, 2] - 1)
        inside = rectangle(u[:, 3:5], (area * ratio).sqrt(), (area / ratio).sqrt(), height, width)
        # (b, y, x): no pixel of the images that are left alone
        inside = inside & (u[:, 0] < c.chance)[:, None, None]
        colour = (u[:, 5 : 5 + channels] * 256).to(torch.uint8)[..., None, None]  # (b, c, 1, 1)
        return torch.where(inside[:, None], colour, images)


def rectangle(
    corner: Float[Tensor, "b 2"],
    tall: Float[Tensor, "b"],
    wide: Float[Tensor, "b"],
    height: int,
    width: int,
) -> Bool[Tensor, "b y x"]:
    """Which pixels lie in a rectangle of the given height and width, as shares of the image, at a random corner."""
    # in whole pixels, inside the image
    rows = (tall.clamp(max=1) * height).round()[:, None]
    columns = (wide.clamp(max=1) * width).round()[:, None]
    top = (corner[:, :1] * (height - rows + 1)).floor()
    left = (corner[:, 1:] * (width - columns + 1)).floor()
    y, x = torch.arange(height, device=corner.device), torch.arange(width, device=corner.device)
    in_rows = (y >= top) & (y < top + rows)  # (b, y)
    in_columns = (x >= left) & (x < left + columns)  # (b, x)
    return in_rows[:, :, None] & in_columns[:, None, :]


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
    draws = []
    for i, augmentation in enumerate(augmentations):
        # drawn outside the compiled function, so that its graph has no random numbers
        draws.append(moment.rng(first + i).uniform(augmentation.draws))
    apply = _compiled() if compiled else _apply
    return apply(images, augmentations, draws)


def _apply(images: Tensor, augmentations: Sequence[Any], draws: list[Tensor]) -> Tensor:
    for augmentation, u in zip(augmentations, draws, strict=True):
        images = augmentation(images, u)
    return images


@cache
def _compiled() -> Any:
    """_apply with its many small operations as few kernels."""
    return torch.compile(_apply)


def normalise(
    images: UInt8[Tensor, "b c y x"] | Images, preprocessing: Preprocessing, dtype: torch.dtype
) -> Float[Tensor, "b c y x"]:
    """Scale and normalise pixels like a model's preprocessing; on a GPU with channels last, as convolutions read."""
    mean, deviation = (
        torch.tensor(x, dtype=torch.float32)[:, None, None].to(images.device, non_blocking=True)
        for x in (preprocessing.mean, preprocessing.deviation)
    )
    layout = torch.channels_last if images.is_cuda else torch.contiguous_format
    out = (images.to(torch.float32) * preprocessing.scale - mean) / deviation
    return out.to(dtype).contiguous(memory_format=layout)
