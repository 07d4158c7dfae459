"""verify_resume: train once in peace and once with kills, and compare every bit of what is left.

The kills are SIGKILLs at moments drawn beforehand: within steps, and while checkpoints are being written. The killed
training is started again with the same command each time, as a person would.
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
from .checkpoint import Checkpoint, latest
from .loop import TIMES, TrainingError
from .recipe import Recipe, read_recipe, section_name
from .run_folder import Folder, FolderError
from .signals import exit_on_sigterm
from .subprocesses import Child, command

ROUNDING = {"float32": 1e-4, "tf32": 1e-2, "bfloat16": 5e-2}  # relative, that a few steps may add up to
FIRST = 50  # steps in which workers are compared: later ones multiply every rounding, as chaos does
TRIES = 3  # attempts to hit a training before it ends, each with earlier moments
POLL = 0.0005  # seconds between two looks at a child's folder
PARTS = {"weights": "weight", "buffers": "buffer", "optimiser": "optim", "averages": "average"}  # of a tensor's name


@dataclass(frozen=True, kw_only=True, slots=True)
class Kill:
    """One kill: when it was meant to be, and when it was."""

    target: int  # step from which on it was to strike
    during: str  # "step", or "checkpoint": while one was being written
    step: int  # last step that was logged when it struck
    hit: bool  # False: the training had ended before


@dataclass(frozen=True, kw_only=True, slots=True)
class Part:
    """How one part of what two runs left compares."""

    name: str
    count: int  # tensors, or lines of metrics
    equal: int  # of them, to the bit (or to rounding, where `within` says so)
    largest: float  # difference; relative where `within` says so
    first: str = ""  # the first that differs
    within: float | None = None  # relative difference that counts as equal; None: none does


@dataclass(frozen=True, kw_only=True, slots=True)
class Verdict:
    """Whether a resumed training equals an unbroken one; `world` compares one on several workers."""

    folder: Path
    steps: int
    kills: list[Kill]
    parts: list[Part]
    workers: int | None = None
    world: list[Part] = dataclasses.field(default_factory=list)

    @property
    def hits(self) -> int:
        """Kills that struck before the last step."""
        return sum(kill.hit for kill in self.kills)

    @property
    def equal(self) -> bool:
        """Whether all that was compared is equal."""
        return all(part.equal == part.count for part in (*self.parts, *self.world))

    @property
    def passed(self) -> bool:
        """Equal, and really broken as often as was asked for."""
        return self.equal and self.hits == len(self.kills)

    def to_dict(self) -> dict[str, Any]:
        """Everything as plain values."""
        plain = dataclasses.asdict(self) | {"folder": str(self.folder)}
        return plain | {"hits": self.hits, "equal": self.equal, "passed": self.passed}

    def __rich__(self) -> Group:
        table = Table("compared", "what", "count", "equal", "largest difference", "first that differs")
        rows = [("resumed", part) for part in self.parts] + [(f"{self.workers} workers", part) for part in self.world]
        for who, part in rows:
            size = f"{part.largest:.3g}" + ("" if part.within is None else f" relative, of {part.within:g} allowed")
            table.add_row(who, part.name, str(part.count), str(part.equal), size, part.first)
        struck = ", ".join(
            f"{kill.step} ({'writing a checkpoint' if kill.during == 'checkpoint' else 'in a step'})"
            for kill in self.kills
            if kill.hit
        )
        said = f"{self.hits} of {len(self.kills)} kills hit" + (f", after step {struck}" if struck else "")
        verdict = (
            f"equal: resuming changed nothing in {self.steps} steps" if self.passed
            else "NOT equal: resuming changed the run" if not self.equal
            else "not shown: the training ended before all kills; give it more steps"
        )  # fmt: skip
        return Group(table, said, verdict)


def verify_resume(
    recipe: str | Path | Mapping[str, Any] | Recipe,
    *overrides: str,
    out: str | Path,  # a new folder, for all runs
    kills: int = 3,
    world: int | None = None,  # workers of a third run, whose first steps are compared to rounding
    data: str | Path | None = None,
    device: str = "auto",
    seed: int = 0,  # of the moments of the kills
    quiet: bool = False,
) -> Verdict:
    """Train a recipe whole, and again with kills, and compare: verify_resume("configs/reverse.toml", out="runs/v")."""
    made, out = _watched(read_recipe(recipe, *overrides), kills), Path(out)
    if kills < 1:
        raise InputError(f"kills={kills}: expected 1 or more")
    if world is not None:
        _check_world(made, world)
    for name in ("whole", "broken", "world"):
        if (out / name).exists():
            raise FolderError(f"{out / name} is of an earlier verification: expected a new folder, or that one removed")
    try:
        out.mkdir(parents=True, exist_ok=True)
    except OSError as cause:
        raise FolderError(f"the folder {out} cannot be made: {cause.strerror}") from cause
    talk = Console(stderr=True, highlight=False, quiet=quiet)
    if not made.deterministic and device != "cpu" and torch.cuda.is_available():
        talk.print("note: on a GPU only deterministic=true gives the same bits twice", soft_wrap=True)
    config.write(config.dump(made), out / "recipe.toml")
    runs = _Runs(out, made, data, device, threads=max(1, torch.get_num_threads() // (world or 1)))
    found: list[Part] = []
    with exit_on_sigterm(), talk.status("", spinner="dots") as status:
        status.update(f"training {made.steps} steps in peace")
        runs.whole("whole")
        talk.print(f"{out / 'whole'}: {made.steps} steps in peace", soft_wrap=True)
        uniforms, struck = random.Random(seed), []
        for attempt in range(TRIES):
            shutil.rmtree(out / "broken", ignore_errors=True)
            struck = runs.broken("broken", draw_kills(made, kills, uniforms, 0.8 / 2**attempt), uniforms, talk, status)
            if all(kill.hit for kill in struck):
                break
        talk.print(f"{out / 'broken'}: finished after {sum(kill.hit for kill in struck)} kills", soft_wrap=True)
        if world is not None:
            status.update(f"training with {world} workers")
            runs.begun("world", world)
            talk.print(f"{out / 'world'}: the first steps by {world} workers", soft_wrap=True)
            found = compare_to_rounding(out / "whole", out / "world", within=ROUNDING[made.precision])
    parts = compare(out / "whole", out / "broken")
    return Verdict(folder=out, steps=made.steps, kills=struck, parts=parts, workers=world, world=found)


def draw_kills(recipe: Recipe, kills: int, uniforms: random.Random, share: float) -> list[tuple[int, str]]:
    """Moments (step, during) spread over the first `share` of a run; every second one waits for a checkpoint."""
    drawn = []
    for i in range(kills):
        target = 1 + int((i + uniforms.random()) / kills * max(recipe.steps - 1, 0) * share)
        saved = -(-target // recipe.run.save_every) * recipe.run.save_every
        drawn.append((saved, "checkpoint") if i % 2 and saved < recipe.steps else (target, "step"))
    return sorted(drawn)


def compare(one: Path, other: Path) -> list[Part]:
    """The last checkpoints of two runs, tensor by tensor, and their metrics, line by line; to the bit."""
    a, b = _last(one), _last(other)
    if a.step != b.step:
        raise TrainingError(f"{a.path} and {b.path} are of different steps: they cannot be compared")
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
                Part(name=what, count=len(names), equal=len(names) - len(bad), largest=largest, first=(bad or [""])[0])
            )
    parts.append(_compare_lines(_lines(one), _lines(other)))
    facts = Part(name="facts", count=1, equal=int(a.facts == b.facts), largest=0.0)
    return [*parts, facts]


def compare_to_rounding(one: Path, other: Path, *, steps: int = FIRST, within: float) -> list[Part]:
    """The losses and the gradients' norms of the first steps of two runs; differences are relative.

    A loss follows from all weights before it, so that these tell of every gradient and every step of the optimiser.
    """
    mine, theirs = ({x["step"]: x for x in _lines(run) if _is_log(x) and x["step"] <= steps} for run in (one, other))
    keys = list(dict.fromkeys(key for x in mine.values() for key in x if key != "step" and not key.startswith("lr")))
    parts = []
    for key in keys:
        apart = {step: _relative(x[key], theirs.get(step, {}).get(key)) for step, x in mine.items() if key in x}
        bad = [step for step, size in apart.items() if not size <= within]
        parts.append(
            Part(
                name=f"{key}, first {len(apart)} steps", count=len(apart), equal=len(apart) - len(bad),
                largest=max(apart.values(), default=0.0), first=f"step {bad[0]}" if bad else "", within=within,
            )
        )  # fmt: skip
    return parts


def _is_log(line: Mapping[str, Any]) -> bool:
    """True for a line of losses, not of validation, samples or probes."""
    return any(key.startswith("lr") for key in line)


class _Runs:
    """The trainings of one verification: all by the same recipe, with as many threads."""

    def __init__(self, out: Path, recipe: Recipe, data: str | Path | None, device: str, threads: int) -> None:
        self.out, self.recipe, self.data, self.device, self.threads = out, recipe, data, device, threads
        self.pace = 0.01  # seconds a step

    def start(self, name: str, attempt: int = 0, world: int | None = None) -> Child:
        words = command(
            self.out / "recipe.toml", out=self.out / name, data=self.data, device=self.device, world=world
        )  # fmt: skip
        return Child(words, threads=self.threads, log=self.out / "logs" / f"{name}-{attempt}.txt")

    def whole(self, name: str) -> None:
        """A training that nobody disturbs."""
        with self.start(name) as child:
            child.finish()
        self.pace = statistics.median(line["seconds"] for line in _lines(self.out / name, TIMES[1:]) if _is_log(line))

    def begun(self, name: str, world: int) -> None:
        """The first steps of a training by several workers."""
        with self.start(name, world=world) as child:
            watch = _Watch(self.out / name, 1, self.recipe.run.save_every)
            while child.running and watch.step() <= FIRST:
                time.sleep(0.02)
            if not child.running:
                child.finish()

    def broken(
        self, name: str, moments: list[tuple[int, str]], uniforms: random.Random, talk: Console, status: Any
    ) -> list[Kill]:
        """A training that is killed at some moments, and started again each time."""
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
            ended = alive and watch.saved() < self.recipe.steps
            struck.append(Kill(target=target, during=watch.caught(), step=watch.step(), hit=ended))
            if not ended:
                break
            talk.print(f"killed after step {struck[-1].step}, during a {struck[-1].during}", soft_wrap=True)
        struck += [
            Kill(target=target, during=during, step=self.recipe.steps, hit=False)
            for target, during in moments[len(struck) :]
        ]
        status.update("training to the end")
        with self.start(name, len(moments)) as child:
            child.finish()
        return struck


class _Watch:
    """Looks at a run folder from outside: how far its present attempt has come."""

    def __init__(self, folder: Path, attempts: int, save_every: int) -> None:
        self.folder, self.attempts, self.save_every = folder, attempts, save_every
        self.name, self.start = "", 0

    def due(self, target: int, during: str) -> bool:
        """Whether the moment of a kill has come: at `target` or later, and after something new was done."""
        if not self._began():
            return False
        target = max(target, self.start + 1)
        if during == "checkpoint" and self.step() < target + max(1, self.save_every // 2):
            return any(step >= target for step in self._writing())
        return self.step() >= target

    def caught(self) -> str:
        """What a kill really interrupted."""
        return "checkpoint" if self._writing() else "step"

    def step(self) -> int:
        """The last step that was logged."""
        try:
            with open(self.folder / "metrics.jsonl", "rb") as file:
                file.seek(max(0, file.seek(0, 2) - (1 << 16)))
                steps = re.findall(rb'^\{"step": (\d+)', file.read(), re.MULTILINE)
        except FileNotFoundError:
            return 0
        return int(steps[-1]) if steps else 0

    def saved(self) -> int:
        """The last step that has a checkpoint."""
        return max((int(path.name[5:]) for path in (self.folder / "checkpoints").glob("step-*")), default=0)

    def _began(self) -> bool:
        """Whether this attempt has read what the last one left, so that what is seen from now on is its own."""
        if not self.name:
            try:
                attempts = json.loads((self.folder / "facts.json").read_bytes())["attempts"]
            except FileNotFoundError:
                return False
            if len(attempts) == self.attempts:
                self.name, self.start = attempts[-1]["name"], attempts[-1]["step"]
        return bool(self.name)

    def _writing(self) -> list[int]:
        """The steps whose checkpoints this attempt has begun and not ended."""
        names = [path.name for path in (self.folder / "checkpoints").glob(f".step-*.{self.name}-*.tmp")]
        return [int(name.split(".")[1][5:]) for name in names]


def _watched(recipe: Recipe, kills: int) -> Recipe:
    """A recipe that logs every step, and saves often enough to be resumed: neither changes what is learned."""
    every = recipe.run.save_every
    if not 0 < every < recipe.steps:
        every = max(1, recipe.steps // (kills + 2))
    return dataclasses.replace(recipe, run=dataclasses.replace(recipe.run, log_every=1, save_every=every))


def _check_world(recipe: Recipe, world: int) -> None:
    if world < 2:
        raise InputError(f"world={world}: expected 2 workers or more")
    for table in (recipe.model, *(player.model for player in recipe.players.values())):
        if not table:
            continue
        defaults = {f.name: f.default for f in dataclasses.fields(section_name(config.Table(table), "model")[1])}
        for name in (name for name in defaults if "dropout" in name):
            if share := table.get(name, defaults[name]):
                raise InputError(
                    f"model.{name} = {share}: expected 0 where workers are compared, since each drops out other "
                    "numbers than one worker would"
                )


def _last(folder: Path) -> Checkpoint:
    found = latest(folder / "checkpoints")
    if found is None:
        raise TrainingError(f"{folder} has no checkpoint to compare")
    return found


def _lines(folder: Path, without: tuple[str, ...] = TIMES) -> list[dict[str, Any]]:
    """The metrics of a run, less those that no two runs have in common."""
    metrics = Folder(folder, create=False, lock=False).metrics()
    return [{key: value for key, value in line.items() if key not in without} for line in metrics]


def _compare_lines(mine: list[dict[str, Any]], theirs: list[dict[str, Any]]) -> Part:
    count = max(len(mine), len(theirs))
    bad, largest = [], 0.0
    for i in range(count):
        x, y = (lines[i] if i < len(lines) else {} for lines in (mine, theirs))
        if x != y:
            bad.append(f"line {i + 1}")
            numbers = [(x[key], y[key]) for key in x.keys() & y.keys() if isinstance(x[key], float)]
            largest = max([largest, *(abs(a - b) for a, b in numbers if isinstance(b, float))])
    return Part(
        name="lines of metrics", count=count, equal=count - len(bad), largest=largest, first=(bad or [""])[0]
    )  # fmt: skip


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
