"""ConvNeXt (Liu et al. 2022) in Hugging Face's format, to and from ours.

ours (models/convnext.py)              theirs
stem.0, stem.1                         convnext.embeddings.patch_embeddings, .layernorm
stages.1.0.0, stages.1.0.1             convnext.encoder.stages.1.downsampling_layer.0, .1
stages.1.1                             convnext.encoder.stages.1.layers.0
norm, head                             convnext.layernorm, classifier
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from typing import Any, cast

from torch import Tensor

from ...checks import at_least
from ...errors import InputError
from ...models.convnext import Config
from ...tokens.special import Special
from ..fill import Shapes, WeightsError
from ..table import Layout, Row, pairs
from .vit import label_keys

# Layers of a block. Ours: theirs.
PARTS = {"conv": "dwconv", "norm": "layernorm", "mlp.up": "pwconv1", "mlp.down": "pwconv2"}
EPS = 1e-6  # of all their norms but the last


@dataclass(frozen=True, kw_only=True, slots=True)
class Theirs:
    """The keys of their config.json that we read, with their defaults."""

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

    def to_ours(self, shapes: Shapes) -> Config:
        """Our Config."""
        width = self.hidden_sizes[0]
        expected = tuple(width * 2**i for i in range(len(self.hidden_sizes)))
        if self.hidden_sizes != expected:
            raise InputError(
                f"hidden_sizes={self.hidden_sizes}: expected {expected}, each twice the one before"
            )
        scale = self.layer_scale_init_value
        return Config(
            classes=shapes.get("classifier.weight", (0,))[0],
            channels=self.num_channels,
            patch=self.patch_size,
            width=width,
            depths=self.depths,
            last_eps=self.layer_norm_eps,
            layer_scale=scale if scale > 0 else None,
            skip=self.drop_path_rate,
        )


def to_theirs(c: Config, special: Special) -> dict[str, Any]:
    """Their config.json; raises for options that a ConvNeXt folder does not have."""
    for name, value in {"kernel": 7, "eps": EPS}.items():
        if getattr(c, name) != value:
            raise WeightsError(
                f"{name}={getattr(c, name)!r}: a ConvNeXt folder has {name}={value!r}"
            )
    return {
        "architectures": [f"ConvNext{'ForImageClassification' if c.classes else 'Model'}"],
        "model_type": "convnext",
        "num_channels": c.channels,
        "patch_size": c.patch,
        "num_stages": len(c.depths),
        "depths": list(c.depths),
        "hidden_sizes": [c.width * 2**i for i in range(len(c.depths))],
        "hidden_act": "gelu",
        "layer_norm_eps": c.last_eps,
        "layer_scale_init_value": c.layer_scale or 0.0,
        "drop_path_rate": c.skip,
        **label_keys(c.classes),
    }


def block_rows(
    c: Config,
    parts: Mapping[str, str],
    block: Callable[[int, int], str],
    halve: Callable[[int], tuple[str, str]],
    scale: str,
) -> Iterator[Row]:
    """Rows of the stages, by the names of their blocks, and of the norm and the convolution that halve a grid."""
    for i, depth in enumerate(c.depths):
        if i:
            yield from pairs(
                dict(zip((f"stages.{i}.0.0", f"stages.{i}.0.1"), halve(i), strict=True))
            )
        for j in range(depth):
            ours, at = f"stages.{i}.{j + (i > 0)}", block(i, j)
            yield from pairs({f"{ours}.{a}": f"{at}.{b}" for a, b in parts.items()})
            if c.layer_scale is not None:
                yield Row((f"{ours}.scale",), (f"{at}.{scale}",))


def rows(c: Config) -> Iterator[Row]:
    """Our parameters and their names."""
    first, stages = "convnext.embeddings", "convnext.encoder.stages"
    yield from pairs({"stem.0": f"{first}.patch_embeddings", "stem.1": f"{first}.layernorm"})
    yield from block_rows(
        c,
        PARTS,
        lambda i, j: f"{stages}.{i}.layers.{j}",
        lambda i: (f"{stages}.{i}.downsampling_layer.0", f"{stages}.{i}.downsampling_layer.1"),
        "layer_scale_parameter",
    )
    yield from pairs({"norm": "convnext.layernorm"})
    if c.classes:
        yield from pairs({"head": "classifier"})


def reference(pretrained: Callable[[str], Any], inputs: dict[str, Tensor], c: Config) -> Tensor:
    """The output of transformers: the logits of classes, or the normalised mean over places."""
    if c.classes:
        return cast(Tensor, pretrained("ConvNextForImageClassification")(inputs["images"]).logits)
    return cast(Tensor, pretrained("ConvNextModel")(inputs["images"]).pooler_output)


LAYOUT = Layout(
    model="convnext",
    theirs=Theirs,
    to_ours=Theirs.to_ours,
    to_theirs=to_theirs,
    rows=rows,
    prefix="convnext.",
    fixed={"hidden_act": "gelu"},
    reference=reference,
)
