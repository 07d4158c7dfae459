"""OLMo 2 (OLMo team 2024) in Hugging Face's format, to and from our GPT.

    ours (models/gpt.py)                   theirs
    blocks.0.attn_norm                     model.layers.0.post_attention_layernorm
    blocks.0.mlp_norm                      model.layers.0.post_feedforward_layernorm
    blocks.0.attn.query_norm               model.layers.0.self_attn.q_norm: over all heads together

Like a Llama otherwise; but its norms are those of each sublayer's output, not of its input.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

from ...checks import at_least
from ...models.gpt import Config
from ...tokens.special import Special
from ..fill import Shapes
from ..table import Layout, Row, causal_lm_logits, check_options, pairs, special_keys
from .llama import FREE, LINEAR, QK_NORMS, QKV
from .rope import chosen_rope, read_rope, write_rope
from .tokenizers import folder_tokens, write_subwords

NORMS = {"attn_norm": "post_attention_layernorm", "mlp_norm": "post_feedforward_layernorm"}
FIXED: dict[str, Any] = {
    "order": "output",
    "positions": "rotary",
    "norm": "rms",
    "mlp": "swiglu",
    "qk_norm": "width",
    "bias": False,
}


@dataclass(frozen=True, kw_only=True, slots=True)
class Theirs:
    """The keys of their config.json that we read, with their defaults."""

    vocab_size: int = 50304
    hidden_size: int = 4096
    intermediate_size: int = 11008
    num_hidden_layers: int = 32
    num_attention_heads: int = 32
    num_key_value_heads: int | None = None
    max_position_embeddings: int = 2048
    rms_norm_eps: float = 1e-5
    tie_word_embeddings: bool = False
    rope_theta: float | None = None
    rope_scaling: dict[str, Any] | None = None
    rope_parameters: dict[str, Any] | None = None

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
        )
        at_least(self, 0, "num_hidden_layers")

    def to_ours(self, shapes: Shapes) -> Config:
        """Our Config."""
        rope = {
            "rope_theta": self.rope_theta,
            **chosen_rope(self.rope_scaling, self.rope_parameters),
        }
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
            **FIXED,
            **read_rope(rope, self.max_position_embeddings),
        )


def to_theirs(c: Config, special: Special) -> dict[str, Any]:
    """Their config.json; raises for options that an OLMo 2 does not have."""
    check_options(c, "an OLMo 2", FREE - {"head", "window", *FIXED}, FIXED)
    theirs: dict[str, Any] = {
        "architectures": ["Olmo2ForCausalLM"], "model_type": "olmo2", "vocab_size": c.vocab, "hidden_size": c.width,
        "intermediate_size": c.hidden or 4 * c.width, "num_hidden_layers": c.depth, "num_attention_heads": c.heads,
        "num_key_value_heads": c.kv_heads or c.heads, "max_position_embeddings": c.context, "rms_norm_eps": c.eps,
        "tie_word_embeddings": c.tied, "hidden_act": "silu", "attention_bias": False,
    }  # fmt: skip
    return theirs | write_rope(c) | special_keys(special)


def rows(c: Config) -> Iterator[Row]:
    """Our parameters and their names."""
    yield Row(
        ("embed.table",), ("model.embed_tokens.weight", *(["lm_head.weight"] if c.tied else []))
    )
    if not c.tied:
        yield Row(("head.weight",), ("lm_head.weight",))
    yield from pairs({"norm": "model.norm"}, ("weight",))
    for i in range(c.depth):
        for ours, theirs in (QKV | LINEAR | NORMS | QK_NORMS).items():
            yield Row((f"blocks.{i}.{ours}.weight",), (f"model.layers.{i}.{theirs}.weight",))


LAYOUT = Layout(
    untied={"tie_word_embeddings": False},
    model="gpt",
    theirs=Theirs,
    to_ours=Theirs.to_ours,
    to_theirs=to_theirs,
    rows=rows,
    read_tokens=folder_tokens,
    write_tokens=write_subwords,
    fixed={"hidden_act": "silu", "attention_bias": False},
    prefix="model.",
    reference=causal_lm_logits,
)
