"""The subcommand caption."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Annotated, Any

import typer

from .arguments import Device, Json, Model, keyword_options
from .image_input import images_of
from .output import progress, show
from .verb import verb


@verb(
    "clearhead caption captioner dog.jpg photos/ beams=5",
    'clearhead caption captioner cat.jpg text="a pet" --maps maps/',
    options=("tasks/caption.py", "caption"),
)
def caption(
    model: Model,
    images: Annotated[
        list[str], typer.Argument(metavar="IMAGE", help="Image files and folders; then options, name=value: see above.")
    ],
    maps: Annotated[
        Path | None, typer.Option("--maps", help="A folder for a picture per image, with a panel per word.")
    ] = None,
    evidence: Annotated[
        bool, typer.Option("--evidence", help="Map which places speak for a word, instead of its attention (slower).")
    ] = False,
    device: Device = "auto",
    as_json: Json = False,
) -> None:
    """Write a caption for each image; --json adds scores, and the map of every word over the image."""
    from ..errors import InputError
    from ..tasks.caption import caption
    from ..weights import load

    files = [word for word in images if "=" not in word or os.path.exists(word)]  # Path.exists raises for long texts
    options = keyword_options(caption, [word for word in images if word not in files])
    if not files:
        raise InputError("no image: expected a file or a folder before the options")
    bundle = load(model, device=device)
    items: Any = images_of(files)
    with progress() as done:
        results: Any = caption(bundle, items, done=lambda n: done(n, len(items)), **options)
        if maps is not None:
            for item, name, one in zip(items, _picture_names(items), results, strict=True):
                _save_strip(one, item, maps / name, evidence)
    if as_json:
        more = [{"evidence": one.evidence().tolist()} if evidence else {} for one in results]
        named = zip(items, results, more, strict=True)
        show([{"image": item, **one.to_dict(), **extra} for item, one, extra in named], True)
        return
    for item, one in zip(items, results, strict=True):
        print(one.text if items == files and len(files) == 1 else f"{item}\t{one.text}")


def _picture_names(images: list[str]) -> list[str]:
    """A name for the picture of each image: dog.png for dog.jpg, or a-dog.jpg.png if there is another dog."""
    stems = [Path(image).stem for image in images]
    whole = ["-".join(part for part in Path(image).parts if part not in ("/", "..")) for image in images]
    return [f"{s if stems.count(s) == 1 else w}.png" for s, w in zip(stems, whole, strict=True)]


def _save_strip(result: Any, image: str, path: Path, evidence: bool) -> None:
    """Draw an image with the map of each word into a file."""
    import numpy as np

    from ..data.image_files import open_image
    from ..draw import save, strip

    pixels = np.asarray(open_image(image))
    save(strip(pixels, result.evidence() if evidence else result.maps, result.words, title=result.text), path)
