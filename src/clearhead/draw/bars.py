"""Groups of bars."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING

import numpy as np
import numpy.typing as npt

from ..errors import InputError
from .lines import LineStyle, legend
from .style import HAIR, PALETTE, array, dress, sheet

if TYPE_CHECKING:
    from matplotlib.figure import Figure


def bars(
    groups: Mapping[str, npt.ArrayLike],
    *,
    names: Sequence[str],
    xlabel: str = "",
    ylabel: str = "",
    title: str = "",
    width: float = 6.0,
    height: float = 3.0,
) -> Figure:
    """Draw groups of bars side by side over the same names.

    Args:
        groups: {name of a group: one value for each of `names`}; at most 7 groups, each in its own colour.
        names: Names below the bars.
        xlabel: Label of the x axis.
        ylabel: Label of the y axis.
        title: Title of the plot.
        width: Width of the figure in inches.
        height: Height of the figure in inches.

    Examples:
        >>> figure = bars({"ours": [3.0, 4.0], "theirs": [2.0, 5.0]}, names=["en-de", "en-fr"], ylabel="BLEU")
        >>> [text.get_text() for text in figure.legends[0].get_texts()]
        ['ours', 'theirs']
    """
    if not groups:
        raise InputError("bars got no groups: expected {name: values}")
    if len(groups) > len(PALETTE):
        raise InputError(
            f"{len(groups)} groups of bars: expected at most {len(PALETTE)}, one for each colour; divide them among "
            "several figures"
        )
    values = {name: array(name, row, ("bars",)) for name, row in groups.items()}
    for name, row in values.items():
        # numpy would broadcast a single value over all names
        if len(row) != len(names):
            raise InputError(
                f"{name!r} has {len(row)} values for {len(names)} names: expected one for each name"
            )
    styles = {name: LineStyle(colour) for name, colour in zip(groups, PALETTE, strict=False)}
    figure = sheet(width, height)
    axes = figure.subplots()
    dress(axes, xlabel=xlabel, ylabel=ylabel, title=title)
    # a name has 1 unit of the axis: 0.8 for its bars, 0.2 between it and the next
    thickness, at = 0.8 / len(values), np.arange(len(names))
    for i, (name, row) in enumerate(values.items()):
        # groups of one name lie side by side, 0.8 wide together and centred on its tick
        axes.bar(
            at - 0.4 + (i + 0.5) * thickness,
            row,
            thickness,
            color=styles[name].colour,
            label=name,
            linewidth=0,
        )
    axes.set_xticks(at, [str(name) for name in names])
    axes.tick_params(axis="x", length=0)
    axes.margins(x=0.02)
    axes.set_axisbelow(True)
    axes.grid(True, axis="y", color=HAIR, linewidth=0.8)
    legend(figure, list(values), styles, beside=False, width=width)
    return figure
