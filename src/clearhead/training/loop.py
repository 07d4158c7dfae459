"""The training loop, for one CPU, one GPU, or many workers under torchrun; a resumed run equals an uninterrupted one.

    Loop.run        step after step; then validation, samples and a checkpoint, if they are due
    Loop._step      around a step: what all workers agree on, and the logs
    Trainer.step    the step: forward and backward pass of every micro-batch, and the update of every player

No random state is carried from step to step: the batch is a function of (seed, step), and dropout uses a generator that
is seeded by (seed, step, micro-batch). So a checkpoint holds the weights, the optimiser state, the objective's buffers
and the step.
"""

from __future__ import annotations

import shutil
import sys
from collections.abc import Iterator, Mapping
from contextlib import ExitStack, contextmanager, suppress
from pathlib import Path
from typing import Any, NoReturn, Protocol, runtime_checkable

from .. import config
from ..data import Data, make_data
from ..data.splits import columns_told
from ..weights import Bundle, load, save
from ..weights.checkpoints.pretrained import describe
from .best import Best
from .checkpoints import (
    Checkpoint,
    CheckpointError,
    CheckpointWriter,
    DamagedError,
    latest,
    step_name,
)
from .distributed import World
from .logs import HOUR, EventFile, Pace, PendingReports, ProgressDisplay, Throughput
from .own_data.memory import is_exhausted
from .prefetch import MicroBatch, Prefetcher
from .processes import TrainingError, on_stop
from .recipe import MAY_CHANGE, Recipe, named_options
from .run_folder import Folder, FolderError, changes, check_same_meaning, data_facts
from .setup import Setup, resolve
from .trainer import Trainer

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
        """The sentence, given the steps that are done, and the steps per second."""


class Loop:
    """One attempt at a run: the constructor checks and builds everything, `run` trains."""

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
        self.stopping = False  # a signal asks to stop after the current step
        self.step = 0  # steps that are done
        self.saved: int | None = None  # step of the last checkpoint
        # validation of the mean of the last checkpoints (run.average)
        self.mean: dict[str, float] = {}
        with ExitStack() as stack:
            # The order matters: nothing is written before data, models, recipe and checkpoint have been found to fit.
            self._open_data(root, data, stack)
            setup = self._build_trainer(out)
            self._check_recipe()
            self._open_folder(out, stack)
            self._resume_newest()
            self._start_logs(quiet, stack)
            self._start_writing(setup, stack)
            self._start_feed(stack)
            self._stack = stack.pop_all()

    def __enter__(self) -> Loop:
        return self

    def __exit__(self, *error: object) -> None:
        self._stack.close()

    # Running

    def run(self) -> Bundle | None:
        """Train until the last step, until patience runs out, or until a signal asks to stop (then returns None)."""
        recipe, run = self.recipe, self.recipe.run
        finished = self.step >= recipe.steps or self.best.out_of_patience
        if self.step:
            self._say_where_it_resumes(finished)
        with on_stop(self._request_stop):
            # prefetching begins at the step that is resumed
            batches = self.prefetcher.steps(self.step, recipe.steps)
            self.throughput.restart()
            while not finished:
                stop, save_by_time = self._step(next(batches))
                finished = self.step >= recipe.steps
                if finished or self._due(run.valid_every):
                    # before the checkpoint, whose facts include the best validation
                    self._validate()
                    finished = finished or self.best.out_of_patience
                if run.sample_every and (finished or self._due(run.sample_every)):
                    self._sample()
                # One worker alone also sees a signal that came during validation; several have agreed before it.
                stop = stop or (self.stopping and self.world.size == 1)
                if finished or stop or save_by_time or self._due(run.save_every):
                    self._save()
                if finished or stop:
                    break
                self._say_forecast()
            self.writer.wait()
        if finished:
            return self._finish()
        where = f"step {self.step} of {recipe.steps}"
        self.display.say(f"{self.folder.path}: stopped at {where}; the same command resumes it")
        return None

    def _step(self, micro_batches: list[MicroBatch]) -> tuple[bool, bool]:
        """Perform one step and log it; returns whether to stop after it, and whether to save because of the time."""
        # What all workers agree on, in one exchange. Their clocks differ: worker 0's counts.
        counted, units, stop, save_by_time = self.world.sum(
            sum(micro_batch.counted for micro_batch in micro_batches),
            sum(micro_batch.units for micro_batch in micro_batches),
            self.stopping,
            self.world.rank == 0 and self.pace.is_save_due,
        )
        self.step += 1
        is_probed = self._due(self.recipe.run.inside_every)
        if is_probed:
            self.trainer.probe_next()
        with self._step_errors():
            reports, batch = self.trainer.step(micro_batches, self.step - 1, counted)
        self.pending.add(self.step, reports)
        self.throughput.add(int(units))

        # Reading a loss waits for the GPU to catch up, so it is read with the logs; on a CPU at once.
        is_logged = self._due(self.recipe.run.log_every) or self.step == self.recipe.steps
        numbers: dict[str, float] = {}
        if is_logged or is_probed or self.world.device.type == "cpu":
            # raises at the first loss that is not finite
            numbers = self._read_pending()
        shown = None
        if is_logged:
            # after the losses were read, so that the GPU has finished the steps that are counted
            speed = self.throughput.measure(batch, micro_batches[-1].units)
            self._log(numbers | self.trainer.scheduled | speed)
            shown = self._shown(numbers, speed)
        if is_probed:
            self._log({"inside": self.trainer.probed()})
        self.display.advance(self.step, shown)
        return stop > 0, save_by_time > 0

    def _due(self, every: int) -> bool:
        return bool(every) and self.step % every == 0

    def _request_stop(self) -> bool:
        """Stop after the current step; returns whether a stop was requested before."""
        before, self.stopping = self.stopping, True
        return before

    def _validate(self) -> None:
        """Measure on validation data, log it, and keep the best checkpoint."""
        if not self.data.valid_batches:
            return
        record = self.trainer.measure(self.prefetcher.valid())
        self._log(record)
        self.display.say(f"step {self.step}: {_measurements(record)}")
        self.throughput.restart()
        best = self.best
        # every better validation is saved at once: its weights may become the result
        if best.take(record, self.step) and best.kept:
            self._save()
        if best.out_of_patience:
            name = best.name.replace("_", " ")
            self.display.say(
                f"no better {name} in {best.waited} validations: the best was {best.value:.4f} at step {best.step}"
            )

    def _sample(self) -> None:
        """Log a few samples of text from a copy of the model, so that the training is not affected."""
        bundle = next(iter(self.trainer.export().values()))  # gathers shards: all workers take part
        if self.world.rank:
            return
        # only worker 0 writes, from its copy
        bundle.model.to(self.world.device)
        samples = self.trainer.objective.samples(bundle)
        with self._disk():
            self.folder.log({"step": self.step, "samples": samples})
        if samples:
            # line breaks would break the progress display
            given, written = (" ".join(samples[0][key].split()) for key in ("given", "written"))
            self.display.say(f"step {self.step}: {given} … {written}")
        self.throughput.restart()

    def _save(self) -> None:
        """Begin to write a checkpoint in the background, after a check that losses and weights are finite."""
        if self.saved == self.step:
            return
        if self.pending:
            # a loss that is not finite ends the run before its weights are written
            self._read_pending()
        # a checkpoint with a NaN would replace the last good one
        if not self.trainer.finite():
            self._refuse(self.step, "a weight became infinite or NaN")
        protect = list(self.recipe.averaged_steps)
        if self.best.kept:
            # the best checkpoint outlives run.keep
            protect.append(self.best.step)
        facts = {"best": self.best.facts, "data": self.facts}
        self.writer.save(self.step, self.trainer.tensors(), facts, protect=protect)
        self.saved = self.step
        self.pace.saved()

    def _finish(self) -> Bundle:
        """Save the trained model (an average, or its best checkpoint, if configured) and other players; return it."""
        if self.recipe.run.average > 1:
            self._average()
        best = None
        if self.best.kept and self.best.step != self.step:
            # an earlier step was the best: its weights are in its checkpoint
            best = self._best_checkpoint()
        # the result first; gathers shards: all workers take part
        bundles = self.trainer.export(best)
        if self.world.rank == 0:
            with self._disk():
                result = next(iter(bundles))
                for name, bundle in bundles.items():
                    path = self.folder.path / "players" / name
                    if name == result:
                        path = self.folder.path / "model"
                    save(bundle, path, layout="clearhead" if bundle.base is None else "peft")
                self.folder.keep_model(
                    self.recipe, step=self.step, best=self.best.chosen_step, mean=self.mean
                )
                # only once model/ is recorded: until then a checkpoint opens through unfinished/
                shutil.rmtree(self.folder.path / "unfinished", ignore_errors=True)
        self.world.barrier()  # until it is saved
        return load(self.folder.path / "model", device=str(self.world.device))

    def _average(self) -> None:
        """Replace the weights by their mean over the last checkpoints, and validate it."""
        folder = self.folder.checkpoints
        checkpoints = [Checkpoint(folder / step_name(step)) for step in self.recipe.averaged_steps]
        for checkpoint in checkpoints:
            checkpoint.check()
        self.trainer.load_mean(checkpoints)
        sentence = "mean of the weights of steps "
        sentence += ", ".join(str(checkpoint.step) for checkpoint in checkpoints)
        if self.data.valid_batches:
            # the mean has not been validated yet: no step had these weights
            self.mean = self.trainer.measure(self.prefetcher.valid())
            sentence += f": {_measurements(self.mean)}"
        self.display.say(sentence)

    # The steps of the constructor

    def _open_data(self, root: Path | None, data: Data | None, stack: ExitStack) -> None:
        """Open the dataset, unless a plan for a file of data has done that to count its steps, and the feeds."""

        def opened(table: Mapping[str, Any]) -> Data:
            # checks the options, too
            name, _ = named_options(table, "data")
            section = table if isinstance(table, config.Table) else config.Table(table)
            return make_data(name, section.without("name"), seed=self.recipe.seed, root=root)

        self.data = opened(self.recipe.data) if data is None else data
        stack.callback(self.data.close)
        self.feeds: dict[str, Data] = {}
        for name, table in self.recipe.feeds.items():
            self.feeds[name] = opened(table)
            stack.callback(self.feeds[name].close)
        self.facts = data_facts(self.data, self.feeds.values(), root)

    def _build_trainer(self, out: Path) -> Setup:
        """Build networks and optimisers; returns the setup, which a resumed run takes from its first attempt."""
        resumes = any((out / "checkpoints").glob("step-*"))
        # the classes and the tokenizer are compared before a network is built for others
        newest = latest(out / "checkpoints", say=lambda _: None, verify=False)
        if newest is not None:
            check_same_meaning(newest.facts.get("data", {}), self.facts, out)
        before = Folder.read_setup(out) if resumes else None
        setup = resolve(self.recipe, self.data, self.feeds, before)
        self.trainer = Trainer(
            self.recipe, setup, self.data, self.world, feeds=self.feeds, fresh=not resumes
        )
        objective = self.trainer.objective
        self.best = Best(self.recipe.run, {**objective.measurements, **objective.text_measurements})
        return setup

    def _check_recipe(self) -> None:
        """Raise if the run needs validation data or text, and there is none."""
        run = self.recipe.run
        # checked before the first step, not at the first validation hours later
        if self.best.kept and not self.data.valid_batches:
            word = f"patience = {run.patience}" if run.patience else f"best = {run.best!r}"
            raise TrainingError(
                f"run.{word} needs validation data, and this dataset has none: leave it out, or set aside a share for "
                "validation"
            )
        if run.sample_every and not self.trainer.objective.writes_text:
            raise TrainingError(
                f"run.sample_every = {run.sample_every}: this training has no text to sample: expected 0, or a "
                "dataset of text or translations"
            )

    def _open_folder(self, out: Path, stack: ExitStack) -> None:
        """Lock the run folder, and compare the recipe with the one that is there."""
        self.folder = Folder(out, lock=self.world.rank == 0)
        stack.callback(self.folder.close)
        self.changes: list[str] = []  # of recipe and data, since the folder's last attempt
        self.replaces_recipe = False
        if self.world.rank == 0:
            try:
                self.changes = self.folder.compare_recipe(
                    config.dump(self.recipe), may_change=MAY_CHANGE
                )
            except FolderError:
                if self.folder.metrics() or any(self.folder.checkpoints.glob("step-*")):
                    raise
                # the other recipe failed before its first step: nothing was trained with it
                self.replaces_recipe = True

    def _keep_recipe(self, setup: Setup) -> None:
        """Write the recipe, and what `load` needs to open a checkpoint while the training runs."""
        if self.replaces_recipe:
            (self.folder.path / "facts.json").unlink(missing_ok=True)
        self.folder.keep_recipe(config.dump(self.recipe))
        self.folder.keep_setup(setup, unit=self.data.unit, objective=self.trainer.objective)
        best = self.best.name if self.best.kept else None
        self.trainer.begin_result(self.folder.path / "unfinished", best)

    def _resume_newest(self) -> None:
        """Load the newest intact checkpoint, if there is one."""
        # checksums are verified once, by worker 0; the others read the same folder
        checkpoint = self._newest()
        if checkpoint is not None:
            self.trainer.load(checkpoint)
            self.step = self.saved = checkpoint.step
            self.changes += changes(checkpoint.facts.get("data", {}), self.facts)
            self.best.resume(checkpoint.facts["best"])
            is_elsewhere = self.best.kept and self.best.step != checkpoint.step
            if is_elsewhere and not self._best_checkpoint():
                self.best.forget()  # it was not kept, or its files are damaged
            self._check_resumed(checkpoint)
        self.world.barrier()  # no worker may remove old files before all have read the checkpoint

    def _newest(self) -> Checkpoint | None:
        """The newest intact checkpoint; worker 0 verifies the checksums and tells the others its name."""
        name = ""
        if self.world.rank == 0:
            checkpoint = latest(self.folder.checkpoints)
            if checkpoint is not None:
                name = checkpoint.path.name
            elif any(self.folder.checkpoints.glob("step-*")):
                # broadcast to all workers, so that all raise instead of one
                name = "damaged"
        name = self.world.broadcast(name)
        if name == "damaged":
            raise TrainingError(
                f"{self.folder.checkpoints}: no checkpoint is intact. Restore one, or move the folder away to start "
                "from step 0"
            )
        return Checkpoint(self.folder.checkpoints / name) if name else None

    def _check_resumed(self, checkpoint: Checkpoint) -> None:
        """Raise if a checkpoint is past the last step, or an earlier one that the average needs is gone."""
        if checkpoint.step > self.recipe.steps:
            raise TrainingError(
                f"{checkpoint.path} is past the recipe's {self.recipe.steps} steps: expected more steps, or another "
                "folder"
            )
        for step in self.recipe.averaged_steps:
            path = self.folder.checkpoints / step_name(step)
            # checkpoints of later steps are still to be written
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
        except DamagedError as problem:
            if self.world.rank == 0:
                # not fatal: the training goes on, and the next best one is kept
                print(f"{problem}: the checkpoint of the best validation is lost", file=sys.stderr)
            return None
        return checkpoint

    def _start_logs(self, quiet: bool, stack: ExitStack) -> None:
        """Open the progress display, and say what the user should know before the first step."""
        steps = self.recipe.steps
        quiet = quiet or self.world.rank > 0
        self.display = ProgressDisplay(steps=steps, start=self.step, quiet=quiet)
        stack.callback(self.display.close)
        if description := self._described():
            self.display.say(f"data: {description}")
        for note in self.trainer.notes:
            self.display.say(note)
        if left_out := describe(self.trainer.left_out):
            self.display.say(left_out)
        for warmup in self.trainer.late_warmups:
            self.display.say(
                f"warning: the warm-up of {warmup} steps is longer than the training of {steps} steps: "
                "the learning rate never reaches its peak"
            )
        objective = self.trainer.objective
        self.throughput = Throughput(objective, self.world, self.recipe.precision)
        self.loss_names = [update.loss for update in objective.updates]
        self.pending = PendingReports(self.world, several=len(self.trainer.trained) > 1)
        self.pace = Pace(self.recipe.run, validates=bool(self.data.valid_batches), steps=steps)

    def _start_writing(self, setup: Setup, stack: ExitStack) -> None:
        """Write the recipe, and open the logs after the last checkpoint, and the checkpoints to come."""
        attempt, path = "", self.folder.path
        self.events: EventFile | None = None
        if self.world.rank == 0:
            # worker 0 alone writes into the folder
            self._keep_recipe(setup)
            self.folder.cut(self.step)  # a resumed run writes the later records again
            attempt = self.folder.begin(
                command=sys.argv,
                seed=self.recipe.seed,
                device=self.world.device,
                step=self.step,
                left_out=self.trainer.left_out,
                data=self._described(),
                files=self.facts["files"],
            )
            after = self.step if (path / "events").exists() else None
            self.events = EventFile(path / "events", after=after)
            stack.callback(self.events.close)
        # Temporary names of checkpoints have the name of the attempt, the same on all workers.
        attempt = self.world.broadcast(attempt)
        self.writer = CheckpointWriter(
            self.folder.checkpoints,
            rank=self.world.rank,
            world=self.world.size,
            attempt=attempt,
            keep=self.recipe.run.keep,
        )
        stack.callback(self._wait_for_writer)

    def _start_feed(self, stack: ExitStack) -> None:
        """Begin to prepare batches in a thread."""
        resident = self.trainer.resident.names
        objective, accumulate = self.trainer.objective, self.recipe.accumulate
        self.prefetcher = Prefetcher(
            self.data, self.feeds, objective, self.world, accumulate, resident
        )
        stack.callback(self.prefetcher.close)

    def _described(self) -> str:
        """The data of the run in a sentence, with the columns that are read."""
        parts = [self.data.description]
        if columns := columns_told(self.data.columns):
            parts.append(f"columns {columns}")
        return "; ".join(part for part in parts if part)

    # Logs and messages

    def _say_where_it_resumes(self, finished: bool) -> None:
        state = "already finished" if finished else "resuming"
        where = f"step {self.step} of {self.recipe.steps}"
        self.display.say(f"{self.folder.path}: {state} at {where}")
        for change in self.changes:
            self.display.say(f"changed: {change}{CHANGED.get(change.split()[0], '')}")

    def _say_forecast(self) -> None:
        """Say, after the first steps of a long training, how long it will take, and what would take less."""
        forecast = self.pace.forecast(self.step)
        if forecast is None:
            return
        self.display.say(str(forecast))
        if self.propose is not None and forecast.seconds > HOUR:
            self.display.say(self.propose(step=self.step, rate=forecast.rate))

    def _shown(self, numbers: Mapping[str, float], speed: Mapping[str, float]) -> dict[str, str]:
        """What the progress display shows of a logged step."""
        shown = {name: f"{numbers[name]:.4f}" for name in self.loss_names if name in numbers}
        shown[f"{self.data.unit}/s"] = f"{speed['rate']:,.0f}"
        if self.world.device.type != "cpu":  # what other processes leave of a CPU varies too much
            shown["of peak"] = f"{speed['share']:.0%}"
        return shown

    def _log(self, record: dict[str, Any]) -> None:
        if self.world.rank:
            return
        with self._disk():
            self.folder.log({"step": self.step, **record})
            if self.events is not None:
                self.events.scalars(self.step, record)
                self.events.flush()

    def _read_pending(self) -> dict[str, float]:
        """The losses, norms and learning rates of the last step; raises if a pending loss or norm is not finite."""
        last, problem = self.pending.read()
        if problem is not None:
            self._refuse(*problem)
        return last

    # Errors

    def _refuse(self, step: int, problem: str) -> NoReturn:
        """End the training because of a number that is not finite."""
        self.writer.wait()
        last = "there is no checkpoint yet"
        if self.saved:
            last = f"the last good checkpoint is {self.folder.checkpoints / step_name(self.saved)}"
        if self.world.rank == 0:
            # kept in facts.json, for those who look later
            self.folder.tell(problem=f"{problem} in step {step}")
        raise TrainingError(
            f"{self.folder.path}: {problem} in step {step}, whose batch is that of seed {self.recipe.seed} and "
            f"step {step - 1} counted from 0; {last}"
        )

    @contextmanager
    def _step_errors(self) -> Iterator[None]:
        """Context that says what to change where the memory is exhausted, or a batch norm has a single value."""
        try:
            yield
        except ValueError as cause:
            # torch's words, which do not say whose batch is too small
            if "Expected more than 1 value per channel" not in str(cause):
                raise
            options = "more rows per batch (data.rows)"
            if self.recipe.accumulate > 1:
                options += f", or a smaller accumulate, now {self.recipe.accumulate}"
            raise TrainingError(
                f"{self.folder.path}: step {self.step} computes with one row, and a batch norm needs two or more: "
                f"expected {options}"
            ) from cause
        except (MemoryError, RuntimeError) as cause:
            # any other RuntimeError is a mistake in the code
            if not is_exhausted(cause):
                raise
            # twice as many micro-batches of half the size give the same step
            options = f"accumulate={2 * self.recipe.accumulate}"
            if not self.recipe.recompute:
                options += " or recompute=true"
            raise TrainingError(
                f"{self.folder.path}: out of memory on {self.world.device} in step {self.step}: expected a smaller "
                f"batch, or {options}, with which the same command goes on"
            ) from cause

    @contextmanager
    def _disk(self) -> Iterator[None]:
        """Context that turns a disk error into one that names the file and the last intact checkpoint."""
        try:
            yield
        except OSError as cause:
            self._wait_for_writer()
            # after the writer has ended: a checkpoint that it could still write counts
            intact = latest(self.folder.checkpoints, say=lambda _: None)
            last = "there is no intact checkpoint yet"
            if intact:
                last = f"the last intact checkpoint is {intact.path}"
            where = cause.filename or self.folder.path
            raise TrainingError(
                f"{where}: step {self.step} cannot be written: {cause.strerror or cause}; {last}"
            ) from cause

    def _wait_for_writer(self) -> None:
        """Wait for the checkpoint that is being written; its failure is ignored, because the run ends anyway."""
        with suppress(CheckpointError):
            self.writer.wait()


def _measurements(record: Mapping[str, float]) -> str:
    """The measurements of a validation, for the progress display."""
    return ", ".join(f"{name.replace('_', ' ')} {x:.4f}" for name, x in record.items())
