"""The vision transformer (Dosovitskiy et al. 2021) and DeiT (Touvron et al. 2021) in Hugging Face's format.

    ours (models/vit.py)                   theirs
    embed.cls                              vit.embeddings.cls_token
    embed.cls_place, embed.places          vit.embeddings.position_embeddings, the class token's first
    embed.project                          vit.embeddings.patch_embeddings.projection
    blocks.0.attn.query                    vit.encoder.layer.0.attention.attention.query
    norm, head                             vit.layernorm, classifier

DeiT's distillation token is a register of ours, to which its position is added when it is loaded. With two output
layers, one for each token, their mean is one output layer of both tokens side by side: pool="distilled". A file without
an output layer becomes a model that embeds an image as the vector of its class token.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from typing import Any, Literal, cast

import torch
from torch import Tensor

from ...checks import at_least
from ...models.vit import Config
from ...tokens.special import Special
from ..fill import Shapes, WeightsError
from ..table import TABLE, Layout, Row, pairs
from ..tensor_files import Tensors
from .bert import ACTIVATIONS

# Layers of a block. Ours: theirs.
PARTS = {
    "attn.query": "attention.attention.query", "attn.key": "attention.attention.key",
    "attn.value": "attention.attention.value", "attn.out": "attention.output.dense", "attn_norm": "layernorm_before",
    "mlp.up": "intermediate.dense", "mlp.down": "output.dense", "mlp_norm": "layernorm_after",
}  # fmt: skip
# What all these layouts have. Ours: its only value.
PLAIN: Mapping[str, Any] = {
    "stem": "patch", "positions": "learned", "join": "add", "order": "pre", "norm": "layer", "bias": True,
    "head": "linear",
}  # fmt: skip
DISTILLED, TEACHER = "embeddings.distillation_token", "distillation_classifier"


@dataclass(frozen=True, kw_only=True, slots=True)
class Theirs:
    """The keys of their config.json that we read, with their defaults."""

    hidden_size: int = 768
    num_hidden_layers: int = 12
    num_attention_heads: int = 12
    intermediate_size: int = 3072
    hidden_act: Literal[
        "gelu", "gelu_new", "gelu_pytorch_tanh", "relu", "silu", "swish", "tanh"
    ] = "gelu"
    hidden_dropout_prob: float = 0.0
    layer_norm_eps: float = 1e-12
    image_size: int | tuple[int, int] = 224
    patch_size: int = 16
    num_channels: int = 3

    def __post_init__(self) -> None:
        at_least(
            self,
            1,
            "hidden_size",
            "num_attention_heads",
            "intermediate_size",
            "patch_size",
            "num_channels",
        )
        at_least(self, 0, "num_hidden_layers")

    def to_ours(self, shapes: Shapes) -> Config:
        """Our Config, of a ViT."""
        return self._config(shapes)

    def to_ours_distilled(self, shapes: Shapes) -> Config:
        """Our Config, of a DeiT, whose tensors are merged."""
        wide = shapes.get("classifier.weight", (0, 0))[1] == 2 * self.hidden_size
        return self._config(shapes, registers=1, pool="distilled" if wide else "cls")

    def _config(self, shapes: Shapes, **more: Any) -> Config:
        return Config(
            classes=shapes.get("classifier.weight", (0,))[0],
            channels=self.num_channels,
            size=self.image_size,
            patch=self.patch_size,
            width=self.hidden_size,
            depth=self.num_hidden_layers,
            heads=self.num_attention_heads,
            hidden=self.intermediate_size,
            eps=self.layer_norm_eps,
            mlp=ACTIVATIONS[self.hidden_act],  # type: ignore[arg-type]
            dropout=self.hidden_dropout_prob,
            **more,
        )


def require(c: Config, kind: str, values: Mapping[str, Any]) -> None:
    """Raise if an option has another value than the only one that a kind of folder can express."""
    for name, value in values.items():
        if getattr(c, name) != value:
            raise WeightsError(f"{name}={getattr(c, name)!r}: a {kind} folder has {name}={value!r}")


def to_theirs(kind: str, c: Config) -> dict[str, Any]:
    """Their config.json of a "vit" or a "deit"; raises for options that it does not have."""
    distilled = kind == "deit"
    if distilled and c.pool == "distilled" and c.classes:
        pool = "distilled"
    else:
        pool = "cls"
    fixed = {"registers": int(distilled), "layer_scale": None, "antialias": False, "pool": pool}
    require(c, {"vit": "ViT", "deit": "DeiT"}[kind], {**PLAIN, **fixed})
    words = {mlp: word for word, mlp in reversed(ACTIVATIONS.items())}
    if c.mlp not in words:
        raise WeightsError(f"mlp={c.mlp!r}: a ViT folder has one of {', '.join(words)}")
    name = {"vit": "ViT", "deit": "DeiT"}[kind]
    task = "Model" if not c.classes else "ForImageClassification"
    return {
        "architectures": [f"{name}{task}{'WithTeacher' if pool == 'distilled' else ''}"],
        "model_type": kind,
        "hidden_size": c.width,
        "num_hidden_layers": c.depth,
        "num_attention_heads": c.heads,
        "intermediate_size": c.hidden or 4 * c.width,
        "hidden_act": words[c.mlp],
        "hidden_dropout_prob": c.dropout,
        "attention_probs_dropout_prob": c.dropout,
        "layer_norm_eps": c.eps,
        "qkv_bias": True,
        "image_size": size_of(c),
        "patch_size": c.patch,
        "num_channels": c.channels,
        **label_keys(c.classes),
    }


def size_of(c: Config) -> int | list[int]:
    """Height and width of the images: one number if they are equal."""
    if c.shape[0] == c.shape[1]:
        return c.shape[0]
    return list(c.shape)


def label_keys(classes: int) -> dict[str, Any]:
    """The keys of config.json that tell the number of classes; a bundle's labels replace them."""
    if not classes:
        return {}
    return {
        "id2label": {str(i): f"LABEL_{i}" for i in range(classes)},
        "label2id": {f"LABEL_{i}": i for i in range(classes)},
    }


def rows(kind: str, c: Config) -> Iterator[Row]:
    """Our parameters and their names."""
    special = ("embed.registers",) if c.registers else ()
    yield Row(("embed.cls",), (f"{kind}.embeddings.cls_token",))
    yield Row(
        ("embed.cls_place", *special, "embed.places"),
        (f"{kind}.embeddings.position_embeddings",),
        TABLE,
    )
    yield from pairs(
        {
            "embed.project": f"{kind}.embeddings.patch_embeddings.projection",
            "norm": f"{kind}.layernorm",
        }
    )
    for i in range(c.depth):
        yield from pairs(
            {
                f"blocks.{i}.{ours}": f"{kind}.encoder.layer.{i}.{theirs}"
                for ours, theirs in PARTS.items()
            }
        )
    if c.classes:
        yield from pairs({"head": "classifier"})


def merge(tensors: Tensors) -> Tensors:
    """Add the distillation token to its position, and join two output layers to one."""
    name, table = f"deit.{DISTILLED}", "deit.embeddings.position_embeddings"
    if name not in tensors.shapes or table not in tensors.shapes:
        raise WeightsError(f"{tensors.path}: there is no {name}, which every DeiT has")
    if (1, *tensors.shapes[table][2:]) != tensors.shapes[name][1:]:
        raise WeightsError(
            f"{tensors.path}: {name} has the shape {tensors.shapes[name]}, expected a row of {table}"
        )
    places = tensors[table].clone()
    places[:, 1:2] += tensors[name]
    removed, added = {name, table}, {table: places}
    if f"{TEACHER}.weight" in tensors.shapes:
        both = ("cls_classifier", TEACHER)
        removed |= {f"{head}.{leaf}" for head in both for leaf in ("weight", "bias")}
        added["classifier.weight"] = (
            torch.cat([tensors[f"{head}.weight"] for head in both], dim=1) / 2
        )
        added["classifier.bias"] = (tensors["cls_classifier.bias"] + tensors[f"{TEACHER}.bias"]) / 2
    return tensors.replaced(removed, added)


def split(tensors: dict[str, Tensor]) -> dict[str, Tensor]:
    """The inverse: a distillation token of zeros, and an output layer for each of two tokens."""
    tensors = {
        **tensors,
        f"deit.{DISTILLED}": torch.zeros_like(tensors["deit.embeddings.cls_token"]),
    }
    head = tensors.get("classifier.weight")
    if head is not None and head.shape[1] == 2 * tensors["deit.layernorm.weight"].shape[0]:
        del tensors["classifier.weight"]
        bias = tensors.pop("classifier.bias")
        for name, part in zip(("cls_classifier", TEACHER), (2 * head).chunk(2, dim=1), strict=True):
            tensors |= {f"{name}.weight": part.contiguous(), f"{name}.bias": bias.clone()}
    return tensors


def reference(
    name: str, pretrained: Callable[[str], Any], inputs: dict[str, Tensor], c: Config
) -> Tensor:
    """The output of transformers: the logits of classes, or the vector of the class token."""
    # theirs cannot interpolate other grids
    options = {"interpolate_pos_encoding": c.shape[0] == c.shape[1]}
    if not c.classes:
        states: Tensor = pretrained(f"{name}Model")(inputs["images"], **options).last_hidden_state
        return states[:, 0]
    teacher = "WithTeacher" if c.pool == "distilled" else ""
    return cast(
        Tensor,
        pretrained(f"{name}ForImageClassification{teacher}")(inputs["images"], **options).logits,
    )


def ignored(kind: str) -> dict[str, None]:
    """The pooler and the mask token, for other tasks."""
    return dict.fromkeys([f"{kind}.pooler.dense.*", f"{kind}.embeddings.mask_token"])


def _vit_theirs(c: Config, special: Special) -> dict[str, Any]:
    return to_theirs("vit", c)


def _deit_theirs(c: Config, special: Special) -> dict[str, Any]:
    return to_theirs("deit", c)


LAYOUTS = {
    "vit": Layout(
        model="vit",
        theirs=Theirs,
        to_ours=Theirs.to_ours,
        to_theirs=_vit_theirs,
        rows=lambda c: rows("vit", c),
        prefix="vit.",
        fixed={"qkv_bias": True},
        ignored=lambda c: ignored("vit"),
        reference=lambda pretrained, inputs, c: reference("ViT", pretrained, inputs, c),
    ),
    "deit": Layout(
        model="vit",
        theirs=Theirs,
        to_ours=Theirs.to_ours_distilled,
        to_theirs=_deit_theirs,
        rows=lambda c: rows("deit", c),
        prefix="deit.",
        fixed={"qkv_bias": True},
        ignored=lambda c: ignored("deit"),
        merge=merge,
        split=split,
        reference=lambda pretrained, inputs, c: reference("DeiT", pretrained, inputs, c),
    ),
}
