"""The example images that ship, by name: small photographs, free of copyright restrictions."""

from __future__ import annotations

import os
from pathlib import Path

from ..errors import nearest

SCENES = ("photographer", "parachute", "church")  # with people or buildings, as in the photographs of caption data
FOLDER = Path(__file__).parent.parent / "explore" / "example_images"  # with their sources: LICENCE.txt


def example_images() -> dict[str, Path]:
    """The files of the images that ship, by name."""
    return {path.stem: path for path in sorted(FOLDER.glob("*.webp"))}


def image_path(given: str | Path) -> Path:
    """The path as it is if there is a file, otherwise the file of the image that ships under this name, if one does.

    Args:
        given: A path, or the name of an image that ships.
    """
    if os.path.exists(given):  # not Path.exists, which raises for long texts
        return Path(given)
    return example_images().get(str(given), Path(given))


def shipped_names(given: str | Path) -> str:
    """The end of a message about a missing file: the names of the images that ship, the nearest last."""
    names = example_images()
    return f"the name of an image that ships ({', '.join(names)}){nearest(str(given)[:60], names)}"
