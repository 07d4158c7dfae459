"""Llama (Touvron et al. 2023) and its relatives in Hugging Face's format, to and from our GPT.

    ours (models/gpt.py)                   theirs
    embed.table                            model.embed_tokens.weight, and lm_head.weight if tied
    blocks.0.attn.query                    model.layers.0.self_attn.q_proj
    blocks.0.mlp.gate                      model.layers.0.mlp.gate_proj

llama      also SmolLM2 and many others: rotary positions, grouped key heads, RMS norms, a gated MLP, no biases
mistral    the same with sliding-window attention (Jiang et al. 2023)
qwen2      the same with biases of queries, keys and values (Yang et al. 2024)
qwen3      the same with norms of the queries and keys of each head, and no biases (Yang et al. 2025)
phi3       the same with joined matrices, perhaps a window, and perhaps rotary positions in some of the columns only
           (Abdin et al. 2024); models of 128k tokens ("longrope") are opened with transformers
olmo2      the same with norms of each sublayer's output instead of its input (OLMo team 2024)

Gemma (gemma.py) shares the keys of config.json and the rotary positions.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any, Literal

from ...checks import at_least
from ...errors import InputError
from ...models.gpt import Config
from ...tokens.special import Special
from ..fill import Shapes, WeightsError
from ..table import (
    Layout,
    Row,
    blocks,
    causal_lm_logits,
    check_options,
    embeddings,
    pairs,
    read_options,
    special_keys,
    write_options,
)
from .tokenizers import folder_tokens, write_subwords

# The layers of a block, one per line. Ours: theirs.
QKV = {
    "blocks.{}.attn.query": "model.layers.{}.self_attn.q_proj",
    "blocks.{}.attn.key": "model.layers.{}.self_attn.k_proj",
    "blocks.{}.attn.value": "model.layers.{}.self_attn.v_proj",
}
LINEAR = {
    "blocks.{}.attn.out": "model.layers.{}.self_attn.o_proj",
    "blocks.{}.mlp.gate": "model.layers.{}.mlp.gate_proj",
    "blocks.{}.mlp.up": "model.layers.{}.mlp.up_proj",
    "blocks.{}.mlp.down": "model.layers.{}.mlp.down_proj",
}
NORMS = {
    "blocks.{}.attn_norm": "model.layers.{}.input_layernorm",
    "blocks.{}.mlp_norm": "model.layers.{}.post_attention_layernorm",
}
QK_NORMS = {
    "blocks.{}.attn.query_norm": "model.layers.{}.self_attn.q_norm",
    "blocks.{}.attn.key_norm": "model.layers.{}.self_attn.k_norm",
}
PHI3_LINEAR = {
    "blocks.{}.attn.query+key+value": "model.layers.{}.self_attn.qkv_proj",
    "blocks.{}.attn.out": "model.layers.{}.self_attn.o_proj",
    "blocks.{}.mlp.gate+up": "model.layers.{}.mlp.gate_up_proj",
    "blocks.{}.mlp.down": "model.layers.{}.mlp.down_proj",
}
OLMO2_NORMS = {
    "blocks.{}.attn_norm": "model.layers.{}.post_attention_layernorm",
    "blocks.{}.mlp_norm": "model.layers.{}.post_feedforward_layernorm",
}
# Defaults of config.json that differ from a Llama's.
QWEN = {
    "vocab_size": 151936,
    "intermediate_size": 22016,
    "num_key_value_heads": 32,
    "max_position_embeddings": 32768,
}
MISTRAL = {
    "intermediate_size": 14336,
    "num_key_value_heads": 8,
    "max_position_embeddings": 131072,
}
DEFAULTS: dict[str, dict[str, Any]] = {
    "mistral": MISTRAL,
    "qwen2": QWEN,
    "qwen3": QWEN | {"head_dim": 128},
}
# Keys of config.json, and the options of our Config that they are.
SIZES = {
    "vocab_size": "vocab",
    "hidden_size": "width",
    "num_hidden_layers": "depth",
    "num_attention_heads": "heads",
    "max_position_embeddings": "context",
    "rms_norm_eps": "eps",
    "tie_word_embeddings": "tied",
}
# Options of our Config that a Llama or a relative of it has as well. They have no dropout, so ours is left out.
FREE = {
    *SIZES.values(), "kv_heads", "head", "hidden", "base", "scaling", "factor", "trained", "window", "qk_norm", "bias",
    "dropout",
}  # fmt: skip
# Options that all of them have with one value.
FIXED: dict[str, Any] = {"positions": "rotary", "norm": "rms", "mlp": "swiglu"}
PHI3_FIXED = FIXED | {"bias": False}
OLMO2_FIXED = FIXED | {"bias": False, "order": "output", "qk_norm": "width"}


# Rotary positions


BASE = 10_000.0  # default of rope_theta
SCALINGS = ("default", "linear", "llama3")
# other angles for texts that are longer than those of the first training (Ding et al. 2024)
LONG = ("longrope", "su")


def read_rope(rope: Mapping[str, Any], context: int) -> dict[str, Any]:
    """Our options of rotary positions.

    Args:
        rope: The keys that `chosen_rope` returns, and rope_theta if that is beside them.
        context: Tokens that the model reads.
    """
    # older files say type instead of rope_type
    scaling = rope.get("rope_type", rope.get("type", "default"))
    options: dict[str, Any] = {"base": _number(rope, "rope_theta") or BASE}
    if scaling == "default":
        return options
    if scaling in LONG:
        raise InputError(
            f"rope_type={scaling!r} has other angles for long texts than for short ones, which our GPT does not have: "
            "such a folder opens with transformers (pip install clearhead[transformers])"
        )
    if scaling not in SCALINGS:
        raise InputError(f"rope_type={scaling!r}: expected {', '.join(SCALINGS)}")
    if scaling == "llama3":
        # our angles are computed with these two constants
        for name, usual in (("low_freq_factor", 1.0), ("high_freq_factor", 4.0)):
            if rope.get(name, usual) != usual:
                raise InputError(f"{name}={rope[name]}: expected {usual}")
        # the context before the extension, which decides the waves that are slowed down
        options["trained"] = int(_number(rope, "original_max_position_embeddings") or context)
    return options | {"scaling": scaling, "factor": _number(rope, "factor") or 1.0}


def chosen_rope(scaling: Any, parameters: Any) -> Mapping[str, Any]:
    """The keys of rotary positions: those of rope_scaling, or if it has none, those of rope_parameters.

    A config.json may have both, as transformers writes rope_parameters and its users add rope_scaling; transformers
    itself then reads the latter only.
    """
    for rope in (scaling, parameters):
        # an empty table counts as none
        if isinstance(rope, Mapping) and rope:
            return rope
    return {}


def trained_length(words: Mapping[str, Any]) -> int | None:
    """The original context of a "longrope" model, beyond which its angles are others; None for other models.

    Args:
        words: The keys of config.json.
    """
    rope = chosen_rope(words.get("rope_scaling"), words.get("rope_parameters"))
    if rope.get("rope_type", rope.get("type")) not in LONG:
        return None
    for keys in (rope, words):
        # among the rotary options, or beside them as in a Phi-3
        size = keys.get("original_max_position_embeddings")
        if type(size) is int:
            return size
    return words.get("max_position_embeddings")


def write_rope(c: Config) -> dict[str, Any]:
    """The keys of config.json for the rotary positions of our Config; older versions of their library read the last."""
    rope: dict[str, Any] = {"rope_theta": c.base, "rope_type": c.scaling or "default"}
    if c.scaling not in (None, *SCALINGS):
        raise WeightsError(f"scaling={c.scaling!r}: expected none, linear or llama3")
    if c.scaling is not None:
        rope["factor"] = c.factor
    if c.scaling == "llama3":
        # the context before the extension
        rope["original_max_position_embeddings"] = c.trained
        rope |= {"low_freq_factor": 1.0, "high_freq_factor": 4.0}
    keys = {"rope_parameters": rope, "rope_theta": c.base}
    if c.scaling is not None:
        # for older versions of transformers
        keys["rope_scaling"] = rope
    return keys


def _number(rope: Mapping[str, Any], name: str) -> float | None:
    """A value of rope_parameters, whose dictionary may hold anything."""
    value = rope.get(name)
    if value is None:
        return None
    # True is an int in Python, and no number in a config
    if isinstance(value, bool) or not isinstance(value, int | float) or not 0 < value < math.inf:
        raise InputError(f"{name}={value!r}: expected a number above 0")
    return float(value)


# config.json


@dataclass(frozen=True, kw_only=True, slots=True)
class Decoder:
    """The keys of config.json that Llama and all its relatives have."""

    vocab_size: int
    hidden_size: int
    intermediate_size: int
    num_hidden_layers: int
    num_attention_heads: int
    num_key_value_heads: int | None = None
    head_dim: int | None = None
    max_position_embeddings: int
    rms_norm_eps: float
    tie_word_embeddings: bool = False
    sliding_window: int | None = None
    # Older files have two keys for rotary positions, newer ones only rope_parameters.
    rope_theta: float | None = None
    rope_scaling: dict[str, Any] | None = None
    rope_parameters: dict[str, Any] | None = None

    def __post_init__(self) -> None:
        sizes = ("vocab_size", "hidden_size", "intermediate_size", "max_position_embeddings")
        heads = ("num_attention_heads", "num_key_value_heads", "head_dim")
        at_least(self, 1, *sizes, *heads, "sliding_window")
        at_least(self, 0, "num_hidden_layers")

    def sizes(self) -> dict[str, Any]:
        """The options of our Config that all relatives have."""
        head = self.head_dim
        if head is not None and head * self.num_attention_heads == self.hidden_size:
            # heads that share the width evenly need no option
            head = None
        return read_options(self, SIZES) | {
            "kv_heads": self.num_key_value_heads,
            "head": head,
            "hidden": self.intermediate_size,
        }

    def rope(self) -> dict[str, Any]:
        """Their options of rotary positions, wherever the file has them."""
        # rope_theta is beside rope_scaling in older files, and inside rope_parameters in newer ones
        chosen = chosen_rope(self.rope_scaling, self.rope_parameters)
        return {"rope_theta": self.rope_theta, **chosen}


def decoder_keys(c: Config, model_type: str, class_name: str, special: Special) -> dict[str, Any]:
    """The keys of config.json that Llama and all its relatives have, for a Config of ours."""
    sizes = {
        "architectures": [class_name],
        "model_type": model_type,
        **write_options(c, SIZES),
        # None is four times the width
        "intermediate_size": c.hidden or 4 * c.width,
        # None is as many as there are heads
        "num_key_value_heads": c.kv_heads or c.heads,
        "head_dim": c.head_width,
    }
    return sizes | write_rope(c) | special_keys(special)


def decoder_layout(**given: Any) -> Layout:
    """The Layout of a language model; `given` are the fields in which it differs from the others."""
    shared: dict[str, Any] = {
        "model": "gpt",
        "prefix": "model.",
        "untied": {"tie_word_embeddings": False},
        "read_tokens": folder_tokens,
        "write_tokens": write_subwords,
        "reference": causal_lm_logits,
    }
    return Layout(**shared | given)


# Llama, Mistral, Qwen2, Qwen3


@dataclass(frozen=True, kw_only=True, slots=True)
class Llama(Decoder):
    """The keys of their config.json that we read, with their defaults."""

    model_type: Literal["llama", "mistral", "qwen2", "qwen3"] = "llama"
    vocab_size: int = 32000
    hidden_size: int = 4096
    intermediate_size: int = 11008
    num_hidden_layers: int = 32
    num_attention_heads: int = 32
    max_position_embeddings: int = 2048
    rms_norm_eps: float = 1e-6
    attention_bias: bool = False
    mlp_bias: bool = False
    sliding_window: int | None = 4096  # only mistral uses it
    use_sliding_window: bool = False
    partial_rotary_factor: float = 1.0

    def __post_init__(self) -> None:
        Decoder.__post_init__(self)
        if self.attention_bias != self.mlp_bias:
            # our option is one for attention and MLP
            raise InputError(
                f"attention_bias={self.attention_bias} and mlp_bias={self.mlp_bias}: expected both or neither"
            )
        if self.model_type in ("qwen2", "qwen3") and self.use_sliding_window:
            # there, only the layers from max_window_layers on have a window
            raise InputError(
                "use_sliding_window=True: windows in some of the layers are not supported"
            )
        if self.partial_rotary_factor != 1.0:
            raise InputError(
                f"partial_rotary_factor={self.partial_rotary_factor}: expected 1.0, all columns rotated"
            )

    def to_ours(self, shapes: Shapes) -> Config:
        """Convert these keys of config.json to the Config of our model."""
        own: dict[str, Any] = {"bias": self.attention_bias}
        if self.model_type == "qwen2":
            # biases of queries, keys and values, without a key that says so
            own["bias"] = "qkv"
        elif self.model_type == "qwen3":
            own["qk_norm"] = "head"
        elif self.model_type == "mistral":
            # others may have the key, and ignore it
            own["window"] = self.sliding_window
        return Config(
            **own,
            **self.sizes(),
            **FIXED,
            **read_rope(self.rope(), self.max_position_embeddings),
        )


def llama_keys(c: Config, special: Special) -> dict[str, Any]:
    """The config.json for our Config; raises for options that a Llama does not have."""
    check_options(c, "a Llama", FREE, FIXED)
    if c.qk_norm == "width" or (c.qk_norm and (c.bias or c.window is not None)):
        raise WeightsError(
            f"qk_norm={c.qk_norm!r}: a Llama has none, and a Qwen3 'head', no biases and no window"
        )
    if c.window is not None and c.bias:
        raise WeightsError(
            f"window={c.window} with bias={c.bias!r}: a Mistral has no biases, and a Qwen2 no window"
        )
    # a feature that only one relative has decides the model type
    more: dict[str, Any] = {"hidden_act": "silu"}
    if c.qk_norm:
        model_type = "qwen3"
    elif c.bias == "qkv":
        model_type = "qwen2"
        if c.head_width * c.heads != c.width:
            raise WeightsError(f"head={c.head}: a Qwen2 has heads of width / heads")
    elif c.window is not None:
        model_type = "mistral"
        more["sliding_window"] = c.window
    else:
        model_type = "llama"
        # one option of ours stands for both keys
        more |= {"attention_bias": c.bias, "mlp_bias": c.bias}
    class_name = f"{model_type.capitalize()}ForCausalLM"
    return decoder_keys(c, model_type, class_name, special) | more


def llama_rows(c: Config) -> Iterator[Row]:
    """Yield the rows that map our parameters to their tensors."""
    both, weight = ("weight", "bias"), ("weight",)
    yield from embeddings(c, "model.embed_tokens.weight")
    yield from pairs({"norm": "model.norm"}, weight)
    # "qkv": queries, keys and values have biases, and no other map
    qkv = both if c.bias else weight
    others = both if c.bias is True else weight
    yield from blocks(QKV, c.depth, qkv)
    yield from blocks(LINEAR, c.depth, others)
    yield from blocks(NORMS, c.depth, weight)
    if c.qk_norm:
        yield from blocks(QK_NORMS, c.depth, weight)


# Phi-3


@dataclass(frozen=True, kw_only=True, slots=True)
class Phi3(Decoder):
    """The keys of their config.json that we read, with their defaults."""

    vocab_size: int = 32064
    hidden_size: int = 3072
    intermediate_size: int = 8192
    num_hidden_layers: int = 32
    num_attention_heads: int = 32
    max_position_embeddings: int = 4096
    rms_norm_eps: float = 1e-5
    resid_pdrop: float = 0.0
    partial_rotary_factor: float = 1.0

    def __post_init__(self) -> None:
        Decoder.__post_init__(self)
        if not 0.0 < self.partial_rotary_factor <= 1.0:
            raise InputError(
                f"partial_rotary_factor={self.partial_rotary_factor}: expected a share above 0, at most 1"
            )

    def to_ours(self, shapes: Shapes) -> Config:
        """Convert these keys of config.json to the Config of our model."""
        rope = self.rope()
        head = self.head_dim or self.hidden_size // self.num_attention_heads
        # newer files have the share of rotated columns among the rotary options
        rotated = int(head * rope.get("partial_rotary_factor", self.partial_rotary_factor))
        return Config(
            window=self.sliding_window,
            rotated=None if rotated == head else rotated,
            dropout=self.resid_pdrop,
            **self.sizes(),
            **PHI3_FIXED,
            **read_rope(rope, self.max_position_embeddings),
        )


def phi3_keys(c: Config, special: Special) -> dict[str, Any]:
    """The config.json for our Config; raises for options that a Phi-3 does not have."""
    check_options(c, "a Phi-3", (FREE - {"qk_norm", "bias"}) | {"rotated"}, PHI3_FIXED)
    share = 1.0 if c.rotated is None else c.rotated / c.head_width
    # the share must give the same whole number of columns when it is read back
    if int(c.head_width * share) != (c.rotated or c.head_width):
        raise WeightsError(
            f"rotated={c.rotated}: a Phi-3 has a share of the {c.head_width} columns of a head"
        )
    keys = decoder_keys(c, "phi3", "Phi3ForCausalLM", special)
    # newer versions of their library read it there, older ones beside it
    keys["rope_parameters"]["partial_rotary_factor"] = share
    more = {
        # equal to the context: the angles are the same for texts of all lengths
        "original_max_position_embeddings": c.context,
        "hidden_act": "silu",
        "sliding_window": c.window,
        "partial_rotary_factor": share,
        "resid_pdrop": c.dropout,
        "embd_pdrop": c.dropout,
        "attention_dropout": c.dropout,
    }
    return keys | more


def phi3_rows(c: Config) -> Iterator[Row]:
    """Yield the rows that map our parameters to their tensors."""
    yield from embeddings(c, "model.embed_tokens.weight")
    yield from pairs({"norm": "model.norm"}, ("weight",))
    yield from blocks(PHI3_LINEAR | NORMS, c.depth, ("weight",))


# OLMo 2


@dataclass(frozen=True, kw_only=True, slots=True)
class Olmo2(Decoder):
    """The keys of their config.json that we read, with their defaults."""

    vocab_size: int = 50304
    hidden_size: int = 4096
    intermediate_size: int = 11008
    num_hidden_layers: int = 32
    num_attention_heads: int = 32
    max_position_embeddings: int = 2048
    rms_norm_eps: float = 1e-5

    def to_ours(self, shapes: Shapes) -> Config:
        """Convert these keys of config.json to the Config of our model."""
        rope = read_rope(self.rope(), self.max_position_embeddings)
        return Config(**self.sizes(), **OLMO2_FIXED, **rope)


def olmo2_keys(c: Config, special: Special) -> dict[str, Any]:
    """The config.json for our Config; raises for options that an OLMo 2 does not have."""
    check_options(c, "an OLMo 2", FREE - {"window", "bias", "qk_norm"}, OLMO2_FIXED)
    more = {"hidden_act": "silu", "attention_bias": False}
    return decoder_keys(c, "olmo2", "Olmo2ForCausalLM", special) | more


def olmo2_rows(c: Config) -> Iterator[Row]:
    """Yield the rows that map our parameters to their tensors."""
    yield from embeddings(c, "model.embed_tokens.weight")
    yield from pairs({"norm": "model.norm"}, ("weight",))
    yield from blocks(QKV | LINEAR | OLMO2_NORMS | QK_NORMS, c.depth, ("weight",))


# The angles of rotary positions, which old files have and our model computes.
ANGLES = {"model.layers.*.self_attn.rotary_emb.inv_freq": None}
LLAMA = decoder_layout(
    theirs=Llama,
    to_ours=Llama.to_ours,
    to_theirs=llama_keys,
    rows=llama_rows,
    fixed={"hidden_act": "silu"},
    defaults=DEFAULTS,
    ignored=lambda c: ANGLES,
)
PHI3 = decoder_layout(
    theirs=Phi3,
    to_ours=Phi3.to_ours,
    to_theirs=phi3_keys,
    rows=phi3_rows,
    fixed={"hidden_act": "silu"},
    ignored=lambda c: ANGLES,
)
OLMO2 = decoder_layout(
    theirs=Olmo2,
    to_ours=Olmo2.to_ours,
    to_theirs=olmo2_keys,
    rows=olmo2_rows,
    fixed={"hidden_act": "silu", "attention_bias": False},
)
LAYOUTS = {
    "llama": LLAMA,
    "mistral": LLAMA,
    "qwen2": LLAMA,
    "qwen3": LLAMA,
    "phi3": PHI3,
    "olmo2": OLMO2,
}
