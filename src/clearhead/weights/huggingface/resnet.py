"""The ResNet (He et al. 2016) in Hugging Face's format, to and from ours.

ours (models/resnet.py)                theirs
stem.first.conv, stem.first.norm       resnet.embedder.embedder.convolution, .normalization
stages.0.0.layers.0                    resnet.encoder.stages.0.layers.0.layer.0
stages.0.0.shortcut                    resnet.encoder.stages.0.layers.0.shortcut
head                                   classifier.1
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any, Literal, cast

from torch import Tensor

from ...checks import at_least
from ...errors import InputError
from ...layers.conv import EXPANSION
from ...models.resnet import Config
from ...tokens.special import Special
from ..fill import Shapes, WeightsError
from ..table import Layout, Row, conv_norms, pairs, with_counters
from .vit import label_keys

HEAD = "classifier.1"
FIXED = {"hidden_act": "relu", "downsample_in_first_stage": False}


@dataclass(frozen=True, kw_only=True, slots=True)
class Theirs:
    """The keys of their config.json that we read, with their defaults."""

    num_channels: int = 3
    embedding_size: int = 64
    hidden_sizes: tuple[int, ...] = (256, 512, 1024, 2048)
    depths: tuple[int, ...] = (3, 4, 6, 3)
    layer_type: Literal["basic", "bottleneck"] = "bottleneck"
    downsample_in_bottleneck: bool = False

    def __post_init__(self) -> None:
        at_least(self, 1, "num_channels", "embedding_size")

    def to_ours(self, shapes: Shapes) -> Config:
        """Our Config."""
        expected = channels(self.embedding_size, self.layer_type, len(self.depths))
        if self.hidden_sizes != expected:
            raise InputError(
                f"hidden_sizes={self.hidden_sizes}: expected {expected}, each twice the one before"
            )
        return Config(
            classes=shapes.get(f"{HEAD}.weight", (0,))[0],
            channels=self.num_channels,
            width=self.embedding_size,
            depths=self.depths,
            block=self.layer_type,
            shrink="first" if self.downsample_in_bottleneck else "middle",
        )


def channels(width: int, block: str, stages: int) -> tuple[int, ...]:
    """The channels of each stage's output."""
    return tuple(width * 2**i * EXPANSION[block] for i in range(stages))


def to_theirs(c: Config, special: Special) -> dict[str, Any]:
    """Their config.json; raises for options that a ResNet folder does not have."""
    for name, value in {"stem": "large", "attention": (), "eps": 1e-5}.items():
        if getattr(c, name) != value:
            raise WeightsError(f"{name}={getattr(c, name)!r}: a ResNet folder has {name}={value!r}")
    return {
        "architectures": [f"ResNet{'ForImageClassification' if c.classes else 'Model'}"],
        "model_type": "resnet",
        "num_channels": c.channels,
        "embedding_size": c.width,
        "depths": list(c.depths),
        "layer_type": c.block,
        "hidden_sizes": list(channels(c.width, c.block, len(c.depths))),
        "downsample_in_bottleneck": c.shrink == "first",
        **FIXED,
        **label_keys(c.classes),
    }


def conv_names(c: Config) -> Iterator[tuple[str, int, int, str]]:
    """Our ConvNorms in the stages, with the stage, the block, and its layer ("0", "1", "2" or "shortcut")."""
    inputs, layers = c.width, 2 if c.block == "basic" else 3
    for i, depth in enumerate(c.depths):
        outputs = c.width * 2**i * EXPANSION[c.block]
        for j in range(depth):
            for layer in range(layers):
                yield f"stages.{i}.{j}.layers.{layer}", i, j, str(layer)
            if inputs != outputs or (i and not j):
                yield f"stages.{i}.{j}.shortcut", i, j, "shortcut"
            inputs = outputs


def rows(c: Config) -> Iterator[Row]:
    """Our tensors and their names."""
    names = {"stem.first": "resnet.embedder.embedder"}
    for ours, i, j, layer in conv_names(c):
        at = f"resnet.encoder.stages.{i}.layers.{j}"
        names[ours] = f"{at}.shortcut" if layer == "shortcut" else f"{at}.layer.{layer}"
    yield from conv_norms(
        {ours: (f"{at}.convolution", f"{at}.normalization") for ours, at in names.items()}
    )
    if c.classes:
        yield from pairs({"head": HEAD})


def reference(pretrained: Callable[[str], Any], inputs: dict[str, Tensor], c: Config) -> Tensor:
    """The output of transformers: the logits of classes, or the mean over places."""
    if c.classes:
        return cast(Tensor, pretrained("ResNetForImageClassification")(inputs["images"]).logits)
    return cast(Tensor, pretrained("ResNetModel")(inputs["images"]).pooler_output.flatten(1))


LAYOUT = Layout(
    model="resnet",
    theirs=Theirs,
    to_ours=Theirs.to_ours,
    to_theirs=to_theirs,
    rows=rows,
    prefix="resnet.",
    fixed=FIXED,
    merge=with_counters,
    reference=reference,
)
