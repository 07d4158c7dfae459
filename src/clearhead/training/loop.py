"""The one loop: it serves a laptop, a GPU and many machines under torchrun, and a resumed run equals an unbroken one.

Nothing random is carried from step to step: the batch is a function of (seed, step), and dropout draws from a
generator seeded by (seed, step, part of the batch). So a checkpoint is weights, optimiser state and a step.
"""

from __future__ import annotations

import math
import os
import signal
import sys
import time
from collections.abc import Iterator, Mapping
from contextlib import ExitStack, contextmanager, suppress
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Any, NoReturn

import torch
from torch import Tensor

from .. import config
from ..data import make_data
from ..errors import UserError
from ..weights import Bundle, load, save
from . import progress, samples
from .checkpoint import Checkpoint, CheckpointError, DamagedError, Writer, latest, step_name
from .distributed import World
from .prefetch import Feed, Part
from .recipe import MAY_CHANGE, Recipe, read_recipe, section
from .run_folder import Folder, FolderError
from .schedule import scale
from .tensorboard import Events
from .trainer import Trainee

NONE_YET: dict[str, float] = {"loss": sys.float_info.max, "step": 0, "waited": 0}  # before the first validation
TIMES = ("seconds", "rate", "share")  # the metrics that no two runs have in common


class TrainingError(UserError, RuntimeError):
    """A training cannot go on; the message says where it stands and what is safe."""


@dataclass(frozen=True, kw_only=True, slots=True)
class Run:
    """What a training left: its folder, its metrics, and the model if it is finished."""

    folder: Path
    metrics: list[dict[str, Any]]
    model: Bundle | None  # None if it was stopped before its last step

    @property
    def finished(self) -> bool:
        return self.model is not None


def train(
    recipe: str | Path | Mapping[str, Any] | Recipe,
    *overrides: str,
    out: str | Path | None = None,  # the run folder; runs/NAME if not given
    data: str | Path | None = None,  # where files of data are looked for first
    device: str = "auto",
    quiet: bool = False,
) -> Run:
    """Train a recipe in a folder, or go on with what is there: train("configs/reverse.toml", "optim.lr=1e-3")."""
    made = read_recipe(recipe, *overrides)
    if out is None:
        out = Path("runs") / (Path(recipe).stem if isinstance(recipe, str | Path) else "run")
    # cuBLAS reads this when it starts: with it, its sums have one order.
    if made.deterministic:
        os.environ.setdefault("CUBLAS_WORKSPACE_CONFIG", ":4096:8")
    world = World.join(device)
    try:
        with (
            _settings(made, world.device),
            _Loop(made, Path(out), None if data is None else Path(data), world, quiet) as loop,
        ):
            return loop.run()
    finally:
        world.leave()


@contextmanager
def _settings(recipe: Recipe, device: torch.device) -> Iterator[None]:
    """The switches and generators of torch that a training turns, turned back afterwards."""
    products, same = torch.get_float32_matmul_precision(), torch.are_deterministic_algorithms_enabled()
    warn = torch.is_deterministic_algorithms_warn_only_enabled()
    try:
        with torch.random.fork_rng([device] if device.type == "cuda" else []):
            torch.set_float32_matmul_precision("highest" if recipe.precision == "float32" else "high")
            torch.use_deterministic_algorithms(recipe.deterministic)
            yield
    finally:
        torch.set_float32_matmul_precision(products)
        torch.use_deterministic_algorithms(same, warn_only=warn)


class _Loop:
    """One attempt at a run: everything is checked and built before the first step."""

    def __init__(self, recipe: Recipe, out: Path, root: Path | None, world: World, quiet: bool) -> None:
        self.recipe, self.world = recipe, world
        with ExitStack() as stack:
            table: Any = recipe.data
            self.data = make_data(section(recipe, "data")[0], table.without("name"), seed=recipe.seed, root=root)
            stack.callback(self.data.close)
            if recipe.run.patience and not self.data.valid_batches:
                raise TrainingError(
                    f"run.patience = {recipe.run.patience} waits for a better validation, and this data has none: "
                    "expected 0, or a share for validation"
                )
            self.trainee = Trainee(recipe, self.data, world)
            if recipe.run.sample_every and not samples.writes(self.trainee.model, self.data):
                raise TrainingError(
                    f"run.sample_every = {recipe.run.sample_every}: there is no text to write here: "
                    "expected 0, or data of text or of translations"
                )
            self.folder = Folder(out, lock=world.rank == 0)
            stack.callback(self.folder.close)
            if world.rank == 0:
                self._keep_recipe()
            self.step = 0
            self.best = dict(NONE_YET)
            found = self._found()
            self.trainee.spread()
            if found is not None:
                self._resume(found)
            world.sum(0.0)  # nobody goes on, and tidies up, before all have read
            self.talk = progress.Talk(steps=recipe.steps, start=self.step, quiet=quiet or world.rank > 0)
            stack.callback(self.talk.close)
            attempt = ""
            self.events: Events | None = None
            if world.rank == 0:
                self.folder.cut(self.step)
                attempt = self.folder.begin(command=sys.argv, seed=recipe.seed, device=world.device, step=self.step)
                self.events = Events(out / "events", after=self.step if (out / "events").exists() else None)
                stack.callback(self.events.close)
            attempt = world.broadcast(attempt)
            self.writer = Writer(
                self.folder.checkpoints, rank=world.rank, world=world.size, attempt=attempt, keep=recipe.run.keep
            )
            stack.callback(self._settle)
            self.feed = Feed(self.data, world, recipe.accumulate)
            stack.callback(self.feed.close)
            self.saved = self.step if found is not None else None
            self.stopping = False
            self._pending: list[tuple[int, Tensor, Tensor]] = []  # steps whose loss and norm nobody has read yet
            self._stack = stack.pop_all()

    def __enter__(self) -> _Loop:
        return self

    def __exit__(self, *error: object) -> None:
        self._stack.close()

    def _keep_recipe(self) -> None:
        """Write the recipe, or see that it is the folder's; one that failed before it learned anything gives way."""
        recipe = config.dump(self.recipe)
        try:
            self.folder.keep_recipe(recipe, may_change=MAY_CHANGE)
        except FolderError:
            if self.folder.metrics() or any(self.folder.checkpoints.glob("step-*")):
                raise
            for name in ("recipe.toml", "facts.json"):
                (self.folder.path / name).unlink(missing_ok=True)
            self.folder.keep_recipe(recipe, may_change=MAY_CHANGE)

    def _settle(self) -> None:
        """Let a checkpoint that is being written be finished; a failure of it has been told, or something else has."""
        with suppress(CheckpointError):
            self.writer.wait()

    def _found(self) -> Checkpoint | None:
        """The newest whole checkpoint, by the word of worker 0, which alone reads every byte."""
        name = ""
        if self.world.rank == 0:
            whole = latest(self.folder.checkpoints, say=lambda words: print(words, file=sys.stderr))
            if whole is not None:
                name = whole.path.name
            elif any(self.folder.checkpoints.glob("step-*")):
                name = "damaged"
        name = self.world.broadcast(name)
        if name == "damaged":
            raise TrainingError(
                f"{self.folder.checkpoints}: no checkpoint is whole. Move the folder away to begin anew, or put one "
                "back"
            )
        return Checkpoint(self.folder.checkpoints / name) if name else None

    def _resume(self, found: Checkpoint) -> None:
        self.trainee.fill(found)
        self.step, self.best = found.step, dict(found.facts["best"])
        if self.recipe.run.patience and self.best["step"] != found.step and not self._best():
            self.best = dict(NONE_YET)  # it was not kept: patience was not asked for, or its files were damaged
        if found.step > self.recipe.steps:
            raise TrainingError(
                f"{found.path} is past the recipe's {self.recipe.steps} steps: give it more, or another folder"
            )

    # Running

    def run(self) -> Run:
        recipe, finished = self.recipe, False
        if self.step:
            self.talk.say(f"{self.folder.path}: going on from step {self.step} of {recipe.steps}")
        with self._signals():
            finished = self.step >= recipe.steps or self._out_of_patience
            batches = self.feed.steps(self.step, recipe.steps)
            self._clock, self._tokens = time.perf_counter(), 0
            while not finished:
                self._update(next(batches))
                finished = self.step >= recipe.steps
                if finished or self._due(recipe.run.valid_every):
                    finished = self._validate() or finished
                if recipe.run.sample_every and (finished or self._due(recipe.run.sample_every)):
                    self._sample()
                stop = self._agreed or (self.stopping and self.world.size == 1)
                if finished or stop or self._due(recipe.run.save_every):
                    self._save()
                if stop and not finished:
                    break
            self.writer.wait()
        if not finished:
            self.talk.say(
                f"{self.folder.path}: unfinished at step {self.step} of {recipe.steps}; the same command resumes it"
            )
        model = self._finish() if finished else None
        return Run(folder=self.folder.path, metrics=self.folder.metrics(), model=model)

    @property
    def _out_of_patience(self) -> bool:
        """Whether patience has run out."""
        return 0 < self.recipe.run.patience <= self.best["waited"]

    def _due(self, every: int) -> bool:
        return bool(every) and self.step % every == 0

    def _update(self, parts: list[Part]) -> None:
        """One update of the weights."""
        recipe, world, index = self.recipe, self.world, self.step
        counted, tokens, stop = world.sum(
            sum(part.counted for part in parts), sum(part.size for part in parts), float(self.stopping)
        )
        self._agreed = stop > 0
        loss, batch = self.trainee.backward(parts, index, counted)
        self.step += 1
        looks = self._due(recipe.run.inside_every)
        view = self.trainee.look(batch) if looks else None
        factor = scale(recipe.schedule, index, recipe.steps)
        self._pending.append((self.step, loss, self.trainee.optimiser.step(factor)))
        self._tokens += int(tokens)
        logs = self._due(recipe.run.log_every) or self.step == recipe.steps
        if logs or looks or world.device.type == "cpu":
            loss_now, norm_now = self._read()
        words = None
        if logs:
            seconds = time.perf_counter() - self._clock
            rate = self._tokens / max(seconds, 1e-9)
            self._clock, self._tokens = time.perf_counter(), 0
            share = rate / world.size * progress.flops(self.trainee.model, _length(batch)) / self._peak
            words = {"loss": f"{loss_now:.4f}", "tokens/s": f"{rate:,.0f}", "of peak": f"{share:.0%}"}
            record = {"loss": loss_now, "norm": norm_now, "lr": recipe.optim.lr * factor}
            self._log(record | {"seconds": seconds, "rate": rate, "share": share})
        if view is not None:
            self._log({"inside": view})
        self.talk.moved(self.step, words)

    @cached_property
    def _peak(self) -> float:
        return progress.peak(self.world.device, self.recipe.precision)

    def _read(self) -> tuple[float, float]:
        """The loss and norm of the last step; stops if any since the last reading was not a number."""
        mine = torch.stack([loss for _, loss, _ in self._pending]).tolist()
        norms = torch.stack([norm for _, _, norm in self._pending]).tolist()
        losses = self.world.sum(*(loss / self.world.size for loss in mine))
        steps, self._pending = [step for step, _, _ in self._pending], []
        for step, loss, norm in zip(steps, losses, norms, strict=True):
            if not math.isfinite(loss):
                self._refuse(step, f"the loss became {loss}")
            if not math.isfinite(norm):
                self._refuse(step, f"the gradient's norm became {norm}")
        return losses[-1], norms[-1]

    def _refuse(self, step: int, what: str) -> NoReturn:
        self.writer.wait()
        good = (
            f"the last good checkpoint is {self.folder.checkpoints / step_name(self.saved)}" if self.saved
            else "there is no checkpoint yet"
        )  # fmt: skip
        raise TrainingError(
            f"{self.folder.path}: {what} in step {step}, whose batch is that of seed {self.recipe.seed} and "
            f"step {step - 1} counted from 0; {good}"
        )

    def _log(self, record: dict[str, Any]) -> None:
        if self.world.rank:
            return
        with self._disk():
            self.folder.log({"step": self.step, **record})
            if self.events is not None:
                self.events.scalars(self.step, dict(_flat(record)))
                self.events.flush()

    @contextmanager
    def _disk(self) -> Iterator[None]:
        """What the disk refuses, told with what is safe on it."""
        try:
            yield
        except OSError as cause:
            with suppress(CheckpointError):
                self.writer.wait()
            found = latest(self.folder.checkpoints, say=lambda _: None)
            last = f"the last whole checkpoint is {found.path}" if found else "there is no whole checkpoint yet"
            raise TrainingError(
                f"{self.folder.path}: step {self.step} cannot be written down: {cause.strerror or cause}; {last}"
            ) from cause

    # Validation, checkpoints, the end

    def _validate(self) -> bool:
        """Measure on validation data and log it; says whether patience has run out."""
        if not self.data.valid_batches:
            return False
        record = self.trainee.measure(self.feed.valid())
        self._log(record)
        self.talk.say(
            f"step {self.step}: " + ", ".join(f"{name.replace('_', ' ')} {x:.4f}" for name, x in record.items())
        )
        self._clock, self._tokens = time.perf_counter(), 0
        if record["valid_loss"] < self.best["loss"]:
            self.best = {"loss": record["valid_loss"], "step": self.step, "waited": 0}
            if self.recipe.run.patience:
                self._save()
        else:
            self.best["waited"] += 1
        if self._out_of_patience:
            best = f"{self.best['loss']:.4f} at step {self.best['step']}"
            self.talk.say(f"no better loss in {self.best['waited']} validations: the best was {best}")
        return self._out_of_patience

    def _sample(self) -> None:
        """Write down what the model says by now. A copy of it speaks: nothing of the training is touched."""
        model = self.trainee.trained()
        if self.world.rank:
            return
        found = samples.samples(model.to(self.world.device), self.data)
        with self._disk():
            self.folder.log({"step": self.step, "samples": found})
        for one in found[:1]:
            self.talk.say(f"step {self.step}: {' '.join(one['given'].split())} … {' '.join(one['written'].split())}")
        self._clock, self._tokens = time.perf_counter(), 0

    def _save(self) -> None:
        if self.saved == self.step:
            return
        if self._pending:
            self._read()
        if not self.trainee.sound():
            self._refuse(self.step, "the weights left the numbers")
        protect = [int(self.best["step"])] if self.recipe.run.patience else []
        self.writer.save(self.step, self.trainee.tensors(), {"best": self.best}, protect=protect)
        self.saved = self.step

    def _best(self) -> Checkpoint | None:
        """The checkpoint of the best validation, if there was one and it is whole."""
        if not self.best["step"]:
            return None
        try:
            found = Checkpoint(self.folder.checkpoints / step_name(int(self.best["step"])))
            found.check()
            return found
        except DamagedError as problem:
            if self.world.rank == 0:
                print(f"{problem}: the best model is lost with it", file=sys.stderr)
            return None

    def _finish(self) -> Bundle:
        """The trained model, kept in the folder as `model/`: the average, or the best, where the recipe asks for it."""
        best = self._best() if self.recipe.run.patience and self.best["step"] != self.step else None
        model = self.trainee.trained(best)
        if self.world.rank == 0:
            with self._disk():
                bundle = Bundle(model, self.data.tokens, model.config, labels=self.data.classes)
                save(bundle, self.folder.path / "model")
        self.world.sum(0.0)  # all workers wait until it is there
        return load(self.folder.path / "model", device=str(self.world.device))

    @contextmanager
    def _signals(self) -> Iterator[None]:
        """SIGTERM, and Ctrl-C once, ask for a stop after the step; the flag is seen by all workers."""
        self._agreed = False

        def ask(number: int, _: object) -> None:
            if number == signal.SIGINT and self.stopping:
                raise KeyboardInterrupt
            self.stopping = True

        try:
            old = {s: signal.signal(s, ask) for s in (signal.SIGTERM, signal.SIGINT)}
        except ValueError:  # not the main thread: somebody else minds signals
            yield
            return
        try:
            yield
        finally:
            for number, handler in old.items():
                signal.signal(number, handler)


def _length(batch: Mapping[str, Tensor]) -> int:
    return batch["ids"].shape[1] if "ids" in batch else 1


def _flat(record: Mapping[str, Any], prefix: str = "") -> Iterator[tuple[str, float]]:
    for name, value in record.items():
        if isinstance(value, Mapping):
            yield from _flat(value, f"{prefix}{name}/")
        elif isinstance(value, list):
            yield from ((f"{prefix}{name}/{i}", float(x)) for i, x in enumerate(value))
        else:
            yield f"{prefix}{name}", float(value)
