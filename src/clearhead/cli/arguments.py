"""The arguments that several verbs share, and how words like beams=5 are read."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated, Any

import typer

from . import completion

RecipeFile = Annotated[
    str, typer.Argument(metavar="RECIPE", help="A recipe, .toml or .json.", autocompletion=completion.recipes)
]
Words = Annotated[list[str] | None, typer.Argument(metavar="OVERRIDE", help="Values to change, like optim.lr=1e-3.")]
DataFolder = Annotated[Path | None, typer.Option("--data", help="Folder in which files of data are looked for first.")]
Device = Annotated[
    str, typer.Option("--device", help="auto, cpu, cuda, cuda:1, mps.", autocompletion=completion.devices)
]
Quiet = Annotated[bool, typer.Option("--quiet", "-q", help="Say nothing but warnings.")]
Json = Annotated[bool, typer.Option("--json", help="Print the result as JSON.")]
Model = Annotated[
    str,
    typer.Argument(
        metavar="MODEL",
        help="A shipped model's name, a folder, a run's, or a GGUF file.",
        autocompletion=completion.models,
    ),
]
Text = Annotated[str, typer.Argument(metavar="TEXT", help="A text, a file of one a line, or - for stdin.")]
Texts = Annotated[list[str], typer.Argument(metavar="TEXT", help="Texts, files of one a line, or - for stdin.")]
Type = Annotated[
    str | None,
    typer.Option(
        "--dtype", help="float32, bfloat16, float16, int8; as stored if not given.", autocompletion=completion.types
    ),
]


def options_of(words: list[str] | None) -> Any:
    """A table of words like beams=5."""
    from ..config import Table, override

    return override(Table(), *words or ())
