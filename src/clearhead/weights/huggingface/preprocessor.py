"""preprocessor_config.json, Hugging Face's file of image preprocessing, to and from our Preprocessing."""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass, fields
from pathlib import Path
from typing import Any, Literal

from ... import config
from ...data.images.preprocessing import Channels, Preprocessing
from ...errors import InputError, nearest
from ..fill import WeightsError

FILE = "preprocessor_config.json"
# PIL's numbers
RESAMPLE = {"nearest": 0, "lanczos": 1, "bilinear": 2, "bicubic": 3, "box": 4, "hamming": 5}
WARPED = 384  # ConvNext: from this size on an image is resized to a square, and not cropped
CROP_SHARE = 224 / 256  # ConvNext: default of crop_pct
LARGEST = 1 << 16  # pixels of an edge


@dataclass(frozen=True, slots=True)
class Defaults:
    """What one of their image processors does if the file does not say."""

    resample: str
    crop: bool = False  # crop the centre
    # a size that is one number means (size, size), as in their base class; False: the shorter edge
    square: bool = True


# Their image processors that resize, crop, rescale and normalise as we do.
PROCESSORS = {
    "ViT": Defaults("bilinear"), "Siglip": Defaults("bicubic", square=False), "DeiT": Defaults("bicubic", crop=True),
    "Bit": Defaults("bicubic", crop=True, square=False), "CLIP": Defaults("bicubic", crop=True, square=False),
    "MobileNetV1": Defaults("bilinear", crop=True, square=False),
    "MobileNetV2": Defaults("bilinear", crop=True, square=False),
    "ConvNext": Defaults("bicubic", square=False),
}  # fmt: skip


@dataclass(frozen=True, kw_only=True, slots=True)
class PreprocessorKeys:
    """The keys of their file that we read."""

    image_processor_type: str | None = None
    feature_extractor_type: str | None = None  # its name in old files
    do_resize: bool = True
    size: int | dict[str, int] | None = None
    default_to_square: bool | None = None
    use_square_size: bool = False
    resample: Literal[0, 1, 2, 3, 4, 5] | None = None
    do_center_crop: bool | None = None
    crop_size: int | dict[str, int] | None = None
    crop_pct: float | None = None
    do_rescale: bool = True
    rescale_factor: float = 1 / 255
    do_normalize: bool = True
    image_mean: float | tuple[float, ...] | None = None
    image_std: float | tuple[float, ...] | None = None
    do_pad: bool = False
    channels: Channels = "rgb"  # our own key

    def __post_init__(self) -> None:
        if self.name not in PROCESSORS:
            processor = self.image_processor_type or self.feature_extractor_type
            known = [f"{name}ImageProcessor" for name in PROCESSORS]
            raise InputError(
                f"image_processor_type is {processor!r}: expected one of {', '.join(known)}{nearest(processor, known)}"
            )
        if self.do_pad:
            raise InputError("do_pad is True: padded images are not supported")
        # it replaces the file's size by one of their class
        if self.use_square_size and self.name == "CLIP":
            raise InputError("use_square_size is True: expected a size of height and width instead")
        needed = {
            "size": self.do_resize,
            "image_mean": self.do_normalize,
            "image_std": self.do_normalize,
        }
        for key, needs in (needed | {"crop_size": self.crops}).items():
            # a step that is switched off needs no values
            if needs and getattr(self, key) is None:
                raise InputError(f"there is no {key}")

    @property
    def name(self) -> str:
        """The name of the image processor without its suffix; the oldest files have none, and are of ViT."""
        processor = self.image_processor_type or self.feature_extractor_type or "ViT"
        return re.sub(r"(ImageProcessor(Fast|Pil)?|FeatureExtractor)$", "", processor)

    @property
    def crops(self) -> bool:
        """Whether the centre is cropped."""
        if self.do_center_crop is None:
            return PROCESSORS[self.name].crop
        return self.do_center_crop

    def to_ours(self) -> Preprocessing:
        """Our Preprocessing."""
        defaults = PROCESSORS[self.name]
        square = self.default_to_square
        if square is None:
            # the default depends on the class
            square = defaults.square
        resize = _edges("size", self.size, square=square) if self.do_resize else None
        crop = _edges("crop_size", self.crop_size, square=True) if self.crops else None
        if isinstance(crop, int):
            # a crop has a height and a width, never just a shorter edge
            raise InputError(f"crop_size is {self.crop_size!r}: expected height and width")
        if self.name == "ConvNext" and resize is not None:
            resize, crop = self._convnext(resize, crop)
        interpolation = defaults.resample
        if self.resample is not None:
            interpolation = {number: word for word, number in RESAMPLE.items()}[self.resample]
        channels = 1 if self.channels == "grey" else 3
        # steps that are switched off become a factor of 1, a mean of 0 and a deviation of 1
        scale = self.rescale_factor if self.do_rescale else 1.0
        mean, deviation = self.image_mean, self.image_std
        if not self.do_normalize:
            mean, deviation = 0.0, 1.0
        return Preprocessing(
            resize=resize,
            crop=crop,
            interpolation=interpolation,  # type: ignore[arg-type]
            scale=scale,
            mean=_per_channel(mean, channels),
            deviation=_per_channel(deviation, channels),
            channels=self.channels,
        )

    def _convnext(
        self, resize: int | tuple[int, int], crop: tuple[int, int] | None
    ) -> tuple[int | tuple[int, int], tuple[int, int] | None]:
        """ConvNext resizes the shorter edge to size / crop_pct and crops to size, unless the size is large."""
        share = CROP_SHARE if self.crop_pct is None else self.crop_pct
        if not isinstance(resize, int):
            raise InputError(
                f"size is {self.size!r}: expected shortest_edge for a ConvNextImageProcessor"
            )
        # as in their paper: 384 and more see the whole image
        if resize >= WARPED:
            return (resize, resize), crop
        if crop is not None:
            # the crop follows from the size here, and a second one would contradict it
            raise InputError(
                f"do_center_crop is True: a ConvNextImageProcessor of size {resize} already crops"
            )
        if not 0 < share <= 1:
            raise InputError(f"crop_pct is {share}: expected a share above 0, at most 1")
        return int(resize / share), (resize, resize)


def read_preprocessing(folder: Path) -> Preprocessing | None:
    """The image preprocessing of a folder; None if it has none. Bad files raise WeightsError."""
    path = folder / FILE
    if not path.is_file():
        return None
    table = config.load(path)
    keys = {field.name for field in fields(PreprocessorKeys)}
    known = {key: _read_nulls(key, value) for key, value in table.items() if key in keys}
    known = {key: value for key, value in known.items() if value is not None}
    try:
        theirs = config.read(PreprocessorKeys, config.Table(known, origin=table.origin))
    except config.ConfigError as cause:
        raise WeightsError(str(cause)) from cause
    try:
        return theirs.to_ours()
    except InputError as cause:
        raise WeightsError(f"{path}: {cause}") from cause


def write_preprocessing(preprocessing: Preprocessing | None, folder: Path) -> None:
    """Write the file as their image processors read it; None removes the file of another model.

    Their processors have no key for other channels than RGB and ignore ours, so only our own layout may have them.
    """
    if preprocessing is None:
        (folder / FILE).unlink(missing_ok=True)
        return
    p, resize = preprocessing, preprocessing.resize
    crops = p.crop is not None
    # their ViT resizes to a height and a width, and does not crop
    is_bit = crops or isinstance(resize, int)
    theirs: dict[str, Any] = {
        "image_processor_type": "BitImageProcessor" if is_bit else "ViTImageProcessor",
        "do_resize": resize is not None,
        "resample": RESAMPLE[p.interpolation],
        "do_center_crop": crops,
        "do_convert_rgb": True,
        "do_rescale": p.scale != 1.0,
        "rescale_factor": p.scale,
        # also for a mean of 0 and a deviation of 1, which change nothing
        "do_normalize": True,
        "image_mean": list(p.mean),
        "image_std": list(p.deviation),
    }
    if isinstance(resize, int):
        # one number is the shorter edge, and the other keeps the proportions
        theirs["size"] = {"shortest_edge": resize}
    elif resize is not None:
        theirs["size"] = _height_width(resize)
    if p.crop is not None:
        theirs["crop_size"] = _height_width(p.crop)
    if p.channels != "rgb":
        # a key of our own, which their processors ignore
        theirs["channels"] = p.channels
    config.write(theirs, folder / FILE)


def _edges(
    key: str, size: int | Mapping[str, int] | None, *, square: bool
) -> int | tuple[int, int]:
    """A size of theirs as (height, width), or as the number of pixels of the shorter edge."""
    edges = {"size": size} if isinstance(size, int) else dict(size or {})
    if max(edges.values(), default=0) > LARGEST:
        raise InputError(f"{key} is {size}: expected at most {LARGEST} pixels")
    if isinstance(size, int):
        return (size, size) if square else size
    if edges.keys() == {"height", "width"}:
        return edges["height"], edges["width"]
    if edges.keys() == {"shortest_edge"}:
        return edges["shortest_edge"]
    raise InputError(f"{key} is {edges}: expected height and width, or shortest_edge")


def _height_width(size: tuple[int, int]) -> dict[str, int]:
    return {"height": size[0], "width": size[1]}


def _per_channel(value: float | tuple[float, ...] | None, channels: int) -> tuple[float, ...]:
    assert value is not None
    if isinstance(value, tuple):
        return value
    return (float(value),) * channels


def _read_nulls(key: str, value: Any) -> Any:
    """A switch that is null is off, even if their class's default is on; a null in a size is left out."""
    if value is None:
        is_switch = key.startswith("do_") or key == "default_to_square"
        return False if is_switch else None
    if isinstance(value, dict):
        return {k: v for k, v in value.items() if v is not None}
    return value
