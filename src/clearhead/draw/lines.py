"""Named lines in one plot or several, with their colours, dashes and legend."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from math import ceil
from typing import TYPE_CHECKING, Literal, NamedTuple

import numpy as np
import numpy.typing as npt

from ..errors import InputError
from .cells import name_columns
from .style import (
    HAIR,
    PALETTE,
    SMALL,
    SOFT,
    VOID,
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
        # a reference, such as chance: no colour of its own
        styles[name] = LineStyle(SOFT, _DASHED, 1.2, marked=False)
    for name in faint:
        # behind all other lines, and pale
        dashes = _DASHED if name in dashed else _SOLID
        styles[name] = LineStyle(VOID, dashes, 1.2, marked=False, zorder=1.5)
    return styles


def _distinct(names: Sequence[str]) -> dict[str, LineStyle]:
    """Styles of the palette's colours, which colour-blind readers can distinguish; further lines are dotted."""
    most = len(PALETTE) * len(_REPEATS)
    if len(names) > most:
        # two lines of one style could not be told apart
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

    `width` is the width of all plots together, in inches.
    """
    if len(names) < 2:
        return
    from matplotlib.lines import Line2D

    keys, length = [], 1.8
    for name in names:
        colour, dashes, *_ = styles[name]
        thick = 1.2 if dashes == _DASHED else 2.4
        keys.append(Line2D([], [], color=colour, linestyle=dashes, linewidth=thick))
        if dashes not in (_SOLID, _DASHED):
            # so that a whole pattern of dots and dashes is seen
            length = 2.8
    box = figure.legend(
        keys,
        list(names),
        loc="outside right center" if beside else "outside lower center",
        ncols=_columns(names, beside, width),
        frameon=False,
        handlelength=length,
        columnspacing=1.6,
    )
    for text in box.get_texts():
        text.set(**letters(SMALL))


def _columns(names: Sequence[str], beside: bool, width: float) -> int:
    widths = [len(name) * 0.065 + 0.5 for name in names]  # inches, about
    if beside:
        # beside a plot: one column, as long as it fits the height
        return 1 if len(names) <= _LONG_LEGEND else 2
    if sum(widths) <= width:
        # all names fit into one line
        return len(names)
    columns = (len(names) + 1) // 2
    if len(names) <= _LONG_LEGEND:
        return columns
    return max(min(columns, int(width / max(widths))), 1)


Lines = Mapping[str, tuple[npt.ArrayLike, npt.ArrayLike]]  # {name: (x, y)}
LOGS = ("", "x", "y", "xy", "auto")
# auto: an axis whose numbers differ by more than this factor is logarithmic
WIDE = {"x": 1000.0, "y": 10.0}
NAMED = 8  # the largest number of ordered lines that the legend names
MARKED = 16  # the largest number of points of a line that shows a marker at each
MARGIN = 0.05  # of the height of a plot, beyond the values, as matplotlib has it


def curves(
    lines: Lines,
    *,
    xlabel: str = "",
    ylabel: str = "",
    title: str = "",
    log: str = "",
    dashed: Sequence[str] = (),
    faint: Sequence[str] = (),
    steps: bool = False,
    zero: bool = False,
    names: Sequence[str] | None = None,
    width: float = 5.0,
    height: float = 3.0,
) -> Figure:
    """Draw named lines in one plot.

    Args:
        lines: {name: (x, y)}. There are 7 colours; from the eighth line on they repeat with dotted and dash-dotted
            lines, up to 21. More lines need `faint`, or `panels` with `ordered`.
        xlabel: Label of the x axis.
        ylabel: Label of the y axis.
        title: Title of the plot.
        log: Logarithmic axes: "", "x", "y", "xy", or "auto" for those that span orders of magnitude.
        dashed: Names of lines that are references: grey and dashed.
        faint: Names of lines that are only background: pale, behind the others, and not in the legend.
        steps: Draw stairs instead of straight lines between points.
        zero: Include 0 in a y axis that is not logarithmic.
        names: Names of the places 0, 1, 2 ... on the x axis; None: numbers.
        width: Width of the plot in inches.
        height: Height of the plot in inches.

    Examples:
        >>> steps = np.arange(1, 6)
        >>> figure = curves({"train": (steps, 1 / steps), "valid": (steps, 2 / steps)}, xlabel="steps", ylabel="loss")
        >>> [line.get_label() for line in figure.axes[0].get_lines()]
        ['train', 'valid']
    """
    figure = panels(
        {title: lines},
        xlabel=xlabel,
        ylabel=ylabel,
        log=log,
        dashed=dashed,
        faint=faint,
        steps=steps,
        zero=zero,
        width=width,
        height=height,
    )
    if names is not None:
        name_columns(figure.axes[0], names, len(names), room=width / len(names))
    return figure


def panels(
    plots: Mapping[str, Lines],
    *,
    xlabel: str | Sequence[str] = "",
    ylabel: str | Sequence[str] = "",
    title: str = "",
    log: str | Sequence[str] = "",
    dashed: Sequence[str] = (),
    faint: Sequence[str] = (),
    steps: bool = False,
    zero: bool = False,
    ordered: bool = False,
    shared: bool = False,
    across: int | None = None,
    width: float = 3.0,
    height: float = 3.0,
) -> Figure:
    """Draw several plots of named lines side by side; a name has the same colour in all, and one legend entry.

    Args:
        plots: {title: {name: (x, y)}}.
        xlabel: Label of the x axes, one for all or one per plot.
        ylabel: Label of the y axes, one for all or one per plot.
        title: Title of the figure.
        log: Logarithmic axes, one choice for all or one per plot: "", "x", "y", "xy", or "auto" for those that span
            orders of magnitude.
        dashed: Names of lines that are references: grey and dashed.
        faint: Names of lines that are only background: pale, behind the others, and not in the legend.
        steps: Draw stairs instead of straight lines between points.
        zero: Include 0 in the y axes that are not logarithmic.
        ordered: The names have an order: colours go from pale to dark, for any number of lines, and the legend names
            8 of them at most. Otherwise there may be 21 lines (see `curves`).
        shared: The plots of a row share their y axis.
        across: Plots per row; None: all in one row.
        width: Width of each plot in inches.
        height: Height of each plot in inches.

    Examples:
        >>> x = np.arange(1, 6)
        >>> figure = panels({"loss": {"a": (x, 1 / x), "b": (x, 2 / x)}, "accuracy": {"a": (x, x)}}, xlabel="steps")
        >>> [axes.get_title() for axes in figure.axes]
        ['loss', 'accuracy']
    """
    if not plots:
        raise InputError("panels got no plots: expected {title: {name: (x, y)}}")
    xlabels, ylabels, logs = (
        _for_each(key, value, len(plots))
        for key, value in (("xlabel", xlabel), ("ylabel", ylabel), ("log", log))
    )
    # all names in the order of their first plot: a name keeps its colour in every plot
    names = list(dict.fromkeys(name for lines in plots.values() for name in lines))
    for key, some in (("dashed", dashed), ("faint", faint)):
        if unknown := [repr(name) for name in some if name not in names]:
            raise InputError(
                f"{key} names {', '.join(unknown)}: the lines are {', '.join(map(repr, names))}"
            )
    styles = line_styles(names, dashed, faint, ordered=ordered)
    if across is None:
        across = len(plots)
    across, down = rows_of_panels(len(plots), across, "plot")
    figure = sheet(width * across + 0.5, height * down, title)
    every = panel_axes(figure, len(plots), across, share_y=shared)
    if isinstance(xlabel, str):
        # one label for all stands below the lowest plots only; labels of their own stand below each
        xlabels[: len(plots) - across] = [""] * (len(plots) - across)
    for i, (axes, (head, lines)) in enumerate(zip(every, plots.items(), strict=True)):
        dress(axes, xlabel=xlabels[i], ylabel=ylabels[i], title=head)
        _plot(axes, lines, logs[i], styles, steps)
    if zero:  # after all lines are drawn, because plots of a row may share the axis and its limits
        for axes in every:
            _include_zero(axes)
    entries = _legend_names(names, dashed, faint, ordered)
    legend(figure, entries, styles, beside=len(plots) == 1, width=width * across)
    return figure


def _legend_names(
    names: Sequence[str], dashed: Sequence[str], faint: Sequence[str], ordered: bool
) -> list[str]:
    plain = [name for name in names if name not in dashed and name not in faint]
    if ordered and plain:
        # every second, third ... name, since colours in between follow from the order
        plain = plain[:: ceil(len(plain) / NAMED)]
    return [name for name in names if name in plain or name in dashed]


def _include_zero(axes: Axes) -> None:
    """Extend a linear y axis to 0, with a margin beyond values that are close to an end, so that none is clipped."""
    if axes.get_yscale() == "log":
        return
    drawn = [one.dataLim for one in axes.get_shared_y_axes().get_siblings(axes) if one.get_lines()]
    low, high = min(box.ymin for box in drawn), max(box.ymax for box in drawn)
    margin = MARGIN * (max(high, 0.0) - min(low, 0.0))
    if margin:
        # only the side on which 0 lies moves to it
        axes.set_ylim(min(low - margin, 0.0), max(high + margin, 0.0))


def _plot(axes: Axes, lines: Lines, log: str, styles: Mapping[str, LineStyle], steps: bool) -> None:
    if log not in LOGS:
        raise InputError(f"log={log!r}: expected x, y, xy, auto or nothing")
    if not lines:
        raise InputError("a plot got no lines: expected {name: (x, y)}")
    pairs = {name: _pair(name, line) for name, line in lines.items()}
    if log == "auto":
        # an axis is logarithmic if the numbers of all its lines together span enough
        log = "".join(
            axis
            for i, axis in enumerate("xy")
            if _spans([pair[i] for pair in pairs.values()], WIDE[axis])
        )
    else:
        _check_positive(pairs, log)
    for name, (x, y) in pairs.items():
        style = styles[name]
        # markers only on few points: on many they would hide the line
        marked = style.marked and len(x) <= MARKED and not steps
        axes.plot(
            x,
            y,
            color=style.colour,
            label=name,
            linestyle=style.dashes,
            linewidth=style.width,
            drawstyle="steps-mid" if steps else "default",
            marker="o" if marked else "",
            markersize=4,
            zorder=style.zorder,
        )
    if "x" in log:
        axes.set_xscale("log")
    if "y" in log:
        axes.set_yscale("log")
    _plain_numbers(axes, log)
    axes.minorticks_off()
    axes.set_axisbelow(True)
    axes.grid(True, color=HAIR, linewidth=0.8)


def _check_positive(pairs: Mapping[str, tuple[Array, Array]], log: str) -> None:
    for name, pair in pairs.items():
        for axis, values in zip("xy", pair, strict=True):
            if axis in log and np.nanmin(values) <= 0:
                # matplotlib would leave such points out in silence
                raise InputError(
                    f"log={log!r} with {axis} down to {np.nanmin(values):.3g} in {name!r}: a logarithm needs "
                    "numbers above 0"
                )


def _plain_numbers(axes: Axes, log: str) -> None:
    """Label a logarithmic axis between a thousandth and a million with plain numbers: 0.01, 1, 1,000."""
    from matplotlib.ticker import FuncFormatter, LogLocator

    for name, axis, (low, high) in (
        ("x", axes.xaxis, axes.get_xlim()),
        ("y", axes.yaxis, axes.get_ylim()),
    ):
        if name in log and high < 50 * low:  # powers of ten alone would be too few
            axis.set_major_locator(LogLocator(subs=(1.0, 2.0, 5.0)))
        if name in log and low >= 1e-3 and high <= 3e6:
            axis.set_major_formatter(FuncFormatter(lambda value, _: f"{value:,g}"))
    measured = {
        float(x) for line in axes.get_lines() for x in np.asarray(line.get_xdata(), dtype=float)
    }
    if "x" in log and 2 <= len(measured) <= MARKED:  # a tick at each point
        axes.set_xticks(sorted(measured)[:: ceil(len(measured) / 6)])


def _pair(name: str, line: tuple[npt.ArrayLike, npt.ArrayLike]) -> tuple[Array, Array]:
    if not isinstance(line, tuple | list) or len(line) != 2:
        raise InputError(f"{name!r} is a {type(line).__name__}: expected a pair (x, y)")
    x, y = (
        array(f"x of {name!r}", line[0], ("points",)),
        array(f"y of {name!r}", line[1], ("points",)),
    )
    if len(x) != len(y):
        raise InputError(f"{name!r} has {len(x)} x and {len(y)} y: expected the same number")
    return x, y


def _spans(values: Sequence[Array], factor: float) -> bool:
    """Whether non-negative numbers differ by more than a factor; zeros are ignored, as a logarithmic axis does."""
    # all lines of an axis together
    every = np.concatenate([x[np.isfinite(x)] for x in values])
    above = every[every > 0]
    return bool(every.min() >= 0 and len(above) and above.max() > factor * above.min())


def _for_each(key: str, value: str | Sequence[str], n: int) -> list[str]:
    values = [value] * n if isinstance(value, str) else list(value)
    if len(values) != n:
        raise InputError(
            f"{key} has {len(values)} for {n} plots: expected one for all, or one per plot"
        )
    return values
