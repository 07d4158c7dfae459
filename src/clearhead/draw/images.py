"""Images side by side, each with a map of weights over it if one is given."""

from __future__ import annotations

from collections.abc import Mapping
from math import ceil
from typing import TYPE_CHECKING

import numpy as np
import numpy.typing as npt

from ..errors import InputError
from .cell_axes import not_negative
from .style import NARROW, Array, array, dress, luminous, sheet

if TYPE_CHECKING:
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
    if across < 1:
        raise InputError(f"across={across}: expected 1 image or more in a row")
    maps = maps or {}
    if unknown := [name for name in maps if name not in pictures]:
        raise InputError(
            f"maps has {unknown[0]!r}: expected names of images: {', '.join(pictures)}"
        )
    arrays = {name: picture_array(name, x) for name, x in pictures.items()}
    across = min(across, len(arrays))
    down = ceil(len(arrays) / across)
    size = max(size, NARROW / across - 0.12)
    tallest = max(x.shape[0] / x.shape[1] for x in arrays.values())
    figure = sheet((size + 0.12) * across, (size * tallest + 0.32) * down, title)
    every = figure.subplots(down, across, squeeze=False)
    for axes in every.flat[len(arrays) :]:
        axes.set_visible(False)
    for axes, (name, x) in zip(every.flat, arrays.items(), strict=False):
        height, width = x.shape[:2]
        axes.imshow(x, extent=(0, width, height, 0), interpolation="nearest")
        if name in maps:
            weights = not_negative(name, array(name, maps[name], ("rows", "columns"))).astype(float)
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
