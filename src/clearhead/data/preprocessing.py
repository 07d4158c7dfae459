"""Image preprocessing: how an image of any size becomes a model's input. It is saved with a model, like its tokens."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Literal, get_args

import numpy as np
from jaxtyping import Float, UInt8

from ..checks import one_of
from ..errors import InputError

if TYPE_CHECKING:
    from PIL import Image

Interpolation = Literal["nearest", "box", "bilinear", "hamming", "bicubic", "lanczos"]
Channels = Literal["rgb", "bgr", "grey"]


@dataclass(frozen=True, kw_only=True, slots=True)
class Preprocessing:
    """Turn an image into a model's input: resize, crop, scale and normalise, in this order.

    Calling it with a PIL image returns a float32 array (c, height, width). `pixels` and `normalise` are its two halves,
    so that images can travel as uint8 and be normalised on the device. Transparent images are put on white first.

    Examples:
        >>> from PIL import Image
        >>> preprocessing = Preprocessing(resize=256, crop=(224, 224))
        >>> preprocessing(Image.new("RGB", (640, 480))).shape
        (3, 224, 224)
        >>> preprocessing.size
        (224, 224)
    """

    resize: int | tuple[int, int] | None = None  # (height, width), or the shorter edge in pixels; None: do not resize
    crop: tuple[int, int] | None = None  # (height, width) of the centre that is kept; None: do not crop
    interpolation: Interpolation = "bilinear"  # resampling filter
    scale: float = 1 / 255  # factor for the pixel values, before normalising
    mean: tuple[float, ...] = (0.5, 0.5, 0.5)  # subtracted from the scaled values, per channel
    deviation: tuple[float, ...] = (0.5, 0.5, 0.5)  # divides them after that, per channel
    channels: Channels = "rgb"  # number and order of the channels

    def __post_init__(self) -> None:
        one_of("interpolation", self.interpolation, get_args(Interpolation))
        one_of("channels", self.channels, get_args(Channels))
        expected = 1 if self.channels == "grey" else 3
        for name in ("mean", "deviation"):
            numbers = getattr(self, name)
            if len(numbers) != expected:
                noun = "number" if expected == 1 else "numbers"
                raise InputError(f"{name}={numbers}: expected {expected} {noun} for channels={self.channels!r}")
        if not all(x > 0 for x in self.deviation):
            raise InputError(f"deviation={self.deviation}: expected numbers above 0")
        if not self.scale > 0:
            raise InputError(f"scale={self.scale}: expected a number above 0")
        for name in ("resize", "crop"):
            size = getattr(self, name)
            if min((size,) if isinstance(size, int) else size or (1,)) < 1:
                raise InputError(f"{name}={size}: expected 1 pixel or more")

    @property
    def size(self) -> tuple[int, int] | None:
        """Height and width of the result; None if they depend on the image."""
        return self.crop or (self.resize if isinstance(self.resize, tuple) else None)

    def pixels(self, image: Image.Image) -> UInt8[np.ndarray, "c height width"]:
        """Resize and crop an image, without scaling and normalising."""
        from PIL import Image

        image = _opaque(image).convert("L" if self.channels == "grey" else "RGB")
        if self.resize is not None:
            height, width = _resized(image.height, image.width, self.resize)
            image = image.resize((width, height), Image.Resampling[self.interpolation.upper()])
        pixels = np.asarray(image)
        pixels = pixels[None] if pixels.ndim == 2 else pixels.transpose(2, 0, 1)
        pixels = pixels[::-1] if self.channels == "bgr" else pixels
        return np.ascontiguousarray(pixels if self.crop is None else _centre(pixels, *self.crop))

    def seen(self, image: Image.Image) -> Image.Image:
        """Return the part of an image that is not cropped away, in the image's own resolution.

        Where the crop is larger than the image, the borders are black, as the model sees them.
        """
        if self.crop is None:
            return image
        height, width = image.size[::-1] if self.resize is None else _resized(image.height, image.width, self.resize)
        down, across = image.height / height, image.width / width  # pixels of the image per pixel of the resized one
        top, left = ((size - own) / 2 for size, own in zip((height, width), self.crop, strict=True))
        bottom, right = top + self.crop[0], left + self.crop[1]
        return image.crop((round(left * across), round(top * down), round(right * across), round(bottom * down)))

    def normalise(self, pixels: UInt8[np.ndarray, "*b c height width"]) -> Float[np.ndarray, "*b c height width"]:
        """Scale and normalise pixel values, in float32."""
        mean, deviation = (np.array(x, np.float32)[:, None, None] for x in (self.mean, self.deviation))
        return (pixels.astype(np.float32) * np.float32(self.scale) - mean) / deviation

    def __call__(self, image: Image.Image) -> Float[np.ndarray, "c height width"]:
        """Return an image as a model's input."""
        return self.normalise(self.pixels(image))


def to_rgb(image: Image.Image) -> Image.Image:
    """Return an image as RGB, on white where it is transparent, as transformers' image processors do.

    16-bit grey values are scaled to 8 bits; Pillow would clip them, so that almost everything became white.

    Args:
        image: A PIL image of any mode.

    Examples:
        >>> from PIL import Image
        >>> to_rgb(Image.new("RGBA", (1, 1), (200, 0, 0, 51))).getpixel((0, 0))
        (244, 204, 204)
    """
    return _opaque(image).convert("RGB")


def _opaque(image: Image.Image) -> Image.Image:
    """An image without transparency, which is put on white, and with at most 8 bits per channel."""
    from PIL import Image

    image = _eight_bits(image)
    if "A" not in image.getbands() and image.info.get("transparency") is None:
        return image
    white = Image.new("RGBA", image.size, "white")
    return Image.alpha_composite(white, image.convert("RGBA"))


def _eight_bits(image: Image.Image) -> Image.Image:
    """An image of 16 bits per pixel scaled to 8, where PIL would cut off; an image of 32 bits is refused."""
    from PIL import Image

    if image.mode in ("I", "F"):
        raise InputError(f"its pixels are of mode {image.mode}, whose range is unknown: expected 8 or 16 bits")
    if not image.mode.startswith("I;16"):
        return image
    wide = np.asarray(image).astype(np.uint32)
    return Image.fromarray(((wide + 128) // 257).astype(np.uint8))  # 65535 = 257 x 255


def _resized(height: int, width: int, size: int | tuple[int, int]) -> tuple[int, int]:
    """Return the height and width after resizing; a single number is the shorter edge, and the shape is kept."""
    if isinstance(size, tuple):
        return size
    short, long = sorted((height, width))
    longer = int(size * long / short)
    return (size, longer) if height <= width else (longer, size)


def _centre(pixels: np.ndarray, height: int, width: int) -> np.ndarray:
    """Return the centre of an image, with black borders where the image is smaller."""
    _, old_height, old_width = pixels.shape
    if old_height < height or old_width < width:
        tall, wide = max(height, old_height), max(width, old_width)
        top, left = -(-(tall - old_height) // 2), -(-(wide - old_width) // 2)
        bigger = np.zeros((len(pixels), tall, wide), pixels.dtype)
        bigger[:, top : top + old_height, left : left + old_width] = pixels
        pixels, old_height, old_width = bigger, tall, wide
    top, left = (old_height - height) // 2, (old_width - width) // 2
    return pixels[:, top : top + height, left : left + width]
