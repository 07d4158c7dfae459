"""The subcommand caption."""

from __future__ import annotations

import itertools
import os
from pathlib import Path
from typing import Annotated, Any

import typer

from .answers import print_answers, shift_seed
from .arguments import Device, JsonLines, Model, keyword_options
from .image_input import images_of
from .text_input import Item
from .verb import verb

IMAGES = 16  # images that are captioned at a time


@verb(
    "clearhead caption captioner dog.jpg photos/ beams=5",
    'clearhead caption captioner cat.jpg text="a pet" --maps maps/',
    options=("tasks/caption.py", "caption"),
)
def caption(
    model: Model,
    images: Annotated[
        list[str],
        typer.Argument(
            metavar="IMAGE", help="Image files and folders; then options, name=value: see above."
        ),
    ],
    maps: Annotated[
        Path | None,
        typer.Option("--maps", help="A folder for a picture per image, with a panel per word."),
    ] = None,
    evidence: Annotated[
        bool,
        typer.Option(
            "--evidence",
            help="Map which places speak for a word, instead of its attention (slower).",
        ),
    ] = False,
    device: Device = "auto",
    as_json: JsonLines = False,
) -> None:
    """Write a caption for each image; --json adds scores, and the map of every word over the image."""
    from ..data.files import as_line
    from ..errors import InputError
    from ..tasks.caption import caption
    from ..weights import load

    # Path.exists raises for long texts
    files = [word for word in images if "=" not in word or os.path.exists(word)]
    options = keyword_options(caption, [word for word in images if word not in files])
    if not files:
        raise InputError("no image: expected a file or a folder before the options")
    bundle = load(model, device=device)
    items = images_of(files)
    paths = [] if maps is None else _picture_paths(items, maps)

    def answer(batch: list[str], first: int) -> Any:
        results: Any = caption(bundle, batch, **shift_seed(options, first))
        for item, one, path in zip(batch, results, paths[first:], strict=False):
            _save_strip(one, item, path, evidence)
        return results

    print_answers(
        [[Item(text=item, place=item, given=True, key="image") for item in items]],
        answer,
        as_json=as_json,
        plain=lambda one: as_line(one.text),
        named=items != files or len(files) > 1,
        total=len(items),
        most=IMAGES,
        record=lambda one: (
            one.to_dict() | ({"evidence": one.evidence().tolist()} if evidence else {})
        ),
    )


def _picture_paths(images: list[str], folder: Path) -> list[Path]:
    """A file for the picture of each image: dog.png for dog.jpg, or dog-2.png if that is an image or taken."""
    taken = {Path(image).resolve() for image in images}
    paths = []
    for image in images:
        stem = Path(image).stem
        names = (f"{stem}.png" if n == 1 else f"{stem}-{n}.png" for n in itertools.count(1))
        path = next(folder / name for name in names if (folder / name).resolve() not in taken)
        taken.add(path.resolve())
        paths.append(path)
    return paths


def _save_strip(result: Any, image: Any, path: Path, evidence: bool) -> None:
    """Draw what the captioner saw of an image, with the map of each word, into a file."""
    import numpy as np

    from ..data.images.files import open_image
    from ..draw import save, strip

    seen = result.forced.bundle.preprocessing.seen(open_image(image))
    save(
        strip(
            np.asarray(seen),
            result.evidence() if evidence else result.maps,
            result.words,
            title=result.text,
        ),
        path,
    )
