"""train: a recipe becomes a run folder with checkpoints, metrics and the trained model."""

from __future__ import annotations

import os
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from typing import Any

import torch

from ..data import Data
from ..progress import silenced
from ..weights import Bundle, load
from .checkpoints import latest
from .distributed import World
from .logs import ProgressDisplay
from .loop import Loop, Propose
from .own_data.new_recipe import is_data, plan_new, propose_shorter
from .recipe import Recipe, read_recipe
from .run_folder import Folder, changed_files


@dataclass(frozen=True, kw_only=True, slots=True, repr=False)
class Run:
    """The result of a training.

    Attributes:
        folder: The run folder.
        metrics: All records of metrics.jsonl.
        model: The trained model, a Bundle; None if the training was stopped before its last step.
        step: The last step that was completed.
        best: The step whose weights are the model's, if run.best or run.patience chose it; None: the last step.
        mean: The validation of the model, if run.average made it the mean of several checkpoints; it is not in metrics.

    Examples:
        >>> run = Run(folder=tmp / "run", metrics=[{"step": 1, "loss": 2.3}], model=None)
        >>> run.finished, run.metrics[-1]["loss"]
        (False, 2.3)
    """

    folder: Path
    metrics: list[dict[str, Any]]
    model: Bundle | None
    step: int = 0
    best: int | None = None
    mean: dict[str, float] = field(default_factory=dict)

    def __repr__(self) -> str:
        """One line: the folder, how far it got, and its last loss."""
        state = "finished" if self.finished else "not finished"
        last = self.metrics[-1] if self.metrics else {}
        losses = "".join(
            f", {name} {last[name]:.4g}" for name in ("loss", "valid_loss") if name in last
        )
        return f"Run({str(self.folder)!r}, {state} at step {self.step}{losses})"

    @property
    def finished(self) -> bool:
        """True if the training reached its last step, or ran out of patience."""
        return self.model is not None


def train(
    recipe: str | Path | Mapping[str, Any] | Recipe,
    *overrides: str,
    out: str | Path | None = None,
    data: str | Path | None = None,
    device: str = "auto",
    quiet: bool = False,
) -> Run:
    """Train a recipe in a run folder, or resume the run that is there.

    Ctrl-C (SIGINT) or SIGTERM stops after the current step and saves a checkpoint: `train` then returns a Run that is
    not finished, and the same call resumes it. A second Ctrl-C interrupts at once.

    Args:
        recipe: A .toml or .json file, a table, or a Recipe; a run folder, which is resumed; or a file of data (.txt,
            .csv, .tsv, .jsonl, .parquet, or a folder), for a new model of a family that fits it.
        overrides: Values to change: "optim.lr=1e-3"; with a file of data also "epochs=20".
        out: The run folder; runs/NAME if not given.
        data: A folder to search for data files first.
        device: auto, cpu, cuda, cuda:1 or mps.
        quiet: Print nothing but warnings.

    Examples:
        >>> recipe = {"steps": 2, "data": {"name": "reverse"}, "model": {"name": "gpt", "width": 16, "heads": 2}}
        >>> run = train(recipe, "model.depth=1", out=tmp / "run", device="cpu", quiet=True)
        >>> run.finished, "valid_loss" in run.metrics[-1]
        (True, True)
    """
    # the run folder is named for the recipe or the file
    name = "run"
    if isinstance(recipe, str | Path):
        name = Path(recipe).name.split(".")[0]
        if (Path(recipe) / "recipe.toml").is_file():  # a run folder
            recipe, out = Path(recipe) / "recipe.toml", out or recipe
    out = Path("runs") / name if out is None else Path(out)
    root = None if data is None else Path(data)
    options: dict[str, Any] = {"out": out, "root": root, "device": device, "quiet": quiet}
    if not is_data(recipe):
        return run_recipe(read_recipe(recipe, *overrides), **options)
    # A file of data was opened to count its steps: the training takes it as it is.
    assert isinstance(recipe, str | Path)
    with silenced(quiet):
        plan = plan_new(recipe, *overrides, root=root, device=device)
    settings = read_recipe(plan.recipe)
    propose = partial(propose_shorter, settings, new=True)
    return run_recipe(settings, **options, propose=propose, data=plan.data)


def run_recipe(
    settings: Recipe,
    *,
    out: Path,
    root: Path | None,
    device: str,
    quiet: bool,
    propose: Propose | None = None,
    data: Data | None = None,
) -> Run:
    """Train a recipe in a run folder, as `train` does.

    `propose` says what would take less time than an hour; `data` is the recipe's dataset, if it is open already.
    """
    # cuBLAS reads this when it starts; without it the order of its sums may vary.
    if settings.deterministic:
        os.environ.setdefault("CUBLAS_WORKSPACE_CONFIG", ":4096:8")
    # under torchrun every worker runs this function
    world = World.join(device)
    try:
        if (finished := _already_finished(settings, out, root, world, quiet)) is not None:
            return finished
        with (
            silenced(quiet),
            _torch_settings(settings, world.device),
            Loop(settings, out, root, world, quiet, propose, data) as loop,
        ):
            model = loop.run()
            return Run(
                folder=loop.folder.path,
                metrics=loop.folder.metrics(),
                model=model,
                step=loop.step,
                best=loop.best.chosen_step,
                mean=loop.mean,
            )
    finally:
        world.leave()


def _already_finished(
    recipe: Recipe, out: Path, root: Path | None, world: World, quiet: bool
) -> Run | None:
    """The run in a folder, if it is finished and of this recipe; nothing is computed or written.

    Its data is not opened, and may have changed since.
    """
    newest = folder = model = None
    is_finished = False
    # Worker 0 looks, because the others may see a shared file system later.
    if world.rank == 0:
        # verify=False: checksums of a finished run need not be computed again
        newest = latest(out / "checkpoints", say=lambda _: None, verify=False)
    try:
        if newest is not None:
            # locked, so that no other process trains here while the model is read
            folder = Folder(out, lock=True)
            model = folder.kept_model(recipe)
            # a model of an earlier, shorter training may be there
            is_finished = model is not None and model["step"] == newest.step
        if not world.broadcast("finished" if is_finished else ""):
            return None
        folder = folder or Folder(out, lock=False)
        model = model or folder.kept_model(recipe)
        assert model is not None
        step = int(model["step"])
        display = ProgressDisplay(steps=recipe.steps, start=step, quiet=quiet or world.rank > 0)
        display.say(f"{out}: already finished at step {step} of {recipe.steps}")
        facts = {} if newest is None else newest.facts.get("data", {})
        for change in changed_files(facts, root):
            display.say(
                f"changed: {change}: the model is the one that was saved, trained on the earlier data"
            )
        display.close()
        return Run(
            folder=folder.path,
            metrics=folder.metrics(),
            model=load(out / "model", device=str(world.device)),
            step=step,
            best=model["best"],
            mean=dict(model["mean"]),
        )
    finally:
        if folder is not None:
            folder.close()


@contextmanager
def _torch_settings(recipe: Recipe, device: torch.device) -> Iterator[None]:
    """Set torch's global settings and generators for a training, and restore them afterwards."""
    precision = torch.get_float32_matmul_precision()
    deterministic = torch.are_deterministic_algorithms_enabled()
    warn_only = torch.is_deterministic_algorithms_warn_only_enabled()
    benchmark = torch.backends.cudnn.benchmark
    try:
        # the caller's random state is the same after the training as before
        with torch.random.fork_rng([device] if device.type == "cuda" else []):
            # "high": TF32, of which bfloat16 trainings also profit where they compute in float32
            matmul_precision = "highest" if recipe.precision == "float32" else "high"
            torch.set_float32_matmul_precision(matmul_precision)
            torch.use_deterministic_algorithms(recipe.deterministic)
            # the fastest convolution for each shape
            torch.backends.cudnn.benchmark = not recipe.deterministic
            yield
    finally:
        torch.set_float32_matmul_precision(precision)
        torch.use_deterministic_algorithms(deterministic, warn_only=warn_only)
        torch.backends.cudnn.benchmark = benchmark
