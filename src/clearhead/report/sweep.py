"""sweep: train the alternatives of a recipe and draw them side by side."""

from __future__ import annotations

import math
import statistics
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np

from .. import draw
from ..training import Recipe
from ..training.sweep import Sweep, train_alternatives, without_seed
from .run_metrics import Line, RunMetrics, words

# lines that draw.panels can tell apart, by colour and dashes; of more alternatives, the worst are
# faint
DISTINCT = 21


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

    Alternatives that are finished there are not trained again, and one that fails does not stop the others. The results
    are kept as sweep.json and sweep.png.

    Args:
        recipe: A .toml or .json file, a table, or a Recipe; or a file of data, as `train` takes it.
        overrides: Values to change; commas separate alternatives: "seed=1,2,3". A list in brackets is one value.
        out: A folder for all trainings.
        data: A folder in which data files are looked for first.
        device: auto, cpu, cuda, cuda:1 or mps.
        jobs: Trainings at a time, each in a process of its own if more than one.
        quiet: Print nothing but warnings.

    Returns:
        The result of each alternative, and their means over seeds.

    Examples:
        >>> recipe = {"steps": 2, "data": {"name": "reverse"}, "model": {"name": "gpt", "width": 16, "heads": 2}}
        >>> result = sweep(recipe, "model.depth=1", "seed=1,2", out=tmp / "sweep", device="cpu", quiet=True)
        >>> [trial.choices for trial in result.trials]
        [{'seed': '1'}, {'seed': '2'}]
    """
    result = train_alternatives(
        recipe, *overrides, out=out, data=data, device=device, jobs=jobs, quiet=quiet
    )
    draw_sweep(result)
    return result


def draw_sweep(result: Sweep) -> None:
    """Write sweep.png: every loss and its validation against steps, a line per alternative, the mean over seeds."""
    groups: dict[str, list[RunMetrics]] = {}
    # Alternatives that differ in the seed only are one line.
    for choices, trials in without_seed(result.trials):
        # The last part of a dotted key is enough: optim.lr=1e-3 becomes lr=1e-3.
        name = (
            ", ".join(f"{key.rsplit('.', 1)[-1]}={value}" for key, value in choices.items())
            or "mean over seeds"
        )
        # A trial that failed before its first step has no folder.
        groups[name] = [RunMetrics.read(trial.folder) for trial in trials if trial.folder.is_dir()]
    runs = [run for some in groups.values() for run in some]
    losses = list(dict.fromkeys(loss for run in runs for loss in run.losses))
    titles = {
        name: title
        for loss in losses
        for name, title in ((loss, words(loss)), (f"valid_{loss}", f"validation {words(loss)}"))
    }
    lines = {name: _mean_lines(groups, name) for name in titles}
    # A single point is no curve: a run that validated once is left out of that panel.
    drawn = {
        name: some
        for name, some in lines.items()
        if some and max(len(x) for x, _ in some.values()) > 1
    }
    if drawn:
        last: dict[str, float] = {}  # of the first loss, by its validation where there is one
        for name in (losses[0], f"valid_{losses[0]}"):
            # The later name, validation, replaces the training loss where it was measured.
            last |= {label: float(y[-1]) for label, (_, y) in lines[name].items()}
        labels = dict.fromkeys(label for some in drawn.values() for label in some)
        # The best alternatives, with the lowest final loss, keep colours of their own.
        faint = sorted(labels, key=lambda label: last.get(label, math.inf))[DISTINCT:]
        figure = draw.panels(
            {titles[name]: some for name, some in drawn.items()},
            xlabel="steps",
            log="auto",
            faint=faint,
            width=4.2,
            ylabel=[next((unit for run in runs if (unit := run.unit(name))), "") for name in drawn],
            height=3.2,
            across=2 if len(drawn) > 2 else None,
        )
        draw.save(figure, result.folder / "sweep.png")


def _mean_lines(groups: Mapping[str, Sequence[RunMetrics]], name: str) -> dict[str, Line]:
    """A number against steps for each alternative that has it, averaged over the runs that have reached a step."""
    found: dict[str, Line] = {}
    for label, runs in groups.items():
        # By step: runs of several seeds may have reached different steps.
        values: dict[int, list[float]] = {}
        for run in runs:
            # A run without this number contributes nothing.
            for step, value in zip(*(run.line(name) or ((), ())), strict=True):
                # line() returns floats for steps as well.
                values.setdefault(int(step), []).append(float(value))
        if values:
            # The runs may have logged at different steps: the union needs sorting.
            steps = sorted(values)
            found[label] = (
                # Means are over the runs that have this step, so the last points may be of fewer
                # runs.
                np.array(steps),
                np.array([statistics.fmean(values[step]) for step in steps]),
            )
    return found
