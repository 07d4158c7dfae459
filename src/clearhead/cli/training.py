"""Subcommands of training: train, finetune, verify-resume, sweep, plot."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from . import completion
from .arguments import DataFolder, Device, Json, Model, Overrides, Quiet, RecipeFile, check_once
from .output import show, show_table
from .verb import RecipeCommand, verb

if TYPE_CHECKING:
    from ..config import Table
    from ..training import Run

OnlyRecipe = Annotated[
    bool, typer.Option("--recipe", help="Print the recipe instead of training it.")
]

# prefixes of metrics that are only in --json and in the curves
NOT_SHOWN = ("norm", "seconds", "share")


@verb(
    "clearhead train reverse optim.lr=1e-3 --out runs/a",
    "clearhead train diary.txt data.tokens=bpe epochs=20",
    "clearhead train pairs.tsv",
    "torchrun --nproc-per-node 2 -m clearhead train reverse --out runs/b",
    "clearhead train diary.txt --recipe > diary.toml",
    command=RecipeCommand,
)
def train(
    recipe: RecipeFile,
    overrides: Overrides = None,
    out: Annotated[
        Path | None, typer.Option("--out", help="The run folder; runs/NAME if not given.")
    ] = None,
    data: DataFolder = None,
    device: Device = "auto",
    only_recipe: OnlyRecipe = False,
    quiet: Quiet = False,
    as_json: Json = False,
) -> None:
    """Train a recipe, or a new model on a file of data, in a run folder, or resume the run there."""
    from ..training import train
    from ..training.own_data.new_recipe import is_data, new_recipe

    check_once(overrides)
    if only_recipe:
        from ..config import find_recipe, load, override

        # A file of data has no recipe yet: the one that `train` would write is made for it.
        if is_data(recipe):
            made = new_recipe(recipe, *overrides or (), root=data, device=device)
        else:
            made = override(load(find_recipe(recipe)), *overrides or ())
        _show_recipe(made, as_json)
        return
    run = train(recipe, *overrides or (), out=out, data=data, device=device, quiet=quiet)
    _show_run(run, as_json)


@verb(
    "clearhead finetune checkpoints/minilm reviews.csv",
    "clearhead finetune smollm2.gguf chats.jsonl --lora --out runs/mine",
    "clearhead finetune opus-mt-fr-en captions.tsv --lora data.source=fr data.target=en --epochs 2",
    "clearhead finetune everyday diary.txt --recipe > diary.toml",
    more="What is learned follows from the model and the data: the answers of chats, texts, translations, labels or "
    "masked words, classes of images. `clearhead data FILE` shows how a file is read.",
    command=RecipeCommand,
)
def finetune(
    model: Model,
    data: Annotated[
        str,
        typer.Argument(
            metavar="DATA", help="A .txt, .csv, .tsv, .jsonl or .parquet file, or a folder."
        ),
    ],
    overrides: Overrides = None,
    lora: Annotated[
        bool,
        typer.Option("--lora", help="Train low-rank updates of the weights, in little memory."),
    ] = (False),
    head: Annotated[bool, typer.Option("--head", help="Train only the head.")] = False,
    rank: Annotated[
        int | None,
        typer.Option("--rank", min=1, help="The rank of LoRA's updates; 16 if not given."),
    ] = None,
    apart: Annotated[
        bool,
        typer.Option("--apart", help="Keep LoRA's updates apart: a small folder in PEFT's layout."),
    ] = False,
    epochs: Annotated[
        float, typer.Option("--epochs", help="Times that each example is used.")
    ] = 3.0,
    valid: Annotated[
        str | None, typer.Option("--valid", help="A file for validation; else a share of DATA.")
    ] = None,
    out: Annotated[
        Path | None, typer.Option("--out", help="The run folder; runs/MODEL-DATA if not given.")
    ] = None,
    root: DataFolder = None,
    device: Device = "auto",
    recipe: OnlyRecipe = False,
    quiet: Quiet = False,
    as_json: Json = False,
) -> None:
    """Fine-tune a model on your own data, or resume the run: a checkpoint, a file, and one command."""
    from ..errors import InputError
    from ..training import finetune, finetune_recipe
    from ..training.own_data.finetune import RANK

    check_once(overrides)
    if lora and head:
        raise InputError("--lora and --head: expected one of them")
    for option, given in (("--apart", apart), ("--rank", rank is not None)):
        # Both options only shape LoRA's updates, and would be ignored without it.
        if given and not lora:
            raise InputError(f"{option} is for --lora")
    method = "full"
    if lora or head:
        method = "lora" if lora else "head"
    options: dict[str, Any] = {
        "method": method, "rank": rank or RANK, "merge": not apart,
        "epochs": epochs, "valid": valid, "out": out, "root": root, "device": device,
    }  # fmt: skip
    if recipe:
        made = finetune_recipe(model, data, *overrides or (), **options)
        # The recipe works only as long as the folder that it refers to exists.
        if "tokens" in made["data"]:
            print(
                f"this recipe reads the tokenizer in {made['data']['tokens']}: keep that folder",
                file=sys.stderr,
            )
        _show_recipe(made, as_json)
        return
    run = finetune(model, data, *overrides or (), quiet=quiet, **options)
    _show_run(run, as_json)


def _show_recipe(recipe: Table, as_json: bool) -> None:
    """Print a recipe as TOML, or as JSON."""
    from ..config import dumps

    if as_json:
        show(recipe, True)
    else:
        print(dumps(recipe), end="")


def _show_run(run: Run, as_json: bool) -> None:
    """Print the outcome of a training."""
    from ..training import read_recipe
    from ..training.run_folder import Folder

    recipe = read_recipe(run.folder / "recipe.toml")
    last: dict[str, Any] = {}
    for record in run.metrics:
        # The last value of each metric: records differ in what they have, as not every step is
        # validated.
        last |= {name: value for name, value in record.items() if name not in ("inside", "samples")}
    facts = {"folder": str(run.folder), "finished": run.finished, "steps": recipe.steps}
    last["step"] = run.step
    if run.best is not None:  # the validation is that of the model, which is not of the last step
        facts["best"] = run.best
        for record in run.metrics:
            # Validation of the step whose weights were kept.
            if record.get("step") == run.best:
                last |= {name: value for name, value in record.items() if name.startswith("valid")}
    steps = recipe.averaged_steps if run.finished else []
    if steps:
        facts["averaged"] = steps
        last |= run.mean
    if as_json:
        show(facts | last, True)
        return
    shown = {
        "folder": str(run.folder),
        "finished": "yes" if run.finished else "no: the same command resumes it",
        "step": f"{last.pop('step', 0)} of {facts['steps']}",
    }
    if run.best is not None:
        shown["model of step"] = str(run.best)
    if steps:
        shown["mean of steps"] = ", ".join(map(str, steps))
    rate = last.pop("rate", None)
    for name, value in last.items():
        if value is not None and not name.startswith(NOT_SHOWN):
            shown[name.replace("_", " ")] = f"{value:.4g}"
    if rate is not None:
        unit = Folder(run.folder, create=False, lock=False).about().get("unit", "tokens")
        shown[f"{unit}/s"] = f"{rate:,.0f}"
    show_table(shown, as_json=False)


@verb(
    "clearhead verify-resume reverse steps=200 --out runs/verify --kills 3",
)
def verify_resume(
    recipe: RecipeFile,
    overrides: Overrides = None,
    *,
    out: Annotated[Path, typer.Option("--out", help="A new folder, for all runs.")],
    kills: Annotated[
        int, typer.Option("--kills", min=1, help="Number of times the training is killed.")
    ] = 3,
    world: Annotated[
        int | None,
        typer.Option(
            "--world", min=2, help="Also train with this many workers; equal up to rounding."
        ),
    ] = None,
    data: DataFolder = None,
    device: Device = "auto",
    seed: Annotated[
        int, typer.Option("--seed", help="Seed of the random moments of the kills.")
    ] = 0,
    quiet: Quiet = False,
    as_json: Json = False,
) -> None:
    """Check that a killed and resumed training equals an uninterrupted one bit for bit; exit code 1 if not."""
    from ..training import verify_resume

    check_once(overrides)
    verdict = verify_resume(
        recipe,
        *overrides or (),
        out=out,
        kills=kills,
        world=world,
        data=data,
        device=device,
        seed=seed,
        quiet=quiet,
    )
    show(verdict, as_json)
    if not verdict.passed:
        # For scripts and CI: the verdict is also the exit code.
        raise typer.Exit(1)


@verb(
    "clearhead sweep reverse model.positions=none,learned,rotary seed=1,2,3 --out runs/positions",
    "clearhead sweep diary.txt model.depth=2,4 --out runs/depths",
)
def sweep(
    recipe: RecipeFile,
    overrides: Overrides = None,
    *,
    out: Annotated[Path, typer.Option("--out", help="A folder for all runs.")],
    data: DataFolder = None,
    device: Device = "auto",
    jobs: Annotated[int, typer.Option("--jobs", min=1, help="Runs at a time.")] = 1,
    quiet: Quiet = False,
    as_json: Json = False,
) -> None:
    """Train every combination of alternatives, written KEY=A,B; a list in brackets is one value."""
    from ..report import sweep

    result = sweep(
        recipe, *overrides or (), out=out, data=data, device=device, jobs=jobs, quiet=quiet
    )
    show(result, as_json)
    # All other combinations have been trained, and their results are printed.
    if any(trial.error for trial in result.trials):
        raise typer.Exit(1)


@verb(
    "clearhead plot runs/a",
    "clearhead plot runs/a runs/b -o both.png",
    "clearhead plot runs/sweep",
)
def plot(
    runs: Annotated[
        list[Path],
        typer.Argument(
            metavar="RUN",
            help="Run folders, or the folder of a sweep; several runs are drawn on the same axes.",
            autocompletion=completion.runs,
        ),
    ],
    out: Annotated[
        Path | None,
        typer.Option(
            "-o",
            "--out",
            help="A .png, .pdf or .svg file; further figures are written beside it. If not given, RUN/plot.png, "
            "or plot.png here for several.",
        ),
    ] = None,
) -> None:
    """Plot the curves of runs, and statistics of every head if they were recorded; print the names of the files."""
    from ..report import plot

    # The plot of a single run belongs into its folder.
    default = runs[0] / "plot.png" if len(runs) == 1 else Path("plot.png")
    for path in plot(*runs, out=out or default):
        print(path)
