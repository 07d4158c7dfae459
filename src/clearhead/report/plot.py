"""plot: the curves of training runs, and what their probes recorded of every head and block."""

from __future__ import annotations

import os
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.ticker import MaxNLocator

from .. import draw
from ..errors import InputError
from ..training.run_folder import FolderError
from .run_metrics import Line, RunMetrics, words

HEADS = {  # the statistics of a head, and the labels of their axes
    "entropy": "entropy (nats)",
    "distance": "mean distance (tokens)",
    "sink": "weight on the first token",
}
# heads per layer and layers that are drawn as lines; more are drawn as cells
MOST_LINES, MOST_LAYERS = 6, 6
Views = list[tuple[int, dict[str, Any]]]  # steps, and what a probe recorded in each


def probe_figures(records: list[dict[str, Any]]) -> dict[str, Figure]:
    """The figures of all probes, by the word that is added to the file name: heads, blocks, or heads-PLAYER."""
    players: dict[str, Views] = {}
    for record in records:
        inside = record.get("inside") or {}
        # With several players a record has one view per player; every view has gradients.
        for player, view in ({"": inside} if "gradient" in inside else inside).items():
            # A probe runs every few steps, so a view has its step beside it.
            players.setdefault(player, []).append((record["step"], view))
    figures: dict[str, Figure] = {}
    for player, views in players.items():
        suffix = f"-{player}" if len(players) > 1 else ""
        figures |= {
            f"{kind}{suffix}": figure for kind, figure in (_heads(views) | _blocks(views)).items()
        }
    return figures


def _heads(views: Views) -> dict[str, Figure]:
    """Each statistic of every head: lines for a few heads, cells for many."""
    steps = np.array([step for step, _ in views])
    layers = [key.removesuffix(".entropy") for key in views[0][1] if key.endswith(".entropy")]
    if not layers:
        return {}
    # The addresses of probed layers, each with several statistics.
    values = {  # (steps, heads)
        (kind, layer): np.array([view[f"{layer}.{kind}"] for _, view in views], dtype=float)
        for kind in HEADS
        for layer in layers
        if f"{layer}.{kind}" in views[0][1]
    }
    most = max(x.shape[1] for x in values.values())
    # A grid of panels, a column per layer and a row per statistic, which is readable for a small
    # model only.
    if most <= MOST_LINES and len(layers) <= MOST_LAYERS:
        plots = {
            # One panel, with a line per head.
            f"{layer}.{kind}": {f"head {h}": (steps, x[:, h]) for h in range(x.shape[1])}
            for (kind, layer), x in values.items()
        }
        # Rows share their axis, so only the first column is labelled.
        ylabel = [HEADS[kind] if layer == layers[0] else "" for kind, layer in values]
        figure = draw.panels(
            plots,
            xlabel="steps",
            ylabel=ylabel,
            zero=True,
            shared=True,
            across=len(layers),
            width=3.2,
            height=2.5,
        )
        # One file, because all panels fit into one figure.
        return {"heads": figure}
    # Larger models: a heat map per statistic, with steps as columns and all heads as rows.
    every = {
        kind: [values[kind, layer] for layer in layers if (kind, layer) in values] for kind in HEADS
    }
    return {
        kind: draw.heatmap(
            _stacked(some),
            rows=_layer_names(layers, some),
            columns=_step_names(steps),
            title=HEADS[kind],
            xlabel="steps",
            ylabel="heads",
            square=False,
        )
        for kind, some in every.items()
        if some
    }


def _stacked(layers: list[Any]) -> Any:
    """The heads of all layers below each other (rows, steps), with an empty row between layers."""
    # A column of NaN is drawn as a gap.
    empty = np.full((len(layers[0]), 1), np.nan)
    # (steps, heads) of each layer side by side, then transposed: (heads and gaps, steps). The first
    # gap is left out.
    return np.concatenate([x for layer in layers for x in (empty, layer)][1:], axis=1).T


def _layer_names(names: list[str], layers: list[Any]) -> list[str]:
    """A label per row of `_stacked`: each layer's name at its middle head, and else nothing."""
    labels: list[str] = []
    for name, x in zip(names, layers, strict=True):
        # The empty label belongs to the gap after the layer.
        labels += [name if h == (x.shape[1] - 1) // 2 else "" for h in range(x.shape[1])] + [""]
    return labels[:-1]


def _step_names(steps: Any) -> list[str]:
    """A label per column: a few steps at equal intervals, and else nothing."""
    # Six labels at most, so that they do not overlap.
    every = -(-len(steps) // 6)
    return [f"{step:,}" if i % every == every - 1 else "" for i, step in enumerate(steps)]


def _blocks(views: Views) -> dict[str, Figure]:
    """The norm of the gradient of each block, and the root mean square of its output."""
    steps = np.array([step for step, _ in views])
    # Parameters outside the blocks come last.
    names = sorted(views[0][1]["gradient"], key=lambda name: name == "rest")
    gradients = {name: np.array([view["gradient"][name] for _, view in views]) for name in names}
    sizes = {
        # The rest has a gradient but no output of its own.
        name: np.array([view[name] for _, view in views])
        for name in names
        if name in views[0][1]
    }
    plots = {"norm of the gradient": gradients, "root mean square of the output": sizes}
    return {
        "blocks": draw.panels(
            {
                head: {name: (steps, y) for name, y in lines.items()}
                for head, lines in plots.items()
                if lines
            },
            xlabel="steps",
            log="auto",
            ordered=True,
            # The rest is no block and has no place in the order of depth.
            dashed=["rest"] if "rest" in names and len(names) > 1 else [],
            width=4.2,
            height=3.0,
        )
    }


# by title: the lines by name, and the unit of the y axis
Panels = dict[str, tuple[dict[str, Line], str]]
METRICS = "metrics.jsonl"  # the file of a run's curves
ALL_PLAYERS = "all players"  # the name of a line that is the same for every player


def plot(
    *runs: str | os.PathLike[str], out: str | os.PathLike[str] | None = None
) -> list[Figure] | list[Path]:
    """Draw training runs: every loss, validation measurement, learning rate and gradient norm against steps.

    One run also has figures of its heads and blocks, if it was probed (`inside_every` of a recipe). Several runs share
    their axes, except for numbers in different units.

    Args:
        runs: Run folders, or folders of runs such as those of a sweep.
        out: The file to write the first figure to; others are written beside it.

    Returns:
        The figures, or with `out` the files that they were written to.

    Examples:
        >>> recipe = {"steps": 2, "data": {"name": "reverse"}, "model": {"name": "gpt", "width": 16, "heads": 2}}
        >>> run = clearhead.train(recipe, "model.depth=1", out=tmp / "run", device="cpu", quiet=True)
        >>> [path.name for path in plot(run.folder, out=tmp / "run.png")]
        ['run.png']
    """
    if not runs:
        raise InputError("plot got no run: expected one run folder or more")
    folders = [folder for run in runs for folder in _runs_in(Path(run))]
    names = _names(folders)
    metrics = {name: _read(folder) for name, folder in zip(names, folders, strict=True)}
    # Several runs would need a figure of heads each: only their curves are compared.
    if len(metrics) > 1:
        figures = {"": _compare(metrics)}
    else:
        figures = _figures(*metrics.values(), title=names[0])
    if out is None:
        return list(figures.values())
    first = Path(out)
    return [
        draw.save(figure, first.with_name(f"{first.stem}-{kind}{first.suffix}") if kind else first)
        for kind, figure in figures.items()
    ]


def _runs_in(folder: Path) -> list[Path]:
    """The run folders inside a folder, such as a sweep's; a run folder is returned itself."""
    # What is no folder at all is left to the reader, whose message names it.
    if (folder / METRICS).is_file() or not folder.is_dir():
        return [folder]
    return sorted(path.parent for path in folder.glob(f"*/{METRICS}")) or [folder]


def _read(path: Path) -> RunMetrics:
    run = RunMetrics.read(path)
    if not run.names:
        raise FolderError(
            f"{path / 'metrics.jsonl'} has no losses or measurements: expected the folder of a run that has begun"
        )
    return run


def _names(runs: Sequence[Path]) -> list[str]:
    """The names of runs: the last parts of each path, as few as tell the runs apart."""
    full = [run.resolve().parts for run in runs]
    # The same folder in two spellings, such as runs/a and ./runs/a.
    if len(set(full)) < len(full):
        raise InputError("plot got a run twice: expected different folders")
    depth = 1
    # runs/a/1 and runs/b/1 become a/1 and b/1.
    while len({parts[-depth:] for parts in full}) < len(full):
        # One folder further up, until no two names are equal.
        depth += 1
    return ["/".join(parts[-depth:]) for parts in full]


def _figures(run: RunMetrics, *, title: str) -> dict[str, Figure]:
    """All figures of one run, by the word that is added to the file name."""
    linear = [words(name) for name in run.others]
    return {"": _draw(_panels(run), linear, title=title, zero=True)} | probe_figures(run.records)


def _panels(run: RunMetrics) -> Panels:
    """The panels of one run: lines for training and validation, or for each player."""
    panels: dict[str, tuple[dict[str, str], str]] = {}
    # A loss and its validation share a panel: their distance is the overfitting.
    for loss in run.losses:
        panels[words(loss)] = {"training": loss, "validation": f"valid_{loss}"}, run.unit(loss)
    for name in run.measurements:
        panels[words(name)] = {"validation": name}, run.unit(name)
    # Each player has an optimiser of its own.
    for title, kind in (("learning rate", "lr"), ("norm of the gradient", "norm")):
        # A run with a single player has one line, named like the line of a loss.
        panels[title] = {player or "training": name for name, player in run.by_player(kind)}, ""
    for name in run.others:
        # A number that shares its name with a measurement becomes a second line of that panel.
        panels.setdefault(words(name), ({}, ""))[0]["training"] = name
    found: Panels = {}
    for title, (names, unit) in panels.items():
        # Panels without a line, such as a validation that was never run, are left out.
        lines = {label: line for label, name in names.items() if (line := run.line(name))}
        if lines:
            # Players often share one schedule, which needs one line.
            found[title] = _merge(lines) if title == "learning rate" else lines, unit
    return found


def _merge(lines: dict[str, Line]) -> dict[str, Line]:
    """The lines of several players, or one line if they are all the same."""
    first, *rest = lines.values()
    same = all(np.array_equal(first, line) for line in rest)
    return {ALL_PLAYERS: first} if rest and same else lines


def _compare(runs: Mapping[str, RunMetrics]) -> Figure:
    """One figure of several runs: a panel per number and unit, a line per run."""
    titles: dict[str, str] = {}  # of each number
    # The order of the panels: losses first, then measurements, then gradient norms, over all runs.
    for run in runs.values():
        for loss in run.losses:
            titles |= {loss: words(loss), f"valid_{loss}": f"validation {words(loss)}"}
    for run in runs.values():
        titles |= {name: f"validation {words(name)}" for name in run.measurements}
    for run in runs.values():
        for name, player in run.by_player("norm"):
            titles[name] = "norm of the gradient"
            if player:
                titles[name] += f", {player}"
    panels: Panels = {}
    for name, title in titles.items():
        lines = {label: line for label, run in runs.items() if (line := run.line(name))}
        # The same name may have different units, such as nats per token and per character: they
        # cannot share an axis.
        units = dict.fromkeys(runs[label].unit(name) for label in lines)
        for unit in units:
            # The runs that measure this number in this unit.
            own = {label: line for label, line in lines.items() if runs[label].unit(name) == unit}
            panel = title
            if len(units) > 1:
                panel += f" ({unit or 'unit unknown'})"
            panels[panel] = own, unit
    return _draw(panels)


def _draw(
    panels: Panels, linear: Sequence[str] = (), *, title: str = "", zero: bool = False
) -> Figure:
    """Draw panels; shares, scores, learning rates and `linear` are never logarithmic, nor are numbers that reach 0."""
    # one row for two panels, at most two rows for four; more panels need three columns
    across = None
    if len(panels) > 2:
        across = 2 if len(panels) < 5 else 3
    figure = draw.panels(
        {head: lines for head, (lines, _) in panels.items()},
        ylabel=[unit for _, unit in panels.values()],
        log=["" if _is_linear(head, panel, linear) else "auto" for head, panel in panels.items()],
        xlabel="steps",
        title=title,
        zero=zero,
        across=across,
        width=3.8,
        height=2.6,
    )
    for axes, (lines, unit) in zip(figure.axes, panels.values(), strict=False):
        # After drawing, because the scale of the axis decides on its limits.
        _set_limits(axes, _values(lines), unit)
    return figure


def _is_linear(title: str, panel: tuple[dict[str, Line], str], linear: Sequence[str]) -> bool:
    lines, unit = panel
    # Bounded quantities are read on a linear axis, and a logarithm needs values above 0.
    known = (
        unit.startswith(("share", "score"))
        or title in linear
        or title.endswith(("accuracy", "learning rate"))
    )
    return known or bool(_values(lines).min() <= 0)


def _set_limits(axes: Axes, values: np.ndarray, unit: str) -> None:
    """Set the limits of an axis: 0 to 1 for a share; from 0 on, with whole ticks, for a count."""
    low, high = float(values.min()), float(values.max())
    if unit == "share" and low >= 0 and high <= 1:
        top = 1.0 if high > 0.5 else high or 1.0  # a small share would be hard to read
    elif (
        unit
        and low >= 0
        and axes.get_yscale() == "linear"
        and np.array_equal(values, values.round())
    ):
        top = high or 1.0
        # Whole numbers, such as counts, get whole ticks.
        axes.yaxis.set_major_locator(MaxNLocator(nbins=5, integer=True))
    else:
        return
    margin = 0.05 * top
    axes.set_ylim(min(low - margin, 0.0), top + margin)


def _values(lines: Mapping[str, Line]) -> np.ndarray:
    return np.concatenate([np.asarray(y, dtype=float) for _, y in lines.values()])
