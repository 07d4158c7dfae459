"""Figures of a run's probes: statistics of every head, and gradients and outputs of every block, against steps."""

from __future__ import annotations

from typing import Any

import numpy as np
from matplotlib.figure import Figure

from .. import draw

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
        # Of several players a record has a view per player; a view always has gradients.
        for player, view in ({"": inside} if "gradient" in inside else inside).items():
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
    values = {  # (steps, heads)
        (kind, layer): np.array([view[f"{layer}.{kind}"] for _, view in views], dtype=float)
        for kind in HEADS
        for layer in layers
        if f"{layer}.{kind}" in views[0][1]
    }
    most = max(x.shape[1] for x in values.values())
    if most <= MOST_LINES and len(layers) <= MOST_LAYERS:
        plots = {
            f"{layer}.{kind}": {f"head {h}": (steps, x[:, h]) for h in range(x.shape[1])}
            for (kind, layer), x in values.items()
        }
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
        return {"heads": figure}
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
    empty = np.full((len(layers[0]), 1), np.nan)
    return np.concatenate([x for layer in layers for x in (empty, layer)][1:], axis=1).T


def _layer_names(names: list[str], layers: list[Any]) -> list[str]:
    """A label per row of `_stacked`: each layer's name at its middle head, and else nothing."""
    labels: list[str] = []
    for name, x in zip(names, layers, strict=True):
        labels += [name if h == (x.shape[1] - 1) // 2 else "" for h in range(x.shape[1])] + [""]
    return labels[:-1]


def _step_names(steps: Any) -> list[str]:
    """A label per column: a few steps at equal intervals, and else nothing."""
    every = -(-len(steps) // 6)
    return [f"{step:,}" if i % every == every - 1 else "" for i, step in enumerate(steps)]


def _blocks(views: Views) -> dict[str, Figure]:
    """The norm of the gradient of each block, and the root mean square of its output."""
    steps = np.array([step for step, _ in views])
    # what is in no block comes last
    names = sorted(views[0][1]["gradient"], key=lambda name: name == "rest")
    gradients = {name: np.array([view["gradient"][name] for _, view in views]) for name in names}
    sizes = {
        name: np.array([view[name] for _, view in views]) for name in names if name in views[0][1]
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
            dashed=["rest"] if "rest" in names and len(names) > 1 else [],
            width=4.2,
            height=3.0,
        )
    }
