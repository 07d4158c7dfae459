"""preprocessor_config.json, Hugging Face's file of image preprocessing, to and from data.Preprocessing."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from .. import config
from ..data.preprocessing import Preprocessing
from .fill import WeightsError

FILE = "preprocessor_config.json"
RESAMPLE = {"nearest": 0, "lanczos": 1, "bilinear": 2, "bicubic": 3, "box": 4, "hamming": 5}  # PIL's numbers
OLD_CROP = {"ConvNextImageProcessor", "ConvNextFeatureExtractor"}  # these resize to size / crop_pct and crop to size


def read_preprocessing(folder: Path) -> Preprocessing | None:
    """The image preprocessing of a folder; None if the folder has none."""
    path = folder / FILE
    if not path.is_file():
        return None
    table = config.load(path)
    resize, crop = _sizes(table, path)
    resample = table.get("resample", 2)
    words = {number: word for word, number in RESAMPLE.items()}
    if resample not in words:
        raise WeightsError(f"{table.origin.place(('resample',))}resample is {resample!r}: expected 0 to 5")
    channels = table.get("channels", "rgb")
    plain = ([0.0] * 3, [1.0] * 3)
    mean, deviation = plain if table.get("do_normalize", True) is False else (
        table.get("image_mean", plain[0]), table.get("image_std", plain[1]),
    )  # fmt: skip
    scale = 1.0 if table.get("do_rescale", True) is False else table.get("rescale_factor", 1 / 255)
    try:
        return config.read(
            Preprocessing,
            {
                "interpolation": words[resample], "scale": scale, "mean": mean, "deviation": deviation,
                "channels": channels, **({} if resize is None else {"resize": resize}),
                **({} if crop is None else {"crop": crop}),
            },
        )  # fmt: skip
    except config.ConfigError as cause:
        raise WeightsError(f"{path}: {cause}") from cause


def _sizes(table: config.Table, path: Path) -> tuple[Any, Any]:
    """What an image is resized to, and the centre that is kept."""
    size = table.get("size")
    resize = _edges(size, path) if table.get("do_resize", True) and size is not None else None
    crop = _edges(table.get("crop_size", size), path) if table.get("do_center_crop") else None
    if isinstance(crop, int):
        crop = [crop, crop]
    share = table.get("crop_pct")
    if share and table.get("image_processor_type", table.get("feature_extractor_type")) in OLD_CROP:
        if isinstance(resize, int) and resize < 384:
            return int(resize / share), [resize, resize]
        return ([resize, resize] if isinstance(resize, int) else resize), None
    return resize, crop


def _edges(size: Any, path: Path) -> Any:
    """A size as (height, width), or as the number of pixels of the shorter edge."""
    if isinstance(size, dict) and {"height", "width"} <= size.keys():
        return [size["height"], size["width"]]
    if isinstance(size, dict) and "shortest_edge" in size and "longest_edge" not in size:
        return size["shortest_edge"]
    if isinstance(size, int):
        return [size, size]
    raise WeightsError(f"{path}: size is {size!r}: expected height and width, or shortest_edge")


def write_preprocessing(preprocessing: Preprocessing | None, folder: Path) -> None:
    """Write it as their image processors read it, or remove the file of another model."""
    if preprocessing is None:
        (folder / FILE).unlink(missing_ok=True)
        return
    p, resize = preprocessing, preprocessing.resize
    size = {"shortest_edge": resize} if isinstance(resize, int) else _box(resize or (p.crop or (224, 224)))
    written: dict[str, Any] = {
        "image_processor_type": "BitImageProcessor" if p.crop or isinstance(resize, int) else "ViTImageProcessor",
        "do_resize": resize is not None, "size": size, "resample": RESAMPLE[p.interpolation],
        "do_center_crop": p.crop is not None, "crop_size": _box(p.crop or (224, 224)), "do_convert_rgb": True,
        "do_rescale": p.scale != 1.0, "rescale_factor": p.scale, "do_normalize": True,
        "image_mean": list(p.mean), "image_std": list(p.deviation),
    }  # fmt: skip
    if p.channels != "rgb":
        written["channels"] = p.channels  # theirs have no word for it
    config.write(written, folder / FILE)


def _box(size: tuple[int, int]) -> dict[str, int]:
    return {"height": size[0], "width": size[1]}
