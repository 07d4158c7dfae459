"""Images from the command line: files as given, and the image files of folders."""

from __future__ import annotations

import os
import warnings
from collections.abc import Sequence


def images_of(inputs: Sequence[str]) -> list[str]:
    """The files given, and the image files of the folders given.

    A file of a folder that cannot be decoded is left out, and a Notice names it; one that was named itself raises when
    it is read.
    """
    from ..data.files import DataError
    from ..data.images.files import unreadable
    from ..errors import Notice
    from ..inputs.images import image_items

    images: list[str] = []
    for item in inputs:
        files = image_items(None, [item])[0]
        bad = set(unreadable("", files)) if os.path.isdir(item) else set()
        if len(bad) == len(files):
            raise DataError(f"{item}: none of its {len(files)} images can be decoded")
        if bad:
            names = ", ".join(sorted(bad)[:5]) + (" and others" if len(bad) > 5 else "")
            warnings.warn(
                f"{len(bad)} of {len(files)} images cannot be decoded and are left out: {names}",
                Notice,
                2,
            )
        images += [file for file in files if file not in bad]
    return images
