"""Many small pictures as one grid: filters of a convolution, feature maps, colours of patches."""

from __future__ import annotations

from collections.abc import Sequence
from math import ceil
from typing import TYPE_CHECKING, Any

import numpy as np
import numpy.typing as npt

from ..errors import InputError
from .style import NARROW, PALETTE, Array, colours, dress, rows_of_panels, sheet

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

# inches around pictures; more if both the figure and the pictures have titles
PAD, TITLE_PAD = 0.015, 0.05


def tiles(
    pictures: npt.ArrayLike,
    *,
    titles: Sequence[str] | None = None,
    title: str = "",
    signed: bool = False,
    boxes: Sequence[tuple[float, float, float, float]] | None = None,
    across: int | None = None,
    size: float = 0.55,
) -> Figure:
    """Draw many small pictures of one size as a grid.

    Args:
        pictures: Pictures (n, height, width, 3) with colours, uint8 or numbers from 0 to 1; or maps (n, height, width)
            of numbers, each with a scale of its own.
        titles: A title for each picture; None: none.
        title: Title of the figure.
        signed: Maps may be negative: white is 0, blue above and orange below. Otherwise the smallest value is white.
        boxes: The left, top, right and bottom edge in pixels of a box that is outlined in each picture, cut at its
            edges; None: none.
        across: Pictures per row; None: as many as rows, or a few more.
        size: Width of each picture in inches, at least; few pictures are larger.

    Examples:
        >>> figure = tiles(np.zeros((6, 3, 3, 3)), across=3)
        >>> len(figure.axes)
        6
    """
    x = np.asarray(pictures)
    if (
        x.ndim not in (3, 4)
        or not x.size
        or (x.ndim == 4 and x.shape[3] != 3)
        or x.dtype.kind not in "biuf"
    ):
        raise InputError(
            f"pictures has shape {x.shape}: expected (n, height, width) or (n, height, width, 3)"
        )
    if x.dtype.kind == "f" and not np.isfinite(x).all():
        raise InputError("pictures holds numbers that are not finite: expected finite ones")
    if x.ndim == 4 and x.dtype != np.uint8 and (x.min() < 0 or x.max() > 1):
        raise InputError(
            f"colours from {x.min():.3g} to {x.max():.3g}: expected uint8, or numbers from 0 to 1"
        )
    if titles is not None and len(titles) != len(x):
        raise InputError(f"titles has {len(titles)} names: expected {len(x)}, one per picture")
    if boxes is not None and len(boxes) != len(x):
        raise InputError(f"boxes has {len(boxes)} boxes: expected {len(x)}, one per picture")
    # about as many columns as rows
    if across is None:
        across = ceil(len(x) ** 0.5)
    across, down = rows_of_panels(len(x), across, "picture")
    size = max(size, NARROW / across - 0.05)
    captions = [str(title) for title in titles or [""] * len(x)]
    room = 0.22 if titles else 0.0
    pad = TITLE_PAD if title and titles else PAD
    height = (size * x.shape[1] / x.shape[2] + 0.05 + room + 2 * (pad - PAD)) * down + 0.3
    figure = sheet((size + 0.05) * across, height, title)
    # the usual space between axes would be larger than the pictures
    layout: Any = figure.get_layout_engine()
    layout.set(w_pad=PAD, h_pad=pad, wspace=0.0, hspace=0.0)
    every = figure.subplots(down, across, squeeze=False)
    for i, axes in enumerate(every.flat):
        if i >= len(x):
            # removed, not hidden: the layout would keep room for them
            figure.delaxes(axes)
            continue
        dress(axes, title=captions[i])
        if x.ndim == 4:
            # colours are shown as they are, without a scale
            axes.imshow(x[i], interpolation="nearest")
        else:
            # each map by itself: filters and channels differ in size by orders of magnitude
            low, high = _limits(x[i].astype(float), signed)
            axes.imshow(
                x[i].astype(float),
                cmap=colours(signed),
                vmin=low,
                vmax=high,
                interpolation="nearest",
            )
        if boxes is not None:
            _outline(axes, boxes[i], x.shape[1], x.shape[2])
        axes.set_axis_off()
    return figure


def _outline(axes: Axes, box: tuple[float, float, float, float], height: int, width: int) -> None:
    """Draw the edges of a box within a picture; pixel 0 reaches from -0.5 to 0.5 on the axes."""
    from matplotlib.patches import Rectangle

    left, top = max(box[0], 0.0), max(box[1], 0.0)
    right, bottom = min(box[2], float(width)), min(box[3], float(height))
    axes.add_patch(
        Rectangle(
            (left - 0.5, top - 0.5),
            right - left,
            bottom - top,
            fill=False,
            edgecolor=PALETTE[1],
            linewidth=1.2,
        )
    )


def _limits(x: Array, signed: bool) -> tuple[float, float]:
    """The ends of the colour scale of one map."""
    if signed:
        # symmetric, so that 0 is white
        most = float(np.abs(x).max()) or 1.0
        return -most, most
    low, high = float(x.min()), float(x.max())
    if low == high:
        # one value: the scale must not be empty
        high = low + 1.0
    return low, high
