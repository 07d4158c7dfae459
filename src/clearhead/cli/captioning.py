"""The subcommand caption."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated, Any

import typer

from .arguments import Device, Json, Model, keyword_options
from .output import notices, progress, show
from .verb import verb


@verb(
    "clearhead caption runs/captioner dog.jpg photos/ beams=5",
    'clearhead caption runs/captioner cat.jpg text="a pet" --maps maps/',
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
    device: Device = "auto",
    as_json: Json = False,
) -> None:
    """Write a caption for each image; --json adds scores, and the map of every word over the image."""
    from ..errors import InputError
    from ..tasks.caption import caption
    from ..tasks.image_batches import image_inputs
    from ..weights import load

    files = [word for word in images if "=" not in word or Path(word).exists()]
    options = keyword_options(caption, [word for word in images if word not in files])
    if not files:
        raise InputError("no image: expected a file or a folder before the options")
    bundle = load(model, device=device)
    items: list[Any] = image_inputs(files)[0]
    with notices(), progress() as done:
        results: Any = caption(bundle, items, done=lambda n: done(n, len(items)), **options)
        if maps is not None:
            for item, one in zip(items, results, strict=True):
                _save_strip(one, item, maps)
    if as_json:
        show([{"image": item, **one.to_dict()} for item, one in zip(items, results, strict=True)], True)
        return
    for item, one in zip(items, results, strict=True):
        print(one.text if len(items) == 1 else f"{item}\t{one.text}")


def _save_strip(result: Any, image: str, folder: Path) -> None:
    """Draw an image with the map of each word into a folder: dog.jpg gives dog.png."""
    import numpy as np

    from ..data.image_files import open_image
    from ..draw import save, strip

    pixels = np.asarray(open_image(image))
    save(strip(pixels, result.maps, result.words, title=result.text), folder / f"{Path(image).stem}.png")
