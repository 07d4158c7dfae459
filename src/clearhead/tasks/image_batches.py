"""Images of any kind as batches of a model's input."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from io import IOBase
from pathlib import Path
from typing import Any

import numpy as np
import torch
from jaxtyping import Float
from torch import Tensor

from ..data.image_files import ImageLike, images_in
from ..errors import InputError
from ..fast import hooked
from ..weights import Bundle

IMAGES = 64  # images per batch


def image_inputs(inputs: Any) -> tuple[list[ImageLike], bool]:
    """The images, and whether it was one alone: an array with three axes is one image, a list or a folder several."""
    one = isinstance(inputs, str | bytes | Path | IOBase | Mapping)
    one |= isinstance(inputs, np.ndarray | Tensor) and inputs.ndim != 4
    several = isinstance(inputs, Iterable) and not one
    items = [_files(item) for item in (list(inputs) if several else [inputs])]
    single = not several and not (isinstance(inputs, str | Path) and Path(inputs).is_dir())
    return [image for item in items for image in item], single


def _files(item: ImageLike) -> list[ImageLike]:
    """The image files of a folder, sorted; a tensor (channels, height, width) as an array; anything else as it is."""
    if isinstance(item, str) and not item.strip():
        raise InputError("'' is not an image: expected a path")
    if isinstance(item, Tensor):
        item = item.detach().cpu()
        return [(item.movedim(0, -1) if item.ndim == 3 else item).numpy()]
    if not isinstance(item, str | Path) or len(str(item)) > 4096 or not Path(item).is_dir():
        return [item]
    return [str(path) if isinstance(item, str) else path for path in images_in(Path(item))]


def image_batches(
    bundle: Bundle, images: Sequence[ImageLike]
) -> Iterator[tuple[list[int], Float[Tensor, "b c height width"]]]:
    """Yield the numbers of some images, and their pixels: batches of neighbours whose inputs have the same size.

    A model with hooks or taps gets one image at a time, so that a tape holds each by itself.
    """
    most, numbers, batch = 1 if hooked(bundle.model) else IMAGES, list[int](), list[Tensor]()
    for i, image in enumerate(images):
        pixels = bundle.pixels(image)
        if batch and (len(batch) == most or pixels.shape != batch[0].shape):
            yield numbers, torch.stack(batch).to(bundle.device, bundle.dtype)
            numbers, batch = [], []
        numbers.append(i)
        batch.append(pixels)
    if batch:
        yield numbers, torch.stack(batch).to(bundle.device, bundle.dtype)
