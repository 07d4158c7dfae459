"""Maps over an image: what a model looked at, as light over the picture; and a strip with one panel per word."""

from __future__ import annotations

from collections.abc import Sequence
from math import ceil
from typing import TYPE_CHECKING

import numpy as np
import numpy.typing as npt

from ..errors import InputError
from .cell_axes import not_negative
from .style import Array, array, dress, luminous, sheet

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

SPREAD = 0.6  # standard deviation of the smoothing, in cells of the map
PANEL = 640  # pixels along the longer side of an image in a panel, at most
# a map whose largest weight is this many times its mean, or more, has a fully lit place
POINTED = 1.5


def smooth_map(weights: npt.ArrayLike, height: int, width: int) -> npt.NDArray[np.float64]:
    """Enlarge a map (y, x) smoothly: each pixel is a mean of the cells, weighted by a Gaussian of their distance.

    Args:
        weights: Numbers of 0 or more.
        height: Height of the result in pixels.
        width: Width of the result in pixels.

    Returns:
        An array (height, width), nowhere above the largest weight.

    Examples:
        >>> large = smooth_map([[0.0, 1.0], [0.0, 0.0]], 40, 60)
        >>> large.shape, bool(large[5, 55] > 0.8 > 0.1 > large[35, 5])
        ((40, 60), True)
    """
    x = not_negative("weights", array("weights", weights, ("y", "x"))).astype(np.float64)
    if height < 1 or width < 1:
        raise InputError(f"height={height}, width={width}: expected 1 pixel or more")
    down, across = (
        _blend(size, cells) for size, cells in zip((height, width), x.shape, strict=True)
    )
    return down @ x @ across.T


def overlay(
    image: npt.ArrayLike, weights: npt.ArrayLike, *, least: float = 0.0, most: float | None = None
) -> npt.NDArray[np.uint8]:
    """Light up the parts of an image that a map (y, x) points to; the rest is dim, and keeps its colours.

    Args:
        image: Pixels (height, width, 3), uint8.
        weights: Numbers of 0 or more over the grid.
        least: The weight up to which the image is dim.
        most: The weight that is fully lit, so that several maps can be compared; None: the largest one.

    Returns:
        An image of the same size.

    Examples:
        >>> lit = overlay(np.full((40, 40, 3), 100, np.uint8), [[0.0, 1.0], [0.0, 0.0]])
        >>> lit.shape, bool(lit[5, 35, 0] > 100 > lit[35, 5, 0])
        ((40, 40, 3), True)
    """
    pixels = _pixels(image)
    large = smooth_map(weights, *pixels.shape[:2])
    top = float(large.max()) if most is None else most
    share = np.clip((large - least) / (top - least) if top > least else large * 0, 0.0, 1.0)
    light, opacity = np.split(luminous(share), [3], axis=-1)
    return (pixels * (1 - opacity) + 255 * light * opacity).round().astype(np.uint8)


def strip(
    image: npt.ArrayLike,
    maps: npt.ArrayLike,
    words: Sequence[str],
    *,
    title: str = "",
    across: int = 4,
    size: float = 1.6,
) -> Figure:
    """Draw an image, and then one panel per word with the image lit where the model looked.

    Figure 3 of Xu et al. 2015. Each panel has a scale of its own: weights below the mean of its map are dim, and its
    largest is fully lit. Only a word that looks everywhere, with no weight far above the mean, has a dim panel.

    Args:
        image: Pixels (height, width, 3), uint8.
        maps: Weights (words, y, x).
        words: The word of each map.
        title: Title of the figure.
        across: Panels per row.
        size: Width of a panel in inches.

    Examples:
        >>> figure = strip(np.zeros((8, 8, 3), np.uint8), np.full((2, 2, 2), 0.25), ["a", "dog"])
        >>> [axes.get_title() for axes in figure.axes[:3]]
        ['', 'a', 'dog']
    """
    pixels = _reduced(_pixels(image), PANEL)
    x = not_negative("maps", array("maps", maps, ("words", "y", "x")))
    if len(words) != len(x):
        raise InputError(f"{len(words)} words for {len(x)} maps: expected one map per word")
    if across < 1:
        raise InputError(f"across={across}: expected 1 panel or more in a row")
    panels = [pixels]
    for one in x:
        mean = float(one.mean())
        most = max(float(smooth_map(one, *pixels.shape[:2]).max()), POINTED * mean)
        panels.append(overlay(pixels, one, least=mean, most=most))
    across = min(across, len(panels))
    down = ceil(len(panels) / across)
    tall = size * min(pixels.shape[0] / pixels.shape[1], 2.0)
    figure = sheet(size * across + 0.1, (tall + 0.28) * down + (0.3 if title else 0.05), title)
    every = figure.subplots(down, across, squeeze=False)
    for i, axes in enumerate(every.flat):
        if i < len(panels):
            _picture(axes, panels[i], str(words[i - 1]) if i else "")
        else:
            axes.set_visible(False)
    return figure


def _picture(axes: Axes, pixels: Array, title: str) -> None:
    axes.imshow(pixels, interpolation="nearest")
    dress(axes, title=title)
    axes.set_xticks([])
    axes.set_yticks([])
    for spine in axes.spines.values():
        spine.set_visible(False)


def _pixels(image: npt.ArrayLike) -> npt.NDArray[np.uint8]:
    pixels = array("image", image, ("height", "width", "channels"))
    if pixels.dtype != np.uint8 or pixels.shape[2] != 3:
        raise InputError(
            f"image has shape {pixels.shape} and holds {pixels.dtype}: expected uint8 (height, width, 3)"
        )
    return pixels


def _reduced(pixels: npt.NDArray[np.uint8], most: int) -> npt.NDArray[np.uint8]:
    """An image with at most this many pixels along its longer side."""
    from PIL import Image

    if max(pixels.shape[:2]) <= most:
        return pixels
    image = Image.fromarray(pixels)
    image.thumbnail((most, most), Image.Resampling.LANCZOS, reducing_gap=2.0)
    return np.asarray(image)


def _blend(pixels: int, cells: int) -> npt.NDArray[np.float64]:
    """The share of each cell in each pixel (pixels, cells), along one axis."""
    at = (np.arange(pixels) + 0.5) * cells / pixels - 0.5  # in cells, whose centres are 0, 1, ...
    distance = (at[:, None] - np.arange(cells)) / SPREAD
    shares = np.exp(-0.5 * (distance**2 - (distance**2).min(1, keepdims=True)))
    return shares / shares.sum(1, keepdims=True)
