"""Verbs about what there is: models, data, objectives, recipe options, the explorer, and this machine."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Annotated

import typer

from . import completion
from .arguments import Device, Json
from .output import rows, show
from .verb import verb


@verb(
    "clearhead models",
    "clearhead models en-de",
    "clearhead models gpt --json",
)
def models(
    name: Annotated[
        str | None,
        typer.Argument(
            metavar="NAME",
            help="A family, for the options of a recipe's \\[model]; a shipped model, for its card; or a model folder.",
            autocompletion=completion.models,
        ),
    ] = None,
    as_json: Json = False,
) -> None:
    """The models that ship with the package, and the families that a recipe can name; or more about one."""
    from ..config import dump
    from ..models import FAMILIES, families, family
    from ..weights import shipped
    from ..weights.describe import describe

    zoo, found = shipped(), families()
    if name in zoo:
        card = dump(zoo[name])
        scores = "\n".join(f"{value:<7g}{of}" for of, value in card["scores"].items())
        about = {**describe(name), **card}
        lines = {word: str(said) for word, said in (about | {"scores": scores}).items()}
        show(about if as_json else rows(*lines.items()), as_json)
        return
    if name is not None and name not in FAMILIES and Path(name).exists():
        about = describe(name)
        show(about if as_json else rows(*((word, str(value)) for word, value in about.items())), as_json)
        return
    if name is not None:
        _show_words(family(name)[1], as_json)
        return
    if as_json:
        show({"shipped": {name: dump(card) for name, card in zoo.items()}, "families": found}, as_json)
        return
    show("Shipped: for load and the command line", as_json)
    show(rows(*(row for name, card in zoo.items() for row in ((name, card.does), ("", card.example)))), as_json)
    show("Families: for build and for recipes", as_json)
    show(rows(*found.items()), as_json)


@verb(
    "clearhead data",
    "clearhead data reverse",
)
def data(
    name: Annotated[
        str | None, typer.Argument(metavar="NAME", help="One of them, for the options of a recipe's \\[data].")
    ] = None,
    as_json: Json = False,
) -> None:
    """The names of data that a recipe can use; or the options of one."""
    from ..data import data_config, names

    if name is not None:
        _show_words(data_config(name), as_json)
        return
    found = names()
    show(found if as_json else rows(*found.items()), as_json)


@verb(
    "clearhead recipe",
    "clearhead recipe optim",
    "clearhead recipe objective self-distillation",
)
def recipe(
    section: Annotated[
        str | None,
        typer.Argument(metavar="SECTION", help="optim, schedule, run, players, pretrained, objective, augment."),
    ] = None,
    name: Annotated[str | None, typer.Argument(metavar="NAME", help="Which objective or augmentation.")] = None,
    as_json: Json = False,
) -> None:
    """The keys of a recipe, or of one of its sections, with their defaults and meanings."""
    from ..errors import InputError, nearest
    from ..training.augmentation import AUGMENTATIONS
    from ..training.objectives import objective_class, objectives
    from ..training.optim import OptimConfig
    from ..training.recipe import PlayerConfig, Pretrained, Recipe, RunConfig
    from ..training.schedule import ScheduleConfig

    sections: dict[str | None, type] = {
        None: Recipe, "optim": OptimConfig, "schedule": ScheduleConfig, "run": RunConfig, "players": PlayerConfig,
        "pretrained": Pretrained,
    }  # fmt: skip
    named = {"objective": objectives(), "augment": {n: one.__doc__ or "" for n, one in AUGMENTATIONS.items()}}
    if section in sections:
        _show_words(sections[section], as_json)
    elif section not in named:
        known = [*(str(one) for one in sections if one), *named, "data", "model"]
        more = ": see clearhead data and clearhead models" if section in ("data", "model") else ""
        raise InputError(f"no section {section!r}{more}: expected one of {', '.join(known)}{nearest(section, known)}")
    elif name is None:
        found = named[str(section)]
        show(found if as_json else rows(*found.items()), as_json)
    else:
        if section == "augment" and name not in AUGMENTATIONS:
            raise InputError(f"no augmentation {name!r}: expected one of {', '.join(AUGMENTATIONS)}")
        kind = objective_class(name).Config if section == "objective" else AUGMENTATIONS[name].Config
        _show_words(kind, as_json)


def _show_words(kind: type, as_json: bool) -> None:
    from .config_help import words_of

    words = words_of(kind)
    show({word.name: word.to_dict() for word in words} if as_json else rows(*(word.row() for word in words)), as_json)


@verb(
    "clearhead explore",
    "clearhead explore runs/en-de --runs runs --port 8000 --no-browser",
)
def explore(
    models: Annotated[
        list[str] | None,
        typer.Argument(
            metavar="MODEL", help="Folders of models, beside those that ship.", autocompletion=completion.folders
        ),
    ] = None,
    runs: Annotated[Path | None, typer.Option("--runs", help="A folder of trainings to show.")] = None,
    port: Annotated[int, typer.Option("--port", min=0, max=65535, help="The first port to try; 0 for any.")] = 8000,
    host: Annotated[str, typer.Option("--host", help="Let other machines in, with a token.")] = "127.0.0.1",
    no_browser: Annotated[bool, typer.Option("--no-browser", help="Only print the address.")] = False,
    device: Device = "auto",
) -> None:
    """Open the explorer, a page that shows what attention does; print its address, and serve it until Ctrl-C."""
    from ..explore import serve

    serve(
        models or (), runs=runs, host=host, port=port, device=device, browser=not no_browser,
        say=lambda address: print(address, flush=True),
    )  # fmt: skip


@verb(
    "clearhead doctor",
)
def doctor(device: Device = "auto", as_json: Json = False) -> None:
    """Say what this machine has, which kernels answer, and whether the models that ship work here; exit 1 if not."""
    from ..report.doctor import doctor

    found = doctor(device=device)
    if as_json:
        show(found, True)
    else:
        show(rows(*found.facts.items(), *found.zoo.items()), False)
        for problem in found.problems:
            print(problem, file=sys.stderr)
    if found.problems:
        raise typer.Exit(1)
