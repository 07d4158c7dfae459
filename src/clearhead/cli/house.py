"""Verbs about the house itself: its models, its data, its page, and this machine."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Annotated

import typer

from . import complete
from .told import rows, show
from .verb import verb
from .words import Device, Json


@verb(
    "clearhead models",
)
def models(as_json: Json = False) -> None:
    """The models that ship with the package, and the families that a recipe can name."""
    from ..config import dump
    from ..models import families
    from ..weights import shipped

    zoo, found = shipped(), families()
    if as_json:
        show({"shipped": {name: dump(card) for name, card in zoo.items()}, "families": found}, as_json)
        return
    show("Shipped: for load and the command line", as_json)
    show(rows(*(row for name, card in zoo.items() for row in ((name, card.does), ("", card.example)))), as_json)
    show("Families: for build and for recipes", as_json)
    show(rows(*found.items()), as_json)


@verb(
    "clearhead data",
)
def data(as_json: Json = False) -> None:
    """The names of data that a recipe can use."""
    from ..data import names

    found = names()
    show(found if as_json else rows(*found.items()), as_json)


@verb(
    "clearhead explore",
    "clearhead explore runs/en-de --runs runs --port 8000 --no-browser",
)
def explore(
    models: Annotated[
        list[str] | None,
        typer.Argument(
            metavar="MODEL", help="Folders of models, beside those that ship.", autocompletion=complete.folders
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
