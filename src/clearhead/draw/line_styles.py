"""The colour and dashes of each named line or group of bars, and the legend that shows them."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Literal, NamedTuple

import numpy as np

from ..errors import InputError
from .style import PALETTE, SMALL, SOFT, VOID, colours, letters

if TYPE_CHECKING:
    from matplotlib.figure import Figure

# solid, or an offset and the lengths of dashes and gaps
Dashes = Literal["-"] | tuple[float, Sequence[float]]

_SOLID: Dashes = "-"
_DASHED: Dashes = (0, (4, 3))
# Solid; dotted and dash-dotted repeat colours
_REPEATS: tuple[Dashes, ...] = (_SOLID, (0, (1, 1)), (0, (3, 1, 1, 1)))
_LONG_LEGEND = 12  # names beyond which a legend has more columns


class LineStyle(NamedTuple):
    """How a line is drawn."""

    colour: str
    dashes: Dashes = _SOLID
    width: float = 1.8  # points
    marked: bool = True  # a marker at each point, if there are few
    zorder: float = 2.0  # higher is in front


def line_styles(
    names: Sequence[str], dashed: Sequence[str], faint: Sequence[str], *, ordered: bool
) -> dict[str, LineStyle]:
    """The style of each line; see `panels` for `dashed`, `faint` and `ordered`."""
    plain = [name for name in names if name not in dashed and name not in faint]
    styles = _shades(plain) if ordered else _distinct(plain)
    for name in dashed:
        styles[name] = LineStyle(SOFT, _DASHED, 1.2, marked=False)
    for name in faint:
        styles[name] = LineStyle(
            VOID, _DASHED if name in dashed else _SOLID, 1.2, marked=False, zorder=1.5
        )
    return styles


def _distinct(names: Sequence[str]) -> dict[str, LineStyle]:
    """Colours that everybody can tell apart; beyond their number they repeat with other dashes."""
    most = len(PALETTE) * len(_REPEATS)
    if len(names) > most:
        raise InputError(
            f"{len(names)} lines: expected at most {most}, which is {len(PALETTE)} colours in {len(_REPEATS)} line "
            "styles; name some in faint=[...], divide them among several figures, or, if they have an order, draw "
            "them by panels with ordered=True"
        )
    pairs = [(colour, dashes) for dashes in _REPEATS for colour in PALETTE]
    return {
        name: LineStyle(colour, dashes)
        for name, (colour, dashes) in zip(names, pairs, strict=False)
    }


def _shades(names: Sequence[str]) -> dict[str, LineStyle]:
    """Colours from pale to dark, for names that have an order."""
    from matplotlib.colors import to_hex

    places = np.linspace(0.25, 1.0, len(names)) if len(names) > 1 else [0.6]
    return {
        name: LineStyle(to_hex(colours(False)(float(at))))
        for name, at in zip(names, places, strict=True)
    }


def legend(
    figure: Figure,
    names: Sequence[str],
    styles: Mapping[str, LineStyle],
    *,
    beside: bool,
    width: float,
) -> None:
    """Add a legend beside a single plot or below several; none if there is only one name.

    `width` is that of all plots in inches.
    """
    if len(names) < 2:
        return
    from matplotlib.lines import Line2D

    keys = [
        Line2D(
            [],
            [],
            color=style.colour,
            linestyle=style.dashes,
            linewidth=1.2 if style.dashes == _DASHED else 2.4,
        )
        for style in (styles[name] for name in names)
    ]
    box = figure.legend(
        keys,
        list(names),
        loc="outside right center" if beside else "outside lower center",
        ncols=_columns(names, beside, width),
        frameon=False,
        handlelength=1.8
        if all(styles[name].dashes in (_SOLID, _DASHED) for name in names)
        else 2.8,
        columnspacing=1.6,
    )
    for text in box.get_texts():
        text.set(**letters(SMALL))


def _columns(names: Sequence[str], beside: bool, width: float) -> int:
    widths = [len(name) * 0.065 + 0.5 for name in names]  # inches, about
    if beside:
        return 1 if len(names) <= _LONG_LEGEND else 2
    if sum(widths) <= width:
        return len(names)
    columns = (len(names) + 1) // 2
    if len(names) <= _LONG_LEGEND:
        return columns
    return max(min(columns, int(width / max(widths))), 1)
