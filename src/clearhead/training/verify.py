"""verify_resume: train once without interruption and once with kills, and compare the results bit by bit.

The kills are SIGKILLs at random moments, drawn beforehand: within steps, and while checkpoints are being written. After
each kill the same command is run again.
"""

from __future__ import annotations

import dataclasses
import json
import random
import re
import shutil
import statistics
import time
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from rich.console import Console, Group
from rich.table import Table
from torch import Tensor

from .. import config
from ..errors import InputError
from .checkpoints import Checkpoint, latest
from .loop import TIMES
from .processes import Child, TrainingError, command, exit_on_sigterm
from .recipe import Recipe, read_recipe, section_name
from .run_folder import Folder, FolderError

# Comparison of two runs: their last checkpoints and metrics to the bit, or their first losses to rounding.


FIRST = 50  # steps in which workers are compared: rounding errors grow too large in later ones
# second part of names
PARTS = {"weights": "weight", "buffers": "buffer", "optimiser": "optim", "averages": "average"}


@dataclass(frozen=True, kw_only=True, slots=True)
class PartComparison:
    """The comparison of one part of two runs, such as the weights."""

    name: str  # weights, buffers, optimiser, averages, lines of metrics, ...
    count: int  # number of tensors, lines or steps compared
    equal: int  # number of them that are equal
    largest: float  # largest difference; relative if `within` is given
    first: str = ""  # name of the first that differs
    # relative difference up to which numbers are equal; None: equal to the bit
    within: float | None = None


def compare(one: Path, other: Path) -> list[PartComparison]:
    """Compare the last checkpoints of two runs tensor by tensor, and their metrics line by line, to the bit."""
    a, b = _last(one), _last(other)
    if a.step != b.step:
        raise TrainingError(
            f"{a.path} and {b.path} are of different steps: they cannot be compared"
        )
    parts = []
    for what, kind in PARTS.items():
        names = [name for name in dict.fromkeys((*a.names, *b.names)) if name.split("/")[1] == kind]
        bad, largest = [], 0.0
        for name in names:
            if name not in a.names or name not in b.names:
                bad.append(name)
            elif not _same_bits(x := a.read(name), y := b.read(name)):
                bad.append(name)
                largest = max(largest, _distance(x, y))
        if names:
            parts.append(
                PartComparison(
                    name=what,
                    count=len(names),
                    equal=len(names) - len(bad),
                    largest=largest,
                    first=(bad or [""])[0],
                )
            )
    parts.append(_compare_lines(_lines(one), _lines(other)))
    facts = PartComparison(name="facts", count=1, equal=int(a.facts == b.facts), largest=0.0)
    return [*parts, facts]


def compare_to_rounding(
    one: Path, other: Path, *, steps: int = FIRST, within: float
) -> list[PartComparison]:
    """Compare the losses and gradient norms of the first steps of two runs; differences are relative.

    A loss depends on all earlier updates, so that equal losses mean equal gradients and optimiser steps.
    """
    mine, theirs = (
        {x["step"]: x for x in _lines(run) if is_log(x) and x["step"] <= steps}
        for run in (one, other)
    )
    keys = list(
        dict.fromkeys(
            key for x in mine.values() for key in x if key != "step" and not key.startswith("lr")
        )
    )
    parts = []
    for key in keys:
        apart = {
            step: _relative(x[key], theirs.get(step, {}).get(key))
            for step, x in mine.items()
            if key in x
        }
        bad = [step for step, size in apart.items() if not size <= within]
        parts.append(
            PartComparison(
                name=f"{key}, first {len(apart)} steps",
                count=len(apart),
                equal=len(apart) - len(bad),
                largest=max(apart.values(), default=0.0),
                first=f"step {bad[0]}" if bad else "",
                within=within,
            )
        )
    return parts


def is_log(record: Mapping[str, Any]) -> bool:
    """True for a metrics record with losses, not one of validation, samples or probes."""
    return any(key.startswith("lr") for key in record)


def _last(folder: Path) -> Checkpoint:
    checkpoint = latest(folder / "checkpoints")
    if checkpoint is None:
        raise TrainingError(f"{folder} has no checkpoint to compare")
    return checkpoint


def _lines(folder: Path) -> list[dict[str, Any]]:
    """The metrics of a run, without its timings."""
    metrics = Folder(folder, create=False, lock=False).metrics()
    return [{key: value for key, value in line.items() if key not in TIMES} for line in metrics]


def _compare_lines(mine: list[dict[str, Any]], theirs: list[dict[str, Any]]) -> PartComparison:
    count = max(len(mine), len(theirs))
    bad, largest = [], 0.0
    for i in range(count):
        x, y = (lines[i] if i < len(lines) else {} for lines in (mine, theirs))
        if x != y:
            bad.append(f"line {i + 1}")
            numbers = [(x[key], y[key]) for key in x.keys() & y.keys() if isinstance(x[key], float)]
            largest = max([largest, *(abs(a - b) for a, b in numbers if isinstance(b, float))])
    return PartComparison(
        name="lines of metrics",
        count=count,
        equal=count - len(bad),
        largest=largest,
        first=(bad or [""])[0],
    )


def _same_bits(x: Tensor, y: Tensor) -> bool:
    def bits(tensor: Tensor) -> Tensor:
        return tensor.contiguous().reshape(-1).view(torch.uint8)

    return (x.dtype, x.shape) == (y.dtype, y.shape) and torch.equal(bits(x), bits(y))


def _distance(x: Tensor, y: Tensor) -> float:
    if x.shape != y.shape:
        return float("inf")
    return float((x.double() - y.double()).abs().max())


def _relative(x: float, y: float | None) -> float:
    if y is None:
        return float("inf")
    return abs(x - y) / max(abs(x), abs(y)) if x != y else 0.0


# relative difference allowed over the first steps
ROUNDING = {"float32": 1e-4, "tf32": 1e-2, "bfloat16": 5e-2}
TRIES = 3  # attempts to kill a training before it ends, each with earlier kills
POLL = 0.0005  # seconds between two looks at a child's folder


@dataclass(frozen=True, kw_only=True, slots=True)
class Kill:
    """One kill: when it was planned, and when it happened."""

    target: int  # planned step
    during: str  # "step", or "checkpoint": while a checkpoint was being written
    step: int  # last step in the logs when it happened
    hit: bool  # whether it happened before the training ended


@dataclass(frozen=True, kw_only=True, slots=True)
class Verdict:
    """The result of verify_resume: whether a killed and resumed training equals an uninterrupted one.

    Examples:
        >>> from clearhead.training.verify import Kill, Part
        >>> weights = Part(name="weights", count=12, equal=12, largest=0.0)
        >>> kill = Kill(target=30, during="step", step=31, hit=True)
        >>> verdict = Verdict(folder=tmp, steps=100, kills=[kill], parts=[weights])
        >>> verdict.equal, verdict.hits, verdict.passed
        (True, 1, True)
    """

    folder: Path  # folder with the run folders "whole", "broken" and "world"
    steps: int  # number of steps of the trainings
    kills: list[Kill]  # the kills, in order
    parts: list[PartComparison]  # the resumed training compared with the uninterrupted one
    workers: int | None = None  # number of workers of the third training; None: there was none
    # its first steps compared with those of one worker
    world: list[PartComparison] = dataclasses.field(default_factory=list)

    @property
    def hits(self) -> int:
        """The number of kills that happened before the last step."""
        return sum(kill.hit for kill in self.kills)

    @property
    def equal(self) -> bool:
        """Whether all compared parts are equal."""
        return all(part.equal == part.count for part in (*self.parts, *self.world))

    @property
    def passed(self) -> bool:
        """Whether all parts are equal, and all kills happened."""
        return self.equal and self.hits == len(self.kills)

    def to_dict(self) -> dict[str, Any]:
        """Everything as plain values."""
        plain = dataclasses.asdict(self) | {"folder": str(self.folder)}
        return plain | {"hits": self.hits, "equal": self.equal, "passed": self.passed}

    def __rich__(self) -> Group:
        table = Table(
            "compared", "what", "count", "equal", "largest difference", "first that differs"
        )
        rows = [("resumed", part) for part in self.parts] + [
            (f"{self.workers} workers", part) for part in self.world
        ]
        for run, part in rows:
            size = f"{part.largest:.3g}" + (
                "" if part.within is None else f" relative, of {part.within:g} allowed"
            )
            table.add_row(run, part.name, str(part.count), str(part.equal), size, part.first)
        struck = ", ".join(
            f"{kill.step} ({'writing a checkpoint' if kill.during == 'checkpoint' else 'in a step'})"
            for kill in self.kills
            if kill.hit
        )
        hits = f"{self.hits} of {len(self.kills)} kills hit" + (
            f", after step {struck}" if struck else ""
        )
        if self.passed:
            verdict = f"equal: resuming changed nothing in {self.steps} steps"
        elif not self.equal:
            verdict = "NOT equal: resuming changed the run"
        else:
            verdict = "not verified: the training ended before all kills; give it more steps"
        return Group(table, hits, verdict)


def verify_resume(
    recipe: str | Path | Mapping[str, Any] | Recipe,
    *overrides: str,
    out: str | Path,
    kills: int = 3,
    world: int | None = None,
    data: str | Path | None = None,
    device: str = "auto",
    seed: int = 0,
    quiet: bool = False,
) -> Verdict:
    """Train a recipe without interruption and again with kills, and compare the results bit by bit.

    Args:
        recipe: A .toml or .json file, a table, or a Recipe.
        overrides: Values to change: "optim.lr=1e-3".
        out: A new folder for all trainings.
        kills: The number of times that the second training is killed and resumed.
        world: The number of workers of a third training, whose first steps are compared to rounding; None: no such
            training.
        data: A folder to search for data files first.
        device: auto, cpu, cuda, cuda:1 or mps.
        seed: Seed of the moments of the kills.
        quiet: Print nothing but warnings.

    Examples:
        >>> recipe = {"steps": 60, "data": {"name": "reverse"}, "model": {"name": "gpt", "width": 16, "heads": 2}}
        >>> verify_resume(recipe, out=tmp / "v", kills=2, device="cpu").passed  # doctest: +SKIP
        True
        >>> verify_resume(recipe, out=tmp / "v", kills=0)
        Traceback (most recent call last):
        ...
        clearhead.errors.InputError: kills=0: expected 1 or more
    """
    settings, out = _watched(read_recipe(recipe, *overrides), kills), Path(out)
    if kills < 1:
        raise InputError(f"kills={kills}: expected 1 or more")
    if world is not None:
        _check_world(settings, world)
    for name in ("whole", "broken", "world"):
        if (out / name).exists():
            raise FolderError(
                f"{out / name} is of an earlier verification: expected a new folder, or remove that one"
            )
    try:
        out.mkdir(parents=True, exist_ok=True)
    except OSError as cause:
        raise FolderError(f"the folder {out} cannot be created: {cause.strerror}") from cause
    talk = Console(stderr=True, highlight=False, quiet=quiet)
    if not settings.deterministic and device != "cpu" and torch.cuda.is_available():
        talk.print(
            "note: on a GPU only deterministic=true gives the same bits twice", soft_wrap=True
        )
    config.write(config.dump(settings), out / "recipe.toml")
    runs = _Runs(
        out, settings, data, device, threads=max(1, torch.get_num_threads() // (world or 1))
    )
    world_parts: list[PartComparison] = []
    with exit_on_sigterm(), talk.status("", spinner="dots") as status:
        status.update(f"training {settings.steps} steps without interruption")
        runs.whole("whole")
        talk.print(f"{out / 'whole'}: {settings.steps} steps without interruption", soft_wrap=True)
        uniforms, struck = random.Random(seed), []
        for attempt in range(TRIES):
            shutil.rmtree(out / "broken", ignore_errors=True)
            moments = draw_kills(settings, kills, uniforms, 0.8 / 2**attempt)
            struck = runs.broken("broken", moments, uniforms, talk, status)
            if all(kill.hit for kill in struck):
                break
        talk.print(
            f"{out / 'broken'}: finished after {sum(kill.hit for kill in struck)} kills",
            soft_wrap=True,
        )
        if world is not None:
            status.update(f"training with {world} workers")
            runs.first_steps("world", world)
            talk.print(f"{out / 'world'}: the first steps by {world} workers", soft_wrap=True)
            world_parts = compare_to_rounding(
                out / "whole", out / "world", within=ROUNDING[settings.precision]
            )
    parts = compare(out / "whole", out / "broken")
    return Verdict(
        folder=out,
        steps=settings.steps,
        kills=struck,
        parts=parts,
        workers=world,
        world=world_parts,
    )


def draw_kills(
    recipe: Recipe, kills: int, uniforms: random.Random, share: float
) -> list[tuple[int, str]]:
    """Moments of kills (step, during), spread over the first `share` of a run; every second one is at a checkpoint."""
    drawn = []
    for i in range(kills):
        target = 1 + int((i + uniforms.random()) / kills * max(recipe.steps - 1, 0) * share)
        saved = -(-target // recipe.run.save_every) * recipe.run.save_every
        drawn.append((saved, "checkpoint") if i % 2 and saved < recipe.steps else (target, "step"))
    return sorted(drawn)


class _Runs:
    """The trainings of one verification, all with the same recipe and the same number of threads."""

    def __init__(
        self, out: Path, recipe: Recipe, data: str | Path | None, device: str, threads: int
    ) -> None:
        self.out, self.recipe, self.data, self.device, self.threads = (
            out,
            recipe,
            data,
            device,
            threads,
        )
        self.pace = 0.01  # seconds per step

    def start(self, name: str, attempt: int = 0, world: int | None = None) -> Child:
        words = command(
            self.out / "recipe.toml",
            out=self.out / name,
            data=self.data,
            device=self.device,
            world=world,
        )
        return Child(words, threads=self.threads, log=self.out / "logs" / f"{name}-{attempt}.txt")

    def whole(self, name: str) -> None:
        """Train without interruption, and measure the time per step."""
        with self.start(name) as child:
            child.finish()
        metrics = Folder(self.out / name, create=False, lock=False).metrics()
        self.pace = statistics.median(record["seconds"] for record in metrics if is_log(record))

    def first_steps(self, name: str, world: int) -> None:
        """Train the first steps with several workers."""
        with self.start(name, world=world) as child:
            watch = _Watch(self.out / name, 1, self.recipe.run.save_every)
            while child.running and watch.step() <= FIRST:
                time.sleep(0.02)
            if not child.running:
                child.finish()

    def broken(
        self,
        name: str,
        moments: list[tuple[int, str]],
        uniforms: random.Random,
        talk: Console,
        status: Any,
    ) -> list[Kill]:
        """Train, kill the training at the given moments, and resume it each time."""
        struck: list[Kill] = []
        for i, (target, during) in enumerate(moments):
            status.update(f"training until kill {i + 1} of {len(moments)}")
            with self.start(name, i) as child:
                watch = _Watch(self.out / name, i + 1, self.recipe.run.save_every)
                while child.running and not watch.due(target, during):
                    time.sleep(POLL)
                time.sleep(uniforms.random() * (2.0 if during == "step" else 0.2) * self.pace)
                alive = child.running
                if not alive:
                    child.finish()
                child.kill()
            hit = alive and watch.saved() < self.recipe.steps
            struck.append(
                Kill(target=target, during=watch.interrupted(), step=watch.step(), hit=hit)
            )
            if not hit:
                break
            talk.print(
                f"killed after step {struck[-1].step}, during a {struck[-1].during}", soft_wrap=True
            )
        struck += [
            Kill(target=target, during=during, step=self.recipe.steps, hit=False)
            for target, during in moments[len(struck) :]
        ]
        status.update("training to the end")
        with self.start(name, len(moments)) as child:
            child.finish()
        return struck


class _Watch:
    """Reads the progress of the current attempt from a run folder, from another process."""

    def __init__(self, folder: Path, attempts: int, save_every: int) -> None:
        self.folder, self.attempts, self.save_every = folder, attempts, save_every
        self.name, self.start = "", 0

    def due(self, target: int, during: str) -> bool:
        """Whether it is time for a kill: at step `target` or later, and after at least one step of this attempt."""
        if not self._began():
            return False
        target = max(target, self.start + 1)
        if during == "checkpoint" and self.step() < target + max(1, self.save_every // 2):
            return any(step >= target for step in self._writing())
        return self.step() >= target

    def interrupted(self) -> str:
        """What a kill interrupted: a step, or the writing of a checkpoint."""
        return "checkpoint" if self._writing() else "step"

    def step(self) -> int:
        """The last step in the metrics; 0 if there is none."""
        try:
            with open(self.folder / "metrics.jsonl", "rb") as file:
                file.seek(max(0, file.seek(0, 2) - (1 << 16)))
                steps = re.findall(rb'^\{"step": (\d+)', file.read(), re.MULTILINE)
        except FileNotFoundError:
            return 0
        return int(steps[-1]) if steps else 0

    def saved(self) -> int:
        """The step of the last checkpoint; 0 if there is none."""
        return max(
            (int(path.name[5:]) for path in (self.folder / "checkpoints").glob("step-*")), default=0
        )

    def _began(self) -> bool:
        """Whether this attempt has cut the metrics back to its checkpoint, so that all later steps are its own."""
        if not self.name:
            try:
                attempts = json.loads((self.folder / "facts.json").read_bytes())["attempts"]
            except FileNotFoundError:
                return False
            if len(attempts) == self.attempts:
                self.name, self.start = attempts[-1]["name"], attempts[-1]["step"]
        return bool(self.name)

    def _writing(self) -> list[int]:
        """The steps whose checkpoints this attempt is writing."""
        names = [
            path.name for path in (self.folder / "checkpoints").glob(f".step-*.{self.name}-*.tmp")
        ]
        return [int(name.split(".")[1][5:]) for name in names]


def _watched(recipe: Recipe, kills: int) -> Recipe:
    """A recipe that logs every step, and saves several times; this does not change the weights."""
    every = recipe.run.save_every
    if not 0 < every < recipe.steps:
        every = max(1, recipe.steps // (kills + 2))
    return dataclasses.replace(
        recipe, run=dataclasses.replace(recipe.run, log_every=1, save_every=every)
    )


def _check_world(recipe: Recipe, world: int) -> None:
    if world < 2:
        raise InputError(f"world={world}: expected 2 workers or more")
    for table in (recipe.model, *(player.model for player in recipe.players.values())):
        if not table:
            continue
        defaults = {
            f.name: f.default
            for f in dataclasses.fields(section_name(config.Table(table), "model")[1])
        }
        for name in (name for name in defaults if "dropout" in name):
            if share := table.get(name, defaults[name]):
                raise InputError(
                    f"model.{name} = {share}: expected 0 where workers are compared, because their dropout masks "
                    "differ from those of one worker"
                )
