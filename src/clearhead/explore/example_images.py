"""The example images that ship: small, and free of copyright restrictions (example_images/LICENCE.txt)."""

from __future__ import annotations

from functools import cache

from ..data.images.files import FOLDER, SCENES
from ..tasks.classify import class_names
from ..weights import Bundle

NAMES = (
    "golf-ball",
    "parachute",
    "church",
    "cat",
    "airplane",
    "ship",
    "coffee",
    "rocket",
    "photographer",
)


@cache
def example_file(name: str) -> bytes:
    """The file of an example image."""
    return (FOLDER / f"{name}.webp").read_bytes()


def examples_for(bundle: Bundle) -> list[str]:
    """The names of the example images, those that a model knows first: by their class, or as scenes to describe."""
    if "caption" in bundle.can:
        return [*SCENES, *(name for name in NAMES if name not in SCENES)]
    labels = class_names(bundle) if "classify" in bundle.can else ()
    known = {part.strip().lower() for label in labels for part in label.split(",")}
    return sorted(NAMES, key=lambda name: name.replace("-", " ") not in known)
