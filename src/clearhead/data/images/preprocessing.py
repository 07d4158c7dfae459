"""Image preprocessing: how an image of any size becomes a model's input. It is saved with a model, like its tokens."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Literal, cast, get_args

import numpy as np
from jaxtyping import Float, UInt8

from ...checks import one_of
from ...errors import InputError

if TYPE_CHECKING:
    from PIL import Image

Interpolation = Literal["nearest", "box", "bilinear", "hamming", "bicubic", "lanczos"]
Channels = Literal["rgb", "bgr", "grey"]
THIN = 16  # times the crop: of a longer resized image only the part that the crop keeps is computed
# largest ratio of the edges of an image whose shorter edge is resized and that is not cropped
LONGEST_SHAPE = 100
# pixels on each side that the widest filter, lanczos, reads for one pixel of an image of the same
# size
SUPPORT = 3
# what PIL calls the bytes of a PNG file of 16 bits: which of each two it keeps
UPPER, LOWER = "RGB;16B", "RGB;16L"


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

    # (height, width), or the shorter edge in pixels; None: do not resize
    resize: int | tuple[int, int] | None = None
    # (height, width) of the centre that is kept; None: do not crop
    crop: tuple[int, int] | None = None
    interpolation: Interpolation = "bilinear"  # resampling filter
    scale: float = 1 / 255  # factor for the pixel values, before normalising
    mean: tuple[float, ...] = (0.5, 0.5, 0.5)  # subtracted from the scaled values, per channel
    deviation: tuple[float, ...] = (0.5, 0.5, 0.5)  # divides them after that, per channel
    channels: Channels = "rgb"  # number and order of the channels

    def __post_init__(self) -> None:
        one_of("interpolation", self.interpolation, get_args(Interpolation))
        one_of("channels", self.channels, get_args(Channels))
        # a number per channel
        expected = 1 if self.channels == "grey" else 3
        for name in ("mean", "deviation"):
            # a single number would be broadcast over three channels without an error
            numbers = getattr(self, name)
            if len(numbers) != expected:
                noun = "number" if expected == 1 else "numbers"
                raise InputError(
                    f"{name}={numbers}: expected {expected} {noun} for channels={self.channels!r}"
                )
        if not all(x > 0 for x in self.deviation):
            raise InputError(f"deviation={self.deviation}: expected numbers above 0")
        if not self.scale > 0:
            raise InputError(f"scale={self.scale}: expected a number above 0")
        for name in ("resize", "crop"):
            size = getattr(self, name)
            if size is not None and np.min(size) < 1:
                raise InputError(f"{name}={size}: expected 1 pixel or more")

    @property
    def size(self) -> tuple[int, int] | None:
        """Height and width of the result; None if they depend on the image."""
        return self.crop or (self.resize if isinstance(self.resize, tuple) else None)

    def pixels(self, image: Image.Image) -> UInt8[np.ndarray, "c height width"]:
        """Resize and crop an image, without scaling and normalising."""
        from PIL import Image

        mode = "L" if self.channels == "grey" else "RGB"
        image = _opaque(image).convert(mode)
        if self.resize is not None:
            # resized before cropping, in 8 bits, as other libraries do
            image = self._resized(image, Image.Resampling[self.interpolation.upper()])
        pixels = np.asarray(image)
        # grey images have no axis of channels
        if pixels.ndim == 2:
            pixels = pixels[None]
        else:
            # (y, x, c) -> (c, y, x)
            pixels = pixels.transpose(2, 0, 1)
        # from RGB, by reversing the axis of channels
        if self.channels == "bgr":
            pixels = pixels[::-1]
        if self.crop is not None:
            pixels = _centre(pixels, *self.crop)
        # slices and transposes are views: others expect one block of memory
        return np.ascontiguousarray(pixels)

    def _resized(self, image: Image.Image, resample: Image.Resampling) -> Image.Image:
        """Resize an image; of a thin one, whose resized form would be huge, only the middle that the crop keeps.

        The box of a middle is rounded, so that its pixels may differ by one from those of the whole (by more with
        `interpolation="box"`, whose windows have hard edges): ordinary images are resized as a whole, as elsewhere.
        """
        assert self.resize is not None
        height, width = _resized(image.height, image.width, self.resize)
        # without a crop, a very thin image would become a huge one
        if self.crop is None:
            if isinstance(self.resize, int) and max(height, width) > LONGEST_SHAPE * self.resize:
                raise InputError(
                    f"an image of {image.width} x {image.height} pixels would be {width} x {height} with a shorter "
                    f"edge of {self.resize}: expected one edge at most {LONGEST_SHAPE} times as long as the other"
                )
            return image.resize((width, height), resample)
        kept_height, kept_width = min(height, self.crop[0]), min(width, self.crop[1])
        # an ordinary image: the whole is resized, as other libraries do
        if height <= THIN * kept_height and width <= THIN * kept_width:
            return image.resize((width, height), resample)
        # a thin image: only the part that the crop keeps, with a margin for the filter
        top, bottom, rows = _needed(image.height, height, kept_height)
        left, right, columns = _needed(image.width, width, kept_width)
        part = image.crop((columns.start, rows.start, columns.stop, rows.stop))
        return part.resize((kept_width, kept_height), resample, box=(left, top, right, bottom))

    def seen(self, image: Image.Image) -> Image.Image:
        """Return the part of an image that is not cropped away, in the image's own resolution.

        Where the crop is larger than the image, the borders are black, as the model sees them.
        """
        if self.crop is None:
            return image
        if self.resize is None:
            # no resizing: the crop is in pixels of the image itself
            height, width = image.size[::-1]
        else:
            height, width = _resized(image.height, image.width, self.resize)
        # pixels of the image per pixel of the resized one
        down, across = image.height / height, image.width / width
        # the middle of the resized image, in pixels of the image itself
        top, left = (height - self.crop[0]) / 2, (width - self.crop[1]) / 2
        bottom, right = round((top + self.crop[0]) * down), round((left + self.crop[1]) * across)
        top, left = round(top * down), round(left * across)
        # of a thin image at least a pixel
        return image.crop((left, top, max(right, left + 1), max(bottom, top + 1)))

    def normalise(
        self, pixels: UInt8[np.ndarray, "*b c height width"]
    ) -> Float[np.ndarray, "*b c height width"]:
        """Scale and normalise pixel values, in float32."""
        mean, deviation = (
            np.array(x, np.float32)[:, None, None] for x in (self.mean, self.deviation)
        )
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

    image = _eight_bits(_straight(with_alpha(image)))
    # nothing transparent: the common case
    if "A" not in image.getbands() and image.info.get("transparency") is None:
        return image
    white = Image.new("RGBA", image.size, "white")
    return Image.alpha_composite(white, image.convert("RGBA"))


def _straight(image: Image.Image) -> Image.Image:
    """An image with straight alpha: modes RGBa and La, whose colours are multiplied by alpha, are converted."""
    straight = {"RGBa": "RGBA", "La": "LA"}
    if image.mode in straight:
        return image.convert(straight[image.mode])
    return image


def _eight_bits(image: Image.Image) -> Image.Image:
    """An image of 16 bits per pixel scaled to 8, where PIL would cut off; an image of 32 bits is refused."""
    from PIL import Image

    check_depth(image)
    if not image.mode.startswith("I;16"):
        return image
    wide = np.asarray(image).astype(np.uint32)
    # rounded to the nearest level: 128 is half of 257
    grey = Image.fromarray(((wide + 128) // 257).astype(np.uint8))  # 65535 = 257 x 255
    # a level of 16 bits: other levels are rounded to the same 8 bits
    transparent = image.info.get("transparency")
    if transparent is not None:
        # compared at 16 bits, before the levels are merged
        grey.putalpha(Image.fromarray(np.where(wide == transparent, 0, 255).astype(np.uint8)))
    return grey


def with_alpha(image: Image.Image) -> Image.Image:
    """An image of 16 bits per channel whose transparent colour is an alpha channel; any other image as it is.

    PIL keeps only the upper 8 bits of each channel, in which other colours are the same: the lower ones are read, too,
    from a file that is not decoded yet.
    """
    from PIL import Image

    colour, tiles = image.info.get("transparency"), getattr(image, "tile", [])
    # only RGB with one transparent colour may need this
    if image.mode != "RGB" or not isinstance(colour, tuple):
        return image
    if tiles and tiles[0].args == UPPER:  # not decoded yet: both halves can be read
        # a second view of the same file, for the lower byte of each channel
        lower: Any = Image.open(cast(Any, image).fp)
        lower.tile = [tile._replace(args=LOWER) for tile in lower.tile]
        # both halves together: the exact colour decides what is transparent
        pixels = np.asarray(lower) + 256 * np.asarray(image).astype(np.uint16)
    elif not tiles and max(colour) > 255:  # decoded: only the upper halves are left
        # compared by the upper halves: nearby colours become transparent, too
        pixels, colour = np.asarray(image), tuple(value >> 8 for value in colour)
    else:
        return image
    # transparent where all channels have this colour
    opacity = np.where((pixels == colour).all(-1), 0, 255).astype(np.uint8)
    image = image.copy()
    # alpha replaces it; PIL would apply it a second time
    del image.info["transparency"]
    image.putalpha(Image.fromarray(opacity))
    return image


def check_depth(image: Image.Image) -> None:
    """Raise for an image of 32 bits per channel."""
    if image.mode in ("I", "F"):
        raise InputError(
            f"its pixels are of mode {image.mode}, whose range is unknown: expected 8 or 16 bits"
        )


def _resized(height: int, width: int, size: int | tuple[int, int]) -> tuple[int, int]:
    """Return the height and width after resizing; a single number is the shorter edge, and the shape is kept."""
    if isinstance(size, tuple):
        return size
    short, long = sorted((height, width))
    longer = int(size * long / short)
    return (size, longer) if height <= width else (longer, size)


def _needed(size: int, resized: int, kept: int) -> tuple[float, float, range]:
    """The box (begin, end) behind the middle `kept` pixels of a resized edge, and the part of the edge that it is in.

    PIL computes with boxes in float32, which cannot place a few pixels of millions: hence the part.
    """
    # pixels of the image per pixel of the result
    scale = size / resized
    begin = (resized - kept) // 2 * scale
    end = begin + kept * scale
    # filters read SUPPORT pixels of the coarser grid beyond the box
    margin = math.ceil(SUPPORT * max(scale, 1.0))
    part = range(max(math.floor(begin) - margin, 0), min(math.ceil(end) + margin, size))
    return begin - part.start, min(end - part.start, len(part)), part


def _centre(pixels: np.ndarray, height: int, width: int) -> np.ndarray:
    """Return the centre of an image, with black borders where the image is smaller."""
    _, old_height, old_width = pixels.shape
    # borders first, so that the crop below always fits
    if old_height < height or old_width < width:
        tall, wide = max(height, old_height), max(width, old_width)
        # an odd border is wider at the top and at the left, as in transformers
        top, left = -(-(tall - old_height) // 2), -(-(wide - old_width) // 2)
        bigger = np.zeros((len(pixels), tall, wide), pixels.dtype)
        bigger[:, top : top + old_height, left : left + old_width] = pixels
        pixels, old_height, old_width = bigger, tall, wide
    top, left = (old_height - height) // 2, (old_width - width) // 2
    return pixels[:, top : top + height, left : left + width]
