"""Images of any kind, preprocessed as a Bundle says."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from io import IOBase
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
import torch
from jaxtyping import Float, UInt8
from torch import Tensor

from ..data.images.files import ImageLike, LabelledImages, images_in
from ..errors import InputError
from ..fast import hooked
from ..weights import Bundle
from .batch import Batch, ModelInput

if TYPE_CHECKING:
    from PIL import Image

    # What type checkers take for one image. A path may also be a folder, and an array may hold several images.
    OneImage = str | bytes | Path | IOBase | Image.Image | np.ndarray | Tensor
else:
    OneImage = Any
IMAGES = 64  # images per batch
MOST_PATH = 4096  # characters of a path; a longer text cannot be one


def read_image(bundle: Bundle, given: Any, target: str | None) -> ModelInput:
    """An image as one input of a model, with the grid of its patches; or a float tensor, the input itself."""
    if target is not None:
        raise InputError(f"this {bundle.name} is no translator: expected no text beside an image")
    picture = None
    # floating point: already normalised; uint8 pixels still have to be preprocessed
    if isinstance(given, Tensor) and given.is_floating_point():
        x = one_image(given)
    else:
        pixels, picture = pixels_and_picture(bundle, as_image(given))
        x = pixels[None]
    # a vision transformer knows how its patches are laid out
    embed: Any = getattr(bundle.model, "embed", None)
    return ModelInput(
        model=bundle.model,
        bundle=bundle,
        args=(x.to(bundle.device, bundle.dtype),),
        size=(x.shape[-2], x.shape[-1]),
        grid=embed.size(*x.shape[-2:]) if hasattr(embed, "size") else None,
        special=getattr(embed, "special", 0),
        picture=picture,
    )


def one_image(x: Float[Tensor, "*b c height width"]) -> Float[Tensor, "1 c height width"]:
    """A tensor of one image with an axis for rows; raises for anything else."""
    # (c, y, x) -> (1, c, y, x)
    if x.ndim != 4:
        x = x[None]
    if x.ndim != 4 or x.shape[0] != 1:
        raise InputError(
            f"an image of shape {tuple(x.shape)}: expected (channels, height, width), a single image"
        )
    return x


def as_image(image: Any) -> Any:
    """A tensor (channels, height, width) as an array (height, width, channels); anything else as it is."""
    if not isinstance(image, Tensor):
        return image
    image = image.detach().cpu()
    # (c, y, x) -> (y, x, c), as PIL and numpy have it
    if image.ndim == 3:
        image = image.movedim(0, -1)
    return image.numpy()


def pixels_and_picture(
    bundle: Bundle, image: ImageLike
) -> tuple[Float[Tensor, "c height width"], UInt8[np.ndarray, "height width 3"]]:
    """An image as a model's input, and as people see it: after resizing and cropping, in RGB."""
    opened = bundle.open_image(image)
    preprocessing = bundle.preprocessing
    assert preprocessing is not None
    pixels = preprocessing.pixels(opened)
    # pixels: (c, y, x), resized and cropped, not yet normalised
    colours = pixels
    if preprocessing.channels == "bgr":
        # people see RGB; the model's input below stays BGR
        colours = pixels[::-1]
    # (c, y, x) -> (y, x, 3); one channel is shown as grey
    shape = (*pixels.shape[1:], 3)
    picture = np.ascontiguousarray(np.broadcast_to(colours.transpose(1, 2, 0), shape))
    return torch.from_numpy(preprocessing.normalise(pixels)), picture


def image_items(bundle: Bundle | None, data: Any) -> tuple[Sequence[Any], bool]:
    """The images, and whether a single one was given: an array with three axes is one, a list or a folder several."""
    if isinstance(data, LabelledImages):
        return _Opened(data), False
    # strings, files and arrays can be iterated over, too, but are one image
    single = isinstance(data, str | bytes | Path | IOBase | Mapping)
    # four axes: several images, along the first
    single |= isinstance(data, np.ndarray | Tensor) and data.ndim != 4
    if single or not isinstance(data, Iterable):
        return _files(data), not _is_folder(data)
    # a list may mix images and folders, each of which becomes its images
    return [image for item in data for image in _files(item)], False


class _Opened(Sequence[Any]):
    """Labelled images, each opened when it is read."""

    def __init__(self, images: LabelledImages) -> None:
        self.images = images

    def __len__(self) -> int:
        return len(self.images.labels)

    def __getitem__(self, index: Any) -> Any:
        # a range turns negative indices and slices into plain row numbers
        numbers = range(len(self))[index]
        if isinstance(numbers, int):
            # one image for an index, a list for a slice
            return self.images.opened(numbers)
        return [self.images.opened(i) for i in numbers]


def _files(item: Any) -> Sequence[ImageLike]:
    """The image files of a folder, sorted; of anything else the image itself."""
    if isinstance(item, str) and not item.strip():
        raise InputError("'' is not an image: expected a path")
    if not _is_folder(item):
        return [as_image(item)]
    paths = images_in(Path(item))
    if isinstance(item, str):
        # the paths keep the type in which the folder was given
        return [str(path) for path in paths]
    return paths


def _is_folder(item: Any) -> bool:
    # is_dir would raise OSError for a name that the file system cannot hold
    if not isinstance(item, str | Path) or len(str(item)) > MOST_PATH:
        return False
    return Path(item).is_dir()


def grouped_images(
    bundle: Bundle, images: Sequence[ImageLike]
) -> Iterator[tuple[list[int], Batch]]:
    """Yield batches of neighbours whose inputs have the same size, with their numbers.

    A model with hooks or taps gets one image at a time, so that a tape holds each by itself.
    """
    most = 1 if hooked(bundle.model) else IMAGES
    yield from _same_size(bundle, images, most)


def image_batches(bundle: Bundle, images: Sequence[ImageLike]) -> Iterator[Batch]:
    """Yield images as one batch, or as several if their inputs have different sizes."""
    for _, batch in _same_size(bundle, images, len(images)):
        yield batch


def _same_size(
    bundle: Bundle, images: Sequence[ImageLike], most: int
) -> Iterator[tuple[list[int], Batch]]:
    """Yield batches of at most `most` neighbours of the same size, with their numbers."""
    numbers: list[int] = []
    waiting: list[Tensor] = []
    for i, image in enumerate(images):
        pixels = bundle.pixels(image)
        # images of another size begin another batch
        if waiting and (len(waiting) == most or pixels.shape != waiting[0].shape):
            yield numbers, _stacked(bundle, waiting)
            numbers, waiting = [], []
        numbers.append(i)
        waiting.append(pixels)
    if waiting:
        yield numbers, _stacked(bundle, waiting)


def _stacked(bundle: Bundle, pixels: list[Tensor]) -> Batch:
    x = torch.stack(pixels).to(bundle.device, bundle.dtype)
    return Batch(args=(x,), size=(x.shape[-2], x.shape[-1]))
