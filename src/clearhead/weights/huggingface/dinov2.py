"""DINOv2 (Oquab et al. 2023), without and with registers (Darcet et al. 2024), in Hugging Face's format.

    ours (models/vit.py)                   theirs
    embed.registers                        dinov2_with_registers.embeddings.register_tokens
    blocks.0.attn.query                    dinov2.encoder.layer.0.attention.attention.query
    blocks.0.attn_scale                    dinov2.encoder.layer.0.layer_scale1.lambda1
    blocks.0.mlp.up                        dinov2.encoder.layer.0.mlp.fc1; gate and up are mlp.weights_in of a SwiGLU
    norm, head                             dinov2.layernorm, classifier: of the class token and the mean of patches

The positions of a model with registers are smoothed where they are interpolated to a smaller grid. A file without an
output layer becomes a model that embeds an image as the vector of its class token.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from functools import partial
from typing import Any, Literal, cast

import torch
from torch import Tensor

from ...checks import at_least
from ...models.vit import Config
from ...tokens.special import Special
from ..fill import Shapes, WeightsError
from ..table import JOINED, TABLE, Layout, Row, pairs
from .bert import ACTIVATIONS
from .vit import PLAIN, label_keys, require, size_of

# Layers of a block. Ours: theirs.
PARTS = {
    "attn.query": "attention.attention.query", "attn.key": "attention.attention.key",
    "attn.value": "attention.attention.value", "attn.out": "attention.output.dense", "attn_norm": "norm1",
    "mlp_norm": "norm2",
}  # fmt: skip
MLP = {"mlp.up": "mlp.fc1", "mlp.down": "mlp.fc2"}
CLASSES = {"dinov2": "Dinov2", "dinov2_with_registers": "Dinov2WithRegisters"}  # of transformers
RATIOS = 64  # largest mlp_ratio to look for


@dataclass(frozen=True, kw_only=True, slots=True)
class Theirs:
    """The keys of their config.json that we read, with their defaults."""

    model_type: Literal["dinov2", "dinov2_with_registers"] = "dinov2"
    hidden_size: int = 768
    num_hidden_layers: int = 12
    num_attention_heads: int = 12
    mlp_ratio: int = 4
    hidden_act: Literal[
        "gelu", "gelu_new", "gelu_pytorch_tanh", "relu", "silu", "swish", "tanh"
    ] = "gelu"
    hidden_dropout_prob: float = 0.0
    drop_path_rate: float = 0.0
    layer_norm_eps: float = 1e-6
    layerscale_value: float = 1.0
    use_swiglu_ffn: bool = False
    num_register_tokens: int = 4
    image_size: int | tuple[int, int] = 224
    patch_size: int = 16
    num_channels: int = 3

    def __post_init__(self) -> None:
        at_least(
            self, 1, "hidden_size", "num_attention_heads", "mlp_ratio", "patch_size", "num_channels"
        )
        at_least(self, 0, "num_hidden_layers", "num_register_tokens")

    def to_ours(self, shapes: Shapes) -> Config:
        """Our Config."""
        classes, registers = (
            shapes.get("classifier.weight", (0,))[0],
            self.model_type == "dinov2_with_registers",
        )
        return Config(
            classes=classes,
            channels=self.num_channels,
            size=self.image_size,
            patch=self.patch_size,
            width=self.hidden_size,
            depth=self.num_hidden_layers,
            heads=self.num_attention_heads,
            hidden=hidden_width(self.hidden_size, self.mlp_ratio, swiglu=self.use_swiglu_ffn),
            eps=self.layer_norm_eps,
            registers=self.num_register_tokens if registers else 0,
            antialias=registers,
            mlp="swiglu" if self.use_swiglu_ffn else ACTIVATIONS[self.hidden_act],  # type: ignore[arg-type]
            pool="both" if classes else "cls",
            layer_scale=self.layerscale_value,
            skip=self.drop_path_rate,
            dropout=self.hidden_dropout_prob,
        )


def hidden_width(width: int, ratio: int, *, swiglu: bool) -> int:
    """The width inside the MLP; with a gate two thirds of it, rounded up to a multiple of 8."""
    if swiglu:
        return (int(width * ratio * 2 / 3) + 7) // 8 * 8
    return width * ratio


def to_theirs(kind: str, c: Config, special: Special) -> dict[str, Any]:
    """Their config.json; raises for options that a folder of this kind does not have."""
    name = "DINOv2" if kind == "dinov2" else "DINOv2 with registers"
    if kind == "dinov2":
        require(c, name, {"registers": 0})
    elif not c.registers:
        raise WeightsError(f"registers=0: a {name} folder has 1 register or more")
    require(
        c, name, {**PLAIN, "antialias": bool(c.registers), "pool": "both" if c.classes else "cls"}
    )
    if c.layer_scale is None:
        raise WeightsError(f"layer_scale=None: a {name} folder has a layer scale")
    words = {mlp: word for word, mlp in reversed(ACTIVATIONS.items())}
    swiglu, hidden = c.mlp == "swiglu", c.hidden or 4 * c.width
    if not swiglu and c.mlp not in words:
        raise WeightsError(
            f"mlp={c.mlp!r}: a {name} folder has swiglu or one of {', '.join(words)}"
        )
    ratio = next(
        (r for r in range(1, RATIOS) if hidden_width(c.width, r, swiglu=swiglu) == hidden), None
    )
    if ratio is None:
        raise WeightsError(
            f"hidden={hidden}: a {name} folder has a whole multiple of the width {c.width}"
        )
    return {
        "architectures": [f"{CLASSES[kind]}{'ForImageClassification' if c.classes else 'Model'}"],
        "model_type": kind,
        "hidden_size": c.width,
        "num_hidden_layers": c.depth,
        "num_attention_heads": c.heads,
        "mlp_ratio": ratio,
        "hidden_act": words.get(c.mlp, "gelu"),
        "use_swiglu_ffn": swiglu,
        "hidden_dropout_prob": c.dropout,
        "attention_probs_dropout_prob": c.dropout,
        "drop_path_rate": c.skip,
        "layer_norm_eps": c.eps,
        "layerscale_value": c.layer_scale,
        "qkv_bias": True,
        "image_size": size_of(c),
        "patch_size": c.patch,
        "num_channels": c.channels,
        **({"num_register_tokens": c.registers} if c.registers else {}),
        **label_keys(c.classes),
    }


def rows(kind: str, c: Config) -> Iterator[Row]:
    """Our parameters and their names."""
    yield Row(("embed.cls",), (f"{kind}.embeddings.cls_token",))
    yield Row(
        ("embed.cls_place", "embed.places"), (f"{kind}.embeddings.position_embeddings",), TABLE
    )
    if c.registers:
        yield Row(("embed.registers",), (f"{kind}.embeddings.register_tokens",))
    yield from pairs(
        {
            "embed.project": f"{kind}.embeddings.patch_embeddings.projection",
            "norm": f"{kind}.layernorm",
        }
    )
    for i in range(c.depth):
        block, at = f"blocks.{i}", f"{kind}.encoder.layer.{i}"
        gated = c.mlp == "swiglu"
        parts = PARTS | ({"mlp.down": "mlp.weights_out"} if gated else MLP)
        yield from pairs({f"{block}.{ours}": f"{at}.{theirs}" for ours, theirs in parts.items()})
        if gated:
            for leaf in ("weight", "bias"):
                yield Row(
                    (f"{block}.mlp.gate.{leaf}", f"{block}.mlp.up.{leaf}"),
                    (f"{at}.mlp.weights_in.{leaf}",),
                    JOINED,
                )
        yield Row((f"{block}.attn_scale",), (f"{at}.layer_scale1.lambda1",))
        yield Row((f"{block}.mlp_scale",), (f"{at}.layer_scale2.lambda1",))
    if c.classes:
        yield from pairs({"head": "classifier"})


def mask_token(kind: str, model: Any) -> dict[str, Tensor]:
    """The mask token of pretraining, which our model does not have."""
    return {f"{kind}.embeddings.mask_token": torch.zeros(1, model.config.width)}


def reference(
    kind: str, pretrained: Callable[[str], Any], inputs: dict[str, Tensor], c: Config
) -> Tensor:
    """The output of transformers: the logits of classes, or the vector of the class token."""
    if c.classes:
        return cast(
            Tensor, pretrained(f"{CLASSES[kind]}ForImageClassification")(inputs["images"]).logits
        )
    states: Tensor = pretrained(f"{CLASSES[kind]}Model")(inputs["images"]).last_hidden_state
    return states[:, 0]


def _layout(kind: str) -> Layout:
    return Layout(
        model="vit",
        theirs=Theirs,
        to_ours=Theirs.to_ours,
        to_theirs=partial(to_theirs, kind),
        rows=partial(rows, kind),
        prefix=f"{kind}.",
        fixed={"qkv_bias": True},
        defaults={"dinov2": {"patch_size": 14}},
        ignored=lambda c: {f"{kind}.embeddings.mask_token": None},
        extra_tensors=partial(mask_token, kind),
        reference=partial(reference, kind),
    )


LAYOUTS = {kind: _layout(kind) for kind in CLASSES}
