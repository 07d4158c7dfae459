"""Phi-3 (Abdin et al. 2024) in Hugging Face's format, to and from our GPT.

    ours (models/gpt.py)                   theirs
    blocks.0.attn.query, .key, .value      model.layers.0.self_attn.qkv_proj: the three concatenated
    blocks.0.mlp.gate, .up                 model.layers.0.mlp.gate_up_proj: both concatenated

Like a Llama otherwise, perhaps with a window, and perhaps with rotary positions in some of the columns only. Models of
128k tokens ("longrope") have other angles for long texts than for short ones, and are opened with transformers.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

from ...checks import at_least
from ...errors import InputError
from ...models.gpt import Config
from ...tokens.special import Special
from ..fill import Shapes, WeightsError
from ..table import JOINED, Layout, Row, causal_lm_logits, check_options, pairs, special_keys
from .llama import FREE, NORMS
from .rope import chosen_rope, read_rope, write_rope
from .tokenizers import folder_tokens, write_subwords

# Layers of a block. Ours: theirs.
PARTS = {
    ("attn.query", "attn.key", "attn.value"): "self_attn.qkv_proj",
    ("attn.out",): "self_attn.o_proj",
    ("mlp.gate", "mlp.up"): "mlp.gate_up_proj",
    ("mlp.down",): "mlp.down_proj",
}
FIXED: dict[str, Any] = {"positions": "rotary", "norm": "rms", "mlp": "swiglu", "bias": False}


@dataclass(frozen=True, kw_only=True, slots=True)
class Theirs:
    """The keys of their config.json that we read, with their defaults."""

    vocab_size: int = 32064
    hidden_size: int = 3072
    intermediate_size: int = 8192
    num_hidden_layers: int = 32
    num_attention_heads: int = 32
    num_key_value_heads: int | None = None
    max_position_embeddings: int = 4096
    rms_norm_eps: float = 1e-5
    resid_pdrop: float = 0.0
    tie_word_embeddings: bool = False
    rope_theta: float | None = None
    rope_scaling: dict[str, Any] | None = None
    rope_parameters: dict[str, Any] | None = None
    partial_rotary_factor: float = 1.0
    sliding_window: int | None = None

    def __post_init__(self) -> None:
        at_least(
            self,
            1,
            "vocab_size",
            "hidden_size",
            "intermediate_size",
            "num_attention_heads",
            "num_key_value_heads",
            "max_position_embeddings",
            "sliding_window",
        )
        at_least(self, 0, "num_hidden_layers")
        if not 0.0 < self.partial_rotary_factor <= 1.0:
            raise InputError(
                f"partial_rotary_factor={self.partial_rotary_factor}: expected a share above 0, at most 1"
            )

    def to_ours(self, shapes: Shapes) -> Config:
        """Our Config."""
        rope = {
            "rope_theta": self.rope_theta,
            **chosen_rope(self.rope_scaling, self.rope_parameters),
        }
        share, head = rope.get("partial_rotary_factor", self.partial_rotary_factor), self._head()
        rotated = int(head * share)
        return Config(
            vocab=self.vocab_size,
            context=self.max_position_embeddings,
            width=self.hidden_size,
            depth=self.num_hidden_layers,
            heads=self.num_attention_heads,
            kv_heads=self.num_key_value_heads,
            hidden=self.intermediate_size,
            eps=self.rms_norm_eps,
            tied=self.tie_word_embeddings,
            window=self.sliding_window,
            rotated=None if rotated == head else rotated,
            dropout=self.resid_pdrop,
            **FIXED,
            **read_rope(rope, self.max_position_embeddings),
        )

    def _head(self) -> int:
        return self.hidden_size // self.num_attention_heads


def to_theirs(c: Config, special: Special) -> dict[str, Any]:
    """Their config.json; raises for options that a Phi-3 does not have."""
    check_options(c, "a Phi-3", (FREE - {"head", "qk_norm", *FIXED}) | {"rotated"}, FIXED)
    share = 1.0 if c.rotated is None else c.rotated / c.head_width
    if int(c.head_width * share) != (c.rotated or c.head_width):
        raise WeightsError(
            f"rotated={c.rotated}: a Phi-3 has a share of the {c.head_width} columns of a head"
        )
    theirs: dict[str, Any] = {
        "architectures": ["Phi3ForCausalLM"], "model_type": "phi3", "vocab_size": c.vocab, "hidden_size": c.width,
        "intermediate_size": c.hidden or 4 * c.width, "num_hidden_layers": c.depth, "num_attention_heads": c.heads,
        "num_key_value_heads": c.kv_heads or c.heads, "max_position_embeddings": c.context,
        "original_max_position_embeddings": c.context, "rms_norm_eps": c.eps, "tie_word_embeddings": c.tied,
        "hidden_act": "silu", "sliding_window": c.window, "resid_pdrop": c.dropout, "embd_pdrop": c.dropout,
        "attention_dropout": c.dropout, "partial_rotary_factor": share,
    }  # fmt: skip
    rope = write_rope(c)
    rope["rope_parameters"]["partial_rotary_factor"] = share
    return theirs | rope | special_keys(special)


def rows(c: Config) -> Iterator[Row]:
    """Our parameters and their names."""
    yield Row(
        ("embed.table",), ("model.embed_tokens.weight", *(["lm_head.weight"] if c.tied else []))
    )
    if not c.tied:
        yield Row(("head.weight",), ("lm_head.weight",))
    yield from pairs({"norm": "model.norm"}, ("weight",))
    for i in range(c.depth):
        for ours, theirs in PARTS.items():
            yield Row(
                tuple(f"blocks.{i}.{name}.weight" for name in ours),
                (f"model.layers.{i}.{theirs}.weight",),
                JOINED,
            )
        yield from pairs(
            {f"blocks.{i}.{a}": f"model.layers.{i}.{b}" for a, b in NORMS.items()}, ("weight",)
        )


LAYOUT = Layout(
    untied={"tie_word_embeddings": False},
    model="gpt",
    theirs=Theirs,
    to_ours=Theirs.to_ours,
    to_theirs=to_theirs,
    rows=rows,
    read_tokens=folder_tokens,
    write_tokens=write_subwords,
    fixed={"hidden_act": "silu"},
    prefix="model.",
    reference=causal_lm_logits,
    ignored=lambda c: {"model.layers.*.self_attn.rotary_emb.inv_freq": None},
)
