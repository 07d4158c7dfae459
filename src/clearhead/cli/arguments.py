"""The arguments that several subcommands share, and how words like beams=5 become keyword arguments."""

from __future__ import annotations

import inspect
import re
from collections.abc import Callable
from dataclasses import field, make_dataclass
from pathlib import Path
from typing import Annotated, Any, get_type_hints

import typer

from . import completion

RecipeFile = Annotated[
    str,
    typer.Argument(
        metavar="RECIPE",
        help="A recipe, .toml or .json, or the name of one that ships; `train` and `sweep` also take a file of data.",
        autocompletion=completion.recipes,
    ),
]
Overrides = Annotated[
    list[str] | None,
    typer.Argument(metavar="OVERRIDE", help="Values to change, like optim.lr=1e-3."),
]
DataFolder = Annotated[
    Path | None,
    typer.Option("--root", "--data", help="Folder in which data files are looked for first."),
]
Device = Annotated[
    str,
    typer.Option(
        "--device", help="auto, cpu, cuda, cuda:1, mps.", autocompletion=completion.devices
    ),
]
Quiet = Annotated[
    bool, typer.Option("--quiet", "-q", help="Print nothing but warnings and the result.")
]
Json = Annotated[bool, typer.Option("--json", help="Print the result as JSON.")]
JsonLines = Annotated[
    bool, typer.Option("--json", help="Print a JSON object per input, each on a line of its own.")
]
Options = Annotated[
    list[str] | None,
    typer.Argument(metavar="OPTION", help="Options, written name=value: see above."),
]
MoreTexts = Annotated[
    list[str] | None,
    typer.Argument(
        metavar="TEXT... OPTION",
        help="More texts or files; and options, written name=value: see above.",
    ),
]
Model = Annotated[
    str,
    typer.Argument(
        metavar="MODEL",
        help="A shipped model's name, a model folder, a run folder, or a GGUF file.",
        autocompletion=completion.models,
    ),
]
Text = Annotated[
    str,
    typer.Argument(
        metavar="TEXT", help="A text, a file with one text per line, a table, or - for stdin."
    ),
]
Texts = Annotated[
    list[str],
    typer.Argument(
        metavar="INPUT",
        help="Texts, files with one text per line, tables, - for stdin; or image files, folders.",
    ),
]
TextColumn = Annotated[
    str | None,
    typer.Option(
        "--column",
        help="The column of a table (.csv, .tsv, .jsonl, .parquet) that has the texts; if not given, the one that the "
        "model was trained on, or one with a usual name.",
    ),
]
Type = Annotated[
    str | None,
    typer.Option(
        "--dtype",
        help="float32, bfloat16, float16 or int8; as stored if not given.",
        autocompletion=completion.types,
    ),
]
OPTION = re.compile(r"[A-Za-z_][\w.-]*=")  # how an option, written name=value, begins
NOT_OPTIONS = ("done", "root")  # keyword arguments that cannot be given as name=value


def divided(words: list[str] | None) -> tuple[list[str], list[str]]:
    """The texts and the options, written name=value, among the words of a command."""
    texts, options = list[str](), list[str]()
    for word in words or ():
        # An option begins with a name and "="; a text such as "2+2=4" does not.
        (options if OPTION.match(word) else texts).append(word)
    return texts, options


def check_once(words: list[str] | None) -> None:
    """Raise if words like beams=5 give a value twice, of which the last would be used."""
    from ..errors import InputError

    seen: dict[str, str] = {}
    for word in words or ():
        name = word.partition("=")[0].strip()
        if name in seen:
            raise InputError(f"{name} is given twice, {seen[name]} and {word}: expected it once")
        seen[name] = word


def keyword_options(function: Callable[..., Any], words: list[str] | None) -> dict[str, Any]:
    """Words like beams=5 as keyword arguments of a function; raises for an unknown name or a wrong type."""
    from ..config import Table, override, read

    check_once(words)
    table = override(Table(), *words or ())
    # Only for its checks of names and types: the function gets the values of the table.
    read(options_class(function), table)
    return dict(table)


def options_class(function: Callable[..., Any]) -> type[Any]:
    """A dataclass with the keyword-only parameters of a function."""
    hints = get_type_hints(function)
    keywords = [
        p for p in inspect.signature(function).parameters.values() if p.kind is p.KEYWORD_ONLY
    ]
    fields = [
        # Progress callbacks and folders have command-line options of their own, or none.
        (p.name, hints[p.name], field(default=p.default))
        for p in keywords
        if p.name not in NOT_OPTIONS
    ]
    return make_dataclass(function.__name__, fields, kw_only=True)
