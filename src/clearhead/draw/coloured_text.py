"""A text whose tokens are coloured by their values."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

import numpy as np
import numpy.typing as npt

from ..errors import InputError
from .style import INK, MEDIUM, PAPER, array, colours, sheet, sign_legend

if TYPE_CHECKING:
    from matplotlib.figure import Figure

# every character is as wide as the others, so that the widths of tokens are known
MONO = "DejaVu Sans Mono"
WIDTH, LINE = 0.602, 2.0  # width of a character and distance of lines, in font sizes
PAD = 0.25  # characters around the text of a token


def coloured_tokens(
    tokens: Sequence[str],
    values: npt.ArrayLike,
    *,
    most: float | None = None,
    title: str = "",
    above: str = "",
    below: str = "",
    across: int = 72,
) -> Figure:
    """Draw a text whose tokens have coloured backgrounds: blue above 0, orange below, white at 0.

    Args:
        tokens: The text of each token, with the spaces that belong to it.
        values: A value for each token.
        most: The absolute value at the end of the colours; None: the largest.
        title: Title of the figure.
        above: What values above 0 mean, for the legend; "": no entry.
        below: What values below 0 mean.
        across: Characters per line at most.

    Examples:
        >>> figure = coloured_tokens(["A", " dog", " runs"], [0.1, 0.9, -0.3])
        >>> [text.get_text() for text in figure.axes[0].texts]
        ['A', 'dog', 'runs']
    """
    from matplotlib.patches import Rectangle

    x = array("values", values, ("tokens",)).astype(float)
    if len(x) != len(tokens):
        raise InputError(
            f"{len(tokens)} tokens and {len(x)} values: expected a value for each token"
        )
    if across < 1:
        raise InputError(f"across={across}: expected 1 character or more in a line")
    if most is not None and not most > 0:
        raise InputError(f"most={most}: the colours go from 0 to a number above it")
    # x / end in [-1, 1] -> [0, 1], where the colour map of signed values has white in the middle
    end = most or float(np.nanmax(np.abs(x))) or 1.0
    paint = colours(signed=True)(np.clip(x / end, -1, 1) / 2 + 0.5)
    # lay the tokens out line by line, in units of one character
    places, line, column = [], 0, 0.0
    for token in tokens:
        # line breaks and tabs become visible signs: each token stays one box
        text = token.replace("\n", "\u23ce").replace("\t", "\u21e5")
        # the space of a word is drawn before its box; a token of spaces alone keeps them
        space = 0.0
        if text.strip():
            space = float(text.startswith(" "))
            text = text.strip()
        if column and column + space + len(text) + 2 * PAD > across:
            # no space at the start of a line
            line, column, space = line + 1, 0.0, 0.0
        # a space is narrowed to 0.6 characters, since the box has padding too
        places.append((line, column + space * 0.6, text))
        column += space * 0.6 + len(text) + 2 * PAD
    # inches of the figure from the longest line; a long legend may be wider
    widest = max(start + len(text) + 2 * PAD for _, start, text in places)
    inch = MEDIUM / 72
    # inches of the title and the legend
    around, wide = 0.5 if title else 0.2, widest
    if above or below:
        around += 0.3
        wide = max(widest, len(above + below) + 8)
    figure = sheet(wide * WIDTH * inch + 0.2, (line + 1) * LINE * inch + around, title)
    axes = figure.subplots()
    axes.set_axis_off()
    # one unit of the axes is one character across and one line down
    axes.set_xlim((widest - wide) / 2, (widest + wide) / 2)
    axes.set_ylim(line + 1, 0)
    for (row, start, text), colour in zip(places, paint, strict=True):
        width = len(text) + 2 * PAD
        # 0.12 of a line above and below separates the boxes of two lines
        axes.add_patch(Rectangle((start, row + 0.12), width, 0.76, facecolor=colour, linewidth=0))
        # the luma of Rec. 601, as eyes weigh red, green and blue
        dark = colour[:3] @ np.array([0.299, 0.587, 0.114]) < 0.5
        axes.text(
            start + width / 2,
            row + 0.5,
            text,
            ha="center",
            va="center",
            fontfamily=MONO,
            fontsize=MEDIUM,
            color=PAPER if dark else INK,
            parse_math=False,
        )
    sign_legend(figure, above, below)
    return figure
