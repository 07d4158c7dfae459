"""Views of the same row, which self-distillation compares: vectors with noise, and random crops of images.

The teacher sees the global views alone; the student sees all of them. What is drawn depends on (seed, step, row) alone.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import TYPE_CHECKING, Any, Protocol

import torch
import torch.nn.functional as F
from jaxtyping import Float
from torch import Tensor

from ...errors import InputError
from ..augmentation import BLEND, brightness, colour, contrast, grey, normalise, random_part
from ..moment import Moment
from .objective import Measurement, Tensors

if TYPE_CHECKING:
    from ...data import Data

VIEWS, DISTORTIONS = 1, 2  # random streams of the views, and of the colours of crops
GLOBAL, LOCAL = "global_views", "local_views"  # batch keys, (b, views, ...)


class Views(Protocol):
    """How rows become views, and what a student needs for them."""

    key: str  # the batch key that is read
    can: str  # what the student must be able to do
    measurements: Mapping[str, Measurement]

    def add(self, batch: Tensors, moment: Moment, dtype: torch.dtype) -> Tensors:
        """The batch with global views, and perhaps local ones."""


class NoisyVectors:
    """Two views of each vector, with independent noise."""

    key, can = "x", "map"
    measurements: Mapping[str, Measurement] = {
        "loss": Measurement("nats/row"),
        "information": Measurement("nats", "higher"),
    }

    def __init__(self, config: Any, student: Any, data: Data) -> None:
        self.noise = config.noise

    def add(self, batch: Tensors, moment: Moment, dtype: torch.dtype) -> Tensors:
        x = batch["x"]
        noise = self.noise * moment.rng(VIEWS).normal(2, x.shape[1])
        return batch | {GLOBAL: x[:, None] + noise}


class Crops:
    """Two large crops of each image and several small ones, in other colours: the multi-crop of Caron et al. 2021.

    A crop is distorted as in BYOL (Grill et al. 2020, appendix B): mirrored, other brightness, contrast, saturation and
    hue, grey, blurred, solarised. The order of the changes of colour is fixed, and the hue is a rotation in the plane
    of the chroma (YIQ), which needs no conversion to HSV.
    """

    key, can = "images", "project"

    def __init__(self, config: Any, student: Any, data: Data) -> None:
        assert data.preprocessing is not None  # all data with images has one
        self.config, self.preprocessing = config, data.preprocessing
        size = data.preprocessing.crop or data.preprocessing.resize
        assert size is not None
        edge = size if isinstance(size, int) else min(size)
        patch = getattr(student.config, "patch", 1)
        self.large = config.global_size or edge
        # 96 of 224 pixels in the paper, here in whole patches
        self.small = config.local_size or max(patch, round(3 / 7 * self.large / patch) * patch)
        for name, pixels in (("global_size", self.large), ("local_size", self.small)):
            if pixels > edge:
                raise InputError(
                    f"{name}={pixels}: the images have {edge} pixels: expected a crop of at most as many"
                )
            if pixels % patch:
                raise InputError(
                    f"{name}={pixels}: expected a multiple of the student's patch, {patch}"
                )
        self.measurements: dict[str, Measurement] = {"loss": Measurement("nats/row")}
        # they compare with training images, which must be in memory
        if data.labelled_table() is not None:
            self.measurements["knn"] = Measurement("share", "higher")
            self.measurements["linear"] = Measurement("share", "higher")

    def add(self, batch: Tensors, moment: Moment, dtype: torch.dtype) -> Tensors:
        images, c = batch["images"], self.config
        count = 2 + c.local_crops
        where, how = (
            moment.rng(VIEWS).uniform(count, 4),
            moment.rng(DISTORTIONS).uniform(count, DRAWS),
        )
        views = []
        for i in range(count):
            if i < 2:
                least, most, size = c.global_least, 1.0, self.large
                # the two differ: the first is always blurred, the second is sometimes solarised
                blur, solar = ((1.0, 0.0), (0.1, 0.2))[i]
            else:
                least, most, size = c.local_least, c.global_least, self.small
                blur, solar = 0.5, 0.0
            part = random_part(
                images.float(), where[:, i], least=least, most=most, size=(size, size)
            )
            part = distort(part, how[:, i], blur=blur, solar=solar)
            views.append(normalise(part, self.preprocessing, dtype))
        # whole images are what validation embeds
        batch = batch | {"images": normalise(images, self.preprocessing, dtype)}
        batch[GLOBAL] = torch.stack(views[:2], dim=1)
        if c.local_crops:
            batch[LOCAL] = torch.stack(views[2:], dim=1)
        return batch


# The distortion of colours: chances and strengths of BYOL and DINO.

DRAWS = 10  # uniform numbers per crop
MIRRORED, JITTERED, GREY = 0.5, 0.8, 0.2  # chances
BRIGHTNESS, CONTRAST, SATURATION, HUE = 0.4, 0.4, 0.2, 0.1  # largest changes; of the hue, in turns
BLUR = (0.1, 2.0)  # least and largest deviation in pixels, of images with BLUR_SIZE pixels
BLUR_SIZE = 224
SOLAR = 128  # values from here on are inverted
# RGB to luma and two chroma axes (NTSC 1953), by rows Y, I, Q
YIQ = ((0.299, 0.587, 0.114), (0.595716, -0.274453, -0.321263), (0.211456, -0.522591, 0.311135))


def distort(
    images: Float[Tensor, "b c y x"], u: Float[Tensor, "b n"], *, blur: float, solar: float
) -> Float[Tensor, "b c y x"]:
    """Mirror crops and change their colours, each by chance.

    Args:
        images: values from 0 to 255.
        u: uniform random numbers, DRAWS per image.
        blur: chance of a blur.
        solar: chance that bright values are inverted.
    """

    def chosen(draw: int, chance: float) -> Tensor:
        return (u[:, draw] < chance)[:, None, None, None]

    x = torch.where(chosen(0, MIRRORED), images.flip(-1), images)
    # from -1 to 1, and 0 where the colours stay; BLEND is the strength of an amount of 1
    amount = torch.where(u[:, 1, None] < JITTERED, 2 * u[:, 2:6] - 1, 0.0)
    x = brightness(x, amount[:, 0] * (BRIGHTNESS / BLEND))
    x = contrast(x, amount[:, 1] * (CONTRAST / BLEND))
    x = colour(x, amount[:, 2] * (SATURATION / BLEND))
    x = turn_hue(x, 2 * math.pi * HUE * amount[:, 3])
    x = torch.where(chosen(6, GREY), grey(x), x)
    if blur:
        least, most = (deviation * x.shape[-1] / BLUR_SIZE for deviation in BLUR)
        x = torch.where(chosen(7, blur), blurred(x, least + (most - least) * u[:, 8], most), x)
    if solar:
        x = torch.where(chosen(9, solar) & (x >= SOLAR), 255 - x, x)
    return x


def turn_hue(
    images: Float[Tensor, "b c y x"], angle: Float[Tensor, "b"]
) -> Float[Tensor, "b c y x"]:
    """Turn the colours of RGB images around the axis of grey values; others have no hue, and stay."""
    if images.shape[1] != 3:
        return images
    to_yiq = torch.tensor(YIQ, dtype=images.dtype, device=images.device)
    cos, sin, zero = angle.cos(), angle.sin(), torch.zeros_like(angle)
    turn = torch.stack([zero + 1, zero, zero, zero, cos, -sin, zero, sin, cos], dim=-1).view(
        -1, 3, 3
    )
    # one matrix per image: to the chroma plane, turned, and back
    matrix = torch.linalg.inv(to_yiq) @ turn @ to_yiq
    return torch.einsum("bij,bjyx->biyx", matrix, images).clamp(0, 255)


def blurred(
    images: Float[Tensor, "b c y x"], deviation: Float[Tensor, "b"], most: float
) -> Float[Tensor, "b c y x"]:
    """Images smoothed by a Gaussian with a deviation of their own, in pixels, of at most `most`."""
    # three deviations hold 99.7 % of the weight; small images have no more than their size
    radius = min(max(1, round(3 * most)), min(images.shape[-2:]) - 1)
    if radius < 1:
        return images
    at = torch.arange(-radius, radius + 1, device=images.device)
    weight = (-(at**2) / (2 * deviation[:, None] ** 2)).exp()
    weight = (weight / weight.sum(1, keepdim=True))[:, :, None, None, None]
    # separable: rows, then columns
    for dim, pad in ((-1, (radius, radius, 0, 0)), (-2, (0, 0, radius, radius))):
        padded, size = F.pad(images, pad, mode="reflect"), images.shape[dim]
        shifted = [padded.narrow(dim, i, size) for i in range(2 * radius + 1)]
        images = torch.stack([weight[:, i] * part for i, part in enumerate(shifted)]).sum(0)
    return images
