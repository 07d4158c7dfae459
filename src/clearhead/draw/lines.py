"""Numbers against numbers: curves, panels of curves, bars."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from math import ceil
from typing import TYPE_CHECKING

import numpy as np
import numpy.typing as npt

from ..errors import InputError
from .style import HAIR, PALETTE, SMALL, SOFT, VOID, Array, array, colours, dress, letters, sheet

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

Lines = Mapping[str, tuple[npt.ArrayLike, npt.ArrayLike]]
LOGS = ("", "x", "y", "xy", "auto")
WIDE = {"x": 1000.0, "y": 10.0}  # auto: an axis that spans such a factor is logarithmic
NAMED = 8  # ordered lines that the legend names
MARKED = 16  # points up to which a line also shows where it was measured


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
    width: float = 5.0,
    height: float = 3.0,
) -> Figure:
    """Named lines {name: (x, y)}; `log` names the logarithmic axes (auto: those that span orders of magnitude),
    `dashed` the lines that only guide, `faint` those that stand behind the others without a name."""
    return panels(
        {title: lines}, xlabel=xlabel, ylabel=ylabel, log=log, dashed=dashed, faint=faint, steps=steps, zero=zero,
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
    faint: Sequence[str] = (),
    steps: bool = False,
    zero: bool = False,
    ordered: bool = False,
    shared: bool = False,
    across: int | None = None,
    width: float = 3.0,
    height: float = 3.0,
) -> Figure:
    """Plots {title: {name: (x, y)}} side by side. A name has one colour in all of them, and one legend entry.

    `xlabel`, `ylabel` and `log` are one for all or one a plot; `steps` draws stairs; `zero` lets the y axes
    that are not logarithmic begin at 0; `ordered` names go from pale to dark, and may be many; `shared` gives the
    plots of a row one y axis; `across` plots stand in a row, all if not given; `width` and `height` are a plot's, in
    inches. Lines in `faint` are pale, behind the others, and not in the legend.
    """
    if not plots:
        raise InputError("panels got no plots: expected {title: {name: (x, y)}}")
    each = {"xlabel": xlabel, "ylabel": ylabel, "log": log}
    words = {key: _each(key, value, len(plots)) for key, value in each.items()}
    names = list(dict.fromkeys(name for lines in plots.values() for name in lines))
    for key, some in (("dashed", dashed), ("faint", faint)):
        if unknown := [repr(name) for name in some if name not in names]:
            raise InputError(f"{key} names {', '.join(unknown)}: the lines are {', '.join(map(repr, names))}")
    plain = [n for n in names if n not in dashed and n not in faint]
    colour = {
        **(_shades(plain) if ordered else _colours(plain, "lines")),
        **dict.fromkeys(dashed, SOFT),
        **dict.fromkeys(faint, VOID),
    }
    across = len(plots) if across is None else min(across, len(plots))
    if across < 1:
        raise InputError(f"across={across}: expected 1 plot or more in a row")
    down = ceil(len(plots) / across)
    figure = sheet(width * across + 0.5, height * down, title)
    every = list(figure.subplots(down, across, squeeze=False, sharey="row" if shared else "none").flat)
    for axes in every[len(plots) :]:
        axes.set_visible(False)
    for i, (axes, (head, lines)) in enumerate(zip(every, plots.items(), strict=False)):
        lowest = i + across >= len(plots)
        xname = words["xlabel"][i] if lowest or not isinstance(xlabel, str) else ""
        dress(axes, xlabel=xname, ylabel=words["ylabel"][i], title=head)
        _plot(axes, lines, words["log"][i], colour, set(dashed), set(faint), steps)
    if zero:  # when all is drawn, since plots may share an axis
        for axes in every[: len(plots)]:
            if axes.get_yscale() != "log":
                low, high = axes.get_ylim()
                axes.set_ylim(min(low, 0.0), max(high, 0.0))
    some = plain[:: -(-len(plain) // NAMED)] if ordered else plain
    named = [name for name in names if name in some or name in dashed]
    _legend(figure, colour, named, set(dashed), beside=len(plots) == 1, width=width * across)
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
        raise InputError("bars got no groups: expected {name: values}")
    colour = _colours(list(groups), "groups")
    found = {name: array(name, values, ("bars",)) for name, values in groups.items()}
    for name, values in found.items():
        if len(values) != len(names):
            raise InputError(f"{name!r} holds {len(values)} values for {len(names)} names: expected one a name")
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
    axes: Axes, lines: Lines, log: str, colour: Mapping[str, str], dashed: set[str], faint: set[str], steps: bool
) -> None:
    if log not in LOGS:
        raise InputError(f"log={log!r}: expected x, y, xy, auto or nothing")
    if not lines:
        raise InputError("a plot got no lines: expected {name: (x, y)}")
    pairs = {name: _pair(name, line) for name, line in lines.items()}
    auto = log == "auto"
    if auto:
        log = "".join(axis for i, axis in enumerate("xy") if _spans([pair[i] for pair in pairs.values()], WIDE[axis]))
    for name, (x, y) in pairs.items():
        for axis, values in (("x", x), ("y", y)):
            if axis in log and np.nanmin(values) <= 0 and not auto:
                raise InputError(
                    f"log={log!r} with {axis} down to {np.nanmin(values):.3g} in {name!r}: a logarithm needs "
                    "numbers above 0"
                )
        axes.plot(
            x, y, color=colour[name], label=name, linestyle=(0, (4, 3)) if name in dashed else "-",
            linewidth=1.2 if name in dashed | faint else 1.8, drawstyle="steps-mid" if steps else "default",
            marker="o" if len(x) <= MARKED and name not in dashed | faint and not steps else "", markersize=4,
            zorder=1.5 if name in faint else 2,
        )  # fmt: skip
    if "x" in log:
        axes.set_xscale("log")
    if "y" in log:
        axes.set_yscale("log")
    _plain_numbers(axes, log)
    axes.minorticks_off()
    axes.set_axisbelow(True)
    axes.grid(True, color=HAIR, linewidth=0.8)


def _plain_numbers(axes: Axes, log: str) -> None:
    """On a logarithmic axis that stays between a thousandth and a million: 0.01, 1, 1,000."""
    from matplotlib.ticker import FuncFormatter, LogLocator

    for name, axis, (low, high) in (("x", axes.xaxis, axes.get_xlim()), ("y", axes.yaxis, axes.get_ylim())):
        if name in log and high < 50 * low:  # too little for powers of ten alone
            axis.set_major_locator(LogLocator(subs=(1.0, 2.0, 5.0)))
        if name in log and low >= 1e-3 and high <= 3e6:
            axis.set_major_formatter(FuncFormatter(lambda value, _: f"{value:,g}"))
    measured = {float(x) for line in axes.get_lines() for x in np.asarray(line.get_xdata(), dtype=float)}
    if "x" in log and 2 <= len(measured) <= MARKED:  # a tick where there is a point
        axes.set_xticks(sorted(measured)[:: -(-len(measured) // 6)])


def _pair(name: str, line: tuple[npt.ArrayLike, npt.ArrayLike]) -> tuple[Array, Array]:
    if not isinstance(line, tuple | list) or len(line) != 2:
        raise InputError(f"{name!r} is a {type(line).__name__}: expected a pair (x, y)")
    x, y = array(f"x of {name!r}", line[0], ("points",)), array(f"y of {name!r}", line[1], ("points",))
    if len(x) != len(y):
        raise InputError(f"{name!r} has {len(x)} x and {len(y)} y: expected as many")
    return x, y


def _spans(values: Sequence[Array], factor: float) -> bool:
    """Whether numbers, none below 0, differ by more than a factor; a 0 among them stays off a logarithmic axis."""
    every = np.concatenate([x[np.isfinite(x)] for x in values])
    above = every[every > 0]
    return bool(every.min() >= 0 and len(above) and above.max() > factor * above.min())


def _each(key: str, value: str | Sequence[str], n: int) -> list[str]:
    found = [value] * n if isinstance(value, str) else list(value)
    if len(found) != n:
        raise InputError(f"{key} has {len(found)} for {n} plots: expected one for all, or one a plot")
    return found


def _colours(names: Sequence[str], what: str) -> dict[str, str]:
    if len(names) > len(PALETTE):
        raise InputError(f"{len(names)} {what}: there are {len(PALETTE)} colours that everybody can tell apart")
    return dict(zip(names, PALETTE, strict=False))


def _shades(names: Sequence[str]) -> dict[str, str]:
    """Colours from pale to dark, for names that have an order."""
    from matplotlib.colors import to_hex

    places = np.linspace(0.25, 1.0, len(names)) if len(names) > 1 else [0.6]
    return {name: to_hex(colours(False)(float(place))) for name, place in zip(names, places, strict=True)}


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
