"""Matrices as cells of colour: one, or several on one colour scale."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from math import ceil
from typing import TYPE_CHECKING

import numpy.typing as npt

from ..errors import InputError
from .cell_axes import (
    Labels,
    Scale,
    cell_texts,
    clean_axes,
    colour_bar,
    draw_cells,
    draw_grid,
    name_columns,
    name_rows,
    not_negative,
    write_texts,
)
from .style import Array, array, dress, sheet

if TYPE_CHECKING:
    from matplotlib.figure import Figure


def heatmap(
    weights: npt.ArrayLike,
    *,
    rows: Sequence[str] | None = None,
    columns: Sequence[str] | None = None,
    title: str = "",
    xlabel: str = "keys",
    ylabel: str = "queries",
    most: float | None = None,
    digits: int | None = None,
    words: Sequence[Sequence[str]] | None = None,
    scale: str = "",
    square: bool = True,
) -> Figure:
    """Draw weights (queries, keys) as cells from white at 0 to dark at `most`.

    Args:
        weights: Numbers of 0 or more, or booleans; NaN cells are grey.
        rows: A name for each query, such as its token; empty names are not shown.
        columns: A name for each key.
        title: Title of the plot.
        xlabel: Label of the columns.
        ylabel: Label of the rows.
        most: The end of the colour scale; None: the largest weight.
        digits: Write each weight into its cell with this many decimals; None: write none.
        words: A text to write into each cell, for each row and column, in place of numbers; None: none.
        scale: Label of the colour bar.
        square: Draw square cells; False stretches them, for weights that are much longer than wide.

    Examples:
        >>> figure = heatmap([[1.0, 0.0], [0.3, 0.7]], rows=["the", "cat"], columns=["the", "cat"], digits=1)
        >>> [text.get_text() for text in figure.axes[0].texts]
        ['1.0', '0.0', '0.3', '0.7']
    """
    x = not_negative("weights", array("weights", weights, ("queries", "keys")))
    labels = Labels(rows=rows, columns=columns, xlabel=xlabel, ylabel=ylabel)
    texts = cell_texts(x, digits, words)
    return _one(x, labels, Scale.of([x], most, signed=False, label=scale), title, texts, square)


def matrix(
    values: npt.ArrayLike,
    *,
    rows: Sequence[str] | None = None,
    columns: Sequence[str] | None = None,
    title: str = "",
    xlabel: str = "columns",
    ylabel: str = "rows",
    most: float | None = None,
    digits: int | None = None,
    scale: str = "",
    square: bool = True,
) -> Figure:
    """Draw signed values (rows, columns) as cells: white at 0, blue up to `most`, orange down to -`most`.

    Args:
        values: Real numbers; NaN cells are grey.
        rows: A name for each row; empty names are not shown.
        columns: A name for each column.
        title: Title of the plot.
        xlabel: Label of the columns.
        ylabel: Label of the rows.
        most: The end of the colour scale; None: the largest absolute value.
        digits: Write each value into its cell with this many decimals; None: write none.
        scale: Label of the colour bar.
        square: Draw square cells; False stretches them, for a matrix that is much longer than wide.

    Examples:
        >>> figure = matrix([[0.5, -1.0], [0.0, 0.25]])
        >>> figure.axes[0].get_images()[0].get_clim()
        (-1.0, 1.0)
    """
    x = array("values", values, ("rows", "columns"))
    labels = Labels(rows=rows, columns=columns, xlabel=xlabel, ylabel=ylabel)
    return _one(
        x,
        labels,
        Scale.of([x], most, signed=True, label=scale),
        title,
        cell_texts(x, digits),
        square,
    )


def heads(
    weights: npt.ArrayLike,
    *,
    rows: Sequence[str] | None = None,
    columns: Sequence[str] | None = None,
    titles: Sequence[str] | None = None,
    title: str = "",
    xlabel: str = "keys",
    ylabel: str = "queries",
    most: float | None = None,
    across: int = 4,
    size: float | None = None,
) -> Figure:
    """Draw weights (heads, queries, keys) as one small heatmap per head, all on one colour scale.

    Args:
        weights: Numbers of 0 or more, or booleans; NaN cells are grey.
        rows: A name for each query; empty names are not shown.
        columns: A name for each key.
        titles: A title for each head; None: head 0, head 1 ...
        title: Title of the figure.
        xlabel: Label of the columns.
        ylabel: Label of the rows.
        most: The end of the colour scale; None: the largest weight.
        across: Heatmaps per row.
        size: Width of each heatmap in inches; None: wider if rows or columns have names.

    Examples:
        >>> figure = heads(np.full((2, 3, 3), 1 / 3), titles=["first", "second"])
        >>> [axes.get_title() for axes in figure.axes[:2]]
        ['first', 'second']
    """
    x = array("weights", weights, ("heads", "queries", "keys"))
    if titles is not None and len(titles) != len(x):
        raise InputError(
            f"titles has {len(titles)} names: expected {len(x)}, one per head of weights"
        )
    if titles is None:
        names = [f"head {i}" for i in range(len(x))]
    else:
        names = [str(name) for name in titles]
    labels = Labels(rows=rows, columns=columns, xlabel=xlabel, ylabel=ylabel)
    return _side_by_side(names, list(x), labels, title, most, across, size, signed=False)


def grids(
    matrices: Mapping[str, npt.ArrayLike],
    *,
    signed: bool = False,
    rows: Sequence[str] | None = None,
    columns: Sequence[str] | None = None,
    title: str = "",
    xlabel: str = "keys",
    ylabel: str = "queries",
    most: float | None = None,
    across: int = 4,
    size: float | None = None,
) -> Figure:
    """Draw named matrices side by side on one colour scale; booleans are yes (dark) and no (light).

    Args:
        matrices: {title: matrix (rows, columns)}.
        signed: Values may be negative: white is 0, blue above and orange below.
        rows: A name for each row, the same in all matrices; empty names are not shown.
        columns: A name for each column.
        title: Title of the figure.
        xlabel: Label of the columns.
        ylabel: Label of the rows.
        most: The end of the colour scale; None: the largest absolute value.
        across: Matrices per row.
        size: Width of each matrix in inches; None: wider if rows or columns have names.

    Examples:
        >>> figure = grids({"causal": np.tri(4, dtype=bool), "all": np.ones((4, 4), dtype=bool)})
        >>> [axes.get_title() for axes in figure.axes]
        ['causal', 'all']
    """
    if not matrices:
        raise InputError("grids got no matrices: expected {name: matrix}")
    arrays = [array(name, x, ("rows", "columns")) for name, x in matrices.items()]
    labels = Labels(rows=rows, columns=columns, xlabel=xlabel, ylabel=ylabel)
    return _side_by_side(list(matrices), arrays, labels, title, most, across, size, signed=signed)


def _one(
    x: Array, labels: Labels, scale: Scale, title: str, texts: list[list[str]] | None, square: bool
) -> Figure:
    cell = min(0.55 if texts is not None else 0.34, 5.2 / max(x.shape))  # inches
    height = cell * x.shape[0] if square else 3.4
    width = cell * x.shape[1] if square else 5.6
    if texts is not None and not square:  # room for the longest text of a cell
        longest = max(len(text) for row in texts for text in row)
        width, height = (
            max(width, (0.075 * longest + 0.12) * x.shape[1]),
            max(height, 0.24 * x.shape[0]),
        )
    figure = sheet(max(width, 1.6) + 1.9, max(height, 1.3) + 1.2)
    axes = figure.subplots()
    image = draw_cells(axes, x, scale, square=square)
    dress(axes, xlabel=labels.xlabel, ylabel=labels.ylabel, title=title)
    clean_axes(axes, x.shape)
    name_rows(axes, labels.rows, x.shape[0])
    name_columns(axes, labels.columns, x.shape[1], room=max(width, 1.6) / x.shape[1])
    if texts is not None:
        write_texts(axes, x, scale.most, texts)
    if x.dtype != bool:
        colour_bar(figure, image, [axes], [x], scale)
    return figure


def _side_by_side(
    titles: Sequence[str],
    matrices: Sequence[Array],
    labels: Labels,
    title: str,
    most: float | None,
    across: int,
    size: float | None,
    *,
    signed: bool,
) -> Figure:
    if across < 1:
        raise InputError(f"across={across}: expected 1 panel or more in a row")
    if not signed:
        for name, x in zip(titles, matrices, strict=True):
            not_negative(name, x)
    scale = Scale.of(matrices, most, signed=signed)
    across = min(across, len(matrices))
    down = ceil(len(matrices) / across)
    size = size or (1.75 if labels.rows is None and labels.columns is None else 2.5)
    figure = sheet(*_sheet_size(matrices, labels, across, down, size), title)
    every = figure.subplots(down, across, squeeze=False)
    image = None
    for i, axes in enumerate(every.flat):
        if i >= len(matrices):
            axes.set_visible(False)
            continue
        x = matrices[i]
        image = draw_cells(axes, x, scale, square=True)
        # names and labels only at the edges of the figure
        lowest, first = i + across >= len(matrices), i % across == 0
        dress(
            axes,
            xlabel=labels.xlabel if lowest else "",
            ylabel=labels.ylabel if first else "",
            title=titles[i],
        )
        clean_axes(axes, x.shape)
        name_rows(axes, labels.rows, x.shape[0], shown=first)
        name_columns(axes, labels.columns, x.shape[1], shown=lowest, room=size / x.shape[1])
        if x.shape[0] <= 24 and x.dtype == bool:
            draw_grid(axes, x.shape)
    if image is not None and any(x.dtype != bool for x in matrices):
        colour_bar(figure, image, list(every.flat)[: len(matrices)], matrices, scale)
    return figure


def _sheet_size(
    matrices: Sequence[Array], labels: Labels, across: int, down: int, size: float
) -> tuple[float, float]:
    """Width and height in inches of a figure with matrices of the width `size`, with room for the names."""
    tallest = max(x.shape[0] / x.shape[1] for x in matrices)
    if labels.rows:
        side = 0.07 * max(map(len, labels.rows), default=0)
    else:
        side = 0.25
    if labels.columns:
        below = 0.05 * max(map(len, labels.columns), default=0)
    else:
        below = 0.1
    width = size * across + 0.16 * (across - 1) + side + 1.0
    return width, (size * min(tallest, 1.6) + 0.34) * down + below + 0.3
