"""The training loop, for one CPU, one GPU, or many workers under torchrun; a resumed run equals an uninterrupted one.

No random state is carried from step to step: the batch is a function of (seed, step), and dropout uses a generator that
is seeded by (seed, step, micro-batch). So a checkpoint holds the weights, the optimiser state, the objective's buffers
and the step.
"""

from __future__ import annotations

import math
import shutil
import sys
import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager, suppress
from functools import cached_property
from pathlib import Path
from typing import Any, NoReturn, Protocol, runtime_checkable

import torch
from torch import Tensor

from .. import config
from ..data import Data, make_data
from ..data.data import columns_told
from ..weights import Bundle, load, save
from ..weights.checkpoints.pretrained import describe
from . import logs as progress
from .best import Best
from .checkpoints import (
    Checkpoint,
    CheckpointError,
    DamagedError,
    Writer,
    latest,
    step_name,
)
from .distributed import World
from .logs import HOUR, Events, Pace
from .own_data.memory import is_exhausted
from .prefetch import Feed, MicroBatch
from .processes import TrainingError, on_stop
from .recipe import MAY_CHANGE, Recipe, named_options
from .run_folder import Folder, FolderError, changes, check_same_meaning, data_facts
from .setup import resolve
from .trainer import Trainer, Updated

# Losses and gradient norms that stay on the device until they are logged, so that a step does not wait for them.


class Pending:
    """The reports of the steps since the last log."""

    def __init__(self, world: World, *, several: bool) -> None:
        """`several` players: names of norms and learning rates end with the player's name."""
        self.world, self.several = world, several
        self._steps: list[tuple[int, Sequence[Updated]]] = []

    def __bool__(self) -> bool:
        return bool(self._steps)

    def add(self, step: int, reports: Sequence[Updated]) -> None:
        """Add the reports of a step."""
        self._steps.append((step, reports))

    def read(self) -> tuple[dict[str, float], tuple[int, str] | None]:
        """Read all reports from the device, in one transfer.

        Returns the losses (means over all workers), norms and learning rates of the last step, and the first step and
        loss or norm that is not finite, if there is one.
        """
        numbers = [
            x for _, reports in self._steps for r in reports for x in (*r.losses.values(), r.norm)
        ]
        values = iter(torch.stack([x.float() for x in numbers]).tolist() if numbers else [])
        rows: list[tuple[int, dict[str, float], dict[str, float], dict[str, float]]] = []
        for step, reports in self._steps:
            losses: dict[str, float] = {}
            norms: dict[str, float] = {}
            rates: dict[str, float] = {}
            for r in reports:
                suffix = f"_{r.update.player}" if self.several else ""
                losses |= {name: next(values) for name in r.losses}
                norms[f"norm{suffix}"], rates[f"lr{suffix}"] = next(values), r.lr
            rows.append((step, losses, norms, rates))
        sums = iter(
            self.world.sum(
                *(x / self.world.size for _, losses, _, _ in rows for x in losses.values())
            )
        )
        self._steps, last = [], dict[str, float]()
        for step, losses, norms, rates in rows:
            losses = {name: next(sums) for name in losses}
            for name, number in (losses | norms).items():
                if not math.isfinite(number):
                    if name in norms:
                        what = "gradient norm"
                    else:
                        what = name.replace("_", " ")
                    return last, (step, f"the {what} became {number}")
            last = losses | norms | rates
        return last, None


# the timing metrics, which differ between two runs of the same recipe
TIMES = ("seconds", "rate", "share")

CHANGED = {  # consequences of a change in the recipe of a resumed run
    "steps": ": schedules now differ from those of an uninterrupted run",
    "run.best": ": only validations from here on count",
    "data": ": the files have changed, and this run differs from an uninterrupted one",
}


@runtime_checkable
class Propose(Protocol):
    """Returns a sentence about what would take less time, for a training that takes more than an hour."""

    def __call__(self, *, step: int, rate: float) -> str:
        """Of the steps that are done, and of the steps per second."""


class Loop:
    """One attempt at a run; its constructor checks and builds everything that the steps need."""

    def __init__(
        self,
        recipe: Recipe,
        out: Path,
        root: Path | None,
        world: World,
        quiet: bool,
        propose: Propose | None = None,
        data: Data | None = None,
    ) -> None:
        self.recipe, self.world, self.propose = recipe, world, propose
        self.stopping = self._agreed = self._save_is_due = False
        # validation of the mean of the last checkpoints, of a run with run.average
        self.mean: dict[str, float] = {}
        with ExitStack() as stack:
            # a plan for a file of data has opened it to count its steps
            self.data = self._open(recipe.data, root) if data is None else data
            stack.callback(self.data.close)
            feeds = {name: self._open(table, root) for name, table in recipe.feeds.items()}
            for feed in feeds.values():
                stack.callback(feed.close)
            resumes = any((out / "checkpoints").glob("step-*"))
            self.facts = data_facts(self.data, feeds.values(), root)
            if (
                newest := latest(out / "checkpoints", say=lambda _: None, verify=False)
            ) is not None:
                check_same_meaning(newest.facts.get("data", {}), self.facts, out)
            setup = resolve(
                recipe, self.data, feeds, before=Folder.read_setup(out) if resumes else None
            )
            self.trainer = Trainer(recipe, setup, self.data, world, feeds=feeds, fresh=not resumes)
            objective = self.trainer.objective
            self.best = Best(recipe.run, {**objective.measurements, **objective.text_measurements})
            self._check()
            self.folder = Folder(out, lock=world.rank == 0)
            stack.callback(self.folder.close)
            self.changes: list[str] = []  # of the recipe, since the folder's last attempt
            if world.rank == 0:
                self.changes = self._keep_recipe()
                self.folder.keep_setup(setup, unit=self.data.unit, objective=objective)
                self.trainer.begin_result(
                    self.folder.path / "unfinished", self.best.name if self.best.kept else None
                )
            checkpoint = self._newest()
            self.step = 0
            if checkpoint is not None:
                self._resume(checkpoint)
            self.saved = self.step if checkpoint is not None else None
            world.barrier()  # no worker may remove old files before all have read the checkpoint
            self._start_logs(quiet, stack)
            resident = self.trainer.resident.names
            self.feed = Feed(self.data, feeds, objective, world, recipe.accumulate, resident)
            stack.callback(self.feed.close)
            self.pending = Pending(world, several=len(self.trainer.trained) > 1)
            self._stack = stack.pop_all()

    def _start_logs(self, quiet: bool, stack: ExitStack) -> None:
        """Open what the run writes: the progress bar, the logs after the last checkpoint, the checkpoints to come."""
        recipe, world, path = self.recipe, self.world, self.folder.path
        self.talk = progress.Talk(
            steps=recipe.steps, start=self.step, quiet=quiet or world.rank > 0
        )
        stack.callback(self.talk.close)
        if description := self._described():
            self.talk.say(f"data: {description}")
        for note in self.trainer.notes:
            self.talk.say(note)
        if left_out := describe(self.trainer.left_out):
            self.talk.say(left_out)
        for warmup in self.trainer.late_warmups:
            self.talk.say(
                f"warning: the warm-up of {warmup} steps is longer than the training of {recipe.steps} steps: "
                "the learning rate never reaches its peak"
            )
        attempt = ""
        self.events: Events | None = None
        if world.rank == 0:
            self.folder.cut(self.step)
            attempt = self.folder.begin(
                command=sys.argv,
                seed=recipe.seed,
                device=world.device,
                step=self.step,
                left_out=self.trainer.left_out,
                data=self._described(),
                files=self.facts["files"],
            )
            self.events = Events(
                path / "events", after=self.step if (path / "events").exists() else None
            )
            stack.callback(self.events.close)
        attempt = world.broadcast(attempt)
        self.pace = Pace(recipe.run, validates=bool(self.data.valid_batches), steps=recipe.steps)
        self.writer = Writer(
            self.folder.checkpoints,
            rank=world.rank,
            world=world.size,
            attempt=attempt,
            keep=recipe.run.keep,
        )
        stack.callback(self._settle)

    def _described(self) -> str:
        """The data of the run in a sentence, with the columns that are read."""
        columns = columns_told(self.data.columns)
        return "; ".join(
            part for part in (self.data.description, f"columns {columns}" * bool(columns)) if part
        )

    def _open(self, table: Any, root: Path | None) -> Data:
        name, _ = named_options(table, "data")
        if not isinstance(table, config.Table):
            table = config.Table(table)
        return make_data(name, table.without("name"), seed=self.recipe.seed, root=root)

    def _check(self) -> None:
        run = self.recipe.run
        if self.best.kept and not self.data.valid_batches:
            if run.patience:
                word = f"patience = {run.patience}"
            else:
                word = f"best = {run.best!r}"
            raise TrainingError(
                f"run.{word} needs validation data, and this dataset has none: leave it out, or set aside a share for "
                "validation"
            )
        if run.sample_every and not self.trainer.objective.writes_text:
            raise TrainingError(
                f"run.sample_every = {run.sample_every}: this training has no text to sample: expected 0, or a "
                "dataset of text or translations"
            )

    def __enter__(self) -> Loop:
        return self

    def __exit__(self, *error: object) -> None:
        self._stack.close()

    def _keep_recipe(self) -> list[str]:
        """Write the recipe, or check that it equals the folder's; one that failed before its first step is replaced."""
        recipe = config.dump(self.recipe)
        try:
            return self.folder.keep_recipe(recipe, may_change=MAY_CHANGE)
        except FolderError:
            if self.folder.metrics() or any(self.folder.checkpoints.glob("step-*")):
                raise
            for name in ("recipe.toml", "facts.json"):
                (self.folder.path / name).unlink(missing_ok=True)
            return self.folder.keep_recipe(recipe, may_change=MAY_CHANGE)

    # Resuming

    def _newest(self) -> Checkpoint | None:
        """The newest intact checkpoint; worker 0 verifies the checksums and tells the others its name."""
        name = ""
        if self.world.rank == 0:
            checkpoint = latest(self.folder.checkpoints)
            if checkpoint is not None:
                name = checkpoint.path.name
            elif any(self.folder.checkpoints.glob("step-*")):
                name = "damaged"
        name = self.world.broadcast(name)
        if name == "damaged":
            raise TrainingError(
                f"{self.folder.checkpoints}: no checkpoint is intact. Restore one, or move the folder away to start "
                "from step 0"
            )
        if name:
            return Checkpoint(self.folder.checkpoints / name)
        return None

    def _resume(self, checkpoint: Checkpoint) -> None:
        self.trainer.load(checkpoint)
        self.step = checkpoint.step
        self.changes += changes(checkpoint.facts.get("data", {}), self.facts)
        self.best.resume(checkpoint.facts["best"])
        if self.best.kept and self.best.step != checkpoint.step and not self._best_checkpoint():
            self.best.forget()  # it was not kept, or its files are damaged
        if checkpoint.step > self.recipe.steps:
            raise TrainingError(
                f"{checkpoint.path} is past the recipe's {self.recipe.steps} steps: expected more steps, or another "
                "folder"
            )
        for step in self.recipe.averaged_steps:
            path = self.folder.checkpoints / step_name(step)
            if step <= self.step and not path.exists():
                raise TrainingError(
                    f"run.average = {self.recipe.run.average} needs {path}, which was not kept: expected a smaller "
                    "number, or 0"
                )

    def _best_checkpoint(self) -> Checkpoint | None:
        """The checkpoint of the best validation, if there is one and it is intact."""
        if not self.best.step:
            return None
        try:
            checkpoint = Checkpoint(self.folder.checkpoints / step_name(self.best.step))
            checkpoint.check()
            return checkpoint
        except DamagedError as problem:
            if self.world.rank == 0:
                print(f"{problem}: the checkpoint of the best validation is lost", file=sys.stderr)
            return None

    # Running

    def run(self) -> Bundle | None:
        """Train until the last step, until patience runs out, or until a signal asks to stop (then returns None)."""
        recipe = self.recipe
        finished = self.step >= recipe.steps or self.best.out_of_patience
        if self.step:
            state = "already finished" if finished else "resuming"
            self.talk.say(f"{self.folder.path}: {state} at step {self.step} of {recipe.steps}")
            for change in self.changes:
                self.talk.say(f"changed: {change}{CHANGED.get(change.split()[0], '')}")
        with on_stop(self._request_stop):
            batches = self.feed.steps(self.step, recipe.steps)
            self._restart_clock()
            while not finished:
                self._update(next(batches))
                finished = self.step >= recipe.steps
                if finished or self._due(recipe.run.valid_every):
                    finished = self._validate() or finished
                if recipe.run.sample_every and (finished or self._due(recipe.run.sample_every)):
                    self._sample()
                stop = self._agreed or (self.stopping and self.world.size == 1)
                if finished or stop or self._save_is_due or self._due(recipe.run.save_every):
                    self._save()
                if stop and not finished:
                    break
                if not finished:
                    self._say_forecast()
            self.writer.wait()
        if not finished:
            self.talk.say(
                f"{self.folder.path}: stopped at step {self.step} of {recipe.steps}; the same command resumes it"
            )
        return self._finish() if finished else None

    def _request_stop(self) -> bool:
        """Stop after the current step; returns whether a stop was requested before."""
        before, self.stopping = self.stopping, True
        return before

    def _due(self, every: int) -> bool:
        return bool(every) and self.step % every == 0

    def _restart_clock(self) -> None:
        self._clock, self._units = time.perf_counter(), 0

    def _update(self, parts: list[MicroBatch]) -> None:
        """Perform one step, the updates of all players, and log it if a log is due."""
        recipe, world, index = self.recipe, self.world, self.step
        # clocks differ: that of worker 0 counts
        save_is_due = world.rank == 0 and self.pace.is_save_due
        counted, units, stop, save = world.sum(
            sum(part.counted for part in parts),
            sum(part.units for part in parts),
            self.stopping,
            save_is_due,
        )
        self._agreed, self._save_is_due = stop > 0, save > 0
        self.step += 1
        probes = self._due(recipe.run.inside_every)
        if probes:
            self.trainer.probe_next()
        with self._memory():
            reports, batch = self.trainer.step(parts, index, counted)
        self.pending.add(self.step, reports)
        self._units += int(units)
        logs = self._due(recipe.run.log_every) or self.step == recipe.steps
        if logs or probes or world.device.type == "cpu":
            now = self._read()
        else:
            now = {}
        shown = None
        if logs:
            seconds = time.perf_counter() - self._clock
            rate = self._units / max(seconds, 1e-9)
            self._restart_clock()
            share = rate / world.size * self._flops(batch, parts[-1].units) / self._peak
            losses = {name: f"{now[name]:.4f}" for name in self.loss_names if name in now}
            shown = losses | {f"{self.data.unit}/s": f"{rate:,.0f}"}
            if world.device.type != "cpu":  # what other processes leave of a CPU varies too much
                shown["of peak"] = f"{share:.0%}"
            record = now | self.trainer.scheduled
            self._log(record | {"seconds": seconds, "rate": rate, "share": share})
        if probes:
            self._log({"inside": self.trainer.probed()})
        self.talk.advance(self.step, shown)

    def _say_forecast(self) -> None:
        """Say, after the first steps of a long training, how long it will take, and what would take less."""
        forecast = self.pace.forecast(self.step)
        if forecast is None:
            return
        self.talk.say(str(forecast))
        if self.propose is not None and forecast.seconds > HOUR:
            self.talk.say(self.propose(step=self.step, rate=forecast.rate))

    @cached_property
    def loss_names(self) -> list[str]:
        """The name of each update's loss in the logs."""
        return [update.loss for update in self.trainer.objective.updates]

    @cached_property
    def _peak(self) -> float:
        return progress.peak(self.world.device, self.recipe.precision)

    _flops_per_unit: float | None = None

    def _flops(self, batch: Mapping[str, Tensor], units: int) -> float:
        """Floating-point operations per unit of data; counted once per run."""
        if self._flops_per_unit is None:
            self._flops_per_unit = progress.training_flops(self.trainer.objective, batch) / max(
                units, 1
            )
        return self._flops_per_unit

    def _read(self) -> dict[str, float]:
        """The losses, norms and learning rates of the last step; raises if a pending loss or norm is not finite."""
        last, problem = self.pending.read()
        if problem is not None:
            self._refuse(*problem)
        return last

    def _refuse(self, step: int, problem: str) -> NoReturn:
        self.writer.wait()
        if self.saved:
            last = f"the last good checkpoint is {self.folder.checkpoints / step_name(self.saved)}"
        else:
            last = "there is no checkpoint yet"
        if self.world.rank == 0:
            self.folder.tell(problem=f"{problem} in step {step}")
        raise TrainingError(
            f"{self.folder.path}: {problem} in step {step}, whose batch is that of seed {self.recipe.seed} and "
            f"step {step - 1} counted from 0; {last}"
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
    def _memory(self) -> Iterator[None]:
        """Turn an exhausted memory into an error that says what needs less."""
        try:
            yield
        except (MemoryError, RuntimeError) as cause:
            if not is_exhausted(cause):
                raise
            recipe, device = self.recipe, self.world.device
            less = [f"accumulate={2 * recipe.accumulate}"]
            less += [] if recipe.recompute else ["recompute=true"]
            raise TrainingError(
                f"{self.folder.path}: out of memory on {device} in step {self.step}: expected a smaller batch, or "
                f"{' or '.join(less)}, with which the same command goes on"
            ) from cause

    @contextmanager
    def _disk(self) -> Iterator[None]:
        """Turn a disk error into one that names the file and the last intact checkpoint."""
        try:
            yield
        except OSError as cause:
            with suppress(CheckpointError):
                self.writer.wait()
            intact = latest(self.folder.checkpoints, say=lambda _: None)
            if intact:
                last = f"the last intact checkpoint is {intact.path}"
            else:
                last = "there is no intact checkpoint yet"
            where = cause.filename or self.folder.path
            raise TrainingError(
                f"{where}: step {self.step} cannot be written: {cause.strerror or cause}; {last}"
            ) from cause

    # Validation, checkpoints, the end

    def _validate(self) -> bool:
        """Measure on validation data and log it; returns whether patience has run out."""
        if not self.data.valid_batches:
            return False
        record = self.trainer.measure(self.feed.valid())
        self._log(record)
        self.talk.say(f"step {self.step}: {_shown(record)}")
        self._restart_clock()
        if self.best.take(record, self.step) and self.best.kept:
            self._save()
        if self.best.out_of_patience:
            best = f"{self.best.value:.4f} at step {self.best.step}"
            name = self.best.name.replace("_", " ")
            self.talk.say(
                f"no better {name} in {self.best.waited} validations: the best was {best}"
            )
        return self.best.out_of_patience

    def _sample(self) -> None:
        """Log a few samples of text from a copy of the model, so that the training is not affected."""
        bundle = next(iter(self.trainer.export().values()))
        if self.world.rank:
            return
        bundle.model.to(self.world.device)
        samples = self.trainer.objective.samples(bundle)
        with self._disk():
            self.folder.log({"step": self.step, "samples": samples})
        for one in samples[:1]:
            self.talk.say(
                f"step {self.step}: {' '.join(one['given'].split())} … {' '.join(one['written'].split())}"
            )
        self._restart_clock()

    def _save(self) -> None:
        if self.saved == self.step:
            return
        if self.pending:
            self._read()
        if not self.trainer.finite():
            self._refuse(self.step, "a weight became infinite or NaN")
        protect = [*self.recipe.averaged_steps, *([self.best.step] if self.best.kept else [])]
        facts = {"best": self.best.facts, "data": self.facts}
        self.writer.save(self.step, self.trainer.tensors(), facts, protect=protect)
        self.saved = self.step
        self.pace.saved()

    def _settle(self) -> None:
        """Wait for the checkpoint that is being written; its failure is ignored, because the run ends anyway."""
        with suppress(CheckpointError):
            self.writer.wait()

    def _finish(self) -> Bundle:
        """Save the trained model (an average, or its best checkpoint, if configured) and other players; return it."""
        if self.recipe.run.average > 1:
            self._average()
        if self.best.kept and self.best.step != self.step:
            best = self._best_checkpoint()
        else:
            best = None
        bundles = self.trainer.export(best)
        if self.world.rank == 0:
            with self._disk():
                for i, (name, bundle) in enumerate(bundles.items()):
                    if i:
                        path = self.folder.path / "players" / name
                    else:
                        path = self.folder.path / "model"
                    save(bundle, path, layout="clearhead" if bundle.base is None else "peft")
                if self.best.kept and self.best.step:
                    best_step = self.best.step
                else:
                    best_step = None
                self.folder.keep_model(self.recipe, step=self.step, best=best_step, mean=self.mean)
                shutil.rmtree(self.folder.path / "unfinished", ignore_errors=True)
        self.world.barrier()  # until it is saved
        return load(self.folder.path / "model", device=str(self.world.device))

    def _average(self) -> None:
        """Replace the weights by the mean of those of the last checkpoints, and validate it."""
        checkpoints = [
            Checkpoint(self.folder.checkpoints / step_name(step))
            for step in self.recipe.averaged_steps
        ]
        for checkpoint in checkpoints:
            checkpoint.check()
        self.trainer.load_mean(checkpoints)
        steps = ", ".join(str(checkpoint.step) for checkpoint in checkpoints)
        if self.data.valid_batches:
            self.mean = self.trainer.measure(self.feed.valid())
        self.talk.say(
            f"mean of the weights of steps {steps}"
            + (f": {_shown(self.mean)}" if self.mean else "")
        )


def _shown(record: Mapping[str, float]) -> str:
    """The measurements of a validation, for the progress."""
    return ", ".join(f"{name.replace('_', ' ')} {x:.4f}" for name, x in record.items())


def _flat(record: Mapping[str, Any], prefix: str = "") -> Iterator[tuple[str, float]]:
    for name, value in record.items():
        if isinstance(value, Mapping):
            yield from _flat(value, f"{prefix}{name}/")
        elif isinstance(value, list):
            yield from ((f"{prefix}{name}/{i}", float(x)) for i, x in enumerate(value))
        else:
            yield f"{prefix}{name}", float(value)
