"""The ResNet (He et al. 2016) and the ConvNeXt (Liu et al. 2022) in Hugging Face's format, to and from ours.

ours (models/resnet.py)                theirs
stem.first.conv, stem.first.norm       resnet.embedder.embedder.convolution, .normalization
stages.0.0.layers.0                    resnet.encoder.stages.0.layers.0.layer.0
stages.0.0.shortcut                    resnet.encoder.stages.0.layers.0.shortcut
head                                   classifier.1

ours (models/convnext.py)              theirs
stem.0, stem.1                         convnext.embeddings.patch_embeddings, .layernorm
stages.1.0.0, stages.1.0.1             convnext.encoder.stages.1.downsampling_layer.0, .1
stages.1.1                             convnext.encoder.stages.1.layers.0
norm, head                             convnext.layernorm, classifier
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from typing import Any, Literal, cast

from torch import Tensor

from ...checks import at_least
from ...errors import InputError
from ...layers.conv import EXPANSION
from ...models import convnext, resnet
from ...tokens.special import Special
from ..fill import Shapes
from ..table import (
    Layout,
    Row,
    class_keys,
    conv_norms,
    pairs,
    read_options,
    require,
    with_counters,
    write_options,
)

RESNET_FIXED = {"hidden_act": "relu", "downsample_in_first_stage": False}
# Keys of config.json, and the options of our Config that they are.
RESNET_SIZES = {
    "num_channels": "channels",
    "embedding_size": "width",
    "depths": "depths",
    "layer_type": "block",
}
CONVNEXT_SIZES = {
    "num_channels": "channels",
    "patch_size": "patch",
    "depths": "depths",
    "layer_norm_eps": "last_eps",
    "drop_path_rate": "skip",
}
# The layers of a ConvNeXt block, one per line. Ours: theirs.
CONVNEXT_LAYER = {
    "conv": "dwconv",
    "norm": "layernorm",
    "mlp.up": "pwconv1",
    "mlp.down": "pwconv2",
}


@dataclass(frozen=True, kw_only=True, slots=True)
class ResNetKeys:
    """The keys of a ResNet's config.json that we read, with their defaults."""

    num_channels: int = 3
    embedding_size: int = 64
    hidden_sizes: tuple[int, ...] = (256, 512, 1024, 2048)
    depths: tuple[int, ...] = (3, 4, 6, 3)
    layer_type: Literal["basic", "bottleneck"] = "bottleneck"
    downsample_in_bottleneck: bool = False

    def __post_init__(self) -> None:
        at_least(self, 1, "num_channels", "embedding_size")

    def to_ours(self, shapes: Shapes) -> resnet.Config:
        """Convert these keys of config.json to the Config of our model."""
        # of the last convolution of a block, which a bottleneck widens
        width = self.embedding_size * EXPANSION[self.layer_type]
        _check_doubled(self.hidden_sizes, width, len(self.depths))
        return resnet.Config(
            # no output layer: the model embeds images
            classes=shapes.get("classifier.1.weight", (0,))[0],
            **read_options(self, RESNET_SIZES),
            shrink="first" if self.downsample_in_bottleneck else "middle",
        )


def _doubled(width: int, stages: int) -> tuple[int, ...]:
    """The channels of each stage's output: twice those of the stage before."""
    return tuple(width * 2**i for i in range(stages))


def _check_doubled(sizes: tuple[int, ...], width: int, stages: int) -> None:
    expected = _doubled(width, stages)
    if sizes != expected:
        raise InputError(f"hidden_sizes={sizes}: expected {expected}, each twice the one before")


def resnet_keys(c: resnet.Config, special: Special) -> dict[str, Any]:
    """The config.json of a ResNet; raises for options that it does not have."""
    require(c, "a ResNet folder", {"stem": "large", "attention": (), "eps": 1e-5})
    return {
        "architectures": [f"ResNet{'ForImageClassification' if c.classes else 'Model'}"],
        "model_type": "resnet",
        **write_options(c, RESNET_SIZES),
        "hidden_sizes": list(_doubled(c.width * EXPANSION[c.block], len(c.depths))),
        "downsample_in_bottleneck": c.shrink == "first",
        **RESNET_FIXED,
        **class_keys(c.classes),
    }


def conv_names(c: resnet.Config) -> Iterator[tuple[str, int, int, str]]:
    """Our ConvNorms in the stages, with the stage, the block, and its layer ("0", "1", "2" or "shortcut")."""
    # a block has two 3x3 convolutions, and a bottleneck 1x1, 3x3 and 1x1
    inputs, layers = c.width, 2 if c.block == "basic" else 3
    for i, depth in enumerate(c.depths):
        # every stage has twice the channels of the one before
        outputs = c.width * 2**i * EXPANSION[c.block]
        for j in range(depth):
            for layer in range(layers):
                yield f"stages.{i}.{j}.layers.{layer}", i, j, str(layer)
            # a shortcut has a convolution where the channels or the grid change
            if inputs != outputs or (i and not j):
                yield f"stages.{i}.{j}.shortcut", i, j, "shortcut"
            inputs = outputs


def resnet_rows(c: resnet.Config) -> Iterator[Row]:
    """Yield the rows that map our parameters and buffers to their tensors."""
    names = {"stem.first": "resnet.embedder.embedder"}
    for ours, i, j, layer in conv_names(c):
        block = f"resnet.encoder.stages.{i}.layers.{j}"
        names[ours] = f"{block}.shortcut" if layer == "shortcut" else f"{block}.layer.{layer}"
    yield from conv_norms(
        {ours: (f"{at}.convolution", f"{at}.normalization") for ours, at in names.items()}
    )
    if c.classes:
        yield from pairs({"head": "classifier.1"})


def resnet_reference(
    pretrained: Callable[[str], Any], inputs: dict[str, Tensor], c: resnet.Config
) -> Tensor:
    """The output of transformers: the logits of classes, or the mean over places."""
    if c.classes:
        return cast(Tensor, pretrained("ResNetForImageClassification")(inputs["images"]).logits)
    # (b, c, 1, 1) -> (b, c)
    return cast(Tensor, pretrained("ResNetModel")(inputs["images"]).pooler_output.flatten(1))


@dataclass(frozen=True, kw_only=True, slots=True)
class ConvNext:
    """The keys of a ConvNeXt's config.json that we read, with their defaults."""

    num_channels: int = 3
    patch_size: int = 4
    num_stages: int = 4
    hidden_sizes: tuple[int, ...] = (96, 192, 384, 768)
    depths: tuple[int, ...] = (3, 3, 9, 3)
    layer_norm_eps: float = 1e-12
    layer_scale_init_value: float = 1e-6
    drop_path_rate: float = 0.0

    def __post_init__(self) -> None:
        at_least(self, 1, "num_channels", "patch_size", "num_stages")
        if not len(self.depths) == len(self.hidden_sizes) == self.num_stages:
            raise InputError(
                f"num_stages={self.num_stages}: there are {len(self.depths)} depths and {len(self.hidden_sizes)} sizes"
            )

    def to_ours(self, shapes: Shapes) -> convnext.Config:
        """Convert these keys of config.json to the Config of our model."""
        width, scale = self.hidden_sizes[0], self.layer_scale_init_value
        _check_doubled(self.hidden_sizes, width, len(self.hidden_sizes))
        return convnext.Config(
            # no output layer: the model embeds images
            classes=shapes.get("classifier.weight", (0,))[0],
            **read_options(self, CONVNEXT_SIZES),
            width=width,
            # 0 stands for no scale at all
            layer_scale=scale if scale > 0 else None,
        )


def convnext_keys(c: convnext.Config, special: Special) -> dict[str, Any]:
    """The config.json of a ConvNeXt; raises for options that it does not have."""
    require(c, "a ConvNeXt folder", {"kernel": 7, "eps": 1e-6})
    return {
        "architectures": [f"ConvNext{'ForImageClassification' if c.classes else 'Model'}"],
        "model_type": "convnext",
        **write_options(c, CONVNEXT_SIZES),
        "num_stages": len(c.depths),
        "hidden_sizes": list(_doubled(c.width, len(c.depths))),
        "hidden_act": "gelu",
        "layer_scale_init_value": c.layer_scale or 0.0,
        **class_keys(c.classes),
    }


def stage_rows(
    c: convnext.Config, layers: Mapping[str, str], block: str, halving: str, scale: str
) -> Iterator[Row]:
    """Rows of the stages of a ConvNeXt, which timm and torchvision share.

    Args:
        c: Our Config.
        layers: The layers of a block. Ours: theirs.
        block: Their name of a block, with {i} for the stage, {j} for the block, {odd} and {even} for torchvision's
            numbers of the stage and of what halves the grid before it.
        halving: Their name of what halves the grid before a stage, whose parts are 0 and 1.
        scale: Their name of the layer scale.
    """
    for i, depth in enumerate(c.depths):
        # torchvision numbers stem, stages and halvings in one row: 0, then 1, 2, 3 ...
        numbers = {"i": i, "odd": 2 * i + 1, "even": 2 * i}
        if i:
            # the first stage follows the stem, which has halved the grid already
            at = halving.format(**numbers)
            yield from pairs({f"stages.{i}.0.0": f"{at}.0", f"stages.{i}.0.1": f"{at}.1"})
        for j in range(depth):
            # ours has what halves the grid as block 0 of every stage but the first
            ours, theirs = f"stages.{i}.{j + (i > 0)}", block.format(**numbers, j=j)
            yield from pairs({f"{ours}.{a}": f"{theirs}.{b}" for a, b in layers.items()})
            if c.layer_scale is not None:
                yield Row((f"{ours}.scale",), (f"{theirs}.{scale}",))


def convnext_rows(c: convnext.Config) -> Iterator[Row]:
    """Yield the rows that map our parameters to their tensors."""
    yield from pairs(
        {
            "stem.0": "convnext.embeddings.patch_embeddings",
            "stem.1": "convnext.embeddings.layernorm",
            "norm": "convnext.layernorm",
        }
    )
    stage = "convnext.encoder.stages.{i}"
    block, halving = f"{stage}.layers.{{j}}", f"{stage}.downsampling_layer"
    yield from stage_rows(c, CONVNEXT_LAYER, block, halving, "layer_scale_parameter")
    if c.classes:
        yield from pairs({"head": "classifier"})


def convnext_reference(
    pretrained: Callable[[str], Any], inputs: dict[str, Tensor], c: convnext.Config
) -> Tensor:
    """The output of transformers: the logits of classes, or the normalised mean over places."""
    if c.classes:
        return cast(Tensor, pretrained("ConvNextForImageClassification")(inputs["images"]).logits)
    return cast(Tensor, pretrained("ConvNextModel")(inputs["images"]).pooler_output)


LAYOUTS = {
    "resnet": Layout(
        model="resnet",
        theirs=ResNetKeys,
        to_ours=ResNetKeys.to_ours,
        to_theirs=resnet_keys,
        rows=resnet_rows,
        prefix="resnet.",
        fixed=RESNET_FIXED,
        merge=with_counters,
        reference=resnet_reference,
    ),
    "convnext": Layout(
        model="convnext",
        theirs=ConvNext,
        to_ours=ConvNext.to_ours,
        to_theirs=convnext_keys,
        rows=convnext_rows,
        prefix="convnext.",
        fixed={"hidden_act": "gelu"},
        reference=convnext_reference,
    ),
}
