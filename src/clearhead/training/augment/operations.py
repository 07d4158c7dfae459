"""Operations on batches of images with a strength per image, on the device: what RandAugment chooses from.

An operation takes float images (b, c, y, x) with values from 0 to 255 and an amount per image (b,), from -1 to 1, and
returns new images. Amounts mean what they mean in Cubuk et al. 2020 as torchvision has them; PIL's functions are the
references, up to rounding and interpolation.
"""

from __future__ import annotations

import math
from collections.abc import Callable

import torch
import torch.nn.functional as F
from jaxtyping import Float
from torch import Tensor

Images = Float[Tensor, "b c y x"]
Amount = Float[Tensor, "b"]
Operation = Callable[[Tensor, Tensor], Tensor]

SHEAR, SHIFT, TURN, BLEND = 0.3, 150 / 331, math.radians(30), 0.9  # what an amount of 1 means
LUMINANCE = (0.299, 0.587, 0.114)  # shares of red, green and blue in a grey value (ITU-R 601)


def resample(images: Images, matrix: Float[Tensor, "b 2 3"], outside: str = "zeros") -> Images:
    """Move images by an affine map from places of the output to places of the input.

    Args:
        images: float images.
        matrix: maps (x, y, 1), where -1 and 1 are the edges of an image, to (x, y).
        outside: what is outside the image: "zeros", black, or "border", its nearest pixel.
    """
    at = F.affine_grid(matrix, list(images.shape), align_corners=False)
    return F.grid_sample(images, at, mode="bilinear", padding_mode=outside, align_corners=False)


def _matrix(rows: list[list[Tensor | float]], like: Amount) -> Float[Tensor, "b 2 3"]:
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
    cos, sin = angle.cos(), angle.sin()
    return resample(images, _matrix([[cos, -sin / wide, 0.0], [sin * wide, cos, 0.0]], amount))


def grey(images: Images) -> Images:
    """Images without colour, with the same number of channels."""
    if images.shape[1] != 3:
        return images.mean(1, keepdim=True).expand_as(images)
    red, green, blue = images.unbind(1)
    value = LUMINANCE[0] * red + LUMINANCE[1] * green + LUMINANCE[2] * blue
    return value[:, None].expand_as(images)


def smooth(images: Images) -> Images:
    """Images with each pixel averaged with its neighbours, except at the edges (PIL's filter SMOOTH)."""
    if min(images.shape[-2:]) < 3:  # all of it is edges
        return images
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
