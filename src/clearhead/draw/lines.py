"""Numbers against numbers: curves, panels of curves, bars."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING

import numpy as np
import numpy.typing as npt

from .style import HAIR, PALETTE, SMALL, SOFT, Array, array, dress, letters, sheet

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

Lines = Mapping[str, tuple[npt.ArrayLike, npt.ArrayLike]]
LOGS = ("", "x", "y", "xy")
MARKED = 16  # points up to which a line also shows where it was measured


def curves(
    lines: Lines,
    *,
    xlabel: str = "",
    ylabel: str = "",
    title: str = "",
    log: str = "",
    dashed: Sequence[str] = (),
    steps: bool = False,
    zero: bool = False,
    width: float = 5.0,
    height: float = 3.0,
) -> Figure:
    """Named lines {name: (x, y)}; `log` names the logarithmic axes, `dashed` the lines that only guide."""
    return panels(
        {title: lines}, xlabel=xlabel, ylabel=ylabel, log=log, dashed=dashed, steps=steps, zero=zero,
        width=width, height=height,
    )  # fmt: skip


def panels(
    plots: Mapping[str, Lines],
    *,
    xlabel: str | Sequence[str] = "",
    ylabel: str | Sequence[str] = "",
    title: str = "",
    log: str | Sequence[str] = "",
    dashed: Sequence[str] = (),
    steps: bool = False,
    zero: bool = False,
    width: float = 3.0,
    height: float = 3.0,
) -> Figure:
    """Plots {title: {name: (x, y)}} side by side. A name has one colour in all of them, and one legend entry.

    `xlabel`, `ylabel` and `log` are one for all or one a plot; `steps` draws stairs; `zero` lets the y axes
    that are not logarithmic begin at 0; `width` and `height` are a plot's, in inches.
    """
    if not plots:
        raise ValueError("panels got no plots: expected {title: {name: (x, y)}}")
    each = {"xlabel": xlabel, "ylabel": ylabel, "log": log}
    words = {key: _each(key, value, len(plots)) for key, value in each.items()}
    names = list(dict.fromkeys(name for lines in plots.values() for name in lines))
    unknown = [repr(name) for name in dashed if name not in names]
    if unknown:
        raise ValueError(f"dashed names {', '.join(unknown)}: the lines are {', '.join(map(repr, names))}")
    colour = {**_colours([n for n in names if n not in dashed], "lines"), **dict.fromkeys(dashed, SOFT)}
    figure = sheet(width * len(plots) + 0.5, height, title)
    every = figure.subplots(1, len(plots), squeeze=False)[0]
    for i, (axes, (head, lines)) in enumerate(zip(every, plots.items(), strict=True)):
        dress(axes, xlabel=words["xlabel"][i], ylabel=words["ylabel"][i], title=head)
        _plot(axes, lines, words["log"][i], colour, set(dashed), steps, zero)
    _legend(figure, colour, names, set(dashed), beside=len(plots) == 1, width=width * len(plots))
    return figure


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
    """Groups {name: values} of bars, a bar of each group over every one of `names`."""
    if not groups:
        raise ValueError("bars got no groups: expected {name: values}")
    colour = _colours(list(groups), "groups")
    found = {name: array(name, values, ("bars",)) for name, values in groups.items()}
    for name, values in found.items():
        if len(values) != len(names):
            raise ValueError(f"{name!r} holds {len(values)} values for {len(names)} names: expected one a name")
    figure = sheet(width, height)
    axes = figure.subplots()
    dress(axes, xlabel=xlabel, ylabel=ylabel, title=title)
    thick, at = 0.8 / len(found), np.arange(len(names))
    for i, (name, values) in enumerate(found.items()):
        axes.bar(at - 0.4 + (i + 0.5) * thick, values, thick, color=colour[name], label=name, linewidth=0)
    axes.set_xticks(at, [str(name) for name in names])
    axes.tick_params(axis="x", length=0)
    axes.margins(x=0.02)
    axes.set_axisbelow(True)
    axes.grid(True, axis="y", color=HAIR, linewidth=0.8)
    _legend(figure, colour, list(found), set(), beside=False, width=width)
    return figure


def _plot(
    axes: Axes, lines: Lines, log: str, colour: Mapping[str, str], dashed: set[str], steps: bool, zero: bool
) -> None:
    if log not in LOGS:
        raise ValueError(f"log={log!r}: expected x, y, xy or nothing")
    if not lines:
        raise ValueError("a plot got no lines: expected {name: (x, y)}")
    for name, line in lines.items():
        x, y = _pair(name, line)
        for axis, values in (("x", x), ("y", y)):
            if axis in log and np.nanmin(values) <= 0:
                raise ValueError(
                    f"log={log!r} with {axis} down to {np.nanmin(values):.3g} in {name!r}: a logarithm needs "
                    "numbers above 0"
                )
        axes.plot(
            x, y, color=colour[name], label=name, linestyle=(0, (4, 3)) if name in dashed else "-",
            linewidth=1.2 if name in dashed else 1.8, drawstyle="steps-mid" if steps else "default",
            marker="o" if len(x) <= MARKED and name not in dashed and not steps else "", markersize=4,
        )  # fmt: skip
    if "x" in log:
        axes.set_xscale("log")
    if "y" in log:
        axes.set_yscale("log")
    elif zero:
        low, high = axes.get_ylim()
        axes.set_ylim(min(low, 0.0), max(high, 0.0))
    _plain_numbers(axes, log)
    axes.minorticks_off()
    axes.set_axisbelow(True)
    axes.grid(True, color=HAIR, linewidth=0.8)


def _plain_numbers(axes: Axes, log: str) -> None:
    """On a logarithmic axis that stays between a thousandth and a million: 0.01, 1, 1,000."""
    from matplotlib.ticker import FuncFormatter

    for name, axis, (low, high) in (("x", axes.xaxis, axes.get_xlim()), ("y", axes.yaxis, axes.get_ylim())):
        if name in log and low >= 1e-3 and high <= 3e6:
            axis.set_major_formatter(FuncFormatter(lambda value, _: f"{value:,g}"))
    measured = {float(x) for line in axes.get_lines() for x in np.asarray(line.get_xdata(), dtype=float)}
    if "x" in log and 2 <= len(measured) <= MARKED:  # a tick where there is a point
        axes.set_xticks(sorted(measured)[:: -(-len(measured) // 6)])


def _pair(name: str, line: tuple[npt.ArrayLike, npt.ArrayLike]) -> tuple[Array, Array]:
    if not isinstance(line, tuple | list) or len(line) != 2:
        raise ValueError(f"{name!r} is a {type(line).__name__}: expected a pair (x, y)")
    x, y = array(f"x of {name!r}", line[0], ("points",)), array(f"y of {name!r}", line[1], ("points",))
    if len(x) != len(y):
        raise ValueError(f"{name!r} has {len(x)} x and {len(y)} y: expected as many")
    return x, y


def _each(key: str, value: str | Sequence[str], n: int) -> list[str]:
    found = [value] * n if isinstance(value, str) else list(value)
    if len(found) != n:
        raise ValueError(f"{key} has {len(found)} for {n} plots: expected one for all, or one a plot")
    return found


def _colours(names: Sequence[str], what: str) -> dict[str, str]:
    if len(names) > len(PALETTE):
        raise ValueError(f"{len(names)} {what}: there are {len(PALETTE)} colours that everybody can tell apart")
    return dict(zip(names, PALETTE, strict=False))


def _legend(
    figure: Figure,
    colour: Mapping[str, str],
    names: Sequence[str],
    dashed: set[str],
    *,
    beside: bool,
    width: float,
) -> None:
    """One legend, each name once, beside a single plot or below several; none if there is only one name."""
    if len(names) < 2:
        return
    from matplotlib.lines import Line2D

    thin, thick = {"linewidth": 1.2, "linestyle": (0, (4, 3))}, {"linewidth": 2.4}
    keys = [Line2D([], [], color=colour[name], **(thin if name in dashed else thick)) for name in names]
    one_row = sum(len(name) * 0.065 + 0.5 for name in names) <= width  # inches, about
    columns = 1 if beside else (len(names) if one_row else (len(names) + 1) // 2)
    legend = figure.legend(
        keys,
        list(names),
        loc="outside right center" if beside else "outside lower center",
        ncols=columns,
        frameon=False,
        handlelength=1.8,
        columnspacing=1.6,
    )
    for text in legend.get_texts():
        text.set(**letters(SMALL))
