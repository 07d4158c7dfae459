"""Subcommands that look inside: view (also called look), compare, figure."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Annotated

import typer

from . import completion
from .arguments import Device, Json, Model, Type, keyword_options
from .output import progress, show, show_table
from .registered import FIGURES, SECTIONS, VIEWS, names, summaries, views_help
from .text_input import text_or_stdin
from .verb import verb


@verb(
    'clearhead view everyday "A man is standing in the" attention layer=2 -o maps.png',
    "clearhead view vit-imagenette golf-ball saliency method=grad-cam target=church -o saliency.svg",
    "clearhead view vit-imagenette golf-ball saliency region=40,40,90,90",
    'clearhead view everyday "The children in the garden" patching --other "The child in the garden" target=are '
    "against=is -o patching.html",
    'clearhead view everyday "man - boy + girl" neighbours',
    "clearhead view resnet-cifar10 filters -o filters.png",
    "clearhead view fr-en",
    more=views_help(),
    alias="look",
)
def view(
    model: Model,
    given: Annotated[
        str | None,
        typer.Argument(
            metavar="INPUT",
            help="A text, or - for stdin; an image file, or the name of an image that ships (golf-ball, cat, church "
            "...); left out, an example.",
        ),
    ] = None,
    name: Annotated[
        str | None,
        typer.Argument(
            metavar="VIEW",
            help="A view: see above. Without one, the views that fit the model are listed.",
            autocompletion=completion.views,
        ),
    ] = None,
    options: Annotated[
        list[str] | None,
        typer.Argument(metavar="OPTION", help="Options of the view, written name=value."),
    ] = None,
    out: Annotated[
        Path | None,
        typer.Option(
            "-o",
            "--out",
            help="A .png, .svg, .pdf, .html or .json file; a table is printed if not given.",
        ),
    ] = None,
    other: Annotated[
        str | None, typer.Option("--other", help="The second input, for the view patching.")
    ] = None,
    limit: Annotated[
        float,
        typer.Option(
            "--limit",
            help="Seconds that a view may take; a longer one is refused as soon as its first passes have been timed.",
        ),
    ] = 120.0,
    device: Device = "auto",
    dtype: Type = None,
    as_json: Json = False,
) -> None:
    """Look into a model by one view of one input: draw it into a file, or print a table."""
    from ..report.registry import find_view, fitting
    from ..report.result_files import check_file, write_result
    from ..report.views import view
    from ..weights import load

    given, name, words = _arranged(given, name, options or [])
    # An ending that cannot be written is an error before the model is loaded.
    if out is not None:
        check_file(out)
    bundle = load(model, device=device, dtype=dtype)
    if name is None:
        # MODEL INPUT alone: list what can be asked.
        helps = {fit: entry.help for fit, entry in sorted(fitting(bundle).items())}
        show_table(helps, as_json)
        return
    chosen = find_view(name, bundle)
    if other is not None:
        # --other INPUT means the same as the view's option other=INPUT.
        words = [*words, f"other={other}"]
    known = keyword_options(chosen.run, words)
    text = None if given is None else text_or_stdin(given)
    with progress() as done:
        result = view(bundle, name, text, done=done, limit=limit, **known)
    # The file's name is the output, for use in scripts.
    if out is not None:
        print(write_result(result, out, f"{model}: {name}"))
        return
    show(result, as_json)
    if not as_json:
        print("-o FILE draws it: .png, .svg, .pdf or .html; .json has all numbers", file=sys.stderr)


def _arranged(
    given: str | None, view: str | None, options: list[str]
) -> tuple[str | None, str | None, list[str]]:
    """INPUT, VIEW and options, where INPUT may have been left out."""
    known = names(VIEWS)
    # MODEL INPUT VIEW OPTION: nothing was left out.
    if view is not None and view in known:
        return given, view, options
    if given in known and (view is None or "=" in view):  # MODEL VIEW OPTION
        # INPUT was left out, so that each word stands one place further left.
        if view is not None:
            options = [view, *options]
        return None, given, options
    if view is None and given is not None:
        view = given  # an unknown word where a view is expected: the message names those that fit
        given = None
    return given, view, options


@verb(
    "clearhead compare vit-cifar10 resnet-cifar10 -o report.html",
    "clearhead compare vit-cifar10 resnet-cifar10 --data cifar10 --inputs 512 -o report.html",
    "clearhead compare everyday cloze --sections cka,saliency -o report.html",
    "clearhead compare everyday runs/mine --data texts.txt",
)
def compare(
    first: Annotated[
        str,
        typer.Argument(
            metavar="A", help="A model, as for all verbs.", autocompletion=completion.models
        ),
    ],
    second: Annotated[
        str,
        typer.Argument(
            metavar="B", help="A model to compare it with.", autocompletion=completion.models
        ),
    ],
    data: Annotated[
        str | None,
        typer.Option(
            "--data",
            help="cifar10, fashion-mnist, imagenette or mnist; a folder of images, for accuracy with a folder per "
            "class; a file with a text, or two with a tab between them, per line. What ships if not given.",
            autocompletion=completion.sets,
        ),
    ] = None,
    sections: Annotated[
        str | None,
        typer.Option(
            "--sections",
            help=f"Sections of the report, separated by commas: {', '.join(names(SECTIONS))}. All that fit the "
            "models if not given.",
        ),
    ] = None,
    inputs: Annotated[
        int, typer.Option("--inputs", min=4, help="Inputs to measure on, at most.")
    ] = 256,
    out: Annotated[
        Path | None,
        typer.Option(
            "-o",
            "--out",
            help="An .html file for the report, or a .json file for its numbers; a summary is printed in any case.",
        ),
    ] = None,
    root: Annotated[
        Path | None, typer.Option("--root", help="Folder in which data files are looked for first.")
    ] = None,
    device: Device = "auto",
    as_json: Json = False,
) -> None:
    """Compare two models: similarity of layers, attention distance, receptive fields, saliency, accuracy, speed, size.

    Both read images, or both read texts, or both translate between the same languages; captioners are not compared.
    What fits neither model is left out, with the reason. The report is one HTML file with all pictures inside.
    """
    from ..report.compare import check_report
    from ..report.compare import compare as compare_models
    from ..weights import load

    # The measurement may take minutes; the file name is checked before.
    if out is not None:
        check_report(out)
    bundles = {"a": load(first, device=device), "b": load(second, device=device)}
    with progress() as done:
        if sections is None:
            chosen = None
        else:
            chosen = [name.strip() for name in sections.split(",")]
        found = compare_models(
            *bundles.values(), data=data, inputs=inputs, sections=chosen, root=root, done=done
        )
    if out is not None:
        found.save(out)
    show(found, as_json)
    # With --json stdout has only the JSON.
    if out is not None:
        print(out, file=sys.stderr if as_json else sys.stdout)


@verb(
    "clearhead figure",
    "clearhead figure cka -o cka.png",
)
def figure(
    name: Annotated[
        str | None,
        typer.Argument(
            metavar="NAME",
            help="A figure; without one, all are listed.",
            autocompletion=completion.figures,
        ),
    ] = None,
    out: Annotated[
        Path | None,
        typer.Option(
            "-o", "--out", help="A .png, .svg, .pdf or .html file; NAME.png if not given."
        ),
    ] = None,
    as_json: Json = False,
) -> None:
    """Draw a figure of the lectures or papers with the models that ship; nothing is downloaded."""
    if name is None:
        show_table(summaries(FIGURES), as_json)
        return
    from ..report.figures import draw_figure

    with progress() as done:
        path = draw_figure(name, out or Path(f"{name}.png"), done=done)
    show({"figure": name, "file": str(path)} if as_json else str(path), as_json)
