"""The parts of a plot of a matrix: its cells, names, numbers, grid lines and colour bar."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from itertools import pairwise
from math import ceil
from typing import TYPE_CHECKING, Literal

import numpy as np

from ..errors import InputError
from .style import BLUES, FONT, INK, PAPER, SMALL, SOFT, Array, colours, letters

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
            most = most if most > 1e-280 else 1.0  # matplotlib treats a smaller scale as empty
        return Scale(most=float(most), signed=signed, label=label)


def draw_cells(axes: Axes, x: Array, scale: Scale, *, square: bool) -> AxesImage:
    """Draw a matrix as cells of colour; booleans have two colours of their own."""
    aspect: Literal["equal", "auto"] = "equal" if square else "auto"
    if x.dtype == bool:
        from matplotlib.colors import ListedColormap

        no_and_yes = ListedColormap(["#eef1f4", BLUES[5]])
        return axes.imshow(
            x,
            cmap=no_and_yes,
            vmin=0,
            vmax=1,
            origin="upper",
            aspect=aspect,
            interpolation="nearest",
        )
    return axes.imshow(
        x.astype(float),
        cmap=colours(scale.signed),
        vmin=-scale.most if scale.signed else 0.0,
        vmax=scale.most,
        origin="upper",
        aspect=aspect,
        interpolation="nearest" if max(x.shape) <= 512 else "auto",
    )


def clean_axes(axes: Axes, shape: tuple[int, ...]) -> None:
    """Remove the spines and tick marks, and label the ticks with whole numbers."""
    from matplotlib.ticker import MaxNLocator

    for spine in axes.spines.values():
        spine.set_visible(False)
    axes.tick_params(length=0)
    for axis, n in ((axes.yaxis, shape[0]), (axes.xaxis, shape[1])):
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
        for label in axes.get_xticklabels():
            label.set(rotation=50, ha="right", rotation_mode="anchor")


def _ticks(axis: str, names: Sequence[str], n: int, shown: bool) -> tuple[list[int], list[str]]:
    """The positions of the names that are shown, at most MOST_NAMES, and their texts."""
    if len(names) != n:
        raise InputError(f"{axis} has {len(names)} names: expected {n}")
    named = [i for i, name in enumerate(names) if name]
    at = named[:: max(ceil(len(named) / MOST_NAMES), 1)]
    return at, [_escaped(names[i]) if shown else "" for i in at]


def _escaped(name: str) -> str:
    """A token as one line of text on an axis, where spaces alone are seen; an unescaped $ would start a formula."""
    line = str(name).replace("\n", "\\n").replace("\t", "\\t").replace("$", r"\$")
    return line if line.strip() else line.replace(" ", "␣")


def cell_texts(
    x: Array, digits: int | None, words: Sequence[Sequence[str]] | None = None
) -> list[list[str]] | None:
    """The text of each cell of a matrix: words if they are given, numbers of this many decimals, or None."""
    if words is not None:
        if len(words) != len(x) or any(len(row) != x.shape[1] for row in words):
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
        raise InputError(
            f"{name} goes down to {np.nanmin(x):.3g}: expected weights of 0 or more; draw signed values by matrix, or "
            "by grids with signed=True"
        )
    return x
