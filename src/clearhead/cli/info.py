"""Verbs about the house itself: its models, its data, its page, and this machine."""

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
            metavar="NAME", help="A shipped model, for its card; or a family, for the words of a recipe's [model]."
        ),
    ] = None,
    as_json: Json = False,
) -> None:
    """The models that ship with the package, and the families that a recipe can name; or more about one."""
    from ..config import dump
    from ..models import families, family
    from ..weights import shipped

    zoo, found = shipped(), families()
    if name in zoo:
        card = dump(zoo[name])
        scores = "\n".join(f"{value:<7g}{of}" for of, value in card["scores"].items())
        told = {word: str(said) for word, said in (card | {"scores": scores}).items()}
        show(card if as_json else rows(*told.items()), as_json)
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
        str | None, typer.Argument(metavar="NAME", help="One of them, for the words that a recipe's [data] takes.")
    ] = None,
    as_json: Json = False,
) -> None:
    """The names of data that a recipe can use; or the words of one."""
    from ..data import data_config, names

    if name is not None:
        _show_words(data_config(name), as_json)
        return
    found = names()
    show(found if as_json else rows(*found.items()), as_json)


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
