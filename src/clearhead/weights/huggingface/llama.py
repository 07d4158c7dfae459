"""Llama (Touvron et al. 2023), Mistral, Qwen2 and Qwen3 in Hugging Face's format, to and from our GPT.

    ours (models/gpt.py)                   theirs
    embed.table                            model.embed_tokens.weight, and lm_head.weight if tied
    blocks.0.attn.query                    model.layers.0.self_attn.q_proj
    blocks.0.mlp.gate                      model.layers.0.mlp.gate_proj

llama      also SmolLM2 and many others: rotary positions, grouped key heads, RMS norms, a gated MLP, no biases
mistral    the same with sliding-window attention (Jiang et al. 2023)
qwen2      the same with biases of queries, keys and values (Yang et al. 2024)
qwen3      the same with norms of the queries and keys of each head, and no biases (Yang et al. 2025)
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any, Literal

from ...checks import at_least
from ...errors import InputError
from ...models.gpt import Config
from ...tokens.special import Special
from ..fill import Shapes, WeightsError
from ..table import Layout, Row, causal_lm_logits, check_options, pairs, special_keys
from .rope import chosen_rope, read_rope, write_rope
from .tokenizers import folder_tokens, write_subwords

# Layers of a block. Ours: theirs. The first three may have biases where the others have none.
QKV = {
    "attn.query": "self_attn.q_proj",
    "attn.key": "self_attn.k_proj",
    "attn.value": "self_attn.v_proj",
}
LINEAR = {
    "attn.out": "self_attn.o_proj",
    "mlp.gate": "mlp.gate_proj",
    "mlp.up": "mlp.up_proj",
    "mlp.down": "mlp.down_proj",
}
NORMS = {"attn_norm": "input_layernorm", "mlp_norm": "post_attention_layernorm"}
# only qwen3 has them
QK_NORMS = {"attn.query_norm": "self_attn.q_norm", "attn.key_norm": "self_attn.k_norm"}
# Defaults that differ from a Llama's.
QWEN = {
    "vocab_size": 151936,
    "intermediate_size": 22016,
    "num_key_value_heads": 32,
    "max_position_embeddings": 32768,
}
DEFAULTS: dict[str, dict[str, Any]] = {
    "mistral": {
        "intermediate_size": 14336,
        "num_key_value_heads": 8,
        "max_position_embeddings": 131072,
    },
    "qwen2": QWEN,
    "qwen3": QWEN | {"head_dim": 128},
}
# Options of our Config that a Llama or a relative of it has as well. They have no dropout, so ours is left out.
FREE = {
    "vocab", "context", "width", "depth", "heads", "kv_heads", "head", "hidden", "base", "scaling", "factor", "trained",
    "window", "qk_norm", "eps", "bias", "tied", "dropout",
}  # fmt: skip


@dataclass(frozen=True, kw_only=True, slots=True)
class Theirs:
    """The keys of their config.json that we read, with their defaults."""

    model_type: Literal["llama", "mistral", "qwen2", "qwen3"] = "llama"
    vocab_size: int = 32000
    hidden_size: int = 4096
    intermediate_size: int = 11008
    num_hidden_layers: int = 32
    num_attention_heads: int = 32
    num_key_value_heads: int | None = None
    head_dim: int | None = None
    max_position_embeddings: int = 2048
    rms_norm_eps: float = 1e-6
    tie_word_embeddings: bool = False
    attention_bias: bool = False
    mlp_bias: bool = False
    rope_theta: float | None = None
    rope_scaling: dict[str, Any] | None = None
    rope_parameters: dict[str, Any] | None = None
    sliding_window: int | None = 4096  # only mistral uses it
    use_sliding_window: bool = False
    partial_rotary_factor: float = 1.0

    def __post_init__(self) -> None:
        at_least(
            self,
            1,
            "vocab_size",
            "hidden_size",
            "intermediate_size",
            "num_attention_heads",
            "num_key_value_heads",
            "head_dim",
            "max_position_embeddings",
            "sliding_window",
        )
        at_least(self, 0, "num_hidden_layers")
        if self.attention_bias != self.mlp_bias:
            raise InputError(
                f"attention_bias={self.attention_bias} and mlp_bias={self.mlp_bias}: expected both or neither"
            )
        if self.model_type in ("qwen2", "qwen3") and self.use_sliding_window:
            raise InputError(
                "use_sliding_window=True: windows in some of the layers are not supported"
            )
        if self.partial_rotary_factor != 1.0:
            raise InputError(
                f"partial_rotary_factor={self.partial_rotary_factor}: expected 1.0, all columns rotated"
            )

    def to_ours(self, shapes: Shapes) -> Config:
        """Our Config."""
        window = self.sliding_window if self.model_type == "mistral" else None
        if self.head_dim == self.hidden_size // self.num_attention_heads:
            head = None
        else:
            head = self.head_dim
        return Config(
            vocab=self.vocab_size,
            context=self.max_position_embeddings,
            width=self.hidden_size,
            depth=self.num_hidden_layers,
            heads=self.num_attention_heads,
            kv_heads=self.num_key_value_heads,
            head=head,
            hidden=self.intermediate_size,
            positions="rotary",
            norm="rms",
            eps=self.rms_norm_eps,
            mlp="swiglu",
            bias="qkv" if self.model_type == "qwen2" else self.attention_bias,
            tied=self.tie_word_embeddings,
            window=window,
            qk_norm="head" if self.model_type == "qwen3" else None,
            **read_rope(self._rope(), self.max_position_embeddings),
        )

    def _rope(self) -> dict[str, Any]:
        """Their options of rotary positions. Older files have three keys for them, newer ones only rope_parameters."""
        return {
            "rope_theta": self.rope_theta,
            **chosen_rope(self.rope_scaling, self.rope_parameters),
        }


def to_theirs(c: Config, special: Special) -> dict[str, Any]:
    """Their config.json; raises for options that a Llama does not have."""
    check_options(c, "a Llama", FREE, {"positions": "rotary", "norm": "rms", "mlp": "swiglu"})
    if c.qk_norm == "width" or (c.qk_norm and (c.bias or c.window is not None)):
        raise WeightsError(
            f"qk_norm={c.qk_norm!r}: a Llama has none, and a Qwen3 'head', no biases and no window"
        )
    if c.qk_norm:
        kind = "qwen3"
    elif c.bias == "qkv":
        kind = "qwen2"
    elif c.window is not None:
        kind = "mistral"
    else:
        kind = "llama"
    if kind != "llama" and (c.window is not None and c.bias):
        raise WeightsError(
            f"window={c.window} with bias={c.bias!r}: a Mistral has no biases, and a Qwen2 no window"
        )
    theirs: dict[str, Any] = {
        "architectures": [f"{kind.capitalize()}ForCausalLM"], "model_type": kind, "vocab_size": c.vocab,
        "hidden_size": c.width, "intermediate_size": c.hidden or 4 * c.width, "num_hidden_layers": c.depth,
        "num_attention_heads": c.heads, "num_key_value_heads": c.kv_heads or c.heads, "head_dim": c.head_width,
        "max_position_embeddings": c.context, "rms_norm_eps": c.eps, "tie_word_embeddings": c.tied,
        "hidden_act": "silu",
    }  # fmt: skip
    if kind == "llama":
        theirs |= {"attention_bias": c.bias, "mlp_bias": c.bias}
    elif kind == "mistral":
        theirs["sliding_window"] = c.window
    elif kind == "qwen2" and c.head_width * c.heads != c.width:
        raise WeightsError(f"head={c.head}: a Qwen2 has heads of width / heads")
    return theirs | write_rope(c) | special_keys(special)


def rows(c: Config) -> Iterator[Row]:
    """Our parameters and their names."""
    yield Row(
        ("embed.table",), ("model.embed_tokens.weight", *(["lm_head.weight"] if c.tied else []))
    )
    if not c.tied:
        yield Row(("head.weight",), ("lm_head.weight",))
    yield from pairs({"norm": "model.norm"}, ("weight",))
    both, one = ("weight", "bias"), ("weight",)
    groups = [
        (QKV, both if c.bias else one),
        (LINEAR, both if c.bias is True else one),
        (NORMS, one),
    ]
    for names, leaves in [*groups, (QK_NORMS, one)] if c.qk_norm else groups:
        for i in range(c.depth):
            yield from pairs(
                {f"blocks.{i}.{a}": f"model.layers.{i}.{b}" for a, b in names.items()}, leaves
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
    defaults=DEFAULTS,
    prefix="model.",
    reference=causal_lm_logits,
    ignored=lambda c: {"model.layers.*.self_attn.rotary_emb.inv_freq": None},
)
