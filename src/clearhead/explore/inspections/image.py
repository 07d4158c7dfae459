"""ImageInspection: what a vision model computed for one image: attention over patches, feature maps, classes."""

from __future__ import annotations

import io
import re
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Any

import numpy as np
import torch
from PIL import Image
from torch import Tensor, nn

from ...checks import one_of
from ...errors import InputError, nearest
from ...inputs.images import pixels_and_picture
from ...layers import Attention
from ...look import SALIENCY_METHODS, AttentionMap, Tape, saliency, watch
from ...tasks.classify import class_names
from ...weights import Bundle
from .. import answers
from ..candidates import significant
from ..examples import Outline
from ..queue import added_up
from .attention_groups import Axis, Group, in_range
from .text import Inspection

MOST_PIXELS = 1 << 20  # of a model's input
MOST_CHANNELS = 64  # feature maps that are sent at once
STEMS = {"embed.project": "patch embedding", "stem": "stem"}  # modules before the blocks or stages
# The attentions of vision models by the names of their modules: the name of their group, and a description.
ATTENTIONS = (
    (r"blocks\.\d+\.attn", "self", "each patch attends to every patch"),
    (
        r"pool",
        "pool",
        "a learned query attends to every patch, and the image becomes the weighted mean of its patches",
    ),
    (
        r"stages\.(\d+)\.\d+\.attn",
        "stage{}",
        "each place attends to every place of the grid after stage {}",
    ),
)


@dataclass(frozen=True, kw_only=True, eq=False)
class Features:
    """The feature maps of one stage of a network."""

    name: str  # of the stage
    maps: Tensor  # (c, y, x) in float32 on the CPU

    @cached_property
    def order(self) -> list[int]:
        """The channels by their mean activation, the strongest first."""
        order: list[int] = (
            self.maps.abs().mean((1, 2)).argsort(descending=True, stable=True).tolist()
        )
        return order

    def to_dict(self) -> answers.FeaturesShape:
        """Plain values, for JSON."""
        height, width = self.maps.shape[1:]
        return {"name": self.name, "grid": (height, width), "order": self.order}


@dataclass(eq=False, kw_only=True)
class ImageInspection(Inspection):
    """The attention maps and feature maps of a model for one image."""

    # (height, width, 3) uint8: the image after resizing and cropping, as the model read it
    seen: np.ndarray
    features: list[Features]

    def to_dict(self) -> dict[str, Any]:
        """Plain values, for JSON."""
        return {
            **super().to_dict(),
            "seen": self.seen.shape[:2],
            "features": [layer.to_dict() for layer in self.features],
        }

    def png(self) -> bytes:
        """The image as the model read it, as a PNG file."""
        file = io.BytesIO()
        Image.fromarray(self.seen).save(file, "PNG")
        return file.getvalue()

    def feature_maps(self, stage: int, channels: Sequence[int]) -> np.ndarray:
        """The feature maps of some channels of a stage, (c, y, x)."""
        maps = self.features[in_range("stage", stage, len(self.features))].maps
        # A negative index would silently select from the end.
        for channel in channels:
            in_range("channel", channel, len(maps))
        return maps[list(channels)].numpy()

    def effects(self, name: str) -> Iterator[dict[str, Any] | None]:
        """Raises: the effect of a head is measured on the tokens of a text."""
        raise InputError(
            "effects of heads are measured on texts: expected the inspection of a text"
        )

    def size(self) -> int:
        """Bytes held by the maps and the image."""
        return super().size() + self.seen.nbytes + sum(layer.maps.nbytes for layer in self.features)


def reads_images(bundle: Bundle | Outline) -> bool:
    """Whether a model reads images and comes with the preprocessing for them."""
    return bundle.reads == "images" and bundle.preprocessing is not None


def model_input(bundle: Bundle, file: bytes) -> tuple[Tensor, np.ndarray]:
    """An image file as a model's input (c, height, width), and as the page shows it (height, width, 3) in uint8."""
    pixels, picture = pixels_and_picture(bundle, file)
    height, width = picture.shape[:2]
    if height * width > MOST_PIXELS:
        raise InputError(
            f"the model would read {height} x {width} pixels: expected at most {MOST_PIXELS:,} in all"
        )
    return pixels, picture


@torch.no_grad()
def inspect_image(
    bundle: Bundle, file: bytes, done: Callable[[int, int], None] | None = None
) -> tuple[ImageInspection, list[tuple[str, float]] | None]:
    """Run a vision model once over an image file; returns the inspection, and the classes, the likeliest first.

    Args:
        bundle: A model that reads images.
        file: The bytes of an image file.
        done: Called with (layers done, all layers); may raise to stop.

    Returns:
        The inspection, and pairs of label and probability; None for a model without classes.
    """
    if not reads_images(bundle):
        raise InputError(
            f"this {bundle.name} reads no images: expected a vision model with its preprocessing"
        )
    image, seen = model_input(bundle, file)
    model = bundle.model
    stages = _stages(model)
    attentions = [name for name, part in model.named_modules() if isinstance(part, Attention)]
    passed, every = 0, len(stages) + len(attentions)

    def keep(record: Any) -> Any:
        nonlocal passed
        # A stage and an attention count as one layer each for the progress bar.
        passed += 1
        if done is not None:
            done(passed, every)
        # Feature maps are needed in full; an attention map computes its weights when asked.
        if isinstance(record, Tensor):
            return record[0].float().cpu()
        return record

    with watch(model, *stages, *(f"{name}.weights" for name in attentions), keep=keep) as tape:
        logits = model(image[None].to(bundle.device, bundle.dtype))[0]
    features = [Features(name=title, maps=tape[address]) for address, title in stages.items()]
    groups = _groups(model, tape, attentions, features, (seen.shape[0], seen.shape[1]))
    inspection = ImageInspection(groups, bundle, features=features, seen=seen)
    classes = _classes(bundle, logits) if "classify" in bundle.can else None
    return inspection, classes


def _classes(bundle: Bundle, logits: Tensor) -> list[tuple[str, float]]:
    p, order = logits.float().softmax(-1).sort(descending=True)
    names = class_names(bundle)
    return [
        (names[i], significant(share)) for i, share in zip(order.tolist(), p.tolist(), strict=True)
    ]


def _stages(model: nn.Module) -> dict[str, str]:
    """The modules whose outputs are feature maps: the stem, and the last block of each stage; with their titles."""
    modules = dict(model.named_modules())
    titles = {address: title for address, title in STEMS.items() if address in modules}
    for i, stage in enumerate(getattr(model, "stages", ())):
        # The last block of the stage, so that its maps are what the next stage reads.
        titles[f"stages.{i}.{len(stage) - 1}"] = f"stage {i}"
    return titles


def _groups(
    model: Any,
    tape: Tape,
    attentions: Sequence[str],
    features: Sequence[Features],
    size: tuple[int, int],
) -> dict[str, Group]:
    """The attention groups of a model; attentions over the same tokens form one group."""
    # Height and width of each stage's feature maps, by its title.
    grids = {
        stage_features.name: (stage_features.maps.shape[1], stage_features.maps.shape[2])
        for stage_features in features
    }
    parts: dict[str, tuple[str, dict[str, AttentionMap], Axis]] = {}
    for name in attentions:
        for pattern, group, about in ATTENTIONS:
            # A pattern that names its stage applies to a hierarchical network, whose grid shrinks
            # from stage to stage.
            match = re.fullmatch(pattern, name)
            if match is None:
                continue
            stage = match[1] if match.groups() else None
            # One group for the whole network: all blocks of a vision transformer read the same patches.
            if stage is None:
                axis = _patches(model, size)
            else:
                # The grid that the stage's own feature maps have.
                axis = grid_axis(grids[f"stage {stage}"])
            _, layers, _ = parts.setdefault(group.format(stage), (about.format(stage), {}, axis))
            layers[f"{name}.weights"] = tape[f"{name}.weights"]
    query = Axis(names=["the pooling query"])
    return {
        name: Group(name, query if name == "pool" else axis, axis, layers, about)
        for name, (about, layers, axis) in parts.items()
    }


def _patches(model: Any, size: tuple[int, int]) -> Axis:
    """The tokens of a vision transformer: class token, registers, and patches."""
    embed = model.embed
    registers = 0 if embed.registers is None else embed.registers.shape[1]
    special = ["class token"] * (embed.cls is not None) + [
        f"register {i}" for i in range(registers)
    ]
    return grid_axis(embed.size(*size), special)


def grid_axis(grid: tuple[int, int], special: Sequence[str] = ()) -> Axis:
    """The tokens of a grid of this height and width, row by row, after special tokens."""
    places = [f"row {y}, column {x}" for y in range(grid[0]) for x in range(grid[1])]
    return Axis(names=[*special, *places], special=list(range(len(special))), grid=grid)


# Saliency of an image for the view Classify: which pixels the score of a class depends on.


WINDOWS = 8  # of occlusion, per side
# Options by method, for an image of a width in pixels: they make it quick enough for the page.
OPTIONS: dict[str, Callable[[int], dict[str, int]]] = {
    "integrated": lambda _: {"steps": 64},
    "smoothgrad": lambda _: {"samples": 16},
    "occlusion": lambda width: dict.fromkeys(("patch", "stride"), max(1, width // WINDOWS)),
}


def explain_image(
    bundle: Bundle, file: bytes, method: str, target: str | None, done: Callable[[int, int], None]
) -> answers.SaliencyShape:
    """How much each pixel counts for the score of a class, as plain values for JSON.

    Args:
        bundle: A model with classes that reads images.
        file: The bytes of an image file.
        method: A key of SALIENCY_METHODS.
        target: The name of a class; None: the likeliest.
        done: Called with (steps done, all steps); may raise to stop.
    """
    if not reads_images(bundle) or "classify" not in bundle.can:
        raise InputError(
            f"this {bundle.name} has no classes of images: expected a model that classifies them"
        )
    one_of("method", method, SALIENCY_METHODS)
    names = class_names(bundle)
    if target is not None and target not in names:
        raise InputError(
            f"no class {target!r}: expected one of {', '.join(names[:20])}{nearest(target, names)}"
        )
    width = model_input(bundle, file)[1].shape[1]  # raises if the model would read too many pixels
    wanted = None if target is None else names.index(target)
    options: dict[str, Any] = {}
    if method in OPTIONS:
        options = OPTIONS[method](width)
    result = saliency(bundle, file, method=method, target=wanted, done=added_up(done), **options)
    if result.completeness is None:
        change = None
    else:
        change = float(result.values.double().sum()) - result.completeness
    return {
        "method": method,
        "target": names[result.index or 0],
        "score": result.score,
        "probability": result.probability,
        "signed": result.signed,
        "layer": result.layer,
        "completeness": result.completeness,
        "change": change,
        "options": options,
        "values": [[significant(x) for x in row] for row in result.values.tolist()],
    }
