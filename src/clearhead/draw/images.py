"""Images side by side, and maps over them: as light, as colours of a sign, or as a colour per head."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING

import numpy as np
import numpy.typing as npt

from ..errors import InputError
from .cells import not_negative
from .style import (
    NARROW,
    PALETTE,
    Array,
    array,
    colour_legend,
    colours,
    dress,
    luminous,
    panel_axes,
    rows_of_panels,
    sheet,
    sign_legend,
)

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure


def images(
    pictures: Mapping[str, npt.ArrayLike],
    *,
    maps: Mapping[str, npt.ArrayLike] | None = None,
    title: str = "",
    across: int = 4,
    size: float = 1.75,
) -> Figure:
    """Draw named images side by side; where there is a map of weights, its largest are lit and zeros are dim.

    Args:
        pictures: {title: image (height, width, 3)}, uint8, or numbers from 0 to 1.
        maps: {title: weights (rows, columns)} of some of the images; each cell of a map covers an equal share of its
            image, and each map has a scale of its own.
        title: Title of the figure.
        across: Images per row.
        size: Width of each image in inches, at least; few images are larger.

    Examples:
        >>> picture = np.full((4, 4, 3), 255, np.uint8)
        >>> figure = images({"image": picture, "attention": picture}, maps={"attention": [[0.0, 1.0], [0.5, 0.0]]})
        >>> [len(axes.get_images()) for axes in figure.axes]
        [1, 2]
    """
    if not pictures:
        raise InputError("images got no images: expected {name: image}")
    maps = maps or {}
    if unknown := [name for name in maps if name not in pictures]:
        raise InputError(
            f"maps has {unknown[0]!r}: expected names of images: {', '.join(pictures)}"
        )
    arrays = {name: picture_array(name, x) for name, x in pictures.items()}
    across, down = rows_of_panels(len(arrays), across, "image")
    # few images fill a figure of the usual width
    size = max(size, NARROW / across - 0.12)
    tallest = max(x.shape[0] / x.shape[1] for x in arrays.values())
    figure = sheet((size + 0.12) * across, (size * tallest + 0.32) * down, title)
    every = panel_axes(figure, len(arrays), across)
    for axes, (name, x) in zip(every, arrays.items(), strict=True):
        height, width = x.shape[:2]
        # in pixels of the image, so that a coarse map covers the same area
        axes.imshow(x, extent=(0, width, height, 0), interpolation="nearest")
        if name in maps:
            weights = not_negative(name, array(name, maps[name], ("rows", "columns"))).astype(float)
            # relative to the largest weight; a map of zeros dims the whole image
            axes.imshow(
                luminous(weights / (weights.max() or 1.0)),
                extent=(0, width, height, 0),
                interpolation="nearest",
            )
        dress(axes, title=name)
        axes.set_axis_off()
    return figure


def picture_array(name: str, values: npt.ArrayLike) -> Array:
    """An image (height, width, 3) of uint8 or numbers from 0 to 1; raises with its name otherwise."""
    x = array(name, values, ("height", "width", "channels"))
    if x.shape[2] != 3 or (x.dtype != np.uint8 and (x.min() < 0 or x.max() > 1)):
        raise InputError(
            f"{name} has shape {x.shape} and values from {x.min()} to {x.max()}: expected 3 channels, uint8 or 0 to 1"
        )
    return x


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
    """Light up an image where the weights of a map (y, x) are large; the rest is dim, and keeps its colours.

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
    share = np.zeros_like(large)
    if top > least:
        share = np.clip((large - least) / (top - least), 0.0, 1.0)
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
    """Draw an image, and then one panel per word with the image lit where the attention weights are large.

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
    panels = [pixels]
    for one in x:
        mean = float(one.mean())
        # a nearly uniform map ends above its own maximum, so that none of its places is fully lit
        most = max(float(smooth_map(one, *pixels.shape[:2]).max()), POINTED * mean)
        panels.append(overlay(pixels, one, least=mean, most=most))
    across, down = rows_of_panels(len(panels), across, "panel")
    tall = size * min(pixels.shape[0] / pixels.shape[1], 2.0)
    room = 0.3 if title else 0.05  # inches of the title
    figure = sheet(size * across + 0.1, (tall + 0.28) * down + room, title)
    # the first panel is the image itself, without a word
    captions = ["", *map(str, words)]
    for axes, panel, caption in zip(
        panel_axes(figure, len(panels), across), panels, captions, strict=True
    ):
        _picture(axes, panel, caption)
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
        # never enlarged
        return pixels
    image = Image.fromarray(pixels)
    image.thumbnail((most, most), Image.Resampling.LANCZOS, reducing_gap=2.0)
    return np.asarray(image)


def _blend(pixels: int, cells: int) -> npt.NDArray[np.float64]:
    """The share of each cell in each pixel (pixels, cells), along one axis."""
    at = (np.arange(pixels) + 0.5) * cells / pixels - 0.5  # in cells, whose centres are 0, 1, ...
    # Gaussian weights; the nearest cell's exponent is subtracted, so that no row sums to 0
    distance = (at[:, None] - np.arange(cells)) / SPREAD
    shares = np.exp(-0.5 * (distance**2 - (distance**2).min(1, keepdims=True)))
    return shares / shares.sum(1, keepdims=True)


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
    # a percentile, not the maximum: outliers would make all other values pale
    most = float(np.nanpercentile(np.abs(x), STRONGEST)) or float(np.nanmax(np.abs(x))) or 1.0
    # (rows, columns) in [-1, 1] -> RGBA
    share = np.clip(np.nan_to_num(x) / most, -1, 1)
    paint = colours(signed=True)(share / 2 + 0.5)  # (rows, columns, 4)
    base, shape, count = None, x.shape, 1
    if picture is not None:
        # the picture, and the values upon it
        base, count = picture_array("picture", picture), 2
        shape = base.shape
        # opacity grows faster than the value, so that weak values can still be seen
        paint[..., 3] = np.abs(share) ** 0.7
    height, width = shape[:2]
    below_images = 0.3 if above or below else 0.0  # inches of the legend
    figure = sheet((size + 0.12) * count, size * height / width + 0.32 + below_images, title)
    every = panel_axes(figure, count, count)
    extent = (0, width, height, 0)
    if base is not None:
        every[0].imshow(base, extent=extent, interpolation="nearest")
        # the picture loses its own colours, which would mix with blue and orange
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
    # each place gets the colour of the head whose weight, relative to its own largest, is highest
    shown = np.stack([_largest(one, keep) for one in x])
    strength = shown / np.maximum(x.max((1, 2), keepdims=True), 1e-300)
    best = strength.argmax(0)
    # RGBA: the hue of that head; opacity grows with the weight
    hues = np.array([_rgb(i, heads) for i in range(heads)])
    paint = np.concatenate([hues[best], strength.max(0)[..., None] ** 0.5], axis=-1)
    cell = max(1, 64 // max(rows, columns))
    if picture is None:
        # without a picture the maps lie on black, in the proportions of their grid
        base = np.zeros((rows * cell, columns * cell, 3))
    else:
        base = picture_array("picture", picture)
    height, width = base.shape[:2]
    room = 1.0 if note else 0.7  # inches of the title, and of the note
    figure = sheet((size + 0.12) * 2, size * height / width + room, title)
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
    """Keep the largest weights of a map, which together make up the share `keep` of its sum; 0 elsewhere."""
    order = np.sort(weights, axis=None)[::-1]
    total = np.cumsum(order)
    # the weight at which the cumulative sum reaches the share
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
