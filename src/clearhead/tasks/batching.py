"""Batches of rows of similar length, which need little padding."""

from __future__ import annotations

import warnings
from collections.abc import Iterable, Iterator, Mapping, Sequence
from io import IOBase
from pathlib import Path
from typing import Any

import numpy as np
import torch
from jaxtyping import Float
from torch import Tensor, nn

from ..data.images.files import ImageLike, images_in
from ..errors import CutNotice, InputError
from ..fast import hooked
from ..weights import Bundle

BATCH_TOKENS = 8192  # padded tokens per batch


def batches(
    sizes: Sequence[int], model: nn.Module, batch_tokens: int = BATCH_TOKENS
) -> list[list[int]]:
    """The row numbers of each batch, the longest rows first, so that a lack of memory shows at once.

    A model with hooks or taps gets one row at a time, in the given order: then a tape holds the texts in their order
    and without padding.
    """
    if batch_tokens < 1:
        raise InputError(
            f"batch_tokens={batch_tokens}: expected 1 or more; a longer row is a batch of its own"
        )
    if hooked(model):
        return [[i] for i in range(len(sizes))]
    result: list[list[int]] = []
    for i in sorted(range(len(sizes)), key=lambda i: -sizes[i]):
        if not result or (len(result[-1]) + 1) * sizes[result[-1][0]] > batch_tokens:
            result.append([])
        result[-1].append(i)
    return result


def padded(
    rows: Sequence[Sequence[int] | np.ndarray], pad: int, device: torch.device
) -> tuple[Tensor, Tensor]:
    """Ids (b, t) with padding at the end of short rows, and the length of each row."""
    longest = max(map(len, rows))
    ids = torch.full((len(rows), longest), pad, dtype=torch.long)
    for i, row in enumerate(rows):
        ids[i, : len(row)] = torch.as_tensor(row, dtype=torch.long)
    return ids.to(device), torch.tensor([len(row) for row in rows], device=device)


def warn_cut(sizes: Sequence[int], most: int) -> None:
    """Name the texts that have more tokens than the model reads, in one CutNotice for the caller of the task."""
    lengths = {i: size for i, size in enumerate(sizes) if size > most}
    if lengths:
        warnings.warn(CutNotice(lengths, len(sizes), most), stacklevel=4)


# Images of any kind as batches of a model's input.


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
