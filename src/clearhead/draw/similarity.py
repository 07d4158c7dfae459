"""The similarity of layers as a heat map."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

import numpy as np
import numpy.typing as npt

from ..errors import InputError
from .cell_axes import Scale, clean_axes, colour_bar, draw_cells, name_columns, name_rows
from .style import array, dress, sheet

if TYPE_CHECKING:
    from matplotlib.figure import Figure


def similarity(
    values: npt.ArrayLike,
    *,
    rows: Sequence[str] | None = None,
    columns: Sequence[str] | None = None,
    title: str = "",
    xlabel: str = "",
    ylabel: str = "",
) -> Figure:
    """Draw the similarity of layers (rows, columns) as square cells, white at 0 and dark at 1.

    The first layers are at the bottom left, as papers draw them. A similarity below 0, as an unbiased estimate may
    give, is white.

    Args:
        values: Similarities of at most 1, such as those of `look.cka`.
        rows: A name for each row, from the bottom.
        columns: A name for each column.
        title: Title of the plot.
        xlabel: Label of the columns, the name of a model.
        ylabel: Label of the rows.

    Examples:
        >>> figure = similarity([[1.0, 0.4], [0.4, 1.0]], rows=["blocks.0", "blocks.1"])
        >>> [text.get_text() for text in figure.axes[0].get_yticklabels()]
        ['blocks.0', 'blocks.1']
    """
    x = array("values", values, ("rows", "columns")).astype(float)
    if np.nanmax(x) > 1 + 1e-6 or np.nanmin(x) < -1 - 1e-6:
        raise InputError(
            f"values from {np.nanmin(x):.3g} to {np.nanmax(x):.3g}: expected similarities from -1 to 1"
        )
    x = x.clip(0.0, 1.0)
    cell = min(0.34, 5.0 / max(x.shape))  # inches
    width, height = max(cell * x.shape[1], 1.6), max(cell * x.shape[0], 1.3)
    figure = sheet(width + 2.1, height + 1.6)
    axes = figure.subplots()
    scale = Scale(most=1.0, signed=False)
    image = draw_cells(axes, x, scale, square=True)
    axes.invert_yaxis()
    dress(axes, xlabel=xlabel, ylabel=ylabel, title=title)
    clean_axes(axes, x.shape)
    name_rows(axes, rows, x.shape[0])
    name_columns(axes, columns, x.shape[1], room=width / x.shape[1])
    colour_bar(figure, image, [axes], [x], scale)
    return figure
