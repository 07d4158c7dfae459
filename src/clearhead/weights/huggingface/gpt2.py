"""GPT-2 (Radford et al. 2019) in Hugging Face's format, to and from our GPT.

    ours (models/gpt.py)                   theirs
    embed.table                            transformer.wte.weight, and lm_head.weight if tied
    positions.table                        transformer.wpe.weight
    blocks.0.attn.query, .key, .value      transformer.h.0.attn.c_attn: the three concatenated
    blocks.0.mlp.up                        transformer.h.0.mlp.c_fc

Their linear layers compute x W and ours W x, so their matrices are transposed.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import asdict, dataclass
from typing import Any

from ...checks import at_least
from ...models.gpt import Config
from ...tokens.special import Special
from ..fill import Shapes
from ..table import (
    ACTIVATIONS,
    JOINED_TRANSPOSED,
    TRANSPOSED,
    Activation,
    Row,
    blocks,
    check_options,
    embeddings,
    pairs,
    read_options,
    special_keys,
    their_activation,
    write_options,
)
from .llama import decoder_layout

# The layers of a block, one per line. Ours: theirs.
QKV = {"blocks.{}.attn.query+key+value": "transformer.h.{}.attn.c_attn"}
LINEAR = {
    "blocks.{}.attn.out": "transformer.h.{}.attn.c_proj",
    "blocks.{}.mlp.up": "transformer.h.{}.mlp.c_fc",
    "blocks.{}.mlp.down": "transformer.h.{}.mlp.c_proj",
}
NORMS = {
    "blocks.{}.attn_norm": "transformer.h.{}.ln_1",
    "blocks.{}.mlp_norm": "transformer.h.{}.ln_2",
}
# Variants that our GPT does not have are refused.
FIXED = {
    "scale_attn_by_inverse_layer_idx": False,
    "scale_attn_weights": True,
    "add_cross_attention": False,
}
# Keys of config.json, and the options of our Config that they are.
SIZES = {
    "vocab_size": "vocab",
    "n_positions": "context",
    "n_embd": "width",
    "n_layer": "depth",
    "n_head": "heads",
    "n_inner": "hidden",
    "layer_norm_epsilon": "eps",
    "resid_pdrop": "dropout",
    "tie_word_embeddings": "tied",
}
FREE = {*SIZES.values(), "mlp"}


@dataclass(frozen=True, kw_only=True, slots=True)
class GPT2Keys:
    """The keys of their config.json that we read, with their defaults."""

    vocab_size: int = 50257
    n_positions: int = 1024
    n_embd: int = 768
    n_layer: int = 12
    n_head: int = 12
    n_inner: int | None = None
    activation_function: Activation = "gelu_new"
    layer_norm_epsilon: float = 1e-5
    resid_pdrop: float = 0.1
    tie_word_embeddings: bool = True

    def __post_init__(self) -> None:
        at_least(self, 1, "vocab_size", "n_positions", "n_embd", "n_head", "n_inner")
        at_least(self, 0, "n_layer")

    def to_ours(self, shapes: Shapes) -> Config:
        """Convert to our Config; of their dropout rates only that of the residual stream is kept."""
        return Config(mlp=ACTIVATIONS[self.activation_function], **read_options(self, SIZES))


def to_theirs(c: Config, special: Special) -> dict[str, Any]:
    """The config.json for our Config; raises for options that a GPT-2 does not have."""
    kv_heads = c.heads if c.kv_heads == c.heads else None  # as many as heads is the same as none
    check_options(c, "a GPT-2", FREE, {"kv_heads": kv_heads})
    activation = their_activation(c.mlp, "a GPT-2")
    theirs = GPT2Keys(activation_function=activation, **write_options(c, SIZES))
    return {
        "architectures": ["GPT2LMHeadModel"],
        "model_type": "gpt2",
        **asdict(theirs),
        # their two other rates; ours is one for all
        "embd_pdrop": c.dropout,
        "attn_pdrop": c.dropout,
        **FIXED,
        **special_keys(special),
    }


def rows(c: Config) -> Iterator[Row]:
    """Yield the rows that map our parameters to their tensors."""
    yield from embeddings(c, "transformer.wte.weight")
    yield Row(("positions.table",), ("transformer.wpe.weight",))
    yield from pairs({"norm": "transformer.ln_f"})
    # (d, 3 d): queries, keys and values side by side
    yield from blocks(QKV, c.depth, conversion=JOINED_TRANSPOSED)
    yield from blocks(LINEAR, c.depth, conversion=TRANSPOSED)
    yield from blocks(NORMS, c.depth)


# causal masks, which old files have
MASKS = dict.fromkeys(["transformer.h.*.attn.bias", "transformer.h.*.attn.masked_bias"])
GPT2 = decoder_layout(
    theirs=GPT2Keys,
    to_ours=GPT2Keys.to_ours,
    to_theirs=to_theirs,
    rows=rows,
    fixed=FIXED,
    prefix="transformer.",
    ignored=lambda c: MASKS,
)
LAYOUTS = {"gpt2": GPT2}
