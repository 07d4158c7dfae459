"""Vision transformers in Hugging Face's format: ViT, DeiT and DINOv2, to and from ours.

    ours (models/vit.py)                   theirs
    embed.cls                              vit.embeddings.cls_token
    embed.cls_place, embed.places          vit.embeddings.position_embeddings, the class token's first
    embed.registers                        dinov2_with_registers.embeddings.register_tokens
    embed.project                          vit.embeddings.patch_embeddings.projection
    blocks.0.attn.query                    vit.encoder.layer.0.attention.attention.query
    blocks.0.attn_scale                    dinov2.encoder.layer.0.layer_scale1.lambda1
    norm, head                             vit.layernorm, classifier

vit          (Dosovitskiy et al. 2021)
deit         (Touvron et al. 2021) its distillation token is a register of ours, to which its position is added when it
             is loaded; with two output layers, one for each token, their mean is one of both tokens side by side:
             pool="distilled"
dinov2       (Oquab et al. 2023) without registers, or with them (dinov2_with_registers, Darcet et al. 2024); positions
             of a model with registers are smoothed where they are interpolated to a smaller grid; the output layer
             reads the class token and the mean of the patches

A file without an output layer becomes a model that embeds an image as the vector of its class token.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from functools import partial
from typing import Any, Literal, cast

import torch
from torch import Tensor

from ...checks import at_least
from ...models.vit import Config
from ...tokens.special import Special
from ..fill import Shapes, WeightsError
from ..table import (
    ACTIVATIONS,
    TABLE,
    Activation,
    Layout,
    Row,
    blocks,
    class_keys,
    pairs,
    read_options,
    require,
    their_activation,
    write_options,
)
from ..tensor_files import Tensors

# The layers of a block, one per line. Ours: theirs.
ATTENTION = {
    "attn.query": "attention.attention.query",
    "attn.key": "attention.attention.key",
    "attn.value": "attention.attention.value",
    "attn.out": "attention.output.dense",
}
VIT_LAYER = ATTENTION | {
    "attn_norm": "layernorm_before",
    "mlp_norm": "layernorm_after",
    "mlp.up": "intermediate.dense",
    "mlp.down": "output.dense",
}
DINOV2_LAYER = ATTENTION | {"attn_norm": "norm1", "mlp_norm": "norm2"}
DINOV2_MLP = {"mlp.up": "mlp.fc1", "mlp.down": "mlp.fc2"}
DINOV2_GATED_MLP = {"mlp.gate+up": "mlp.weights_in", "mlp.down": "mlp.weights_out"}
# What all these layouts have, and those of timm and torchvision. Ours: its only value.
PLAIN: Mapping[str, Any] = {
    "stem": "patch", "positions": "learned", "join": "add", "order": "pre", "norm": "layer", "bias": True,
    "head": "linear",
}  # fmt: skip
# Keys of config.json, and the options of our Config that they are.
SIZES = {
    "num_channels": "channels",
    "patch_size": "patch",
    "hidden_size": "width",
    "num_hidden_layers": "depth",
    "num_attention_heads": "heads",
    "layer_norm_eps": "eps",
    "hidden_dropout_prob": "dropout",
}
HEAD = "classifier.weight"
DISTILLED, TEACHER = "embeddings.distillation_token", "distillation_classifier"


@dataclass(frozen=True, kw_only=True, slots=True)
class ImageEncoder:
    """The keys of config.json that all of them have, with their defaults."""

    hidden_size: int = 768
    num_hidden_layers: int = 12
    num_attention_heads: int = 12
    hidden_act: Activation = "gelu"
    hidden_dropout_prob: float = 0.0
    layer_norm_eps: float = 1e-12
    image_size: int | tuple[int, int] = 224
    patch_size: int = 16
    num_channels: int = 3

    def __post_init__(self) -> None:
        at_least(self, 1, "hidden_size", "num_attention_heads", "patch_size", "num_channels")
        at_least(self, 0, "num_hidden_layers")

    def sizes(self, shapes: Shapes) -> dict[str, Any]:
        """The options of our Config that all of them have."""
        return read_options(self, SIZES) | {
            # no output layer: the model embeds images
            "classes": shapes.get(HEAD, (0,))[0],
            "size": self.image_size,
            "mlp": ACTIVATIONS[self.hidden_act],
        }


def encoder_keys(c: Config, model_type: str, class_name: str, activation: str) -> dict[str, Any]:
    """The keys of config.json that all of them have, for a Config of ours."""
    height, width = c.shape
    return {
        "architectures": [class_name],
        "model_type": model_type,
        **write_options(c, SIZES),
        "hidden_act": activation,
        # one rate of ours, that of the residual stream, for both of theirs
        "attention_probs_dropout_prob": c.dropout,
        "qkv_bias": True,
        # one number for a square
        "image_size": height if height == width else [height, width],
        **class_keys(c.classes),
    }


# ViT and DeiT


@dataclass(frozen=True, kw_only=True, slots=True)
class ViTKeys(ImageEncoder):
    """The keys of the config.json of a ViT or a DeiT that we read, with their defaults."""

    intermediate_size: int = 3072

    def __post_init__(self) -> None:
        ImageEncoder.__post_init__(self)
        at_least(self, 1, "intermediate_size")

    def to_ours(self, shapes: Shapes) -> Config:
        """Our Config of a ViT."""
        return Config(**self.sizes(shapes), hidden=self.intermediate_size)

    def to_ours_distilled(self, shapes: Shapes) -> Config:
        """Our Config of a DeiT, whose tensors are merged."""
        # one output layer of both tokens side by side
        has_both = shapes.get(HEAD, (0, 0))[1] == 2 * self.hidden_size
        return Config(
            **self.sizes(shapes),
            hidden=self.intermediate_size,
            # its distillation token
            registers=1,
            pool="distilled" if has_both else "cls",
        )


def vit_keys(c: Config, special: Special | None = None) -> dict[str, Any]:
    """The config.json of a ViT; raises for options that it does not have."""
    fixed = {"registers": 0, "layer_scale": None, "antialias": False, "pool": "cls"}
    require(c, "a ViT folder", {**PLAIN, **fixed})
    activation = their_activation(c.mlp, "a ViT folder")
    class_name = "ViTForImageClassification" if c.classes else "ViTModel"
    keys = encoder_keys(c, "vit", class_name, activation)
    return keys | {"intermediate_size": c.hidden or 4 * c.width}


def deit_keys(c: Config, special: Special) -> dict[str, Any]:
    """The config.json of a DeiT; raises for options that it does not have."""
    has_teacher = c.pool == "distilled" and bool(c.classes)
    pool = "distilled" if has_teacher else "cls"
    fixed = {"registers": 1, "layer_scale": None, "antialias": False, "pool": pool}
    require(c, "a DeiT folder", {**PLAIN, **fixed})
    activation = their_activation(c.mlp, "a DeiT folder")
    keys = encoder_keys(c, "deit", deit_class(c), activation)
    return keys | {"intermediate_size": c.hidden or 4 * c.width}


def deit_class(c: Config) -> str:
    """The class of transformers for a DeiT of ours."""
    if not c.classes:
        return "DeiTModel"
    teacher = "WithTeacher" if c.pool == "distilled" else ""
    return f"DeiTForImageClassification{teacher}"


def vit_rows(prefix: str, c: Config) -> Iterator[Row]:
    """Yield the rows that map our parameters to their tensors."""
    # a DeiT has positions for its distillation token, which is our register
    registers = ("embed.registers",) if c.registers else ()
    places = ("embed.cls_place", *registers, "embed.places")
    yield Row(("embed.cls",), (f"{prefix}.embeddings.cls_token",))
    yield Row(places, (f"{prefix}.embeddings.position_embeddings",), TABLE)
    yield from pairs({"embed.project": f"{prefix}.embeddings.patch_embeddings.projection"})
    yield from pairs({"norm": f"{prefix}.layernorm"})
    layers = {f"blocks.{{}}.{a}": f"{prefix}.encoder.layer.{{}}.{b}" for a, b in VIT_LAYER.items()}
    yield from blocks(layers, c.depth)
    if c.classes:
        yield from pairs({"head": "classifier"})


def merge_deit(tensors: Tensors) -> Tensors:
    """Add the distillation token to its position, and join two output layers to one."""
    name, table = f"deit.{DISTILLED}", "deit.embeddings.position_embeddings"
    if name not in tensors.shapes or table not in tensors.shapes:
        raise WeightsError(f"{tensors.path}: there is no {name}, which every DeiT has")
    # (1, places, d) and (1, 1, d)
    if (1, *tensors.shapes[table][2:]) != tensors.shapes[name][1:]:
        raise WeightsError(
            f"{tensors.path}: {name} has the shape {tensors.shapes[name]}, expected a row of {table}"
        )
    places = tensors[table].clone()
    # row 0 is the position of the class token, row 1 that of the distillation token
    places[:, 1:2] += tensors[name]
    removed, added = {name, table}, {table: places}
    if f"{TEACHER}.weight" in tensors.shapes:
        heads = ("cls_classifier", TEACHER)
        # (W x + b + W' x' + b') / 2 is one map of x and x' side by side
        weights, biases = (
            [tensors[f"{head}.{leaf}"] for head in heads] for leaf in ("weight", "bias")
        )
        removed |= {f"{head}.{leaf}" for head in heads for leaf in ("weight", "bias")}
        # (classes, d) and (classes, d) -> (classes, 2 d)
        added["classifier.weight"] = torch.cat(weights, dim=1) / 2
        added["classifier.bias"] = (biases[0] + biases[1]) / 2
    return tensors.replaced(removed, added)


def split_deit(tensors: dict[str, Tensor]) -> dict[str, Tensor]:
    """The inverse of `merge_deit`: a distillation token of zeros, and an output layer for each of the two tokens."""
    token = torch.zeros_like(tensors["deit.embeddings.cls_token"])
    tensors = {**tensors, f"deit.{DISTILLED}": token}
    head = tensors.get(HEAD)
    if head is not None and head.shape[1] == 2 * tensors["deit.layernorm.weight"].shape[0]:
        # an output layer of two tokens becomes two, whose mean gives the same logits
        del tensors[HEAD]
        bias = tensors.pop("classifier.bias")
        for name, part in zip(("cls_classifier", TEACHER), (2 * head).chunk(2, dim=1), strict=True):
            tensors |= {f"{name}.weight": part.contiguous(), f"{name}.bias": bias.clone()}
    return tensors


def class_token(
    pretrained: Callable[[str], Any], class_name: str, images: Tensor, **options: Any
) -> Tensor:
    """The output of transformers: the logits of a class with a head, or else the vector of the class token."""
    out = pretrained(class_name)(images, **options)
    if class_name.endswith("Model"):
        # a model without a head
        return cast(Tensor, out.last_hidden_state[:, 0])
    return cast(Tensor, out.logits)


def vit_reference(pretrained: Callable[[str], Any], inputs: dict[str, Tensor], c: Config) -> Tensor:
    """The output of transformers for a ViT or a DeiT."""
    if c.registers:
        # of these two only a DeiT has a register
        class_name = deit_class(c)
    else:
        class_name = "ViTForImageClassification" if c.classes else "ViTModel"
    is_square = c.shape[0] == c.shape[1]  # theirs cannot interpolate other grids
    return class_token(pretrained, class_name, inputs["images"], interpolate_pos_encoding=is_square)


def vit_ignored(prefix: str) -> dict[str, None]:
    """The pooler and the mask token, for other tasks."""
    return dict.fromkeys([f"{prefix}.pooler.dense.*", f"{prefix}.embeddings.mask_token"])


# DINOv2

CLASS_NAMES = {"dinov2": "Dinov2", "dinov2_with_registers": "Dinov2WithRegisters"}
OWNERS = {
    "dinov2": "a DINOv2 folder",
    "dinov2_with_registers": "a DINOv2 with registers folder",
}
RATIOS = 64  # largest mlp_ratio to look for


@dataclass(frozen=True, kw_only=True, slots=True)
class Dinov2(ImageEncoder):
    """The keys of their config.json that we read, with their defaults."""

    model_type: Literal["dinov2", "dinov2_with_registers"] = "dinov2"
    mlp_ratio: int = 4
    drop_path_rate: float = 0.0
    layer_norm_eps: float = 1e-6
    layerscale_value: float = 1.0
    use_swiglu_ffn: bool = False
    num_register_tokens: int = 4

    def __post_init__(self) -> None:
        ImageEncoder.__post_init__(self)
        at_least(self, 1, "mlp_ratio")
        at_least(self, 0, "num_register_tokens")

    def to_ours(self, shapes: Shapes) -> Config:
        """Convert these keys of config.json to the Config of our model."""
        has_registers = self.model_type == "dinov2_with_registers"
        options = self.sizes(shapes) | {
            "hidden": hidden_width(self.hidden_size, self.mlp_ratio, swiglu=self.use_swiglu_ffn),
            # the key has a default, also for a model without registers
            "registers": self.num_register_tokens if has_registers else 0,
            "antialias": has_registers,
            "layer_scale": self.layerscale_value,
            "skip": self.drop_path_rate,
        }
        # their output layer reads the class token and the mean of the patches
        options["pool"] = "both" if options["classes"] else "cls"
        if self.use_swiglu_ffn:
            options["mlp"] = "swiglu"
        return Config(**options)


def hidden_width(width: int, ratio: int, *, swiglu: bool) -> int:
    """The width inside the MLP; with a gate two thirds of it, rounded up to a multiple of 8."""
    if swiglu:
        # with a gate two thirds have about as many weights (Shazeer 2020)
        return (int(width * ratio * 2 / 3) + 7) // 8 * 8
    return width * ratio


def dinov2_keys(model_type: str, c: Config, special: Special) -> dict[str, Any]:
    """The config.json for our Config; raises for options that a folder of this kind does not have."""
    owner = OWNERS[model_type]
    if model_type == "dinov2":
        require(c, owner, {"registers": 0})
    elif not c.registers:
        raise WeightsError(f"registers=0: {owner} has 1 register or more")
    pool = "both" if c.classes else "cls"
    require(c, owner, {**PLAIN, "antialias": bool(c.registers), "pool": pool})
    if c.layer_scale is None:
        raise WeightsError(f"layer_scale=None: {owner} has a layer scale")
    is_gated, hidden = c.mlp == "swiglu", c.hidden or 4 * c.width
    activation = "gelu" if is_gated else their_activation(c.mlp, f"{owner} has swiglu, or")
    # the width is rounded, so the ratio is searched for
    for ratio in range(1, RATIOS):
        if hidden_width(c.width, ratio, swiglu=is_gated) == hidden:
            break
    else:
        raise WeightsError(f"hidden={hidden}: {owner} has a whole multiple of the width {c.width}")
    keys = encoder_keys(c, model_type, dinov2_class(model_type, c), activation)
    keys |= {
        "mlp_ratio": ratio,
        "use_swiglu_ffn": is_gated,
        "drop_path_rate": c.skip,
        "layerscale_value": c.layer_scale,
    }
    if c.registers:
        keys["num_register_tokens"] = c.registers
    return keys


def dinov2_class(model_type: str, c: Config) -> str:
    """The name of the class in transformers."""
    return CLASS_NAMES[model_type] + ("ForImageClassification" if c.classes else "Model")


def dinov2_rows(prefix: str, c: Config) -> Iterator[Row]:
    """Yield the rows that map our parameters to their tensors."""
    yield Row(("embed.cls",), (f"{prefix}.embeddings.cls_token",))
    places = ("embed.cls_place", "embed.places")
    yield Row(places, (f"{prefix}.embeddings.position_embeddings",), TABLE)
    if c.registers:
        # registers have no positions
        yield Row(("embed.registers",), (f"{prefix}.embeddings.register_tokens",))
    yield from pairs({"embed.project": f"{prefix}.embeddings.patch_embeddings.projection"})
    yield from pairs({"norm": f"{prefix}.layernorm"})
    mlp = DINOV2_GATED_MLP if c.mlp == "swiglu" else DINOV2_MLP
    layers = DINOV2_LAYER | mlp
    names = {f"blocks.{{}}.{a}": f"{prefix}.encoder.layer.{{}}.{b}" for a, b in layers.items()}
    yield from blocks(names, c.depth)
    for i in range(c.depth):
        block = f"{prefix}.encoder.layer.{i}"
        # a factor per channel of each sublayer's output, LayerScale (Touvron et al. 2021)
        yield Row((f"blocks.{i}.attn_scale",), (f"{block}.layer_scale1.lambda1",))
        yield Row((f"blocks.{i}.mlp_scale",), (f"{block}.layer_scale2.lambda1",))
    if c.classes:
        yield from pairs({"head": "classifier"})


def mask_token(prefix: str, model: Any) -> dict[str, Tensor]:
    """The mask token of pretraining, which our model does not have."""
    return {f"{prefix}.embeddings.mask_token": torch.zeros(1, model.config.width)}


def dinov2_reference(
    model_type: str, pretrained: Callable[[str], Any], inputs: dict[str, Tensor], c: Config
) -> Tensor:
    """The output of the same model in transformers, for parity certificates."""
    return class_token(pretrained, dinov2_class(model_type, c), inputs["images"])


def _dinov2(model_type: str) -> Layout:
    return Layout(
        model="vit",
        theirs=Dinov2,
        to_ours=Dinov2.to_ours,
        to_theirs=partial(dinov2_keys, model_type),
        rows=partial(dinov2_rows, model_type),
        prefix=f"{model_type}.",
        fixed={"qkv_bias": True},
        defaults={"dinov2": {"patch_size": 14}},
        ignored=lambda c: {f"{model_type}.embeddings.mask_token": None},
        extra_tensors=partial(mask_token, model_type),
        reference=partial(dinov2_reference, model_type),
    )


LAYOUTS = {
    "vit": Layout(
        model="vit",
        theirs=ViTKeys,
        to_ours=ViTKeys.to_ours,
        to_theirs=vit_keys,
        rows=partial(vit_rows, "vit"),
        prefix="vit.",
        fixed={"qkv_bias": True},
        ignored=lambda c: vit_ignored("vit"),
        reference=vit_reference,
    ),
    "deit": Layout(
        model="vit",
        theirs=ViTKeys,
        to_ours=ViTKeys.to_ours_distilled,
        to_theirs=deit_keys,
        rows=partial(vit_rows, "deit"),
        prefix="deit.",
        fixed={"qkv_bias": True},
        ignored=lambda c: vit_ignored("deit"),
        merge=merge_deit,
        split=split_deit,
        reference=vit_reference,
    ),
    "dinov2": _dinov2("dinov2"),
    "dinov2_with_registers": _dinov2("dinov2_with_registers"),
}
