"""Image preprocessing: how a picture of any size becomes a model's input. It is saved with a model, like its tokens."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Literal

import numpy as np
from jaxtyping import Float, UInt8

from ..errors import InputError

if TYPE_CHECKING:
    from PIL import Image

Interpolation = Literal["nearest", "box", "bilinear", "hamming", "bicubic", "lanczos"]
Channels = Literal["rgb", "bgr", "grey"]
Size = int | tuple[int, int]


@dataclass(frozen=True, kw_only=True, slots=True)
class Preprocessing:
    """Resize, crop, scale and normalise, in this order.

    Examples:
        >>> Preprocessing(resize=256, crop=(224, 224)).size
        (224, 224)
    """

    resize: int | tuple[int, int] | None = None  # (height, width); a number: of the shorter edge; None: as it is
    crop: tuple[int, int] | None = None  # (height, width) of the centre that is kept; None: all
    interpolation: Interpolation = "bilinear"  # how pixels are resampled
    scale: float = 1 / 255  # pixel values are multiplied by this ...
    mean: tuple[float, ...] = (0.5, 0.5, 0.5)  # ... then this is subtracted, per channel ...
    deviation: tuple[float, ...] = (0.5, 0.5, 0.5)  # ... and then they are divided by this
    channels: Channels = "rgb"  # order of the channels

    def __post_init__(self) -> None:
        expected = 1 if self.channels == "grey" else 3
        for name in ("mean", "deviation"):
            if len(getattr(self, name)) != expected:
                raise InputError(f"{name}={getattr(self, name)}: expected {expected} numbers for {self.channels}")
        if min(self.deviation) <= 0:
            raise InputError(f"deviation={self.deviation}: expected numbers above 0")
        edges = [*((self.resize,) if isinstance(self.resize, int) else self.resize or ()), *(self.crop or ())]
        if min(edges, default=1) < 1:
            raise InputError(f"resize={self.resize}, crop={self.crop}: expected 1 pixel or more")

    @property
    def size(self) -> tuple[int, int] | None:
        """Height and width of the result; None if they depend on the image."""
        return self.crop or (self.resize if isinstance(self.resize, tuple) else None)

    def pixels(self, image: Image.Image) -> UInt8[np.ndarray, "c height width"]:
        """Resize and crop an image; the result still has whole pixel values."""
        from PIL import Image

        image = image.convert("L" if self.channels == "grey" else "RGB")
        if self.resize is not None:
            height, width = _resized(image.height, image.width, self.resize)
            image = image.resize((width, height), Image.Resampling[self.interpolation.upper()])
        pixels = np.asarray(image)
        pixels = pixels[None] if pixels.ndim == 2 else pixels.transpose(2, 0, 1)
        pixels = pixels[::-1] if self.channels == "bgr" else pixels
        return np.ascontiguousarray(pixels if self.crop is None else _centre(pixels, *self.crop))

    def normalise(self, pixels: UInt8[np.ndarray, "*b c height width"]) -> Float[np.ndarray, "*b c height width"]:
        """Scale and normalise pixel values, in float32."""
        mean, deviation = (np.array(x, np.float32)[:, None, None] for x in (self.mean, self.deviation))
        return (pixels.astype(np.float32) * np.float32(self.scale) - mean) / deviation

    def __call__(self, image: Image.Image) -> Float[np.ndarray, "c height width"]:
        """An image as a model's input."""
        return self.normalise(self.pixels(image))


def _resized(height: int, width: int, size: Size) -> tuple[int, int]:
    if isinstance(size, tuple):
        return size
    short, long = sorted((height, width))
    longer = max(int(size * long / short), 1)
    return (size, longer) if height <= width else (longer, size)


def _centre(pixels: np.ndarray, height: int, width: int) -> np.ndarray:
    """The centre of an image, with black borders where it is smaller."""
    _, old_height, old_width = pixels.shape
    if old_height < height or old_width < width:
        tall, wide = max(height, old_height), max(width, old_width)
        top, left = -(-(tall - old_height) // 2), -(-(wide - old_width) // 2)
        bigger = np.zeros((len(pixels), tall, wide), pixels.dtype)
        bigger[:, top : top + old_height, left : left + old_width] = pixels
        pixels, old_height, old_width = bigger, tall, wide
    top, left = (old_height - height) // 2, (old_width - width) // 2
    return pixels[:, top : top + height, left : left + width]
