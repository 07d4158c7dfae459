"""Train the alternatives of a recipe, each in its own folder, and compare them; report.sweep also plots them."""

from __future__ import annotations

import dataclasses
import itertools
import math
import re
import statistics
import time
from collections import Counter
from collections.abc import Mapping, Sequence
from contextlib import ExitStack
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from rich.console import Console, Group
from rich.table import Table

from .. import config
from ..atomic_files import atomic_write
from ..errors import InputError
from .checkpoints import latest
from .own_data.new_recipe import is_data, new_recipe
from .processes import Child, command, exit_on_sigterm
from .recipe import Recipe, read_recipe
from .run_folder import Folder, FolderError, to_json
from .train import train


@dataclass(frozen=True, kw_only=True, slots=True)
class Trial:
    """One alternative of a sweep and its result."""

    choices: dict[str, str]  # the values of the overrides that have alternatives, by key
    folder: Path  # run folder
    finished: bool = False  # whether it was trained to its last step, or until patience ran out
    parameters: int | None = None  # number of parameters; None: there is no checkpoint
    # last losses and measurements, by name
    measures: dict[str, float] = dataclasses.field(default_factory=dict)
    minutes: float = 0.0  # training time, without validation and startup
    error: str = ""  # why it failed; empty if it did not

    @property
    def name(self) -> str:
        return ", ".join(_words(self.choices))


@dataclass(frozen=True, kw_only=True, slots=True)
class Mean:
    """The mean results of one alternative over its seeds."""

    choices: dict[str, str]  # as in Trial, without the seed
    seeds: int  # number of finished trainings
    measures: dict[str, tuple[float, float]]  # mean and sample standard deviation of each measure


@dataclass(frozen=True, kw_only=True, slots=True)
class Sweep:
    """The results of a sweep, which are also saved as sweep.json in its folder.

    Examples:
        >>> from clearhead.training.sweep import Trial
        >>> losses = {"1": 0.2, "2": 0.4}
        >>> trials = [
        ...     Trial(choices={"seed": seed}, folder=tmp / f"seed={seed}", finished=True, measures={"loss": loss})
        ...     for seed, loss in losses.items()
        ... ]
        >>> result = Sweep(folder=tmp, trials=trials)
        >>> mean, deviation = result.means[0].measures["loss"]
        >>> result.finished, round(mean, 3), round(deviation, 3)
        (True, 0.3, 0.141)
    """

    folder: Path  # folder of the sweep, with a run folder per alternative
    trials: list[Trial]  # the alternatives, in the order of the overrides

    @property
    def finished(self) -> bool:
        """True if all alternatives were trained to the end."""
        return all(trial.finished for trial in self.trials)

    @property
    def means(self) -> list[Mean]:
        """The mean results over seeds; empty unless the seed has alternatives."""
        if "seed" not in self.trials[0].choices:
            return []
        means = []
        for choices, trials in without_seed(self.trials):
            measures = {}
            for measure in measure_names(trials):
                # trainings that failed have no measures
                values = [trial.measures[measure] for trial in trials if measure in trial.measures]
                deviation = statistics.stdev(values) if len(values) > 1 else 0.0
                measures[measure] = (statistics.fmean(values), deviation)
            seeds = sum(trial.finished for trial in trials)
            means.append(Mean(choices=choices, seeds=seeds, measures=measures))
        return means

    def to_dict(self) -> dict[str, Any]:
        """Everything as plain values."""
        trials = [_flat(trial) | {"folder": str(trial.folder)} for trial in self.trials]
        return {
            "folder": str(self.folder),
            "finished": self.finished,
            "trials": trials,
            "means": [_flat(mean) for mean in self.means],
        }

    def __rich__(self) -> Group:
        parts: list[Any] = [self._table_of_trials()]
        if self.means:
            parts.append(self._table_of_means())
        parts += [f"failed: {trial.name}: {trial.error}" for trial in self.trials if trial.error]
        for trial in self.trials:
            if not trial.finished and not trial.error:
                parts.append(f"unfinished: {trial.name}")
        return Group(*parts)

    def _table_of_trials(self) -> Table:
        measures = measure_names(self.trials)
        table = Table(*self.trials[0].choices)
        for head in ("parameters", *measures, "minutes"):
            table.add_column(head.replace("_", " "), justify="right")
        for trial in self.trials:
            size = "" if trial.parameters is None else f"{trial.parameters:,}"
            values = [_number(trial.measures.get(measure)) for measure in measures]
            table.add_row(*trial.choices.values(), size, *values, f"{trial.minutes:.2g}")
        return table

    def _table_of_means(self) -> Table:
        measures, title = measure_names(self.trials), "over seeds: mean ± standard deviation"
        table = Table(*self.means[0].choices, title=title, title_justify="left")
        for head in ("seeds", *measures):
            table.add_column(head.replace("_", " "), justify="right")
        for mean in self.means:
            values = []
            for measure in measures:
                # None: no training of this alternative measured it
                pair = mean.measures.get(measure)
                values.append("" if pair is None else f"{_number(pair[0])} ± {_number(pair[1])}")
            table.add_row(*mean.choices.values(), str(mean.seeds), *values)
        return table


def train_alternatives(
    recipe: str | Path | Mapping[str, Any] | Recipe,
    *overrides: str,
    out: str | Path,
    data: str | Path | None = None,
    device: str = "auto",
    jobs: int = 1,
    quiet: bool = False,
) -> Sweep:
    """Train every combination of the overrides' alternatives, and write sweep.json; see report.sweep."""
    if jobs < 1:
        raise InputError(f"jobs={jobs}: expected 1 or more")
    out, console = Path(out), Console(stderr=True, highlight=False, markup=False, quiet=quiet)
    fixed, choices = alternatives(*overrides)
    plans = []
    for choice, name in zip(choices, folder_names(choices), strict=True):
        words = (*fixed, *_words(choice))
        plans.append(_Plan(choices=choice, folder=out / name, words=words))
    # a mistake in any recipe is found before hours of training
    _read(recipe, plans, None if data is None else Path(data))
    try:
        out.mkdir(parents=True, exist_ok=True)
    except OSError as cause:
        raise FolderError(f"the folder {out} cannot be created: {cause.strerror}") from cause
    # child processes read it from a file
    if not isinstance(recipe, str | Path):
        config.write(config.dump(read_recipe(recipe)), out / "recipe.toml")
        recipe = out / "recipe.toml"
    waiting = []
    for plan in plans:
        if plan.recipe is not None and not is_finished(plan.folder, plan.recipe):
            waiting.append(plan)
        else:
            # an interrupted sweep is resumed by the same call
            console.print(f"{plan.name}: {plan.error or 'finished before'}", soft_wrap=True)
    with exit_on_sigterm():
        if jobs == 1:
            _one_by_one(recipe, waiting, data, device, console)
        else:
            _side_by_side(recipe, waiting, data, device, jobs, console)
    result = Sweep(folder=out, trials=[_trial(plan) for plan in plans])
    atomic_write(out / "sweep.json", to_json(result.to_dict()))
    return result


@dataclass(kw_only=True, slots=True)
class _Plan:
    """An alternative to train."""

    choices: dict[str, str]  # as in Trial
    folder: Path  # run folder
    words: tuple[str, ...]  # all overrides
    recipe: Recipe | None = None  # None: it cannot be read, see `error`
    error: str = ""  # why it failed

    @property
    def name(self) -> str:
        return ", ".join(_words(self.choices))


def alternatives(*overrides: str) -> tuple[list[str], list[dict[str, str]]]:
    """The overrides with one value, and all combinations of those with several: ["steps=9"], [{"seed": "1"}, ...]."""
    fixed, several = [], {}
    for word in overrides:
        name, equals, text = (part.strip() for part in word.partition("="))
        values = _split(text)
        if not equals or len(values) < 2:
            # one value: the same for all trainings
            fixed.append(word)
            continue
        if not all(values):
            raise config.ConfigError(f"on the command line: {word}: an alternative is empty")
        if len(set(values)) < len(values) or name in several:
            raise config.ConfigError(f"on the command line: {word}: an alternative is given twice")
        several[name] = values
    if not several:
        raise config.ConfigError(
            "nothing to sweep: expected alternatives with commas between them, like seed=1,2,3"
        )
    combinations = itertools.product(*several.values())
    return fixed, [dict(zip(several, values, strict=True)) for values in combinations]


def folder_names(choices: Sequence[Mapping[str, str]]) -> list[str]:
    """The name of a folder for each alternative: positions=rotary,seed=1."""
    keys = list(choices[0])
    short = {key: key.rsplit(".", 1)[-1] for key in keys}
    if len(set(short.values())) < len(keys):  # two sections have an option of this name
        short = {key: key for key in keys}

    def plain(text: str) -> str:
        return re.sub(r"[^\w.+-]+", "-", text).strip("-.") or "-"

    names = [",".join(f"{short[key]}={plain(choice[key])}" for key in keys) for choice in choices]
    # Names that differ only in replaced characters, or in case, get a number.
    counts: Counter[str] = Counter()
    for i, name in enumerate(names):
        counts[name.lower()] += 1
        if counts[name.lower()] > 1:
            # lower case: some file systems do not tell a from A
            names[i] = f"{name}~{counts[name.lower()]}"
    return names


def is_finished(folder: Path, recipe: Recipe) -> bool:
    """Whether a folder holds the finished training of exactly this recipe."""
    kept = folder / "recipe.toml"
    if not kept.exists() or not (folder / "model" / "model.safetensors").exists():
        return False
    try:
        same = config.dump(read_recipe(kept)) == config.dump(recipe)
    except config.ConfigError:
        return False
    # a model of an earlier, shorter recipe may be there: the newest checkpoint tells
    checkpoint = latest(folder / "checkpoints") if same else None
    if checkpoint is None:
        return False
    checkpoint.close()
    stopped = recipe.run.patience and checkpoint.facts["best"]["waited"] >= recipe.run.patience
    return checkpoint.step == recipe.steps or bool(stopped)


def _read(
    recipe: str | Path | Mapping[str, Any] | Recipe, plans: list[_Plan], root: Path | None
) -> None:
    """Read all recipes, or make them for a file of data, before any is trained; raises if all of them fail."""
    for plan in plans:
        try:
            if is_data(recipe):
                assert isinstance(recipe, str | Path)
                plan.recipe = read_recipe(new_recipe(recipe, *plan.words, root=root))
            else:
                plan.recipe = read_recipe(recipe, *plan.words)
        except ValueError as problem:
            # this alternative is reported as failed, and the others are trained
            plan.error = str(problem)
            if all(other.error for other in plans):
                raise


def _one_by_one(
    recipe: str | Path, plans: list[_Plan], data: str | Path | None, device: str, console: Console
) -> None:
    for n, plan in enumerate(plans, 1):
        console.print(f"{n} of {len(plans)}: {plan.name}", soft_wrap=True)
        try:
            quiet = console.quiet
            run = train(recipe, *plan.words, out=plan.folder, data=data, device=device, quiet=quiet)
        # one alternative that fails, such as a too large model, does not end the others
        except (RuntimeError, ValueError, OSError, MemoryError) as problem:
            plan.error = (str(problem).strip() or type(problem).__name__).splitlines()[0]
            console.print(f"{plan.name}: {plan.error}", soft_wrap=True)
            continue
        if not run.finished:  # a signal stopped it: stop the sweep, too
            return


def _side_by_side(
    recipe: str | Path,
    plans: list[_Plan],
    data: str | Path | None,
    device: str,
    jobs: int,
    console: Console,
) -> None:
    threads, left = max(1, torch.get_num_threads() // jobs), list(plans)
    running: list[tuple[_Plan, Child]] = []
    with ExitStack() as stack:  # which ends all children, whatever happens here
        while left or running:
            while left and len(running) < jobs:
                plan = left.pop(0)
                console.print(f"{plan.name}: started", soft_wrap=True)
                line = command(recipe, *plan.words, out=plan.folder, data=data, device=device)
                log = plan.folder.with_name(f"{plan.folder.name}.log")
                running.append((plan, stack.enter_context(Child(line, threads=threads, log=log))))
            for plan, child in [pair for pair in running if not pair[1].running]:
                running.remove((plan, child))
                if code := child.process.returncode:
                    plan.error = child.error(code)
                console.print(f"{plan.name}: {plan.error or 'done'}", soft_wrap=True)
            time.sleep(0.05)


def _trial(plan: _Plan) -> Trial:
    """The result of an alternative, read from its run folder."""
    if plan.error or plan.recipe is None or not plan.folder.is_dir():
        return Trial(choices=plan.choices, folder=plan.folder, error=plan.error)
    folder = Folder(plan.folder, create=False, lock=False)
    metrics, about = folder.metrics(), folder.about()
    names = [*about.get("losses", ["loss"]), *about.get("measurements", ())]
    last: dict[str, float] = {}
    for line in metrics:
        # losses and validations are in different lines: the last of each
        last |= {name: line[name] for name in names if line.get(name) is not None}
    parameters = None
    # counted without building the model
    if checkpoint := latest(plan.folder / "checkpoints"):
        # names are player/kind/parameter
        weights = [name for name in checkpoint.names if name.split("/")[1] == "weight"]
        parameters = sum(math.prod(checkpoint.shape(name)) for name in weights)
    return Trial(
        choices=plan.choices,
        folder=plan.folder,
        finished=is_finished(plan.folder, plan.recipe),
        parameters=parameters,
        minutes=sum(line.get("seconds", 0.0) for line in metrics) / 60,
        measures={name: last[name] for name in names if name in last},
    )


def _flat(result: Trial | Mean) -> dict[str, Any]:
    """The fields as plain values, with the measures at the top level."""
    values = dataclasses.asdict(result)
    return values | values.pop("measures")


def without_seed(trials: Sequence[Trial]) -> list[tuple[dict[str, str], list[Trial]]]:
    """Group trials that differ only in their seed, by their other choices."""
    groups: dict[tuple[tuple[str, str], ...], list[Trial]] = {}
    for trial in trials:
        rest = tuple((key, value) for key, value in trial.choices.items() if key != "seed")
        groups.setdefault(rest, []).append(trial)
    return [(dict(rest), some) for rest, some in groups.items()]


def _split(text: str) -> list[str]:
    """Split a text at its commas, except those in brackets or quotes."""
    parts, depth, quote = [""], 0, ""  # quote: the mark that the text is inside of
    for char in text:
        if quote:
            if char == quote:
                quote = ""
        elif char in "\"'":
            quote = char
        else:
            # brackets only count outside of quotes
            depth += (char in "[{") - (char in "]}")
        if char == "," and not quote and depth == 0:
            parts.append("")
        else:
            parts[-1] += char
    return [part.strip() for part in parts]


def measure_names(trials: Sequence[Trial]) -> list[str]:
    """The losses and measurements that any of the trials has."""
    return list(dict.fromkeys(name for trial in trials for name in trial.measures))


def _words(choices: Mapping[str, str]) -> list[str]:
    return [f"{key}={value}" for key, value in choices.items()]


def _number(value: float | None) -> str:
    if value is None:
        return ""
    if abs(value) >= 1e-3 or value == 0:
        return f"{value:.4f}"
    return f"{value:.1e}"
