"""T5 (Raffel et al. 2020) and T5 v1.1, such as Flan-T5, in Hugging Face's format, to and from our Transformer.

    ours (models/transformer.py)           theirs
    encoder.embed.table                    shared.weight
    encoder.positions.table                encoder.block.0.layer.0.SelfAttention.relative_attention_bias.weight
    encoder.blocks.0.attn.query            encoder.block.0.layer.0.SelfAttention.q
    decoder.blocks.0.mlp.up                decoder.block.0.layer.2.DenseReluDense.wi, or .wi_1 with a gate
    encoder.norm                           encoder.final_layer_norm

All blocks of a side share one bias by distance; scores are not scaled, and no map has a bias. The first T5 divides the
input of the output layer by sqrt(width); version 1.1 does not, and has a gated MLP and an output layer of its own.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any, Literal

from ...checks import at_least
from ...errors import InputError
from ...layers.choices import MLPKind
from ...models.transformer import Config
from ...tokens.special import Special, first_known
from ..fill import Shapes, WeightsError
from ..table import Layout, Row, blocks, check_options, read_options, write_options
from .marian import reference
from .tokenizer_classes import read_pair, write_pair

# feed_forward_proj: their activation, and whether there is a gate.
WORDS = {
    "relu": ("relu", False), "gelu": ("gelu", False), "gelu_new": ("gelu_new", False), "silu": ("silu", False),
    "gated-gelu": ("gelu_new", True), "gated-silu": ("silu", True),
}  # fmt: skip
# Their activation and whether there is a gate: our MLP.
MLPS: dict[tuple[str, bool], MLPKind] = {
    ("relu", False): "relu", ("gelu", False): "gelu", ("gelu_new", False): "gelu_tanh", ("silu", False): "silu",
    ("gelu_new", True): "geglu", ("silu", True): "swiglu",
}  # fmt: skip
# The layers of each kind of sublayer, one per line. Ours: theirs.
SELF_ATTENTION = {
    "attn.query": "SelfAttention.q",
    "attn.key": "SelfAttention.k",
    "attn.value": "SelfAttention.v",
    "attn.out": "SelfAttention.o",
    "attn_norm": "layer_norm",
}
CROSS_ATTENTION = {
    "cross.query": "EncDecAttention.q",
    "cross.key": "EncDecAttention.k",
    "cross.value": "EncDecAttention.v",
    "cross.out": "EncDecAttention.o",
    "cross_norm": "layer_norm",
}
MLP = {
    "mlp.up": "DenseReluDense.wi",
    "mlp.down": "DenseReluDense.wo",
    "mlp_norm": "layer_norm",
}
GATED_MLP = {
    "mlp.gate": "DenseReluDense.wi_0",
    "mlp.up": "DenseReluDense.wi_1",
    "mlp.down": "DenseReluDense.wo",
    "mlp_norm": "layer_norm",
}
TABLES = ("shared.weight", "encoder.embed_tokens.weight", "decoder.embed_tokens.weight")
READOUT = "lm_head.weight"
FIXED: dict[str, Any] = {
    "positions": "relative", "order": "pre", "norm": "rms", "score": "dot", "bias": False, "scaled": False,
}  # fmt: skip
# Keys of config.json, and the options of our Config that they are.
SIZES = {
    "vocab_size": "vocab",
    "n_positions": "context",
    "d_model": "width",
    "num_layers": "depth",
    "num_heads": "heads",
    "relative_attention_num_buckets": "buckets",
    "relative_attention_max_distance": "reach",
    "layer_norm_epsilon": "eps",
    "dropout_rate": "dropout",
}
FREE = {
    *SIZES.values(), "decoder_depth", "head", "hidden", "mlp", "tied", "readout_scaled", "inner_dropout",
}  # fmt: skip


@dataclass(frozen=True, kw_only=True, slots=True)
class T5Keys:
    """The keys of their config.json that we read, with their defaults."""

    vocab_size: int = 32128
    d_model: int = 512
    d_kv: int = 64
    d_ff: int = 2048
    num_layers: int = 6
    num_decoder_layers: int | None = None
    num_heads: int = 8
    relative_attention_num_buckets: int = 32
    relative_attention_max_distance: int = 128
    dropout_rate: float = 0.1
    layer_norm_epsilon: float = 1e-6
    feed_forward_proj: Literal["relu", "gelu", "gelu_new", "silu", "gated-gelu", "gated-silu"] = (
        "relu"
    )
    dense_act_fn: str | None = None  # the activation of feed_forward_proj, if that is another
    is_gated_act: bool | None = None  # whether there is a gate, if feed_forward_proj says otherwise
    tie_word_embeddings: bool = True
    # whether the input of the output layer is divided by sqrt(width)
    scale_decoder_outputs: bool | None = None
    n_positions: int = 512

    def __post_init__(self) -> None:
        sizes = ("vocab_size", "d_model", "d_kv", "d_ff", "num_heads", "num_decoder_layers")
        buckets = ("relative_attention_num_buckets", "relative_attention_max_distance")
        at_least(self, 1, *sizes, *buckets, "n_positions")
        at_least(self, 0, "num_layers")

    def to_ours(self, shapes: Shapes) -> Config:
        """Convert these keys of config.json to the Config of our model."""
        # older files mean it by tie_word_embeddings
        scaled = self.scale_decoder_outputs
        if scaled is None:
            scaled = self.tie_word_embeddings
        # heads that share the width evenly need no option
        is_even = self.d_kv * self.num_heads == self.d_model
        return Config(
            **read_options(self, SIZES),
            decoder_depth=self.num_decoder_layers or self.num_layers,
            head=None if is_even else self.d_kv,
            hidden=self.d_ff,
            mlp=self._mlp(),
            # an output layer in the file is a table of its own, unless its input is scaled
            tied=scaled or READOUT not in shapes,
            readout_scaled=scaled,
            **FIXED,
        )

    def _mlp(self) -> MLPKind:
        """The kind of our MLP: the two newer keys win over the older one."""
        # "gated-gelu" and so on; newer files have two keys as well
        word, gated = WORDS[self.feed_forward_proj]
        if self.is_gated_act is not None:
            gated = self.is_gated_act
        chosen = (self.dense_act_fn or word, gated)
        if chosen not in MLPS:
            known = ", ".join(f"{act} with{'' if gate else 'out'} a gate" for act, gate in MLPS)
            raise InputError(
                f"dense_act_fn={chosen[0]!r}, is_gated_act={chosen[1]}: expected one of {known}"
            )
        return MLPS[chosen]


def to_theirs(c: Config, special: Special) -> dict[str, Any]:
    """The config.json for our Config; raises for options that a T5 does not have."""
    check_options(c, "a T5", FREE, FIXED)
    words: dict[MLPKind, str] = {MLPS[key]: word for word, key in WORDS.items()}
    if c.mlp not in words:
        raise WeightsError(f"mlp={c.mlp!r}: a T5 has one of {', '.join(words)}")
    # tie_word_embeddings means both in their config
    if c.readout_scaled and not c.tied:
        raise WeightsError(
            "readout_scaled=True, tied=False: a T5 scales the input of a tied output layer only"
        )
    if not c.depth:
        raise WeightsError("depth=0: a T5 has its positions in the first block")
    # the ids of all published T5: 0 for padding, 1 for EOS
    pad, end = first_known(special.pad, 0), first_known(special.end, 1)
    return {
        "architectures": ["T5ForConditionalGeneration"],
        "model_type": "t5",
        "is_encoder_decoder": True,
        **write_options(c, SIZES),
        "d_kv": c.head_width,
        # None is four times the width
        "d_ff": c.hidden or 4 * c.width,
        "num_decoder_layers": c.decoder_depth or c.depth,
        "feed_forward_proj": words[c.mlp],
        # by which older versions of transformers decide whether the input is scaled
        "tie_word_embeddings": c.readout_scaled,
        "scale_decoder_outputs": c.readout_scaled,
        "pad_token_id": pad,
        # T5 starts from padding
        "decoder_start_token_id": first_known(special.start, pad),
        "eos_token_id": end,
    }


def rows(c: Config) -> Iterator[Row]:
    """Yield the rows that map our parameters to their tensors."""
    yield Row(("encoder.embed.table",), (*TABLES, READOUT) if c.tied else TABLES)
    if not c.tied:
        yield Row(("head.weight",), (READOUT,))
    gated = c.mlp in ("geglu", "swiglu")
    for side, depth in (("encoder", c.depth), ("decoder", c.decoder_depth or c.depth)):
        # the bias by distance, which all blocks of a side share, is stored in the first
        first = f"{side}.block.0.layer.0.SelfAttention"
        yield Row((f"{side}.positions.table",), (f"{first}.relative_attention_bias.weight",))
        yield Row((f"{side}.norm.weight",), (f"{side}.final_layer_norm.weight",))
        # a block of the decoder has three sublayers, of which the MLP is the last
        sublayers = [SELF_ATTENTION]
        if side == "decoder":
            sublayers.append(CROSS_ATTENTION)
        sublayers.append(GATED_MLP if gated else MLP)
        for number, layers in enumerate(sublayers):
            at = f"{side}.block.{{}}.layer.{number}"
            names = {f"{side}.blocks.{{}}.{a}": f"{at}.{b}" for a, b in layers.items()}
            yield from blocks(names, depth, ("weight",))


T5 = Layout(
    model="transformer",
    theirs=T5Keys,
    to_ours=T5Keys.to_ours,
    to_theirs=to_theirs,
    rows=rows,
    read_tokens=lambda folder, theirs: read_pair(folder, "T5Tokenizer"),
    write_tokens=write_pair,
    reference=reference,
    fixed={"is_decoder": False},
    ignored=lambda c: {
        "decoder.block.0.layer.1.EncDecAttention.relative_attention_bias.weight": None
    },
)
LAYOUTS = {"t5": T5}
