"""plot: the curves of training runs, and what their probes recorded of every head and block."""

from __future__ import annotations

import os
from collections.abc import Mapping, Sequence
from pathlib import Path

from matplotlib.figure import Figure

from .. import draw
from ..errors import InputError
from ..training.run_folder import FolderError
from .probe_figures import probe_figures
from .run_metrics import Line, RunMetrics, words

Panels = dict[str, tuple[dict[str, Line], str]]  # by title: the lines by name, and the unit of the y axis


def plot(*runs: str | os.PathLike[str], out: str | os.PathLike[str] | None = None) -> list[Figure] | list[Path]:
    """Draw training runs: every loss, validation measurement, learning rate and gradient norm against steps.

    One run also has figures of its heads and blocks, if it was probed (`inside_every` of a recipe). Several runs share
    their axes.

    Args:
        runs: Run folders.
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
    names = _names([Path(run) for run in runs])
    metrics = {name: _read(Path(run)) for name, run in zip(names, runs, strict=True)}
    figures = {"": _compare(metrics)} if len(metrics) > 1 else _figures(*metrics.values(), title=names[0])
    if out is None:
        return list(figures.values())
    first = Path(out)
    return [
        draw.save(figure, first.with_name(f"{first.stem}-{kind}{first.suffix}") if kind else first)
        for kind, figure in figures.items()
    ]


def _read(path: Path) -> RunMetrics:
    run = RunMetrics.read(path)
    if not run.names:
        raise FolderError(
            f"{path / 'metrics.jsonl'} has no losses or measurements: expected the folder of a run that has begun"
        )
    return run


def _names(runs: Sequence[Path]) -> list[str]:
    """The shortest ends of the paths that differ."""
    full = [run.resolve().parts for run in runs]
    if len(set(full)) < len(full):
        raise InputError("plot got a run twice: expected different folders")
    depth = 1
    while len({parts[-depth:] for parts in full}) < len(full):
        depth += 1
    return ["/".join(parts[-depth:]) for parts in full]


def _figures(run: RunMetrics, *, title: str) -> dict[str, Figure]:
    """All figures of one run, by the word that is added to the file name."""
    return {"": _draw(_panels(run), title=title, zero=True)} | probe_figures(run.records)


def _panels(run: RunMetrics) -> Panels:
    """The panels of one run: lines for training and validation, or for each player."""
    panels: dict[str, tuple[dict[str, str], str]] = {}
    for loss in run.losses:
        panels[words(loss)] = {"training": loss, "validation": f"valid_{loss}"}, run.unit(loss)
    for name in run.measurements:
        panels[words(name)] = {"validation": name}, run.unit(name)
    for title, kind in (("learning rate", "lr"), ("norm of the gradient", "norm")):
        panels[title] = {player or "training": name for name, player in run.by_player(kind)}, ""
    for name in run.others:
        panels.setdefault(words(name), ({}, ""))[0]["training"] = name
    found: Panels = {}
    for title, (names, unit) in panels.items():
        lines = {label: line for label, name in names.items() if (line := run.line(name))}
        if lines:
            found[title] = lines, unit
    return found


def _compare(runs: Mapping[str, RunMetrics]) -> Figure:
    """One figure of several runs: a panel per number, a line per run."""
    titles: dict[str, str] = {}  # of each number
    for run in runs.values():
        for loss in run.losses:
            titles |= {loss: words(loss), f"valid_{loss}": f"validation {words(loss)}"}
    for run in runs.values():
        titles |= {name: f"validation {words(name)}" for name in run.measurements}
    for run in runs.values():
        titles |= {
            name: "norm of the gradient" + (f", {player}" if player else "") for name, player in run.by_player("norm")
        }
    panels: Panels = {}
    for name, title in titles.items():
        lines = {label: line for label, run in runs.items() if (line := run.line(name))}
        if lines:
            units = dict.fromkeys(unit for run in runs.values() if (unit := run.unit(name)))
            panels[title] = lines, " or ".join(units)
    return _draw(panels)


def _draw(panels: Panels, *, title: str = "", zero: bool = False) -> Figure:
    linear = [unit == "share" or head.endswith(("accuracy", "learning rate")) for head, (_, unit) in panels.items()]
    return draw.panels(
        {head: lines for head, (lines, _) in panels.items()}, ylabel=[unit for _, unit in panels.values()],
        log=["" if one else "auto" for one in linear], xlabel="steps", title=title, zero=zero,
        across=None if len(panels) < 3 else 2 if len(panels) < 5 else 3, width=3.8, height=2.6,
    )  # fmt: skip
