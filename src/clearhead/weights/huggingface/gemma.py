"""Gemma 2 (Gemma Team 2024) and the text models of Gemma 3 (Gemma Team 2025) in Hugging Face's format, to and from GPT.

    ours (models/gpt.py)                   theirs
    embed.table                            model.embed_tokens.weight, and lm_head.weight if tied
    blocks.0.attn_norm, .attn_out_norm     model.layers.0.input_layernorm, .post_attention_layernorm
    blocks.0.mlp_norm, .mlp_out_norm       model.layers.0.pre_feedforward_layernorm, .post_feedforward_layernorm
    blocks.0.attn.query_norm               model.layers.0.self_attn.q_norm: Gemma 3

Both have norms on both sides of a sublayer, whose scale is 1 + weight, scaled embeddings, and windows in all blocks but
every n-th.

gemma2         scores and logits are capped
gemma3_text    queries and keys are normalised; blocks with a window have a rotary base of their own
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any, Literal

from ...checks import above_zero, at_least
from ...errors import InputError
from ...models.gpt import Config
from ...tokens.special import Special
from ..fill import Shapes, WeightsError
from ..table import Row, blocks, check_options, embeddings, pairs
from .llama import FREE, LINEAR, QK_NORMS, QKV, Decoder, decoder_keys, decoder_layout, read_rope

NORMS = {
    "blocks.{}.attn_norm": "model.layers.{}.input_layernorm",
    "blocks.{}.attn_out_norm": "model.layers.{}.post_attention_layernorm",
    "blocks.{}.mlp_norm": "model.layers.{}.pre_feedforward_layernorm",
    "blocks.{}.mlp_out_norm": "model.layers.{}.post_feedforward_layernorm",
}
FIXED: dict[str, Any] = {
    "positions": "rotary", "order": "both", "norm": "rms_plus_one", "mlp": "geglu", "bias": False, "scaled": True,
}  # fmt: skip
FULL, SLIDING = "full_attention", "sliding_attention"  # their kinds of layers
# every n-th block has no window, if a config does not say which
EVERY = {"gemma2": 2, "gemma3_text": 6}
GLOBAL_BASE, LOCAL_BASE = 1e6, 1e4  # default rotary bases of Gemma 3
# Defaults that differ.
DEFAULTS: dict[str, dict[str, Any]] = {
    "gemma2": {"final_logit_softcapping": 30.0, "attn_logit_softcapping": 50.0},
    "gemma3_text": {"vocab_size": 262208, "max_position_embeddings": 131072},
}


@dataclass(frozen=True, kw_only=True, slots=True)
class Gemma(Decoder):
    """The keys of their config.json that we read, with their defaults."""

    model_type: Literal["gemma2", "gemma3_text"] = "gemma2"
    vocab_size: int = 256000
    hidden_size: int = 2304
    intermediate_size: int = 9216
    num_hidden_layers: int = 26
    num_attention_heads: int = 8
    num_key_value_heads: int = 4
    head_dim: int = 256
    max_position_embeddings: int = 8192
    rms_norm_eps: float = 1e-6
    tie_word_embeddings: bool = True
    query_pre_attn_scalar: float = 256
    sliding_window: int = 4096
    sliding_window_pattern: int | None = None
    layer_types: list[str] | None = None
    final_logit_softcapping: float | None = None
    attn_logit_softcapping: float | None = None
    use_bidirectional_attention: bool = False
    rope_local_base_freq: float | None = None

    def __post_init__(self) -> None:
        Decoder.__post_init__(self)
        at_least(self, 1, "sliding_window_pattern")
        caps = ("final_logit_softcapping", "attn_logit_softcapping")
        above_zero(self, "query_pre_attn_scalar", *caps)
        if self.use_bidirectional_attention:
            raise InputError(
                "use_bidirectional_attention=True: expected a model that predicts the next token"
            )
        if self.model_type == "gemma3_text" and self.attn_logit_softcapping is not None:
            raise InputError(
                f"attn_logit_softcapping={self.attn_logit_softcapping}: a Gemma 3 has none"
            )

    def to_ours(self, shapes: Shapes) -> Config:
        """Convert these keys of config.json to the Config of our model."""
        windows = self._windows()
        if self.model_type == "gemma3_text":
            # a rotary base for windows is kept only if some block has one
            rope = self._gemma3_rope(has_windows="window" in windows)
        else:
            rope = read_rope(self.rope(), self.max_position_embeddings)
        # scores divided by sqrt(head_dim) are the default of our Config
        plain = self.query_pre_attn_scalar == self.head_dim
        return Config(
            scale=None if plain else self.query_pre_attn_scalar**-0.5,
            score_cap=self.attn_logit_softcapping,
            logit_cap=self.final_logit_softcapping,
            **self.sizes(),
            **FIXED,
            **windows,
            **rope,
        )

    def _windows(self) -> dict[str, Any]:
        """Which blocks have a window, as our options."""
        # newer files list the kind of each layer instead
        every = self.sliding_window_pattern or EVERY[self.model_type]
        if self.layer_types:
            every = self._listed()
        elif every > self.num_hidden_layers:
            every = 0  # no block is the n-th: all have a window
        # no block has a window
        if every == 1:
            return {}
        return {"window": self.sliding_window, "full_every": every or None}

    def _listed(self) -> int:
        """n, if every n-th layer of `layer_types` has full attention; 0 if all layers have a window."""
        # every n-th layer, with n the place of the first one without a window
        layers, depth = self.layer_types or [], self.num_hidden_layers
        if len(layers) != depth:
            raise InputError(
                f"layer_types has {len(layers)} words: expected num_hidden_layers={depth}"
            )
        every = layers.index(FULL) + 1 if FULL in layers else 0
        window = None if every == 1 else self.sliding_window
        if layers != _layer_types(depth, window, every or None):
            raise InputError(
                f"layer_types={layers}: expected {depth} of {SLIDING!r} and {FULL!r}, the latter at every n-th place"
            )
        return every

    def _gemma3_rope(self, *, has_windows: bool) -> dict[str, Any]:
        """The rotary positions of blocks with and without a window; older files have a key for the base of each."""
        # Gemma 3 has an entry for each kind of layer
        parameters = self.rope_parameters or {}
        # rope_scaling is that of the blocks without a window
        full = {"rope_theta": self.rope_theta or GLOBAL_BASE}
        full |= parameters.get(FULL) or {"rope_type": "default"}
        full |= self.rope_scaling or {}
        # an older key has only the base; the entry for these layers counts before it
        local = {"rope_theta": self.rope_local_base_freq or LOCAL_BASE}
        local |= parameters.get(SLIDING) or {}
        options = read_rope(full, self.max_position_embeddings)
        sliding = read_rope(local, self.max_position_embeddings)
        if sliding.keys() != {"base"}:
            # our option for windows is a base, without any scaling
            raise InputError(
                f"rope_type={local.get('rope_type')!r} of layers with a window: expected 'default'"
            )
        if has_windows:
            options["window_base"] = sliding["base"]
        return {**options, "qk_norm": "head"}


def _layer_types(depth: int, window: int | None, every: int | None) -> list[str]:
    """The kind of each layer."""
    types = []
    for i in range(depth):
        # the n-th block, counted from 1, is the one without a window
        is_full = window is None or (every and (i + 1) % every == 0)
        types.append(FULL if is_full else SLIDING)
    return types


def to_theirs(c: Config, special: Special) -> dict[str, Any]:
    """The config.json for our Config; raises for options that neither a Gemma 2 nor a Gemma 3 has."""
    if c.qk_norm:
        # queries and keys are normalised in a Gemma 3 only
        name, model_type, class_name = "a Gemma 3", "gemma3_text", "Gemma3ForCausalLM"
        own, fixed = {"window_base"}, {**FIXED, "qk_norm": "head"}
    else:
        # scores are capped in a Gemma 2 only
        name, model_type, class_name = "a Gemma 2", "gemma2", "Gemma2ForCausalLM"
        own, fixed = {"score_cap"}, {**FIXED, "qk_norm": None}
    free = (FREE - {"qk_norm", *FIXED}) | own | {"full_every", "scale", "logit_cap"}
    check_options(c, name, free, fixed)
    # query_pre_attn_scalar n: scores are divided by sqrt(n)
    scalar = c.head_width if c.scale is None else round(c.scale**-2)
    # n is a whole number in their file, and must give the same scale when it is read
    if c.scale is not None and abs(scalar * c.scale**2 - 1) > 1e-9:
        raise WeightsError(f"scale={c.scale}: {name} has 1 / sqrt(n) of a whole number n")
    if c.window is not None and c.qk_norm and c.window_base is None:
        raise WeightsError(
            f"window={c.window} without window_base: {name} has a rotary base for blocks with a window"
        )
    theirs = decoder_keys(c, model_type, class_name, special) | {
        "hidden_activation": "gelu_pytorch_tanh",
        "attention_bias": False,
        "query_pre_attn_scalar": scalar,
        "layer_types": _layer_types(c.depth, c.window, c.full_every),
        "final_logit_softcapping": c.logit_cap,
        "attn_logit_softcapping": c.score_cap,
    }
    if c.window is not None:
        theirs["sliding_window"] = c.window
    if c.qk_norm:
        local = LOCAL_BASE if c.window_base is None else c.window_base
        # newer versions of transformers read the base of each kind of layer here
        theirs["rope_parameters"] = {
            FULL: theirs["rope_parameters"],
            SLIDING: {"rope_theta": local, "rope_type": "default"},
        }
        # and older ones here
        theirs["rope_local_base_freq"] = local
    return theirs


def rows(c: Config) -> Iterator[Row]:
    """Yield the rows that map our parameters to their tensors."""
    yield from embeddings(c, "model.embed_tokens.weight")
    yield from pairs({"norm": "model.norm"}, ("weight",))
    yield from blocks(QKV | LINEAR | NORMS, c.depth, ("weight",))
    if c.qk_norm:
        yield from blocks(QK_NORMS, c.depth, ("weight",))


GEMMA = decoder_layout(
    theirs=Gemma,
    to_ours=Gemma.to_ours,
    to_theirs=to_theirs,
    rows=rows,
    defaults=DEFAULTS,
    fixed={"hidden_activation": "gelu_pytorch_tanh", "attention_bias": False},
)
LAYOUTS = {"gemma2": GEMMA, "gemma3_text": GEMMA}
