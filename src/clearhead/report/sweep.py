"""sweep: train the alternatives of a recipe and draw them side by side."""

from __future__ import annotations

import statistics
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np

from .. import draw
from ..training import Recipe
from ..training.run_folder import Folder
from ..training.sweep import Sweep, train_alternatives, without_seed

COLOURS = 7  # lines that can be told apart; of more alternatives, the best have a colour


def sweep(
    recipe: str | Path | Mapping[str, Any] | Recipe,
    *overrides: str,
    out: str | Path,
    data: str | Path | None = None,
    device: str = "auto",
    jobs: int = 1,
    quiet: bool = False,
) -> Sweep:
    """Train every combination of the overrides' alternatives, each in its own folder below `out`.

    Those that are finished there are not trained again, and one that fails does not stop the others. The results are
    kept as sweep.json and sweep.png.

    Args:
        recipe: A .toml or .json file, a table, or a Recipe.
        overrides: Values to change; commas separate alternatives: "seed=1,2,3". A list in brackets is one value.
        out: A folder for all trainings.
        data: A folder in which data files are looked for first.
        device: auto, cpu, cuda, cuda:1 or mps.
        jobs: Trainings at a time, each in a process of its own if more than one.
        quiet: Print nothing but warnings.

    Examples:
        >>> recipe = {"steps": 2, "data": {"name": "reverse"}, "model": {"name": "gpt", "width": 16, "heads": 2}}
        >>> found = sweep(recipe, "model.depth=1", "seed=1,2", out=tmp / "sweep", device="cpu", quiet=True)
        >>> [trial.choices for trial in found.trials]
        [{'seed': '1'}, {'seed': '2'}]
    """
    found = train_alternatives(recipe, *overrides, out=out, data=data, device=device, jobs=jobs, quiet=quiet)
    _draw(found)
    return found


def _draw(found: Sweep) -> None:
    """sweep.png: the loss and its validation against steps, a colour per alternative, the mean over seeds."""
    folders = [Folder(t.folder, create=False, lock=False) for t in found.trials if t.folder.is_dir()]
    about = next((known for folder in folders if (known := folder.about())), {})
    loss = about.get("losses", ["loss"])[0]
    valid = "valid_loss" if "valid_loss" in about.get("measurements", {"valid_loss": {}}) else f"valid_{loss}"
    lines: dict[str, dict[str, tuple[Any, Any]]] = {"loss": {}, "validation loss": {}}
    last: dict[str, float] = {}
    for choices, trials in without_seed(found.trials):
        words = [f"{key}={value}".rsplit(".", 1)[-1] for key, value in choices.items()]
        name = ", ".join(words) or "mean over seeds"
        runs = [Folder(t.folder, create=False, lock=False).metrics() for t in trials if t.folder.is_dir()]
        for title, measure in (("loss", loss), ("validation loss", valid)):
            line = _mean_line(runs, measure)
            if line is not None:
                lines[title][name] = line
                last[name] = float(line[1][-1])
    plots = {title: some for title, some in lines.items() if some and max(len(x) for x, _ in some.values()) > 1}
    if plots:
        faint = sorted(last, key=lambda name: last[name])[COLOURS:]
        figure = draw.panels(plots, xlabel="steps", ylabel="loss", log="auto", faint=faint, width=4.2, height=3.2)
        draw.save(figure, found.folder / "sweep.png")


def _mean_line(runs: list[list[dict[str, Any]]], measure: str) -> tuple[Any, Any] | None:
    """A measure against steps, averaged over the runs that have reached a step."""
    values: dict[int, list[float]] = {}
    for metrics in runs:
        for line in metrics:
            if line.get(measure) is not None:
                values.setdefault(line["step"], []).append(line[measure])
    steps = sorted(values)
    return (np.array(steps), np.array([statistics.fmean(values[step]) for step in steps])) if steps else None
