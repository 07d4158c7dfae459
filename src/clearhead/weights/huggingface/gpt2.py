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
from typing import Any, Literal

from ...checks import at_least
from ...models.gpt import Config
from ...tokens.special import Special
from ..fill import Shapes, WeightsError
from ..table import (
    JOINED,
    JOINED_TRANSPOSED,
    TRANSPOSED,
    Layout,
    Row,
    causal_lm_logits,
    pairs,
    special_keys,
)
from .tokenizers import folder_tokens, write_subwords

# Theirs: ours.
ACTIVATIONS = {
    "gelu_new": "gelu_tanh", "gelu_pytorch_tanh": "gelu_tanh", "gelu_fast": "gelu_tanh", "gelu": "gelu", "relu": "relu",
    "silu": "silu", "swish": "silu", "tanh": "tanh",
}  # fmt: skip
# Variants that our GPT does not have are refused.
FIXED = {
    "scale_attn_by_inverse_layer_idx": False,
    "scale_attn_weights": True,
    "add_cross_attention": False,
}


@dataclass(frozen=True, kw_only=True, slots=True)
class Theirs:
    """The keys of their config.json that we read, with their defaults."""

    vocab_size: int = 50257
    n_positions: int = 1024
    n_embd: int = 768
    n_layer: int = 12
    n_head: int = 12
    n_inner: int | None = None
    activation_function: Literal[
        "gelu_new", "gelu_pytorch_tanh", "gelu_fast", "gelu", "relu", "silu", "swish", "tanh"
    ] = "gelu_new"
    layer_norm_epsilon: float = 1e-5
    resid_pdrop: float = 0.1
    tie_word_embeddings: bool = True

    def __post_init__(self) -> None:
        at_least(self, 1, "vocab_size", "n_positions", "n_embd", "n_head", "n_inner")
        at_least(self, 0, "n_layer")

    def to_ours(self, shapes: Shapes) -> Config:
        """Our Config. Of their dropout rates only that of the residual stream is kept."""
        return Config(
            vocab=self.vocab_size,
            context=self.n_positions,
            width=self.n_embd,
            depth=self.n_layer,
            heads=self.n_head,
            hidden=self.n_inner,
            mlp=ACTIVATIONS[self.activation_function],  # type: ignore[arg-type]
            eps=self.layer_norm_epsilon,
            tied=self.tie_word_embeddings,
            dropout=self.resid_pdrop,
        )


def to_theirs(c: Config, special: Special) -> dict[str, Any]:
    """Their config.json; raises for options that a GPT-2 does not have."""
    plain = Config(vocab=1)  # whose defaults are GPT-2's
    free = {
        "vocab",
        "context",
        "width",
        "depth",
        "heads",
        "hidden",
        "mlp",
        "eps",
        "tied",
        "dropout",
    }
    for name in sorted(set(c.__slots__) - free):
        value, usual = getattr(c, name), getattr(plain, name)
        if value != usual and not (name == "kv_heads" and value == c.heads):
            raise WeightsError(f"{name}={value!r}: a GPT-2 has {name}={usual!r}")
    words = {mlp: word for word, mlp in reversed(ACTIVATIONS.items())}
    if c.mlp not in words:
        raise WeightsError(f"mlp={c.mlp!r}: a GPT-2 has one of {', '.join(words)}")
    theirs = Theirs(
        vocab_size=c.vocab,
        n_positions=c.context,
        n_embd=c.width,
        n_layer=c.depth,
        n_head=c.heads,
        n_inner=c.hidden,
        activation_function=words[c.mlp],  # type: ignore[arg-type]
        layer_norm_epsilon=c.eps,
        resid_pdrop=c.dropout,
        tie_word_embeddings=c.tied,
    )
    dropout = {"embd_pdrop": c.dropout, "attn_pdrop": c.dropout}
    kind = {"architectures": ["GPT2LMHeadModel"], "model_type": "gpt2"}
    return {**kind, **asdict(theirs), **dropout, **FIXED, **special_keys(special)}


def rows(c: Config) -> Iterator[Row]:
    """Our parameters and their names."""
    yield Row(("embed.table",), ("transformer.wte.weight", *(["lm_head.weight"] if c.tied else [])))
    if not c.tied:
        yield Row(("head.weight",), ("lm_head.weight",))
    yield Row(("positions.table",), ("transformer.wpe.weight",))
    yield from pairs({"norm": "transformer.ln_f"})
    for i in range(c.depth):
        ours, theirs = f"blocks.{i}", f"transformer.h.{i}"
        qkv = [f"{ours}.attn.{name}" for name in ("query", "key", "value")]
        for leaf, conversion in (("weight", JOINED_TRANSPOSED), ("bias", JOINED)):
            yield Row(
                tuple(f"{name}.{leaf}" for name in qkv),
                (f"{theirs}.attn.c_attn.{leaf}",),
                conversion,
            )
        yield from pairs(
            {f"{ours}.attn_norm": f"{theirs}.ln_1", f"{ours}.mlp_norm": f"{theirs}.ln_2"}
        )
        linear = {"attn.out": "attn.c_proj", "mlp.up": "mlp.c_fc", "mlp.down": "mlp.c_proj"}
        yield from pairs(
            {f"{ours}.{a}": f"{theirs}.{b}" for a, b in linear.items()}, conversion=TRANSPOSED
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
    fixed=FIXED,
    prefix="transformer.",
    reference=causal_lm_logits,
    # causal masks
    ignored=lambda c: dict.fromkeys(
        ["transformer.h.*.attn.bias", "transformer.h.*.attn.masked_bias"]
    ),
)
