"""Values over an image: one map in the colours of its sign, or the maps of several heads in a colour each."""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np
import numpy.typing as npt

from ..errors import InputError
from .cell_axes import not_negative
from .images import picture_array
from .style import PALETTE, Array, array, colour_legend, colours, dress, sheet, sign_legend

if TYPE_CHECKING:
    from matplotlib.figure import Figure

PALE = 0.55  # how far an image is moved from grey to white under colours
DIM = 0.35  # how bright an image is under the colours of heads
# percentile of the absolute values that has the full colour: a few outliers would hide all others
STRONGEST = 99.5


def signed_overlay(
    values: npt.ArrayLike,
    picture: npt.ArrayLike | None = None,
    *,
    title: str = "",
    above: str = "",
    below: str = "",
    size: float = 2.6,
) -> Figure:
    """Draw values over an image in grey, blue where they are above 0 and orange below; beside it the image itself.

    Args:
        values: Values (rows, columns); each covers an equal share of the image.
        picture: The image (height, width, 3), uint8, or numbers from 0 to 1; None: the values alone.
        title: Title of the figure.
        above: What values above 0 mean, for the legend; "": no entry.
        below: What values below 0 mean.
        size: Width of each image in inches.

    Examples:
        >>> figure = signed_overlay([[0.0, 1.0], [-0.5, 0.0]], np.full((4, 4, 3), 255, np.uint8), title="saliency")
        >>> len(figure.axes)
        2
    """
    x = array("values", values, ("rows", "columns")).astype(float)
    most = float(np.nanpercentile(np.abs(x), STRONGEST)) or float(np.nanmax(np.abs(x))) or 1.0
    share = np.clip(np.nan_to_num(x) / most, -1, 1)
    paint = colours(signed=True)(share / 2 + 0.5)  # (rows, columns, 4)
    base = None if picture is None else picture_array("picture", picture)
    if base is not None:
        paint[..., 3] = np.abs(share) ** 0.7
    height, width = x.shape if base is None else base.shape[:2]
    below_images = 0.3 if above or below else 0.0  # inches of the legend
    figure = sheet(
        (size + 0.12) * (1 if base is None else 2),
        size * height / width + 0.32 + below_images,
        title,
    )
    every = list(figure.subplots(1, 1 if base is None else 2, squeeze=False).flat)
    extent = (0, width, height, 0)
    if base is not None:
        every[0].imshow(base, extent=extent, interpolation="nearest")
        grey = _grey(base)
        every[1].imshow(grey + PALE * (1 - grey), extent=extent, interpolation="nearest")
    every[-1].imshow(paint, extent=extent, interpolation="nearest")
    for axes in every:
        dress(axes)
        axes.set_axis_off()
    sign_legend(figure, above, below)
    return figure


def head_colours(
    maps: npt.ArrayLike,
    picture: npt.ArrayLike | None = None,
    *,
    keep: float = 0.6,
    title: str = "",
    note: str = "",
    size: float = 2.6,
) -> Figure:
    """Draw the maps of several heads over a dimmed image, one colour per head (as Caron et al. 2021, Figure 1).

    Of each head the largest weights are shown, and each place has the colour of the head whose weight there is
    largest, compared with the largest weight of that head.

    Args:
        maps: Weights (heads, rows, columns) of 0 or more.
        picture: The image (height, width, 3), uint8, or numbers from 0 to 1; None: black.
        keep: The share of each head's weight that is shown, the largest weights first.
        title: Title of the figure.
        note: A line above the names of the heads, such as what the brightness means.
        size: Width of each image in inches.

    Examples:
        >>> figure = head_colours([[[0.9, 0.1]], [[0.2, 0.8]]], np.full((2, 4, 3), 255, np.uint8))
        >>> [text.get_text() for text in figure.legends[0].get_texts()]
        ['head 0', 'head 1']
    """
    x = not_negative("maps", array("maps", maps, ("heads", "rows", "columns"))).astype(float)
    if not 0 < keep <= 1:
        raise InputError(f"keep={keep}: expected a share above 0, at most 1")
    heads, rows, columns = x.shape
    shown = np.stack([_largest(one, keep) for one in x])
    strength = shown / np.maximum(x.max((1, 2), keepdims=True), 1e-300)
    best = strength.argmax(0)
    hues = np.array([_rgb(i, heads) for i in range(heads)])
    paint = np.concatenate([hues[best], strength.max(0)[..., None] ** 0.5], axis=-1)
    cell = max(1, 64 // max(rows, columns))
    if picture is None:
        base = np.zeros((rows * cell, columns * cell, 3))
    else:
        base = picture_array("picture", picture)
    height, width = base.shape[:2]
    figure = sheet((size + 0.12) * 2, size * height / width + (1.0 if note else 0.7), title)
    left, right = figure.subplots(1, 2)
    extent = (0, width, height, 0)
    left.imshow(base, extent=extent, interpolation="nearest")
    right.imshow(
        np.repeat(DIM * _grey(base)[..., :1], 3, axis=-1), extent=extent, interpolation="nearest"
    )
    right.imshow(paint, extent=extent, interpolation="nearest")
    for axes in (left, right):
        dress(axes)
        axes.set_axis_off()
    colour_legend(figure, {f"head {i}": hue for i, hue in enumerate(hues)}, title=note)
    return figure


def _largest(weights: Array, keep: float) -> Array:
    """The largest weights of a map, which together have a share of all; 0 elsewhere."""
    order = np.sort(weights, axis=None)[::-1]
    total = np.cumsum(order)
    least = order[min(int(np.searchsorted(total, keep * total[-1])), len(order) - 1)]
    return np.where((weights >= least) & (weights > 0), weights, 0.0)


def _rgb(index: int, count: int) -> tuple[float, float, float]:
    """The colour of a head: of the palette, or for many heads, a hue."""
    from matplotlib.colors import hsv_to_rgb, to_rgb

    if count < len(PALETTE):
        return to_rgb(PALETTE[index])
    red, green, blue = hsv_to_rgb((index / count, 0.75, 1.0))
    return float(red), float(green), float(blue)


def _grey(picture: Array) -> Array:
    """An image in grey (height, width, 3), from 0 to 1."""
    x = picture / 255 if picture.dtype == np.uint8 else picture.astype(float)
    return np.repeat((x @ np.array([0.299, 0.587, 0.114]))[..., None], 3, axis=-1)
