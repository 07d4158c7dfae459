"""The tensor names of torchvision's vision transformer, ResNet, ConvNeXt and MobileNetV2, to and from ours."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from itertools import accumulate
from typing import Any

from ...errors import InputError
from ...models import convnext, mobilenet, resnet, vit
from ..fill import Shapes, WeightsError
from ..huggingface.convnets import conv_names, stage_rows
from ..huggingface.vit import PLAIN
from ..table import (
    JOINED,
    TABLE,
    Conversion,
    Row,
    blocks,
    conv_norms,
    pairs,
    require,
    with_counters,
)
from .state_files import HEADS, StateLayout, grid_of, heads_of, numbered

# The layers of a block, one per line, without those whose names depend on the file. Ours: theirs.
VIT_LAYER = {
    "blocks.{}.attn_norm": "encoder.layers.encoder_layer_{}.ln_1",
    "blocks.{}.attn.out": "encoder.layers.encoder_layer_{}.self_attention.out_proj",
    "blocks.{}.mlp_norm": "encoder.layers.encoder_layer_{}.ln_2",
}
CONVNEXT_LAYER = {
    "conv": "block.0",
    "norm": "block.2",
    "mlp.up": "block.3",
    "mlp.down": "block.5",
}
# A factor per channel, stored as (c, 1, 1).
PER_CHANNEL = Conversion(lambda x: x[:, None, None], lambda x, _: [x[:, 0, 0]])


def vit_config(shapes: Shapes, arguments: Mapping[str, Any]) -> vit.Config:
    """Our Config, read from the shapes of the tensors of a VisionTransformer."""
    width, channels, patch, _ = shapes["conv_proj.weight"]
    block, hidden = (
        "encoder.layers.encoder_layer_{}.ln_1.weight",
        "encoder.layers.encoder_layer_0.mlp.",
    )
    inner = shapes.get(f"{hidden}0.bias") or shapes.get(f"{hidden}linear_1.bias") or (4 * width,)
    return vit.Config(
        # no output layer: the model embeds images
        classes=shapes.get("heads.head.weight", (0,))[0],
        channels=channels,
        patch=patch,
        width=width,
        # a square grid, whose rows follow that of the class token
        size=patch * grid_of(shapes["encoder.pos_embedding"][1] - 1),
        depth=numbered(shapes, block),
        heads=heads_of(width, arguments),
        hidden=inner[0],
        head="mlp" if "heads.pre_logits.weight" in shapes else "linear",
    )


def vit_rows(c: vit.Config) -> Iterator[Row]:
    """Our parameters and their names; the oldest files call the layers of an MLP linear_1 and linear_2."""
    yield Row(("embed.cls",), ("class_token",))
    yield Row(("embed.cls_place", "embed.places"), ("encoder.pos_embedding",), TABLE)
    yield from pairs({"embed.project": "conv_proj", "norm": "encoder.ln"})
    for i in range(c.depth):
        block = f"encoder.layers.encoder_layer_{i}"
        for leaf in ("weight", "bias"):
            # queries, keys and values are one matrix, below each other
            qkv = tuple(f"blocks.{i}.attn.{name}.{leaf}" for name in ("query", "key", "value"))
            yield Row(qkv, (f"{block}.self_attention.in_proj_{leaf}",), JOINED)
            # today's name, and that of the oldest files
            up = (f"{block}.mlp.0.{leaf}", f"{block}.mlp.linear_1.{leaf}")
            down = (f"{block}.mlp.3.{leaf}", f"{block}.mlp.linear_2.{leaf}")
            yield Row((f"blocks.{i}.mlp.up.{leaf}",), up)
            yield Row((f"blocks.{i}.mlp.down.{leaf}",), down)
    yield from blocks(VIT_LAYER, c.depth)
    if c.classes:
        yield from pairs({"head": "heads.head"})
        if c.head == "mlp":
            # the hidden layer of pretraining (Dosovitskiy et al. 2021, section 3.1)
            yield from pairs({"head_hidden": "heads.pre_logits"})


def check_vit(c: vit.Config) -> None:
    """Raise unless torchvision has such a vision transformer."""
    fixed = {name: value for name, value in PLAIN.items() if name != "head"}
    more = {"registers": 0, "layer_scale": None, "pool": "cls", "eps": 1e-6, "mlp": "gelu"}
    require(c, "torchvision's model", {**fixed, **more})
    if c.heads != HEADS.get(c.width):
        known = f"has {HEADS[c.width]}" if c.width in HEADS else "does not exist"
        raise WeightsError(
            f"heads={c.heads}, width={c.width}: a file of torchvision does not hold the number of heads, and a "
            f"published model of this width {known}; layout='timm' holds it"
        )
    if c.shape[0] != c.shape[1]:
        raise WeightsError(f"size={c.size}: torchvision's model has a square grid of positions")


def resnet_config(shapes: Shapes, arguments: Mapping[str, Any]) -> resnet.Config:
    """Our Config of a ResNet; the shapes of a wide one, or of a ResNeXt, do not fit it."""
    stages = 0
    while f"layer{stages + 1}.0.conv1.weight" in shapes:
        stages += 1
    return resnet.Config(
        classes=shapes.get("fc.weight", (0,))[0],
        channels=shapes["conv1.weight"][1],
        width=shapes["conv1.weight"][0],
        depths=tuple(numbered(shapes, f"layer{i + 1}.{{}}.conv1.weight") for i in range(stages)),
        # a bottleneck has a third convolution
        block="bottleneck" if "layer1.0.conv3.weight" in shapes else "basic",
    )


def resnet_rows(c: resnet.Config) -> Iterator[Row]:
    """Our tensors and their names, which timm shares."""
    names = {"stem.first": ("conv1", "bn1")}
    for ours, i, j, layer in conv_names(c):
        at = f"layer{i + 1}.{j}"
        if layer == "shortcut":
            # a convolution and its batch norm
            names[ours] = (f"{at}.downsample.0", f"{at}.downsample.1")
        else:
            # their layers count from 1
            names[ours] = (f"{at}.conv{int(layer) + 1}", f"{at}.bn{int(layer) + 1}")
    yield from conv_norms(names)
    if c.classes:
        yield from pairs({"head": "fc"})


def check_resnet(c: resnet.Config) -> None:
    """Raise unless torchvision has such a ResNet."""
    require(
        c,
        "torchvision's model",
        {"stem": "large", "attention": (), "shrink": "middle", "eps": 1e-5},
    )


def convnext_config(shapes: Shapes, arguments: Mapping[str, Any]) -> convnext.Config:
    """Our Config, read from the shapes of the tensors of a ConvNeXt."""
    depths: list[int] = []
    while depth := numbered(shapes, f"features.{2 * len(depths) + 1}.{{}}.block.0.weight"):
        depths.append(depth)
    width, channels, patch, _ = shapes["features.0.0.weight"]
    return convnext.Config(
        classes=shapes.get("classifier.2.weight", (0,))[0],
        channels=channels,
        patch=patch,
        width=width,
        depths=tuple(depths),
        # a depthwise kernel is (c, 1, k, k)
        kernel=shapes["features.1.0.block.0.weight"][-1],
    )


def convnext_rows(c: convnext.Config) -> Iterator[Row]:
    """Yield the rows that map our parameters to their tensors."""
    yield from pairs({"stem.0": "features.0.0", "stem.1": "features.0.1", "norm": "classifier.0"})
    rows = stage_rows(c, CONVNEXT_LAYER, "features.{odd}.{j}", "features.{even}", "layer_scale")
    for row in rows:
        if row.theirs[0].endswith("layer_scale"):
            # (c) in our model, (c, 1, 1) in theirs
            row = Row(row.ours, row.theirs, PER_CHANNEL)
        yield row
    if c.classes:
        yield from pairs({"head": "classifier.2"})


def check_convnext(c: convnext.Config) -> None:
    """Raise unless torchvision has such a ConvNeXt."""
    require(c, "torchvision's model", {"eps": 1e-6, "last_eps": 1e-6, "kernel": 7, "patch": 4})
    if c.layer_scale is None:
        raise WeightsError("layer_scale=None: torchvision's model has a layer scale")


def mobilenet_config(shapes: Shapes, arguments: Mapping[str, Any]) -> mobilenet.Config:
    """Our Config of a MobileNetV2: a new stage begins where the number of channels changes, or a block widens."""
    widths, depths, last = list[int](), list[int](), 1
    while (
        f"features.{last}.conv.1.weight" in shapes or f"features.{last}.conv.1.0.weight" in shapes
    ):
        # a block that widens has one convolution more
        widens = f"features.{last}.conv.3.weight" in shapes
        outputs = shapes[f"features.{last}.conv.{1 + widens}.weight"][0]
        # only the first stage does not widen: a block that does cannot belong to it
        if widths and outputs == widths[-1] and (len(widths) > 1) == widens:
            depths[-1] += 1
        else:
            widths.append(outputs)
            depths.append(1)
        last += 1
    strides = mobilenet.Config().strides
    if len(widths) != len(strides):
        raise InputError(
            f"there are {len(widths)} stages of blocks: expected {len(strides)}, whose strides are known"
        )
    return mobilenet.Config(
        classes=shapes.get("classifier.1.weight", (0,))[0],
        channels=shapes["features.0.0.weight"][1],
        width=shapes["features.0.0.weight"][0],
        widths=tuple(widths),
        depths=tuple(depths),
        strides=strides,
        # the first block that widens is the second
        expansion=shapes["features.2.conv.0.0.weight"][0]
        // shapes["features.2.conv.0.0.weight"][1],
        hidden=shapes[f"features.{last}.0.weight"][0],
    )


def mobilenet_rows(c: mobilenet.Config) -> Iterator[Row]:
    """Yield the rows that map our parameters and buffers to their tensors."""
    names = {"stem": ("features.0.0", "features.0.1")}
    # features.0 is the stem
    starts = list(accumulate(c.depths, initial=1))
    for i, depth in enumerate(c.depths):
        for j in range(depth):
            ours, at = f"stages.{i}.{j}", f"features.{starts[i] + j}.conv"
            if i:
                # blocks of the first stage do not widen
                names[f"{ours}.widen"] = (f"{at}.0.0", f"{at}.0.1")
            # so that their filter comes first
            k = int(i > 0)
            names[f"{ours}.filter"] = (f"{at}.{k}.0", f"{at}.{k}.1")
            names[f"{ours}.narrow"] = (f"{at}.{k + 1}", f"{at}.{k + 2}")
    names["last"] = (f"features.{starts[-1]}.0", f"features.{starts[-1]}.1")
    yield from conv_norms(names)
    if c.classes:
        yield from pairs({"head": "classifier.1"})


def check_mobilenet(c: mobilenet.Config) -> None:
    """Raise unless torchvision has such a MobileNetV2."""
    require(c, "torchvision's model", {"eps": 1e-5, "strides": mobilenet.Config().strides})
    if c.expansion < 2:
        raise WeightsError(
            f"expansion={c.expansion}: torchvision's model widens each block but the first"
        )


LAYOUTS = {
    "vit": StateLayout(
        model="vit",
        marks=("class_token", "encoder.pos_embedding", "conv_proj.weight"),
        to_ours=vit_config,
        rows=vit_rows,
        check=check_vit,
        ignored={},
    ),
    "resnet": StateLayout(
        model="resnet",
        marks=("conv1.weight", "bn1.weight", "layer1.0.conv1.weight"),
        to_ours=resnet_config,
        rows=resnet_rows,
        check=check_resnet,
        ignored={},
        merge=with_counters,
    ),
    "convnext": StateLayout(
        model="convnext",
        marks=("features.0.0.weight", "features.1.0.layer_scale"),
        to_ours=convnext_config,
        rows=convnext_rows,
        check=check_convnext,
        ignored={},
    ),
    "mobilenet": StateLayout(
        model="mobilenet",
        marks=("features.0.0.weight", "features.1.conv.0.0.weight", "features.1.conv.1.weight"),
        to_ours=mobilenet_config,
        rows=mobilenet_rows,
        check=check_mobilenet,
        ignored={},
        merge=with_counters,
    ),
}
