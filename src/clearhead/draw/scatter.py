"""Points in the plane, coloured by class."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

import numpy as np
import numpy.typing as npt

from ..errors import InputError
from .style import HAIR, PALETTE, SMALL, SOFT, VOID, array, dress, letters, sheet

if TYPE_CHECKING:
    from matplotlib.figure import Figure

MARKERS = ("o", "^", "s")  # the shapes that repeat the colours


def scatter(
    points: npt.ArrayLike,
    *,
    labels: Sequence[object] | None = None,
    texts: Sequence[str] | None = None,
    title: str = "",
    xlabel: str = "",
    ylabel: str = "",
    width: float = 5.0,
    height: float = 4.0,
) -> Figure:
    """Draw points in the plane, coloured by class, with a legend.

    Args:
        points: Points (n, 2).
        labels: The class of each point. There are 7 colours; from the eighth class on they repeat with other shapes, up
            to 21 classes; further ones are grey and share an entry of the legend.
        texts: A text beside each point, such as a word; empty ones are not shown.
        title: Title of the plot.
        xlabel: Label of the x axis.
        ylabel: Label of the y axis.
        width: Width of the plot in inches.
        height: Height of the plot in inches.

    Examples:
        >>> figure = scatter([[0.0, 1.0], [1.0, 0.0], [0.2, 0.9]], labels=["cat", "dog", "cat"])
        >>> [text.get_text() for text in figure.legends[0].get_texts()]
        ['cat', 'dog']
    """
    x = array("points", points, ("points", "axes"))
    if x.shape[1] != 2:
        raise InputError(f"points has shape {x.shape}: expected (points, 2)")
    for name, given in (("labels", labels), ("texts", texts)):
        if given is not None and len(given) != len(x):
            raise InputError(f"{name} has {len(given)} entries: expected {len(x)}, one per point")
    figure = sheet(width, height)
    axes = figure.subplots()
    dress(axes, xlabel=xlabel, ylabel=ylabel, title=title)
    axes.set_axisbelow(True)
    axes.grid(True, color=HAIR, linewidth=0.8)
    if labels is None:
        labels = [""] * len(x)
    classes = np.array([str(label) for label in labels])
    names = list(dict.fromkeys(classes.tolist()))
    if all(not name.isdigit() for name in names):
        names = sorted(names)
    else:
        # numbers by size: 2 before 10
        names = sorted(names, key=lambda n: (len(n), n))
    styles = [(colour, marker) for marker in MARKERS for colour in PALETTE]
    # area of a marker in square points: the more points, the smaller
    size = float(np.clip(2400 / len(x), 6, 28))
    for i, name in enumerate(names):
        # past the last style all classes are grey circles, and share the entry "others"
        (colour, marker), entry = (VOID, "o"), None
        if i < len(styles):
            (colour, marker), entry = styles[i], name
        elif i == len(styles):
            entry = "others"
        some = x[classes == name]
        axes.scatter(
            some[:, 0],
            some[:, 1],
            s=size,
            c=colour,
            marker=marker,
            linewidths=0,
            alpha=0.8,
            label=entry,
            zorder=2,
        )
    for (left, low), text in zip(x, texts or [], strict=False):
        if text:
            # 4 points beside its point, whatever the scale of the axes; $ would start a formula
            axes.annotate(
                text.replace("$", r"\$"),
                (left, low),
                xytext=(4, 3),
                textcoords="offset points",
                **letters(SMALL, SOFT),
            )
    if len(names) > 1:
        box = figure.legend(
            loc="outside right center", frameon=False, handletextpad=0.2, markerscale=1.4
        )
        for entry in box.get_texts():
            entry.set(**letters(SMALL))
    return figure
