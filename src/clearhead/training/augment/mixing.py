"""Mixing pairs of images: mixup blends two images, cutmix replaces a rectangle of one by that of the other."""

from __future__ import annotations

import numpy as np
import torch
from jaxtyping import Float
from numpy.typing import NDArray
from torch import Tensor

from ..device_rng import DeviceRng
from .augmentation import rectangle

CELLS, LEVELS = 1 << 16, 1 << 10  # of the integral of a density, and of the table of quantiles


def mix(
    images: Float[Tensor, "b c y x"],
    rng: DeviceRng,
    mixup: Float[Tensor, "n"] | None,
    cutmix: Float[Tensor, "m"] | None,
    mixed: float = 1.0,
) -> tuple[Float[Tensor, "b c y x"], Float[Tensor, "b"]]:
    """Mix each image with the one half a batch further; returns the images, and each one's share of itself.

    The partner is half a batch away, so that the pairs do not depend on the number of workers or micro-batches, as long
    as each has an even number of rows. Which of the two methods mixes an image, and how much, is drawn for each row.

    Args:
        images: float images.
        rng: the random numbers of the rows.
        mixup: quantiles of the shares of mixup (see beta_quantiles); None: do not blend.
        cutmix: quantiles of the areas of cutmix; None: do not cut.
        mixed: share of the images that are mixed.

    Examples:
        >>> images = torch.stack([torch.zeros(3, 4, 4), torch.ones(3, 4, 4)])
        >>> out, share = mix(images, DeviceRng(0, 0, torch.arange(2)), beta_quantiles(1.0), None)
        >>> torch.allclose(out[0], (1 - share[0]).expand(3, 4, 4))  # zeros, and (1 - share) times the ones
        True
    """
    u, other = rng.uniform(5), images.roll(len(images) // 2, 0)
    both = mixup is not None and cutmix is not None
    changed, cuts = u[:, 0] < mixed, u[:, 1] < (0.5 if both else float(cutmix is not None))
    share, out = torch.ones_like(u[:, 0]), images
    if mixup is not None:
        share = torch.where(changed & ~cuts, _drawn(mixup, u[:, 2]), share)
        weight = share[:, None, None, None].to(images.dtype)
        out = weight * images + (1 - weight) * other
    if cutmix is not None:
        side = (1 - _drawn(cutmix, u[:, 2])).sqrt()
        inside = (
            rectangle(u[:, 3:5], side, side, *images.shape[-2:]) & (changed & cuts)[:, None, None]
        )
        share = share - inside.float().mean((1, 2))
        out = torch.where(inside[:, None], other, out)
    return out, share


def beta_quantiles(parameter: float) -> Float[Tensor, "n"]:
    """The values that a number of the distribution Beta(parameter, parameter) stays below with probability 0, ..., 1.

    With them a uniform random number becomes one of that distribution, without rejecting any.

    Args:
        parameter: 1 is uniform; below 1, most numbers are close to 0 or 1; above 1, to 1/2.

    Examples:
        >>> beta_quantiles(1.0)[[0, 256, 512, 1024]]
        tensor([0.0000, 0.2500, 0.5000, 1.0000])
    """
    levels = np.linspace(0.0, 0.5, LEVELS // 2 + 1)
    if parameter <= 1:
        # Of s = x^parameter, x up to 1/2, the density is proportional to (1 - x)^(parameter - 1), which is smooth.
        edges = np.linspace(0.0, 0.5**parameter, CELLS + 1)
        middle = (edges[1:] + edges[:-1]) / 2
        mass = (1 - middle ** (1 / parameter)) ** (parameter - 1)
        half = np.interp(levels, _below(mass), edges) ** (1 / parameter)
    else:  # s would be too small for a float: x itself, within 9 standard deviations of 1/2
        deviation = 0.5 / np.sqrt(2 * parameter + 1)
        edges = np.linspace(max(0.0, 0.5 - 9 * deviation), 0.5, CELLS + 1)
        middle = (edges[1:] + edges[:-1]) / 2
        mass = (4 * middle * (1 - middle)) ** (parameter - 1)
        half = np.interp(levels, _below(mass), edges)
        half[0] = 0.0
    return torch.from_numpy(np.concatenate([half, 1 - half[-2::-1]])).float()


def _below(mass: NDArray[np.float64]) -> NDArray[np.float64]:
    """The probability of a number below each edge of cells, which cover the numbers below 1/2, given their masses."""
    return np.concatenate([[0.0], mass.cumsum()]) / (2 * mass.sum())


def _drawn(quantiles: Float[Tensor, "n"], u: Float[Tensor, "b"]) -> Float[Tensor, "b"]:
    """Uniform random numbers as numbers of the distribution with these quantiles."""
    at = u * (len(quantiles) - 1)
    low = at.floor()
    return torch.lerp(quantiles[low.long()], quantiles[low.long() + 1], at - low)
