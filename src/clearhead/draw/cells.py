"""Matrices as cells of colour: one, or many on one scale."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from itertools import pairwise
from math import ceil
from typing import TYPE_CHECKING

import numpy as np
import numpy.typing as npt

from ..errors import InputError
from .style import BLUES, FONT, INK, PAPER, SMALL, SOFT, Array, array, colours, dress, letters, sheet

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure
    from matplotlib.image import AxesImage

MOST_NAMES = 48  # tokens named along an axis; of more, every second, third ... is named


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
    square: bool = True,
) -> Figure:
    """Weights (queries, keys) from white at 0 to dark at `most` (the largest, if not given).

    `rows` and `columns` name the queries and the keys; `digits` also writes each weight into its cell;
    `square=False` lets cells stretch, for weights that are much longer than wide.
    """
    x = _not_negative("weights", array("weights", weights, ("queries", "keys")))
    return _one(x, rows, columns, title, xlabel, ylabel, _top([x], most), digits, False, square)


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
    square: bool = True,
) -> Figure:
    """Signed values (rows, columns), white at 0, blue up to `most` and orange down to -`most`.

    `square=False` lets cells stretch, for a matrix that is much longer than wide.
    """
    x = array("values", values, ("rows", "columns"))
    return _one(x, rows, columns, title, xlabel, ylabel, _top([x], most), digits, True, square)


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
    """Weights (heads, queries, keys): one small heatmap a head, all on one colour scale.

    `across` heatmaps stand in a row, each `size` inches wide.
    """
    x = array("weights", weights, ("heads", "queries", "keys"))
    if titles is not None and len(titles) != len(x):
        raise InputError(f"titles names {len(titles)} heads: weights has {len(x)}")
    names = [f"head {i}" for i in range(len(x))] if titles is None else [str(name) for name in titles]
    return _many(names, list(x), rows, columns, title, xlabel, ylabel, most, across, size, False)


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
    """Named matrices side by side on one colour scale; booleans are drawn as yes (dark) and no (light)."""
    if not matrices:
        raise InputError("grids got no matrices: expected {name: matrix}")
    found = [array(name, x, ("rows", "columns")) for name, x in matrices.items()]
    return _many(list(matrices), found, rows, columns, title, xlabel, ylabel, most, across, size, signed)


def _one(
    x: Array, rows: Sequence[str] | None, columns: Sequence[str] | None, title: str, xlabel: str, ylabel: str,
    most: float, digits: int | None, signed: bool, square: bool,
) -> Figure:  # fmt: skip
    cell = min(0.55 if digits is not None else 0.34, 5.2 / max(x.shape))
    height = cell * x.shape[0] if square else 3.4
    width = cell * x.shape[1] if square else 5.6
    figure = sheet(max(width, 1.6) + 1.9, max(height, 1.3) + 1.2)
    axes = figure.subplots()
    image = _cells(axes, x, most, signed, square)
    dress(axes, xlabel=xlabel, ylabel=ylabel, title=title)
    _finish(axes, x.shape)
    _names(axes, "rows", rows, x.shape[0])
    _names(axes, "columns", columns, x.shape[1], room=max(width, 1.6) / x.shape[1])
    if digits is not None:
        _numbers(axes, x, most, digits)
    if x.dtype != bool:
        _bar(figure, image, [axes], [x], most, signed)
    return figure


def _many(
    names: Sequence[str], found: Sequence[Array], rows: Sequence[str] | None, columns: Sequence[str] | None,
    title: str, xlabel: str, ylabel: str, most: float | None, across: int, size: float | None,
    signed: bool,
) -> Figure:  # fmt: skip
    if across < 1:
        raise InputError(f"across={across}: expected 1 panel or more in a row")
    if not signed:
        for name, x in zip(names, found, strict=True):
            _not_negative(name, x)
    top = _top(found, most)
    across = min(across, len(found))
    down = ceil(len(found) / across)
    tallest = max(x.shape[0] / x.shape[1] for x in found)
    named = rows is not None or columns is not None
    size = size or (2.5 if named else 1.75)
    side = 0.07 * max(map(len, rows), default=0) if rows else 0.25  # inches that names take, about
    below = 0.05 * max(map(len, columns), default=0) if columns else 0.1
    width = size * across + 0.16 * (across - 1) + side + 1.0
    figure = sheet(width, (size * min(tallest, 1.6) + 0.34) * down + below + 0.3, title)
    every = figure.subplots(down, across, squeeze=False)
    image = None
    for i, axes in enumerate(every.flat):
        if i >= len(found):
            axes.set_visible(False)
            continue
        x = found[i]
        image = _cells(axes, x, top, signed, True)
        lowest, first = i + across >= len(found), i % across == 0
        dress(axes, xlabel=xlabel if lowest else "", ylabel=ylabel if first else "", title=names[i])
        _finish(axes, x.shape)
        _names(axes, "rows", rows, x.shape[0], shown=first)
        _names(axes, "columns", columns, x.shape[1], shown=lowest, room=size / x.shape[1])
        if x.shape[0] <= 24 and x.dtype == bool:
            _lines(axes, x.shape)
    if image is not None and any(x.dtype != bool for x in found):
        _bar(figure, image, list(every.flat)[: len(found)], found, top, signed)
    return figure


def _cells(axes: Axes, x: Array, most: float, signed: bool, square: bool) -> AxesImage:
    if x.dtype == bool:
        from matplotlib.colors import ListedColormap

        return axes.imshow(
            x, cmap=ListedColormap(["#eef1f4", BLUES[5]]), vmin=0, vmax=1, origin="upper",
            aspect="equal" if square else "auto", interpolation="nearest",
        )  # fmt: skip
    return axes.imshow(
        x.astype(float), cmap=colours(signed), vmin=-most if signed else 0.0, vmax=most, origin="upper",
        aspect="equal" if square else "auto", interpolation="nearest" if max(x.shape) <= 512 else "auto",
    )  # fmt: skip


def _finish(axes: Axes, shape: tuple[int, ...]) -> None:
    """Cells need no spines, and whole numbers on their ticks."""
    from matplotlib.ticker import MaxNLocator

    for spine in axes.spines.values():
        spine.set_visible(False)
    axes.tick_params(length=0)
    for axis, n in ((axes.yaxis, shape[0]), (axes.xaxis, shape[1])):
        axis.set_major_locator(MaxNLocator(nbins=min(n, 6), integer=True, min_n_ticks=1))


def _lines(axes: Axes, shape: tuple[int, ...]) -> None:
    """Hair lines of paper between cells, so that they can be counted."""
    axes.set_yticks(np.arange(shape[0] + 1) - 0.5, minor=True)
    axes.set_xticks(np.arange(shape[1] + 1) - 0.5, minor=True)
    axes.grid(True, which="minor", color=PAPER, linewidth=1.0)
    axes.tick_params(which="minor", length=0)


def _names(
    axes: Axes, axis: str, names: Sequence[str] | None, n: int, *, shown: bool = True, room: float = 0.0
) -> None:
    """Name the rows or the columns, an empty name none; names of columns that do not fit their inches lean."""
    if names is None:
        return
    if len(names) != n:
        raise InputError(f"{axis} has {len(names)} names: there are {n} to name")
    named = [i for i, name in enumerate(names) if name]
    step = ceil(len(named) / MOST_NAMES)
    at = named[:: max(step, 1)]
    texts = [_plain(names[i]) if shown else "" for i in at]
    if axis == "rows":
        axes.set_yticks(at, texts)
        return
    axes.set_xticks(at, texts)
    apart = min((after - before for before, after in pairwise(at)), default=n)
    if max(map(len, texts), default=0) * 0.075 > room * apart:
        for label in axes.get_xticklabels():
            label.set(rotation=50, ha="right", rotation_mode="anchor")


def _plain(name: str) -> str:
    """A token as it can be read on an axis: no line breaks, and no $ that would start a formula."""
    return str(name).replace("\n", "\\n").replace("\t", "\\t").replace("$", r"\$")


def _numbers(axes: Axes, x: Array, most: float, digits: int) -> None:
    for i, row in enumerate(x):
        for j, value in enumerate(row):
            colour = PAPER if abs(value) > 0.45 * most else INK
            axes.text(j, i, f"{value:.{digits}f}", ha="center", va="center", **letters(SMALL, colour))


def _bar(
    figure: Figure, image: AxesImage, beside: list[Axes], found: Sequence[Array], most: float, signed: bool
) -> None:
    """A slim colour scale, with a point at its end if some values lie beyond."""
    from matplotlib.ticker import MaxNLocator

    beyond = max(float(np.nanmax(np.abs(x.astype(float)))) for x in found) > most
    ticks = MaxNLocator(nbins=4, steps=[1, 2, 2.5, 5, 10])
    extend = ("both" if signed else "max") if beyond else "neither"
    bar = figure.colorbar(image, ax=beside, shrink=0.8, aspect=28, pad=0.02, ticks=ticks, extend=extend)
    bar.outline.set_visible(False)
    bar.ax.tick_params(length=0, labelsize=SMALL, labelcolor=SOFT, labelfontfamily=FONT)


def _not_negative(name: str, x: Array) -> Array:
    if x.dtype != bool and np.nanmin(x) < 0:
        raise InputError(
            f"{name} goes down to {np.nanmin(x):.3g}: weights are 0 or more; for signed values there is "
            "matrix, and grids with signed=True"
        )
    return x


def _top(found: Sequence[Array], most: float | None) -> float:
    """The end of the colour scale, which always begins at 0."""
    if most is not None:
        if not most > 0:
            raise InputError(f"most={most}: the colour scale goes from 0 to a number above it")
        return float(most)
    top = max(float(np.nanmax(np.abs(x.astype(float)))) for x in found)
    return top if top > 1e-280 else 1.0  # matplotlib takes a scale that is smaller for an empty one
