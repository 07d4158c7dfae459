"""Matrices as cells of colour: one, several on one colour scale, or the similarity of layers."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from itertools import pairwise
from math import ceil
from typing import TYPE_CHECKING, Any, Literal

import numpy as np
import numpy.typing as npt

from ..errors import InputError
from .style import (
    BLUES,
    FONT,
    INK,
    PAPER,
    SMALL,
    SOFT,
    Array,
    array,
    colours,
    dress,
    letters,
    panel_axes,
    rows_of_panels,
    sheet,
)

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure
    from matplotlib.image import AxesImage


MOST_NAMES = 48  # names along an axis; of more, every second, third ... is shown


@dataclass(frozen=True, kw_only=True)
class Labels:
    """The names and labels around a matrix."""

    rows: Sequence[str] | None = None  # a name for each row; None: numbers
    columns: Sequence[str] | None = None  # a name for each column; None: numbers
    xlabel: str = ""
    ylabel: str = ""


@dataclass(frozen=True, kw_only=True)
class Scale:
    """The colour scale: white is 0, dark is `most`, and with `signed` orange is -`most`."""

    most: float
    signed: bool
    label: str = ""  # what the colours mean, beside the colour bar

    @staticmethod
    def of(
        matrices: Sequence[Array], most: float | None, *, signed: bool, label: str = ""
    ) -> Scale:
        """The scale of several matrices; its end is the largest absolute value unless `most` is given."""
        if most is not None and not most > 0:
            raise InputError(f"most={most}: the colour scale goes from 0 to a number above it")
        if most is None:
            most = max(float(np.nanmax(np.abs(x.astype(float)))) for x in matrices)
            if most <= 1e-280:
                # matplotlib treats so small a scale as empty; zeros are white on any scale
                most = 1.0
        return Scale(most=float(most), signed=signed, label=label)


def draw_cells(axes: Axes, x: Array, scale: Scale, *, square: bool) -> AxesImage:
    """Draw a matrix as cells of colour; booleans have two colours of their own."""
    aspect: Literal["equal", "auto"] = "equal" if square else "auto"
    options: dict[str, Any] = {"origin": "upper", "aspect": aspect, "interpolation": "nearest"}
    if x.dtype == bool:
        from matplotlib.colors import ListedColormap

        # "no" is a pale grey, which differs from the white between the cells
        no_and_yes = ListedColormap(["#eef1f4", BLUES[5]])
        return axes.imshow(x, cmap=no_and_yes, vmin=0, vmax=1, **options)
    if max(x.shape) > 512:
        # cells smaller than a pixel are averaged
        options["interpolation"] = "auto"
    least = -scale.most if scale.signed else 0.0
    return axes.imshow(
        x.astype(float), cmap=colours(scale.signed), vmin=least, vmax=scale.most, **options
    )


def clean_axes(axes: Axes, shape: tuple[int, ...]) -> None:
    """Remove the spines and tick marks, and label the ticks with whole numbers."""
    from matplotlib.ticker import MaxNLocator

    for spine in axes.spines.values():
        spine.set_visible(False)
    axes.tick_params(length=0)
    for axis, n in ((axes.yaxis, shape[0]), (axes.xaxis, shape[1])):
        # rows and columns are counted: 0.5 is none of them
        axis.set_major_locator(MaxNLocator(nbins=min(n, 6), integer=True, min_n_ticks=1))


def draw_grid(axes: Axes, shape: tuple[int, ...]) -> None:
    """Draw thin white lines between the cells, so that they can be counted."""
    axes.set_yticks(np.arange(shape[0] + 1) - 0.5, minor=True)
    axes.set_xticks(np.arange(shape[1] + 1) - 0.5, minor=True)
    axes.grid(True, which="minor", color=PAPER, linewidth=1.0)
    axes.tick_params(which="minor", length=0)


def name_rows(axes: Axes, names: Sequence[str] | None, n: int, *, shown: bool = True) -> None:
    """Label the rows, all or some; an empty name labels nothing."""
    if names is not None:
        # ticks without texts where another panel of the same row has them
        at, texts = _ticks("rows", names, n, shown)
        axes.set_yticks(at, texts)


def name_columns(
    axes: Axes, names: Sequence[str] | None, n: int, *, shown: bool = True, room: float
) -> None:
    """Label the columns, all or some; names that are wider than their columns, of `room` inches each, are slanted."""
    if names is None:
        return
    at, texts = _ticks("columns", names, n, shown)
    axes.set_xticks(at, texts)
    apart = min((after - before for before, after in pairwise(at)), default=n)
    if max(map(len, texts), default=0) * 0.075 > room * apart:
        # a character of these names is about 0.075 inches wide
        for label in axes.get_xticklabels():
            label.set(rotation=50, ha="right", rotation_mode="anchor")


def _ticks(axis: str, names: Sequence[str], n: int, shown: bool) -> tuple[list[int], list[str]]:
    """The positions of the names that are shown, at most MOST_NAMES, and their texts."""
    if len(names) != n:
        raise InputError(f"{axis} has {len(names)} names: expected {n}")
    named = [i for i, name in enumerate(names) if name]
    at = named[:: max(ceil(len(named) / MOST_NAMES), 1)]
    if not shown:
        return at, [""] * len(at)
    return at, [_escaped(names[i]) for i in at]


def _escaped(name: str) -> str:
    """A token as one line of axis text: line breaks, tabs and lone spaces become visible, and $ starts no formula."""
    line = str(name).replace("\n", "\\n").replace("\t", "\\t").replace("$", r"\$")
    return line if line.strip() else line.replace(" ", "␣")


def cell_texts(
    x: Array, digits: int | None, words: Sequence[Sequence[str]] | None = None
) -> list[list[str]] | None:
    """The text of each cell of a matrix: words if they are given, numbers of this many decimals, or None."""
    if words is not None:
        if len(words) != len(x) or any(len(row) != x.shape[1] for row in words):
            # a row too short would shift its texts to other cells
            raise InputError(
                f"words: expected a text for each cell of {x.shape[0]} rows and {x.shape[1]} columns"
            )
        return [[str(word) for word in row] for row in words]
    if digits is None:
        return None
    return [[f"{value:.{digits}f}" for value in row] for row in x]


def write_texts(axes: Axes, x: Array, most: float, texts: Sequence[Sequence[str]]) -> None:
    """Write a text into each cell, in a colour that contrasts with the cell."""
    for i, row in enumerate(texts):
        for j, text in enumerate(row):
            # white on dark cells: the colour map passes middle grey a little below its half
            colour = PAPER if abs(x[i, j]) > 0.45 * most else INK
            axes.text(
                j, i, text, ha="center", va="center", parse_math=False, **letters(SMALL, colour)
            )


def colour_bar(
    figure: Figure, image: AxesImage, beside: list[Axes], matrices: Sequence[Array], scale: Scale
) -> None:
    """Add a colour bar, which ends in an arrow if some values are beyond the scale."""
    from matplotlib.ticker import MaxNLocator

    beyond = max(float(np.nanmax(np.abs(x.astype(float)))) for x in matrices) > scale.most
    ticks = MaxNLocator(nbins=4, steps=[1, 2, 2.5, 5, 10])
    if beyond:
        # a given `most` may cut values off; arrows say so
        if scale.signed:
            extend = "both"
        else:
            extend = "max"
    else:
        extend = "neither"
    bar = figure.colorbar(
        image, ax=beside, shrink=0.8, aspect=28, pad=0.02, ticks=ticks, extend=extend
    )
    bar.outline.set_visible(False)
    bar.ax.tick_params(length=0, labelsize=SMALL, labelcolor=SOFT, labelfontfamily=FONT)
    if scale.label:
        bar.set_label(scale.label, **letters(SMALL, SOFT))


def not_negative(name: str, x: Array) -> Array:
    """Return the weights, or raise if some are negative."""
    if x.dtype != bool and np.nanmin(x) < 0:
        # the scale of weights begins at 0: negative ones would look like 0
        raise InputError(
            f"{name} goes down to {np.nanmin(x):.3g}: expected weights of 0 or more; draw signed values by matrix, or "
            "by grids with signed=True"
        )
    return x


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
    rows, columns = x.shape
    if square:
        # square cells of one size, larger if a text stands in them
        largest = 0.34 if texts is None else 0.55
        cell = min(largest, 5.2 / max(x.shape))  # inches
        width, height = cell * columns, cell * rows
    else:
        # a fixed sheet, whatever the shape of the matrix
        width, height = 5.6, 3.4
        if texts is not None:
            # room for the longest text of a cell: about 0.075 inches per character, and 0.12 between two cells
            longest = max(len(text) for row in texts for text in row)
            width = max(width, (0.075 * longest + 0.12) * columns)
            height = max(height, 0.24 * rows)
    # with room for the names on the left, the labels and the colour bar
    figure = sheet(max(width, 1.6) + 1.9, max(height, 1.3) + 1.2)
    axes = figure.subplots()
    image = draw_cells(axes, x, scale, square=square)
    dress(axes, xlabel=labels.xlabel, ylabel=labels.ylabel, title=title)
    clean_axes(axes, x.shape)
    name_rows(axes, labels.rows, rows)
    name_columns(axes, labels.columns, columns, room=max(width, 1.6) / columns)
    if texts is not None:
        write_texts(axes, x, scale.most, texts)
    if x.dtype != bool:
        # yes and no need no scale
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
    across, down = rows_of_panels(len(matrices), across, "panel")
    if not signed:
        # checked one by one, so that the message names the matrix
        for name, x in zip(titles, matrices, strict=True):
            not_negative(name, x)
    scale = Scale.of(matrices, most, signed=signed)
    if size is None:
        # inches: names need wider panels
        size = 1.75 if labels.rows is None and labels.columns is None else 2.5
    figure = sheet(*_sheet_size(matrices, labels, across, down, size), title)
    every = panel_axes(figure, len(matrices), across)
    image = None
    for i, (axes, x) in enumerate(zip(every, matrices, strict=True)):
        image = draw_cells(axes, x, scale, square=True)
        dress(axes, xlabel=labels.xlabel, ylabel=labels.ylabel, title=titles[i])
        # names and labels only at the edges of the figure
        lowest, first = i + across >= len(matrices), i % across == 0
        if not lowest:
            axes.set_xlabel("")
        if not first:
            axes.set_ylabel("")
        clean_axes(axes, x.shape)
        name_rows(axes, labels.rows, x.shape[0], shown=first)
        name_columns(axes, labels.columns, x.shape[1], shown=lowest, room=size / x.shape[1])
        if x.shape[0] <= 24 and x.dtype == bool:
            # masks have few and equal cells, which a reader counts
            draw_grid(axes, x.shape)
    if image is not None and any(x.dtype != bool for x in matrices):
        # one bar for all, since they share the scale
        colour_bar(figure, image, every, matrices, scale)
    return figure


def _sheet_size(
    matrices: Sequence[Array], labels: Labels, across: int, down: int, size: float
) -> tuple[float, float]:
    """Width and height in inches of a figure with matrices of the width `size`, with room for the names."""
    tallest = max(x.shape[0] / x.shape[1] for x in matrices)
    if labels.rows:
        # inches per character of a name beside the first column of panels
        side = 0.07 * max(map(len, labels.rows), default=0)
    else:
        side = 0.25
    if labels.columns:
        # names below may be slanted, and then take less height than their length
        below = 0.05 * max(map(len, labels.columns), default=0)
    else:
        below = 0.1
    width = size * across + 0.16 * (across - 1) + side + 1.0
    return width, (size * min(tallest, 1.6) + 0.34) * down + below + 0.3


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
    # with room for rounding: a similarity of 1 may come out slightly above
    if np.nanmax(x) > 1 + 1e-6 or np.nanmin(x) < -1 - 1e-6:
        raise InputError(
            f"values from {np.nanmin(x):.3g} to {np.nanmax(x):.3g}: expected similarities from -1 to 1"
        )
    # the colour scale begins at 0
    x = x.clip(0.0, 1.0)
    cell = min(0.34, 5.0 / max(x.shape))  # inches
    width, height = max(cell * x.shape[1], 1.6), max(cell * x.shape[0], 1.3)
    figure = sheet(width + 2.1, height + 1.6)
    axes = figure.subplots()
    scale = Scale(most=1.0, signed=False)
    image = draw_cells(axes, x, scale, square=True)
    # row 0 at the bottom, as a network is drawn from its input upwards
    axes.invert_yaxis()
    dress(axes, xlabel=xlabel, ylabel=ylabel, title=title)
    clean_axes(axes, x.shape)
    name_rows(axes, rows, x.shape[0])
    name_columns(axes, columns, x.shape[1], room=width / x.shape[1])
    colour_bar(figure, image, [axes], [x], scale)
    return figure
