"""timm's vision transformer, ResNet, ConvNeXt and MobileNetV2: tensor names, and folders as timm puts them on the hub.

    config.json           {"architecture": "vit_base_patch16_224", "num_classes": ..., "model_args": {...},
                           "pretrained_cfg": {"mean": ..., "crop_pct": ...}}
    model.safetensors     or pytorch_model.bin

The native files of DINOv2 have nearly the same names: register_tokens for reg_token, and a mask token. Where timm has
no position for the class token, ours is zero; with registers ours is added to the class token when it is saved.
"""

from __future__ import annotations

import math
import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from ... import config
from ...data.images.preprocessing import Preprocessing
from ...errors import InputError
from ...models import convnext, mobilenet, resnet, vit
from ..bundle import Bundle
from ..fill import Shapes, WeightsError
from ..huggingface.convnets import stage_rows
from ..huggingface.vit import PLAIN
from ..table import TABLE, Row, UsedTensors, blocks, conv_norms, pairs, require, with_counters
from ..tensor_files import Tensors, open_tensors, replace_tensors
from . import torchvision
from .state_files import (
    DEVIATION,
    IMAGENET,
    MEAN,
    StateLayout,
    build,
    grid_of,
    heads_of,
    numbered,
)
from .state_files import their_tensors as export

# The layers of a block, one per line. Ours: theirs.
VIT_LAYER = {
    "blocks.{}.attn_norm": "blocks.{}.norm1",
    "blocks.{}.attn.query+key+value": "blocks.{}.attn.qkv",
    "blocks.{}.attn.out": "blocks.{}.attn.proj",
    "blocks.{}.mlp_norm": "blocks.{}.norm2",
    "blocks.{}.mlp.up": "blocks.{}.mlp.fc1",
    "blocks.{}.mlp.down": "blocks.{}.mlp.fc2",
}
CONVNEXT_LAYER = {
    "conv": "conv_dw",
    "norm": "norm",
    "mlp.up": "mlp.fc1",
    "mlp.down": "mlp.fc2",
}
# Architectures of each family whose computation is that of ours. All others have other stems, activations or norms.
ARCHITECTURES = {
    "vit": r"(vit|deit3?)_(tiny|small|medium|base|large|huge|giant)_patch\d+(_reg\d+)?_\w+",
    "resnet": r"resnet(18|34|50|101|152)",
    "convnext": r"convnext_(tiny|small|base|large|xlarge)",
    "mobilenet": r"mobilenetv2_\d+d?",
}
# of vit: other pooling, norms or tokens
OTHER = re.compile(r"gap|clip|siglip|quickgelu|distilled|rope|dinov3|_pe_|plus")
MULTIPLIERS = {"035": 0.35, "050": 0.5, "075": 0.75, "100": 1.0, "140": 1.4}  # of mobilenetv2_...
RESNETS: dict[tuple[str, tuple[int, ...]], str] = {
    ("basic", (2, 2, 2, 2)): "resnet18",
    ("basic", (3, 4, 6, 3)): "resnet34",
    ("bottleneck", (3, 4, 6, 3)): "resnet50",
    ("bottleneck", (3, 4, 23, 3)): "resnet101",
    ("bottleneck", (3, 8, 36, 3)): "resnet152",
}


@dataclass(frozen=True, kw_only=True, slots=True)
class TimmKeys:
    """The keys of their config.json that we read."""

    architecture: str
    model_args: dict[str, Any] = field(default_factory=dict)  # keyword arguments of their class
    pretrained_cfg: dict[str, Any] = field(default_factory=dict)  # preprocessing
    label_names: tuple[str, ...] | None = None
    global_pool: str = ""  # "token" or "avg"

    @property
    def family(self) -> str:
        """Our family of this architecture; raises if there is none."""
        name = self.architecture.partition(".")[0]
        for family_name, pattern in ARCHITECTURES.items():
            # many names that begin with vit_ are of models with other pooling, norms or positions
            if re.fullmatch(pattern, name) and not (family_name == "vit" and OTHER.search(name)):
                return family_name
        raise InputError(
            f"architecture is {self.architecture!r}: expected a vit_, deit_, resnet, convnext_ or mobilenetv2_ model "
            "that computes as those of their papers"
        )


def vit_config(shapes: Shapes, arguments: Mapping[str, Any]) -> vit.Config:
    """Our Config of a VisionTransformer whose tensors are merged."""
    width, channels, patch, _ = shapes["patch_embed.proj.weight"]
    is_scaled = "blocks.0.ls1.gamma" in shapes
    hidden = shapes.get("blocks.0.mlp.fc1.bias", (4 * width,))
    return vit.Config(
        # no output layer: the model embeds images
        classes=shapes.get("head.weight", (0,))[0],
        channels=channels,
        patch=patch,
        width=width,
        # a square grid, whose rows follow that of the class token
        size=patch * grid_of(shapes["pos_embed"][1] - 1),
        depth=numbered(shapes, "blocks.{}.norm1.weight"),
        heads=heads_of(width, arguments),
        hidden=hidden[0],
        # (1, registers, d)
        registers=shapes.get("reg_token", (1, 0))[1],
        # timm smooths the positions that it interpolates to a smaller grid
        antialias=True,
        # tensors tell that there is a scale, but not with which value training began
        layer_scale=float(arguments.get("init_values") or 1e-5) if is_scaled else None,
    )


def vit_rows(c: vit.Config) -> Iterator[Row]:
    """Yield the rows that map our parameters to their tensors."""
    yield Row(("embed.cls",), ("cls_token",))
    yield Row(("embed.cls_place", "embed.places"), ("pos_embed",), TABLE)
    if c.registers:
        yield Row(("embed.registers",), ("reg_token",))
    yield from pairs({"embed.project": "patch_embed.proj", "norm": "norm"})
    yield from blocks(VIT_LAYER, c.depth)
    if c.layer_scale is not None:
        for i in range(c.depth):
            # a factor per channel of each sublayer's output, LayerScale (Touvron et al. 2021)
            yield Row((f"blocks.{i}.attn_scale",), (f"blocks.{i}.ls1.gamma",))
            yield Row((f"blocks.{i}.mlp_scale",), (f"blocks.{i}.ls2.gamma",))
    if c.classes:
        yield from pairs({"head": "head"})


def merge_vit(tensors: Tensors) -> Tensors:
    """Give the position table the class token's row first, and no rows of registers."""
    if "register_tokens" in tensors.shapes:
        # the native files of DINOv2
        tensors = tensors.renamed(lambda name: "reg_token" if name == "register_tokens" else name)
    shape, registers = tensors.shapes["pos_embed"], tensors.shapes.get("reg_token", (1, 0))[1]
    if len(shape) != 3 or shape[0] != 1:
        raise WeightsError(
            f"{tensors.path}: pos_embed has the shape {shape}, expected (1, tokens, width)"
        )
    rows = shape[1]
    # the usual case: class token and a grid
    if _square(rows - 1):
        return tensors
    table = tensors["pos_embed"]
    if registers and _square(rows - 1 - registers):  # a position for each register
        # our registers have no positions, so that theirs become part of the tokens
        token = tensors["reg_token"] + table[:, 1 : 1 + registers]
        kept = torch.cat([table[:, :1], table[:, 1 + registers :]], dim=1)
        return tensors.replaced({"pos_embed", "reg_token"}, {"pos_embed": kept, "reg_token": token})
    if _square(rows):  # no position for the class token
        # a row of zeros, which adds nothing
        return tensors.replaced(
            {"pos_embed"}, {"pos_embed": torch.cat([torch.zeros_like(table[:, :1]), table], dim=1)}
        )
    raise WeightsError(f"{tensors.path}: the {rows} positions of pos_embed are not a square grid")


def split_vit(tensors: dict[str, Tensor], c: vit.Config) -> dict[str, Tensor]:
    """The inverse of `merge_vit`: with registers, the position of the class token is added to it, as timm has none."""
    if not c.registers:
        return tensors
    table = tensors["pos_embed"]
    return {
        **tensors,
        # the sum is what the model would have computed from the two
        "cls_token": tensors["cls_token"] + table[:, :1],
        "pos_embed": table[:, 1:].contiguous(),
    }


def check_vit(c: vit.Config) -> None:
    """Raise unless timm has such a vision transformer."""
    require(c, "timm's model", {**PLAIN, "pool": "cls", "eps": 1e-6, "mlp": "gelu"})
    if c.shape[0] != c.shape[1]:
        raise WeightsError(f"size={c.size}: expected a square, whose grid can be read back")


def convnext_config(shapes: Shapes, arguments: Mapping[str, Any]) -> convnext.Config:
    """Our Config, read from the shapes of the tensors of a ConvNeXt."""
    depths: list[int] = []
    while depth := numbered(shapes, f"stages.{len(depths)}.blocks.{{}}.norm.weight"):
        depths.append(depth)
    width, channels, patch, _ = shapes["stem.0.weight"]
    return convnext.Config(
        classes=shapes.get("head.fc.weight", (0,))[0],
        channels=channels,
        patch=patch,
        width=width,
        depths=tuple(depths),
        # a depthwise kernel is (c, 1, k, k)
        kernel=shapes["stages.0.blocks.0.conv_dw.weight"][-1],
        # tensors tell that there is a scale, but not with which value training began
        layer_scale=float(arguments.get("ls_init_value") or 1e-6)
        if "stages.0.blocks.0.gamma" in shapes
        else None,
    )


def convnext_rows(c: convnext.Config) -> Iterator[Row]:
    """Yield the rows that map our parameters to their tensors."""
    yield from pairs({"stem.0": "stem.0", "stem.1": "stem.1", "norm": "head.norm"})
    block, halving = "stages.{i}.blocks.{j}", "stages.{i}.downsample"
    yield from stage_rows(c, CONVNEXT_LAYER, block, halving, "gamma")
    if c.classes:
        yield from pairs({"head": "head.fc"})


def check_convnext(c: convnext.Config) -> None:
    """Raise unless timm has such a ConvNeXt."""
    require(c, "timm's model", {"eps": 1e-6, "last_eps": 1e-6})


def mobilenet_config(shapes: Shapes, arguments: Mapping[str, Any]) -> mobilenet.Config:
    """Our Config, read from the shapes of the tensors of a MobileNetV2."""
    widths, depths = list[int](), list[int]()
    while depth := numbered(shapes, f"blocks.{len(depths)}.{{}}.conv_dw.weight"):
        # the first stage does not widen, and its blocks have one convolution less
        last = "conv_pwl" if depths else "conv_pw"
        widths.append(shapes[f"blocks.{len(depths)}.0.{last}.weight"][0])
        depths.append(depth)
    # no tensor tells a stride
    strides = mobilenet.Config().strides
    if len(depths) != len(strides):
        raise InputError(
            f"there are {len(depths)} stages of blocks: expected {len(strides)}, whose strides are known"
        )
    # the expansion is that of the second stage, as the first has none
    outputs, inputs, *_ = shapes["blocks.1.0.conv_pw.weight"]
    return mobilenet.Config(
        classes=shapes.get("classifier.weight", (0,))[0],
        channels=shapes["conv_stem.weight"][1],
        width=shapes["conv_stem.weight"][0],
        widths=tuple(widths),
        depths=tuple(depths),
        strides=strides,
        expansion=outputs // inputs,
        hidden=shapes["conv_head.weight"][0],
    )


def mobilenet_rows(c: mobilenet.Config) -> Iterator[Row]:
    """Yield the rows that map our parameters and buffers to their tensors."""
    names = {"stem": ("conv_stem", "bn1"), "last": ("conv_head", "bn2")}
    for i, depth in enumerate(c.depths):
        if i:
            # 1x1 to more channels, depthwise 3x3, 1x1 to fewer (Sandler et al. 2018)
            parts = {"widen": "conv_pw", "filter": "conv_dw", "narrow": "conv_pwl"}
        else:
            # an expansion of 1 needs no convolution that widens
            parts = {"filter": "conv_dw", "narrow": "conv_pw"}
        for j in range(depth):
            for number, (ours, conv) in enumerate(parts.items(), 1):
                names[f"stages.{i}.{j}.{ours}"] = (
                    f"blocks.{i}.{j}.{conv}",
                    f"blocks.{i}.{j}.bn{number}",
                )
    yield from conv_norms(names)
    if c.classes:
        yield from pairs({"head": "classifier"})


def check_mobilenet(c: mobilenet.Config) -> None:
    """Raise unless timm has such a MobileNetV2."""
    fixed = {"eps": 1e-5, "strides": mobilenet.Config().strides, "expansion": 6}
    require(c, "timm's model", fixed)


LAYOUTS = {
    "vit": StateLayout(
        model="vit",
        marks=("cls_token", "pos_embed", "patch_embed.proj.weight", "norm.weight"),
        to_ours=vit_config,
        rows=vit_rows,
        check=check_vit,
        ignored={"mask_token": None},
        merge=merge_vit,
        split=split_vit,
    ),
    # with the names of torchvision
    "resnet": torchvision.LAYOUTS["resnet"],
    "convnext": StateLayout(
        model="convnext",
        marks=("stem.0.weight", "stages.0.blocks.0.conv_dw.weight", "head.norm.weight"),
        to_ours=convnext_config,
        rows=convnext_rows,
        check=check_convnext,
        ignored={},
    ),
    "mobilenet": StateLayout(
        model="mobilenet",
        marks=("conv_stem.weight", "blocks.0.0.conv_dw.weight", "conv_head.weight"),
        to_ours=mobilenet_config,
        rows=mobilenet_rows,
        check=check_mobilenet,
        ignored={},
        merge=with_counters,
    ),
}


def load(
    folder: Path, device: torch.device, dtype: torch.dtype | None
) -> tuple[Bundle, UsedTensors]:
    """Load a folder of timm; returns the bundle, and which tensors it was loaded from."""
    where = folder / "config.json"
    table = config.load(where)
    known = {
        # null stands for the default
        name: value
        for name, value in table.items()
        if name in TimmKeys.__dataclass_fields__ and value is not None
    }
    theirs = config.read(TimmKeys, config.Table(known, origin=table.origin))
    try:
        layout = LAYOUTS[theirs.family]
    except InputError as cause:
        raise WeightsError(f"{where}: {cause}") from cause
    if layout.model == "vit" and theirs.global_pool not in ("", "token"):
        # avg is the mean of the patches, and our vision transformer reads the class token
        raise WeightsError(f"{where}: global_pool is {theirs.global_pool!r}: expected 'token'")
    with open_tensors(folder) as tensors:
        missing = next((mark for mark in layout.marks if mark not in tensors.shapes), None)
        if missing is not None:
            raise WeightsError(
                f"{tensors.path}: there is no {missing}, which every {theirs.architecture} has"
            )
        model, used = build(layout, tensors, theirs.model_args, device, dtype, where)
    labels = theirs.label_names
    if not labels or len(labels) != model.config.classes:
        # the names belong to another head
        labels = None
    try:
        preprocessing = read_preprocessing(theirs.pretrained_cfg)
    except (InputError, TypeError, ValueError) as cause:
        raise WeightsError(f"{where}: pretrained_cfg: {cause}") from cause
    return Bundle(
        model, None, model.config, folder, labels=labels, preprocessing=preprocessing
    ), used


def read_preprocessing(table: Mapping[str, Any]) -> Preprocessing:
    """Our Preprocessing of their pretrained_cfg: the shorter edge is resized to size / crop_pct, the centre cropped."""
    # (channels, height, width)
    height, width = table.get("input_size", (3, 224, 224))[1:]
    share, word = float(table.get("crop_pct", 0.875)), table.get("interpolation", "bicubic")
    if table.get("crop_mode", "center") != "center":
        raise InputError(f"crop_mode is {table['crop_mode']!r}: expected 'center'")
    if height != width or not 0 < share <= 1:
        raise InputError(
            f"input_size is {table.get('input_size')} and crop_pct {share}: expected a square and a share"
        )
    return Preprocessing(
        resize=math.floor(height / share),
        crop=(height, width),
        interpolation=word,
        mean=tuple(table.get("mean", MEAN)),
        deviation=tuple(table.get("std", DEVIATION)),
    )


def save(bundle: Bundle, folder: Path) -> Path:
    """Write a bundle as a folder that timm.create_model("local-dir:...") reads; returns the folder."""
    tensors = export(bundle, LAYOUTS, "timm")
    name, arguments = _architecture(bundle.config)
    given = bundle.preprocessing or IMAGENET
    if given.crop is None or not isinstance(given.resize, int) or given.channels != "rgb":
        raise WeightsError(
            f"preprocessing {given}: timm resizes the shorter edge of RGB images, and crops the centre"
        )
    theirs = {
        "architecture": name,
        "num_classes": bundle.config.classes,
        "model_args": arguments,
        "pretrained_cfg": {
            # (channels, height, width)
            "input_size": [bundle.config.channels, *given.crop],
            "interpolation": given.interpolation,
            # reading divides the size by this share again
            "crop_pct": given.crop[0] / given.resize,
            "crop_mode": "center",
            "mean": list(given.mean),
            "std": list(given.deviation),
            "num_classes": bundle.config.classes,
        },
    }
    if bundle.labels is not None:
        theirs["label_names"] = list(bundle.labels)
    folder.mkdir(parents=True, exist_ok=True)
    replace_tensors(folder / "model.safetensors", tensors)
    (folder / "preprocessor_config.json").unlink(missing_ok=True)
    config.write(theirs, folder / "config.json")
    return folder


def _architecture(c: Any) -> tuple[str, dict[str, Any]]:
    """The name of their architecture, and the keyword arguments in which the model differs from it."""
    common = {"in_chans": c.channels, "num_classes": c.classes}
    if isinstance(c, vit.Config):
        registers = {}
        if c.registers:
            # in their model the class token has no position of its own then
            registers = {"reg_tokens": c.registers, "no_embed_class": True}
        # any vision transformer of theirs will do, since the arguments replace all of its sizes
        return "vit_base_patch16_224", {
            **common,
            "img_size": c.shape[0],
            "patch_size": c.patch,
            "embed_dim": c.width,
            "depth": c.depth,
            "num_heads": c.heads,
            "mlp_ratio": (c.hidden or 4 * c.width) / c.width,
            "init_values": c.layer_scale,
            **registers,
        }
    if isinstance(c, resnet.Config):
        # the model of these depths, or else any with the same kind of block
        usual = "resnet18" if c.block == "basic" else "resnet50"
        name = RESNETS.get((c.block, c.depths), usual)
        channels = [c.width * 2**i for i in range(len(c.depths))]
        return name, {
            **common,
            "layers": list(c.depths),
            "channels": channels,
            "stem_width": c.width,
        }
    if isinstance(c, convnext.Config):
        dims = [c.width * 2**i for i in range(len(c.depths))]
        more = {"kernel_sizes": c.kernel, "ls_init_value": c.layer_scale}
        return "convnext_tiny", {
            **common,
            "depths": list(c.depths),
            "dims": dims,
            "patch_size": c.patch,
            **more,
        }
    # timm names a MobileNetV2 by its width, in percent
    for name, factor in MULTIPLIERS.items():
        own = mobilenet.Config()
        widths = tuple(_rounded(width * factor) for width in own.widths)
        if (c.widths, c.depths, c.width) == (widths, own.depths, _rounded(own.width * factor)):
            return f"mobilenetv2_{name}", common
    raise WeightsError(
        f"widths={c.widths}, depths={c.depths}: timm has them for {', '.join(MULTIPLIERS)} percent only"
    )


def _rounded(channels: float) -> int:
    """Channels as a multiple of 8, and not much fewer (section 5 of the code of Sandler et al. 2018)."""
    nearest = max(8, int(channels + 4) // 8 * 8)
    return nearest + 8 if nearest < 0.9 * channels else nearest


def _square(n: int) -> bool:
    return n > 0 and math.isqrt(n) ** 2 == n
