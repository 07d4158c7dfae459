"""Subcommands that list or show (models, data, recipe, explore, doctor), and export."""

from __future__ import annotations

import sys
from collections.abc import Collection
from pathlib import Path
from typing import Annotated, Any

import typer

from . import completion
from .arguments import DataFolder, Device, Json, Model
from .output import rows, show, show_table
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
    """List the models that ship with the package and the model families, or describe one."""
    from ..models import FAMILIES, family
    from ..weights import shipped

    if name is None:
        _list_models(as_json)
    elif name in shipped() or (name not in FAMILIES and Path(name).exists()):
        # The folder of a model whose name is also a family's is reached with a path such as ./gpt.
        _describe_model(name, as_json)
    else:
        _show_fields(family(name)[1], as_json)


def _list_models(as_json: bool) -> None:
    from ..config import dump
    from ..models import families
    from ..weights import shipped

    zoo = shipped()
    if as_json:
        show(
            {"shipped": {name: dump(card) for name, card in zoo.items()}, "families": families()},
            as_json,
        )
        # With --json exactly one object.
        return
    show("Shipped: for load and the command line", as_json)
    show(
        rows(
            *(row for name, card in zoo.items() for row in ((name, card.does), ("", card.example)))
        ),
        as_json,
    )
    show("Families: for build and for recipes", as_json)
    show(rows(*families().items()), as_json)


def _describe_model(name: str, as_json: bool) -> None:
    """Show what is stored in a model folder, and the card of a shipped model."""
    from ..config import dump
    from ..weights import shipped
    from ..weights.folder import describe

    about: dict[str, Any] = describe(name)
    card = dump(shipped()[name]) if name in shipped() else {}
    if as_json:
        show(about | card, as_json)
        return
    if card:
        # "scores" maps what was measured to its value: value first, as in a table of numbers.
        scores = "\n".join(f"{value:<7g}{of}" for of, value in card["scores"].items())
        # A card has lists and tables, which become lines of one cell.
        about |= card | {"examples": "\n".join(card["examples"]), "scores": scores}
    show(rows(*((key, str(value)) for key, value in about.items())), as_json)


@verb(
    "clearhead export runs/minilm-reviews reviews-hf",
    "clearhead export smollm2.gguf smollm2",
    "clearhead export runs/apart adapters --apart",
)
def export(
    model: Model,
    folder: Annotated[Path, typer.Argument(metavar="DEST", help="A new or an empty folder.")],
    apart: Annotated[
        bool,
        typer.Option("--apart", help="Write only adapters (LoRA) that were kept apart, for PEFT."),
    ] = False,
) -> None:
    """Write a model as a new folder that Hugging Face's transformers opens, with a model card; print the folder.

    Adapters (LoRA) are added to the weights. A model that transformers has no class for is refused, with the options
    that it does not have.
    """
    from ..weights import export

    print(export(model, folder, apart=apart))


@verb(
    "clearhead data",
    "clearhead data reverse",
    "clearhead data reviews.csv --tokens minilm --context 128",
    "clearhead data reviews.csv data.text=body data.label=stars",
)
def data(
    name: Annotated[
        str | None,
        typer.Argument(
            metavar="NAME",
            help="A data set, for the options of a recipe's \\[data]; or a file or folder, for what is in it.",
        ),
    ] = None,
    overrides: Annotated[
        list[str] | None,
        typer.Argument(
            metavar="OVERRIDE",
            help="Of a file: how it is read, like data.text=body data.label=stars.",
        ),
    ] = None,
    context: Annotated[
        int | None,
        typer.Option("--context", help="Of a file: count the rows with more tokens than this."),
    ] = None,
    tokens: Annotated[
        str | None,
        typer.Option(
            "--tokens",
            help="Of a file: a folder with a tokenizer, to count tokens instead of words.",
        ),
    ] = None,
    data: DataFolder = None,
    as_json: Json = False,
) -> None:
    """List the data sets that a recipe can use, or the options of one; or show what is in a file.

    A text file, a CSV, TSV, JSON or Parquet file, compressed or not, or a folder: its format, columns and kind, the
    first rows, their lengths, and the section [data] of a recipe that reads it. Of images: their classes and sizes.
    """
    from ..data import data_config, names, understand

    if name is None:
        show_table(names(), as_json)
    elif name in names() or not _is_file(name, data):
        _show_fields(data_config(name), as_json)
    else:
        # Only a file needs the machinery that reads tables and images.
        from ..config import Table, override
        from ..data.tables.understand import is_images, understand_images
        from .data_report import show_data, show_images

        # Overrides are written as in a recipe, data.text=body, so that they can be copied into it.
        given = override(Table({"data": {}}), *overrides or ())["data"]
        if is_images(name, data):
            images = understand_images(name, data, given=given)
            if as_json:
                show(images, as_json)
            else:
                show_images(images)
            return
        found = understand(name, data, tokens=tokens, context=context, given=given)
        if as_json:
            show(found, as_json)
        else:
            show_data(found)


def _is_file(name: str, root: Path | None) -> bool:
    """Whether a word is a path: of what there is, or one that looks like a file's."""
    places = [Path(name)]
    if root is not None:
        places.append(root / name)
    return (
        # A typing error in a file name should say that the file is missing, not that no data set
        # has this name.
        any(place.exists() for place in places)
        or bool(Path(name).suffix)
        or len(Path(name).parts) > 1
    )


@verb(
    "clearhead recipe",
    "clearhead recipe optim",
    "clearhead recipe objective self-distillation",
)
def recipe(
    section: Annotated[
        str | None,
        typer.Argument(
            metavar="SECTION",
            help="optim, schedule, run, players, pretrained, objective or augment.",
        ),
    ] = None,
    name: Annotated[
        str | None, typer.Argument(metavar="NAME", help="An objective or an augmentation.")
    ] = None,
    as_json: Json = False,
) -> None:
    """List the keys of a recipe, or of one of its sections, with their defaults and meanings."""
    from ..errors import InputError
    from ..training.augmentation import AUGMENTATIONS
    from ..training.objectives import objective_class, objectives
    from ..training.optim.optimisers import OptimConfig
    from ..training.optim.schedule import ScheduleConfig
    from ..training.recipe import PlayerConfig, Recipe, RunConfig
    from ..weights.checkpoints.pretrained import Pretrained

    sections: dict[str | None, type] = {
        None: Recipe, "optim": OptimConfig, "schedule": ScheduleConfig, "run": RunConfig, "players": PlayerConfig,
        "pretrained": Pretrained,
    }  # fmt: skip
    # Sections whose keys depend on their name.
    named = {
        "objective": (objectives(), lambda n: objective_class(n).Config),
        "augment": (
            {n: one.__doc__ or "" for n, one in AUGMENTATIONS.items()},
            lambda n: AUGMENTATIONS[n].Config,
        ),
    }
    if section in sections:
        # These sections have one set of keys; a name selects something only in the others.
        if name is not None:
            raise InputError(f"the section {section} has no {name!r}: expected no name after it")
        _show_fields(sections[section], as_json, sections={*sections, *named})
        return
    if section in ("data", "model"):
        # Those have subcommands of their own, which list names and describe files too.
        verb_name = {"data": "data", "model": "models"}[section]
        raise InputError(
            f"the keys of [{section}] depend on its name: see clearhead {verb_name} NAME"
        )
    _check_name(
        "section", str(section), [*(one for one in sections if one), *named, "data", "model"]
    )
    listed, config_of = named[str(section)]
    if name is None:
        show_table(listed, as_json)
    else:
        _check_name(str(section), name, list(listed))
        _show_fields(config_of(name), as_json)


def _check_name(kind: str, name: str, names: list[str]) -> None:
    from ..errors import InputError, nearest

    if name not in names:
        raise InputError(
            f"no {kind} {name!r}: expected one of {', '.join(names)}{nearest(name, names)}"
        )


def _show_fields(kind: type, as_json: bool, sections: Collection[str | None] = ()) -> None:
    """Show the fields of a config dataclass; a field that is a section of its own refers to it."""
    from .config_help import config_fields

    fields = config_fields(kind)
    if as_json:
        show({field.name: field.to_dict() for field in fields}, as_json)
        return
    table = []
    for field in fields:
        name, default, meaning = field.row()
        parts = [meaning]
        if name in sections:
            # A section is a table of its own in TOML, with too many keys for one line.
            parts.append(f"see clearhead recipe {name}")
        table.append((name, default, "; ".join(filter(None, parts))))
    show(rows(*table), as_json)


@verb(
    "clearhead explore",
    "clearhead explore runs/en-de --runs runs --port 8000 --no-browser",
)
def explore(
    models: Annotated[
        list[str] | None,
        typer.Argument(
            metavar="MODEL",
            help="Model folders, beside the models that ship.",
            autocompletion=completion.folders,
        ),
    ] = None,
    runs: Annotated[Path | None, typer.Option("--runs", help="A folder of runs to show.")] = None,
    port: Annotated[
        int, typer.Option("--port", min=0, max=65535, help="The first port to try; 0 for any.")
    ] = 8000,
    host: Annotated[
        str,
        typer.Option(
            "--host", help="The address to listen on; 0.0.0.0 lets other machines in, with a token."
        ),
    ] = "127.0.0.1",
    no_browser: Annotated[
        bool, typer.Option("--no-browser", help="Only print the address.")
    ] = False,
    device: Device = "auto",
) -> None:
    """Open the explorer, a web page that shows what attention models compute; serve it until Ctrl-C."""
    from ..explore import serve

    serve(
        models or (),
        runs=runs,
        host=host,
        port=port,
        device=device,
        browser=not no_browser,
        say=lambda address: print(address, flush=True),
    )


@verb(
    "clearhead doctor",
)
def doctor(device: Device = "auto", as_json: Json = False) -> None:
    """Show versions, device and attention kernels, and test every shipped model; exit code 1 if one fails."""
    from ..report import doctor

    health = doctor(device=device)
    if as_json:
        show(health, True)
    else:
        show(rows(*health.facts.items(), *health.zoo.items()), False)
        # Problems on stderr, so that the table can be read by itself.
        for problem in health.problems:
            print(problem, file=sys.stderr)
    if health.problems:
        raise typer.Exit(1)
