"""verify_resume: train once without interruption and once with kills, and compare the results bit by bit.

The kills are SIGKILLs at random moments, drawn beforehand: within steps, and while checkpoints are being written. After
each kill the same command is run again.
"""

from __future__ import annotations

import dataclasses
import itertools
import json
import random
import re
import shutil
import statistics
import time
from collections.abc import Callable, Mapping
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

FIRST = 50  # steps in which workers are compared: rounding errors grow too large in later ones
# kinds of tensors, and how their names in checkpoints begin, after the player's
KINDS = {"weights": "weight", "buffers": "buffer", "optimiser": "optim", "averages": "average"}
# relative difference allowed over the first steps
ROUNDING = {"float32": 1e-4, "tf32": 1e-2, "bfloat16": 5e-2}
TRIES = 3  # attempts to kill a training before it ends, each with earlier kills
POLL = 0.0005  # seconds between two looks at a child's folder


@dataclass(frozen=True, kw_only=True, slots=True)
class PartComparison:
    """The comparison of one kind of content of two runs, such as the weights."""

    name: str  # weights, buffers, optimiser, averages, lines of metrics, ...
    count: int  # number of tensors, lines or steps compared
    equal: int  # number of them that are equal
    largest: float  # largest difference; relative if `within` is given
    first: str = ""  # name of the first that differs
    # relative difference up to which numbers are equal; None: equal to the bit
    within: float | None = None


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
        >>> from clearhead.training.verify import PartComparison, Kill
        >>> weights = PartComparison(name="weights", count=12, equal=12, largest=0.0)
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
    # its first steps compared with one worker's
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
        heads = ("compared", "what", "count", "equal", "largest difference", "first that differs")
        table = Table(*heads)
        for run, parts in (("resumed", self.parts), (f"{self.workers} workers", self.world)):
            for part in parts:
                size = f"{part.largest:.3g}"
                if part.within is not None:
                    # workers add numbers in another order, so that bits may differ
                    size += f" relative, of {part.within:g} allowed"
                counts = (str(part.count), str(part.equal))
                table.add_row(run, part.name, *counts, size, part.first)
        hits = f"{self.hits} of {len(self.kills)} kills hit"
        moments = {"checkpoint": "writing a checkpoint", "step": "in a step"}
        steps = [f"{kill.step} ({moments[kill.during]})" for kill in self.kills if kill.hit]
        if steps:
            hits += f", after step {', '.join(steps)}"
        if self.passed:
            verdict = f"equal: resuming changed nothing in {self.steps} steps"
        elif not self.equal:
            # before the kills: a difference is a finding even if some kills missed
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
    if kills < 1:
        raise InputError(f"kills={kills}: expected 1 or more")
    settings, out = _watched(read_recipe(recipe, *overrides), kills), Path(out)
    if world is not None:
        _check_world(settings, world)
    # an earlier verification would be resumed, and compared with itself
    for name in ("whole", "broken", "world"):
        if (out / name).exists():
            raise FolderError(
                f"{out / name} is of an earlier verification: expected a new folder, or remove that one"
            )
    try:
        out.mkdir(parents=True, exist_ok=True)
    except OSError as cause:
        raise FolderError(f"the folder {out} cannot be created: {cause.strerror}") from cause
    console = Console(stderr=True, highlight=False, quiet=quiet)

    def say(sentence: str) -> None:
        console.print(sentence, soft_wrap=True)

    if not settings.deterministic and device != "cpu" and torch.cuda.is_available():
        say("note: on a GPU only deterministic=true gives the same bits twice")
    config.write(config.dump(settings), out / "recipe.toml")
    # the same number of threads for all, because it changes the order of sums
    threads = max(1, torch.get_num_threads() // (world or 1))
    runs = _Runs(out, settings, data, device, threads)
    comparisons: list[PartComparison] = []
    with exit_on_sigterm(), console.status("", spinner="dots") as status:
        status.update(f"training {settings.steps} steps without interruption")
        runs.whole("whole")
        say(f"{out / 'whole'}: {settings.steps} steps without interruption")
        uniforms, done = random.Random(seed), list[Kill]()
        for attempt in range(TRIES):  # a fast training may end before the last kill
            # a failed try is thrown away; the next draws its kills from half the share of the run
            shutil.rmtree(out / "broken", ignore_errors=True)
            moments = draw_kills(settings, kills, uniforms, 0.8 / 2**attempt)
            done = runs.broken("broken", moments, uniforms, say, status)
            if all(kill.hit for kill in done):
                break
        say(f"{out / 'broken'}: finished after {sum(kill.hit for kill in done)} kills")
        if world is not None:
            status.update(f"training with {world} workers")
            runs.first_steps("world", world)
            say(f"{out / 'world'}: the first steps by {world} workers")
            within = ROUNDING[settings.precision]
            comparisons = compare_to_rounding(out / "whole", out / "world", within=within)
    return Verdict(
        folder=out,
        steps=settings.steps,
        kills=done,
        parts=compare(out / "whole", out / "broken"),
        workers=world,
        world=comparisons,
    )


def draw_kills(
    recipe: Recipe, kills: int, uniforms: random.Random, share: float
) -> list[tuple[int, str]]:
    """Moments of kills (step, during), spread over the first `share` of a run; every second one is at a checkpoint."""
    drawn = []
    for i in range(kills):
        position = (i + uniforms.random()) / kills  # in the i-th of `kills` equal parts
        target = 1 + int(position * max(recipe.steps - 1, 0) * share)
        # the next multiple of save_every, from the target on
        next_save = -(-target // recipe.run.save_every) * recipe.run.save_every
        if i % 2 and next_save < recipe.steps:
            drawn.append((next_save, "checkpoint"))
        else:
            drawn.append((target, "step"))
    return sorted(drawn)


def _watched(recipe: Recipe, kills: int) -> Recipe:
    """The recipe with a log line for every step and several checkpoints, which does not change the weights."""
    # without regular checkpoints every kill would go back to the start
    every = recipe.run.save_every
    if not 0 < every < recipe.steps:
        every = max(1, recipe.steps // (kills + 2))
    run = dataclasses.replace(recipe.run, log_every=1, save_every=every)
    return dataclasses.replace(recipe, run=run)


def _check_world(recipe: Recipe, world: int) -> None:
    """Raise if several workers cannot be compared with one."""
    if world < 2:
        raise InputError(f"world={world}: expected 2 workers or more")
    models = (recipe.model, *(player.model for player in recipe.players.values()))
    for table in models:
        if not table:
            continue
        _, kind = section_name(config.Table(table), "model")
        for option in dataclasses.fields(kind):
            # the recipe's value, or the family's default
            share = table.get(option.name, option.default)
            if "dropout" in option.name and share:
                raise InputError(
                    f"model.{option.name} = {share}: expected 0 where workers are compared, because their dropout "
                    "masks differ from one worker's"
                )


# The trainings


class _Runs:
    """The trainings of one verification, all with the same recipe and the same number of threads."""

    def __init__(
        self, out: Path, recipe: Recipe, data: str | Path | None, device: str, threads: int
    ) -> None:
        self.out, self.recipe, self.data = out, recipe, data
        self.device, self.threads = device, threads
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

    def progress(self, name: str, attempts: int) -> _RunProgress:
        return _RunProgress(self.out / name, attempts, self.recipe.run.save_every)

    def whole(self, name: str) -> None:
        """Train without interruption, and measure the time per step."""
        with self.start(name) as child:
            child.finish()
        metrics = Folder(self.out / name, create=False, lock=False).metrics()
        self.pace = statistics.median(record["seconds"] for record in metrics if is_log(record))

    def first_steps(self, name: str, world: int) -> None:
        """Train the first steps with several workers."""
        with self.start(name, world=world) as child:
            progress = self.progress(name, 1)
            # past step FIRST its metrics are complete; leaving the context ends the training
            while child.running and progress.step() <= FIRST:
                time.sleep(0.02)
            if not child.running:
                child.finish()

    def broken(
        self,
        name: str,
        moments: list[tuple[int, str]],
        uniforms: random.Random,
        say: Callable[[str], None],
        status: Any,
    ) -> list[Kill]:
        """Train, kill the training at the given moments, and resume it each time."""
        kills: list[Kill] = []
        for i, (target, during) in enumerate(moments):
            status.update(f"training until kill {i + 1} of {len(moments)}")
            progress = self.progress(name, i + 1)
            with self.start(name, i) as child:
                # the child is watched from outside, as a real kill would meet it unprepared
                while child.running and not progress.due(target, during):
                    time.sleep(POLL)
                # a random moment within a step, or shortly after the first byte of a checkpoint
                longest = 2.0 if during == "step" else 0.2
                time.sleep(uniforms.random() * longest * self.pace)
                was_running = child.running
                if not was_running:
                    child.finish()
                # SIGKILL: no handler can save anything
                child.kill()
            # a kill after the last checkpoint interrupted nothing
            hit = was_running and progress.saved() < self.recipe.steps
            kill = Kill(target=target, during=progress.interrupted(), step=progress.step(), hit=hit)
            kills.append(kill)
            if not hit:
                break
            say(f"killed after step {kill.step}, during a {kill.during}")
        for target, during in moments[len(kills) :]:  # the training ended before them
            kills.append(Kill(target=target, during=during, step=self.recipe.steps, hit=False))
        status.update("training to the end")
        with self.start(name, len(moments)) as child:
            child.finish()
        return kills


class _RunProgress:
    """Reads the progress of the current attempt from a run folder, from another process."""

    def __init__(self, folder: Path, attempts: int, save_every: int) -> None:
        self.folder, self.attempts, self.save_every = folder, attempts, save_every
        self.name, self.start = "", 0  # of the attempt, when it has begun

    def due(self, target: int, during: str) -> bool:
        """Whether it is time for a kill: at step `target` or later, and after at least one step of this attempt."""
        if not self._began():
            return False
        target = max(target, self.start + 1)
        # a checkpoint that was written between two looks is missed: then a step will do
        if during == "checkpoint" and self.step() < target + max(1, self.save_every // 2):
            # the temporary folder of this attempt's checkpoint exists
            return any(step >= target for step in self._writing())
        return self.step() >= target

    def interrupted(self) -> str:
        """What a kill interrupted: a step, or the writing of a checkpoint."""
        return "checkpoint" if self._writing() else "step"

    def step(self) -> int:
        """The last step in the metrics; 0 if there is none."""
        try:
            with open(self.folder / "metrics.jsonl", "rb") as file:
                file.seek(max(0, file.seek(0, 2) - (1 << 16)))  # the end of the file is enough
                steps = re.findall(rb'^\{"step": (\d+)', file.read(), re.MULTILINE)
        except FileNotFoundError:
            return 0
        return int(steps[-1]) if steps else 0

    def saved(self) -> int:
        """The step of the last checkpoint; 0 if there is none."""
        paths = (self.folder / "checkpoints").glob("step-*")
        return max((int(path.name[5:]) for path in paths), default=0)

    def _began(self) -> bool:
        """Whether this attempt has cut the metrics back to its checkpoint, so that all later steps are its own."""
        if not self.name:
            try:
                attempts = json.loads((self.folder / "facts.json").read_bytes())["attempts"]
            except FileNotFoundError:
                return False
            # facts.json still ends with the attempt before, until this one has begun
            if len(attempts) == self.attempts:
                self.name, self.start = attempts[-1]["name"], attempts[-1]["step"]
        return bool(self.name)

    def _writing(self) -> list[int]:
        """The steps whose checkpoints this attempt is writing."""
        paths = (self.folder / "checkpoints").glob(f".step-*.{self.name}-*.tmp")
        return [int(path.name.split(".")[1][5:]) for path in paths]


# PartComparison of two runs: their last checkpoints and metrics to the bit, or their first losses to rounding


def compare(one: Path, other: Path) -> list[PartComparison]:
    """Compare the last checkpoints of two runs tensor by tensor, and their metrics line by line, to the bit."""
    a, b = _last(one), _last(other)
    if a.step != b.step:
        raise TrainingError(
            f"{a.path} and {b.path} are of different steps: they cannot be compared"
        )
    comparisons = []
    # the names of both, in the order of the files
    every = dict.fromkeys((*a.names, *b.names))
    for kind, prefix in KINDS.items():
        names = [name for name in every if name.split("/")[1] == prefix]
        differ, largest = list[str](), 0.0
        for name in names:
            if name not in a.names or name not in b.names:
                differ.append(name)
                continue
            # bit by bit first: equal values may have different bits, such as 0 and -0
            x, y = a.read(name), b.read(name)
            if not _same_bits(x, y):
                differ.append(name)
                largest = max(largest, _distance(x, y))
        # such as averages, which only a recipe with an EMA has
        if names:
            comparisons.append(_comparison(kind, len(names), differ, largest))
    # a resumed run has replaced the records after its checkpoint: each step has one line
    comparisons.append(_compare_lines(_lines(one), _lines(other)))
    facts = PartComparison(name="facts", count=1, equal=int(a.facts == b.facts), largest=0.0)
    return [*comparisons, facts]


def compare_to_rounding(
    one: Path, other: Path, *, steps: int = FIRST, within: float
) -> list[PartComparison]:
    """Compare the losses and gradient norms of the first steps of two runs; differences are relative.

    A loss depends on all earlier updates, so that equal losses mean equal gradients and optimiser steps.
    """

    def first(run: Path) -> dict[int, dict[str, Any]]:
        return {x["step"]: x for x in _lines(run) if is_log(x) and x["step"] <= steps}

    ours, theirs = first(one), first(other)
    keys = dict.fromkeys(key for record in ours.values() for key in record)
    comparisons = []
    for key in keys:
        # equal by construction
        if key == "step" or key.startswith("lr"):
            continue
        apart = {}
        for step, record in ours.items():
            if key in record:
                apart[step] = _relative(record[key], theirs.get(step, {}).get(key))
        differ = [f"step {step}" for step, size in apart.items() if not size <= within]  # NaN, too
        name, largest = f"{key}, first {len(apart)} steps", max(apart.values(), default=0.0)
        comparisons.append(_comparison(name, len(apart), differ, largest, within))
    return comparisons


def is_log(record: Mapping[str, Any]) -> bool:
    """True for a metrics record with losses, not one of validation, samples or probes."""
    return any(key.startswith("lr") for key in record)


def _comparison(
    name: str, count: int, differ: list[str], largest: float, within: float | None = None
) -> PartComparison:
    return PartComparison(
        name=name,
        count=count,
        equal=count - len(differ),
        largest=largest,
        first=differ[0] if differ else "",
        within=within,
    )


def _last(folder: Path) -> Checkpoint:
    checkpoint = latest(folder / "checkpoints")
    if checkpoint is None:
        raise TrainingError(f"{folder} has no checkpoint to compare")
    return checkpoint


def _lines(folder: Path) -> list[dict[str, Any]]:
    """The metrics of a run, without its timings."""
    metrics = Folder(folder, create=False, lock=False).metrics()
    return [{key: value for key, value in line.items() if key not in TIMES} for line in metrics]


def _compare_lines(ours: list[dict[str, Any]], theirs: list[dict[str, Any]]) -> PartComparison:
    differ, largest = [], 0.0
    nothing: dict[str, Any] = {}
    pairs = list(itertools.zip_longest(ours, theirs, fillvalue=nothing))
    for number, (x, y) in enumerate(pairs, 1):
        if x == y:
            continue
        differ.append(f"line {number}")
        for key in x.keys() & y.keys():
            # steps and samples of text have no size of a difference
            if isinstance(x[key], float) and isinstance(y[key], float):
                largest = max(largest, abs(x[key] - y[key]))
    return _comparison("lines of metrics", len(pairs), differ, largest)


def _same_bits(x: Tensor, y: Tensor) -> bool:
    def bits(tensor: Tensor) -> Tensor:
        # as bytes: NaNs are equal to themselves, and 0 and -0 are not
        return tensor.contiguous().reshape(-1).view(torch.uint8)

    return (x.dtype, x.shape) == (y.dtype, y.shape) and torch.equal(bits(x), bits(y))


def _distance(x: Tensor, y: Tensor) -> float:
    if x.shape != y.shape:
        return float("inf")
    return float((x.double() - y.double()).abs().max())


def _relative(x: float, y: float | None) -> float:
    if y is None:
        return float("inf")
    if x == y:  # both may be 0
        return 0.0
    return abs(x - y) / max(abs(x), abs(y))
