"""The story of a training in figures: its curves, and step by step what every head and every block did."""

from __future__ import annotations

import os
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
from matplotlib.figure import Figure

from .. import draw
from ..errors import InputError
from ..training.run_folder import Folder, FolderError

HEADS = {  # what the view inside measures of a head, and in which words it is drawn
    "entropy": "entropy (nats)",
    "distance": "mean distance (tokens)",
    "sink": "weight on the first token",
}
MOST_LINES, MOST_LAYERS = 6, 6  # heads a layer and layers that lines can show; more of them are drawn as cells
Line = tuple[Any, Any]
Metrics = list[dict[str, Any]]


def plot(*runs: str | os.PathLike[str], out: str | os.PathLike[str] | None = None) -> list[Figure] | list[Path]:
    """Draw run folders: the figures, or with `out` the files they were written to, all beside the first one.

    One run gives its curves and, if it was looked inside, heads and blocks by step; several share their axes.
    """
    if not runs:
        raise InputError("plot got no run: expected one run folder or more")
    names = _names([Path(run) for run in runs])
    metrics = {name: _metrics(Path(run)) for name, run in zip(names, runs, strict=True)}
    figures = {"": _several(metrics)} if len(metrics) > 1 else _one(*metrics.values(), title=names[0])
    if out is None:
        return list(figures.values())
    first = Path(out)
    return [
        draw.save(figure, first.with_name(f"{first.stem}-{kind}{first.suffix}") if kind else first)
        for kind, figure in figures.items()
    ]


def _metrics(run: Path) -> Metrics:
    metrics = Folder(run, create=False, lock=False).metrics()
    if not metrics:
        raise FolderError(f"{run / 'metrics.jsonl'} holds nothing to draw: expected the folder of a run that has begun")
    return metrics


def _names(runs: Sequence[Path]) -> list[str]:
    """The shortest ends of the paths that tell the runs apart."""
    full = [run.resolve().parts for run in runs]
    if len(set(full)) < len(full):
        raise InputError("plot got a run twice: expected different folders")
    depth = 1
    while len({parts[-depth:] for parts in full}) < len(full):
        depth += 1
    return ["/".join(parts[-depth:]) for parts in full]


# The curves


def _one(metrics: Metrics, *, title: str) -> dict[str, Figure]:
    figures = {"": _curves(metrics, title)}
    looks = [(line["step"], line["inside"]) for line in metrics if line.get("inside")]
    if looks:
        figures |= _heads(looks) | _blocks(looks)
    return figures


def _curves(metrics: Metrics, title: str) -> Figure:
    both = {"training": line(metrics, "loss"), "validation": line(metrics, "valid_loss")}
    plots: dict[str, dict[str, Line]] = {"loss": {name: some for name, some in both.items() if some}}
    if accuracy := line(metrics, "valid_accuracy"):
        plots["accuracy"] = {"validation": accuracy}
    for head, key in (("learning rate", "lr"), ("norm of the gradient", "norm")):
        if some := line(metrics, key):
            plots[head] = {"training": some}
    plots = {head: lines for head, lines in plots.items() if lines}
    return draw.panels(
        plots, xlabel="steps", title=title, zero=True, across=2 if len(plots) > 2 else None, width=3.8, height=2.6,
        log=["" if head in ("accuracy", "learning rate") else "auto" for head in plots],
    )  # fmt: skip


def _several(runs: Mapping[str, Metrics]) -> Figure:
    plots: dict[str, dict[str, Line]] = {}
    for head, key in (
        ("loss", "loss"), ("validation loss", "valid_loss"), ("validation accuracy", "valid_accuracy"),
        ("norm of the gradient", "norm"),
    ):  # fmt: skip
        lines = {name: some for name, metrics in runs.items() if (some := line(metrics, key))}
        if lines:
            plots[head] = lines
    return draw.panels(
        plots, xlabel="steps", log=["" if head == "validation accuracy" else "auto" for head in plots],
        across=2 if len(plots) > 2 else None, width=3.8, height=2.6,
    )  # fmt: skip


def line(metrics: Metrics, key: str) -> Line | None:
    """A measure against steps."""
    pairs = [(record["step"], record[key]) for record in metrics if record.get(key) is not None]
    return tuple(np.array(pairs, dtype=float).T) if pairs else None


# The view inside


def _heads(looks: list[tuple[int, dict[str, Any]]]) -> dict[str, Figure]:
    """Each measure of every head by step: lines where they are few, cells where they are many."""
    steps = np.array([step for step, _ in looks])
    layers = [key.removesuffix(".entropy") for key in looks[0][1] if key.endswith(".entropy")]
    if not layers:
        return {}
    values = {  # (steps, heads)
        (kind, layer): np.array([view[f"{layer}.{kind}"] for _, view in looks], dtype=float)
        for kind in HEADS
        for layer in layers
        if f"{layer}.{kind}" in looks[0][1]
    }
    most = max(x.shape[1] for x in values.values())
    if most <= MOST_LINES and len(layers) <= MOST_LAYERS:
        plots = {
            f"{layer}.{kind}": {f"head {h}": (steps, x[:, h]) for h in range(x.shape[1])}
            for (kind, layer), x in values.items()
        }
        ylabel = [HEADS[kind] if layer == layers[0] else "" for kind, layer in values]
        figure = draw.panels(
            plots, xlabel="steps", ylabel=ylabel, zero=True, shared=True, across=len(layers), width=3.2, height=2.5
        )  # fmt: skip
        return {"heads": figure}
    every = {kind: [values[kind, layer] for layer in layers if (kind, layer) in values] for kind in HEADS}
    return {
        kind: draw.heatmap(
            _stacked(some), rows=_layer_names(layers, some), columns=_step_names(steps), title=HEADS[kind],
            xlabel="steps", ylabel="heads", square=False,
        )
        for kind, some in every.items() if some
    }  # fmt: skip


def _stacked(layers: list[Any]) -> Any:
    """Heads of all layers below each other (rows, steps), an empty row between layers."""
    empty = np.full((len(layers[0]), 1), np.nan)
    return np.concatenate([x for layer in layers for x in (empty, layer)][1:], axis=1).T


def _layer_names(names: list[str], layers: list[Any]) -> list[str]:
    """Each layer's name at its middle head."""
    found = []
    for name, x in zip(names, layers, strict=True):
        found += [name if h == (x.shape[1] - 1) // 2 else "" for h in range(x.shape[1])] + [""]
    return found[:-1]


def _step_names(steps: Any) -> list[str]:
    """A few steps, evenly apart."""
    every = -(-len(steps) // 6)
    return [f"{step:,}" if i % every == every - 1 else "" for i, step in enumerate(steps)]


def _blocks(looks: list[tuple[int, dict[str, Any]]]) -> dict[str, Figure]:
    """The norm of the gradient of each block, and the size of what it passes on."""
    steps = np.array([step for step, _ in looks])
    names = sorted(looks[0][1]["gradient"], key=lambda name: name == "rest")  # the blocks, then what is in none
    gradients = {name: np.array([view["gradient"][name] for _, view in looks]) for name in names}
    sizes = {name: np.array([view[name] for _, view in looks]) for name in gradients if name in looks[0][1]}
    plots = {"norm of the gradient": gradients, "root mean square passed on": sizes}
    return {
        "blocks": draw.panels(
            {head: {name: (steps, y) for name, y in lines.items()} for head, lines in plots.items() if lines},
            xlabel="steps", log="auto", ordered=True, dashed=[name for name in gradients if name == "rest"],
            width=4.2, height=3.0,
        )
    }  # fmt: skip
