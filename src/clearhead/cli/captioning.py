"""The subcommand caption."""

from __future__ import annotations

import itertools
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
            for item, path, one in zip(items, _picture_paths(items, maps), results, strict=True):
                _save_strip(one, item, path, evidence)
    if as_json:
        more = [{"evidence": one.evidence().tolist()} if evidence else {} for one in results]
        named = zip(items, results, more, strict=True)
        show([{"image": item, **one.to_dict(), **extra} for item, one, extra in named], True)
        return
    for item, one in zip(items, results, strict=True):
        print(one.text if items == files and len(files) == 1 else f"{item}\t{one.text}")


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

    from ..data.image_files import open_image
    from ..draw import save, strip

    seen = result.forced.bundle.preprocessing.seen(open_image(image))
    save(strip(np.asarray(seen), result.evidence() if evidence else result.maps, result.words, title=result.text), path)
