"""Llama (Touvron et al. 2023) and its kin as Hugging Face keeps them, to and from our GPT.

    ours (models/gpt.py)                   theirs
    embed.table                            model.embed_tokens.weight, and lm_head.weight where it is tied
    blocks.0.attn.query                    model.layers.0.self_attn.q_proj
    blocks.0.mlp.gate                      model.layers.0.mlp.gate_proj

llama      also SmolLM2 and many more: rotary positions, grouped heads, rms norms, a gated MLP, no biases
mistral    the same; a token may look back so far only (Jiang et al. 2023)
qwen2      the same; queries, keys and values have biases (Yang et al. 2024)
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any, Literal

from ..errors import InputError
from ..models.gpt import Config
from .bundle import Special
from .fill import WeightsError
from .table import Family, Row, pairs
from .vocabulary import folder_tokens, write_subwords

# Of a block: ours, theirs; what may have a bias first.
BIASED = {"attn.query": "self_attn.q_proj", "attn.key": "self_attn.k_proj", "attn.value": "self_attn.v_proj"}
MAPS = {
    "attn.out": "self_attn.o_proj", "mlp.gate": "mlp.gate_proj", "mlp.up": "mlp.up_proj", "mlp.down": "mlp.down_proj",
}  # fmt: skip
NORMS = {"attn_norm": "input_layernorm", "mlp_norm": "post_attention_layernorm"}
BASE = 10_000.0  # of the angles


@dataclass(frozen=True, kw_only=True, slots=True)
class Theirs:
    """What their config.json says of a model, in their words; what it leaves out is as here."""

    model_type: Literal["llama", "mistral", "qwen2"] = "llama"
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
    sliding_window: int | None = 4096  # read where model_type is mistral
    use_sliding_window: bool = False
    partial_rotary_factor: float = 1.0

    def __post_init__(self) -> None:
        if self.attention_bias != self.mlp_bias:
            raise InputError(
                f"attention_bias={self.attention_bias} and mlp_bias={self.mlp_bias}: expected both or neither"
            )
        if self.model_type == "qwen2" and self.use_sliding_window:
            raise InputError("use_sliding_window=True: only some layers have a window, expected none")
        if self.model_type != "llama" and self.num_key_value_heads is None:
            raise InputError(f"model_type={self.model_type!r} without num_key_value_heads: expected their number")
        if self.partial_rotary_factor != 1.0:
            raise InputError(f"partial_rotary_factor={self.partial_rotary_factor}: expected every column to turn")

    def ours(self, shapes: Mapping[str, tuple[int, ...]]) -> Config:
        """The same in our words."""
        window = self.sliding_window if self.model_type == "mistral" else None
        head = self.head_dim if self.head_dim not in (None, self.hidden_size // self.num_attention_heads) else None
        return Config(
            vocab=self.vocab_size, context=self.max_position_embeddings, width=self.hidden_size,
            depth=self.num_hidden_layers, heads=self.num_attention_heads, kv_heads=self.num_key_value_heads, head=head,
            hidden=self.intermediate_size, positions="rotary", norm="rms", eps=self.rms_norm_eps, mlp="swiglu",
            bias="qkv" if self.model_type == "qwen2" else self.attention_bias, tied=self.tie_word_embeddings,
            window=window, **self._angles(),
        )  # fmt: skip

    def _angles(self) -> dict[str, Any]:
        """How fast each pair of columns turns; newer files say all of it in one table."""
        said: dict[str, Any] = {
            "rope_theta": self.rope_theta,
            **(self.rope_scaling or {}),
            **(self.rope_parameters or {}),
        }
        kind = said.get("rope_type", said.get("type", "default"))
        found: dict[str, Any] = {"base": float(said["rope_theta"] or BASE)}
        if kind == "default":
            return found
        if kind not in ("linear", "llama3"):
            raise InputError(f"rope_type={kind!r}: expected default, linear or llama3")
        if kind == "llama3":
            for name, usual in (("low_freq_factor", 1.0), ("high_freq_factor", 4.0)):
                if said.get(name, usual) != usual:
                    raise InputError(f"{name}={said[name]}: expected {usual}")
            found["trained"] = said.get("original_max_position_embeddings", self.max_position_embeddings)
        return found | {"scaling": kind, "factor": float(said.get("factor", 1.0))}


def written(c: Config, special: Special) -> dict[str, Any]:
    """Ours as their config.json; raises for what they have no word for. Dropout is of training, and left out."""
    expected = {
        "positions": "rotary", "order": "pre", "norm": "rms", "mlp": "swiglu", "score": "scaled", "project": "qkv",
    }  # fmt: skip
    for name, value in expected.items():
        if getattr(c, name) != value:
            raise WeightsError(f"{name}={getattr(c, name)!r}: a Llama has {name}={value!r}")
    kind = "qwen2" if c.bias == "qkv" else "mistral" if c.window is not None else "llama"
    if kind != "llama" and (c.window is not None and c.bias):
        raise WeightsError(f"window={c.window} with bias={c.bias!r}: a Mistral has no biases, and a Qwen2 no window")
    said: dict[str, Any] = {
        "architectures": [f"{kind.capitalize()}ForCausalLM"], "model_type": kind, "vocab_size": c.vocab,
        "hidden_size": c.width, "intermediate_size": c.hidden or 4 * c.width, "num_hidden_layers": c.depth,
        "num_attention_heads": c.heads, "num_key_value_heads": c.kv_heads or c.heads, "head_dim": c.head_width,
        "max_position_embeddings": c.context, "rms_norm_eps": c.eps, "tie_word_embeddings": c.tied,
        "hidden_act": "silu",
    }  # fmt: skip
    if kind == "llama":
        said |= {"attention_bias": c.bias, "mlp_bias": c.bias}
    elif kind == "mistral":
        said["sliding_window"] = c.window
    elif c.head_width * c.heads != c.width:
        raise WeightsError(f"head={c.head}: a Qwen2 has heads of width / heads")
    said["rope_parameters"] = _angles(c)
    said["rope_theta"] = c.base  # where older versions of their library look
    if c.scaling is not None:
        said["rope_scaling"] = said["rope_parameters"]
    ends = special.ends[0] if len(special.ends) == 1 else list(special.ends) or None
    return said | {"pad_token_id": special.pad, "bos_token_id": special.start, "eos_token_id": ends}


def _angles(c: Config) -> dict[str, Any]:
    found: dict[str, Any] = {"rope_theta": c.base, "rope_type": c.scaling or "default"}
    if c.scaling not in (None, "linear", "llama3"):
        raise WeightsError(f"scaling={c.scaling!r}: a Llama has none, linear or llama3")
    if c.scaling is not None:
        found["factor"] = c.factor
    if c.scaling == "llama3":
        found |= {"original_max_position_embeddings": c.trained, "low_freq_factor": 1.0, "high_freq_factor": 4.0}
    return found


def rows(c: Config) -> Iterator[Row]:
    """Each parameter of ours with its names there."""
    yield Row(("embed.table",), ("model.embed_tokens.weight", *(["lm_head.weight"] if c.tied else [])))
    if not c.tied:
        yield Row(("head.weight",), ("lm_head.weight",))
    yield from pairs({"norm": "model.norm"}, ("weight",))
    both, one = ("weight", "bias"), ("weight",)
    for names, leaves in ((BIASED, both if c.bias else one), (MAPS, both if c.bias is True else one), (NORMS, one)):
        for i in range(c.depth):
            yield from pairs({f"blocks.{i}.{a}": f"model.layers.{i}.{b}" for a, b in names.items()}, leaves)


FAMILY = Family(
    model="gpt", theirs=Theirs, ours=Theirs.ours, written=written, rows=rows, tokens=folder_tokens,
    write_tokens=write_subwords, wiring={"hidden_act": "silu"}, prefix="model.",
    ignored=lambda c: {"model.layers.*.self_attn.rotary_emb.inv_freq": None},
)  # fmt: skip
