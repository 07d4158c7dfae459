"""GPT: a decoder that predicts the next token at every position of a text.

Radford et al. 2018, Eq. 2, and 2019, section 2.3 (GPT-2: norms before each sublayer, a final norm; the output layer is
tied to the embedding). Every other choice is one option: rotary positions, grouped heads, RMS norms and a gated MLP
give Llama (Touvron et al. 2023, section 2.2); a window as well gives Mistral (Jiang et al. 2023, section 2); biases of
queries, keys and values only give Qwen2 (Yang et al. 2024), norms of queries and keys Qwen3 (Yang et al. 2025), and
norms of each sublayer's output OLMo 2 (OLMo team 2024). Gemma 2 and 3 (Gemma Team 2024, 2025) have norms on both sides
of a sublayer, windows in most of the blocks only, and capped scores and logits (2) or two rotary bases (3).

    ids -> embed (+ positions) -> dropout -> blocks -> norm -> head -> logits

To decode, `start` makes the KV cache, `read` fills it with prompts, which may differ in length, and `step` appends
tokens.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, ClassVar, Literal, cast

import torch
import torch.nn.functional as F
from jaxtyping import Float, Int
from torch import Tensor, nn

from ..checks import above_zero, at_least, fraction
from ..errors import InputError
from ..layers import (
    Block,
    Cache,
    Dot,
    Linear,
    Mask,
    Positions,
    Readout,
    Tokens,
    make_norm,
    make_positions,
)
from ..layers.choices import DotScore, MLPKind, Norm, Order, Position, Projection, QKNorm, Rope
from .decoder_state import DecoderState, KVState
from .model import DecoderStack, Model, check_heads


@dataclass(frozen=True, kw_only=True, slots=True)
class Config:
    """The sizes and choices of a GPT; the defaults are GPT-2's."""

    vocab: int  # number of tokens in the vocabulary
    # tokens per row that it is trained on; learned positions have a table of this size
    context: int = 1024
    width: int = 768  # width of the residual stream (d_model)
    depth: int = 12  # number of blocks
    heads: int = 12  # attention heads per block
    # key and value heads, each shared by heads / kv_heads query heads; None: heads
    kv_heads: int | None = None
    head: int | None = None  # head dimension; None: width / heads
    hidden: int | None = None  # width inside the MLP; None: 4 x width
    positions: Position = "learned"  # how token order is encoded
    base: float = 10_000.0  # rotary: the longest wavelength is almost 2 pi base tokens
    # rotary: how positions are stretched to a longer context; None: not at all
    scaling: Rope | None = None
    factor: float = 1.0  # rotary: ratio of the stretched context to the trained one
    # rotary: tokens of the context before stretching; None: context / factor
    trained: int | None = None
    # rotary: columns of a head that are rotated, the first ones; None: all
    rotated: int | None = None
    # number of keys that a query attends to, its own included; None: all before it
    window: int | None = None
    # with a window: every n-th block attends to all keys; None: no block does
    full_every: int | None = None
    # rotary: base in blocks with a window, not stretched; None: as in the others
    window_base: float | None = None
    score: DotScore = "scaled"  # how a query is compared with a key
    scale: float | None = None  # factor of the scores; None: as `score` says
    score_cap: float | None = None  # scores s become cap x tanh(s / cap); None: they stay
    # queries and keys are normalised: each head, or over the whole width; None: not
    qk_norm: QKNorm | None = None
    project: Projection = "qkv"  # which of queries, keys and values are projected
    # norms before each sublayer, after each addition, of each output, or before and of output
    order: Order = "pre"
    norm: Norm = "layer"  # kind of normalisation
    eps: float = 1e-5  # added to the variance in a norm
    mlp: MLPKind = "gelu_tanh"  # activation of the MLP; swiglu and geglu have a gate
    # linear maps have a bias; "qkv": only those of queries, keys and values
    bias: bool | Literal["qkv"] = True
    # embeddings are multiplied by sqrt(width); None: only with sinusoid positions
    scaled: bool | None = None
    tied: bool = True  # the weights of the output layer are the embedding table
    logit_cap: float | None = None  # logits z become cap x tanh(z / cap); None: they stay
    # share dropped in training: of embeddings, attention weights, and what each sublayer adds
    dropout: float = 0.0

    def __post_init__(self) -> None:
        at_least(
            self,
            1,
            "vocab",
            "context",
            "width",
            "heads",
            "kv_heads",
            "head",
            "hidden",
            "trained",
            "rotated",
            "window",
            "full_every",
        )
        at_least(self, 0, "depth")
        above_zero(self, "scale", "score_cap", "logit_cap", "window_base")
        fraction(self, "dropout")
        # with `rotated`, it is that number which must be even, and not the head width
        positions = self.positions if self.rotated is None else "none"
        check_heads(
            self.width, self.heads, positions=positions, head=self.head, kv_heads=self.kv_heads
        )
        if self.rotated is not None and (self.rotated % 2 or self.rotated > self.head_width):
            raise InputError(
                f"rotated={self.rotated}: expected an even number, at most the {self.head_width} of a head"
            )
        rotary = self.scaling or self.base != 10_000.0 or self.rotated or self.window_base
        if self.positions != "rotary" and rotary:
            words = "base, scaling, rotated and window_base"
            # other positions would ignore these options in silence
            raise InputError(f"{words} are for positions='rotary', not {self.positions!r}")
        if self.window is None and (self.full_every or self.window_base):
            raise InputError("full_every and window_base are for blocks with a window: give window")
        if self.score != "scaled" and (self.scale or self.score_cap):
            raise InputError(f"scale and score_cap are for score='scaled', not {self.score!r}")
        if self.base <= 1.0 or self.factor < 1.0:
            raise InputError(
                f"base={self.base}, factor={self.factor}: expected a base above 1, a factor of 1 or more"
            )

    @property
    def head_width(self) -> int:
        """The head dimension."""
        return self.head or self.width // self.heads

    @property
    def endless(self) -> bool:
        """True if it reads texts of any length: all blocks have a window, and positions are not absolute."""
        windows = self.window is not None and self.full_every is None
        return windows and self.positions in ("none", "rotary", "alibi", "relative")

    def window_of(self, block: int) -> int | None:
        """The window of a block; None if it attends to all keys."""
        if self.full_every and (block + 1) % self.full_every == 0:
            return None
        return self.window


class GPT(Model):
    """Token ids (b, t) -> logits of each next token (b, t, v)."""

    can = frozenset({"predict", "generate", "encode"})
    methods: ClassVar[tuple[str, ...]] = ("states",)
    config: Config

    def __init__(self, config: Config) -> None:
        super().__init__()
        c = self.config = config
        # Sinusoids have amplitude 1: embeddings are scaled, so as not to drown (Vaswani et al. 2017, section 3.4).
        scaled = c.positions == "sinusoid" if c.scaled is None else c.scaled
        self.embed = Tokens(c.vocab, c.width, scale=scaled)
        self.positions = _positions(c, base=c.base, scaling=c.scaling, factor=c.factor)
        # Gemma 3: blocks with a window rotate faster than those that see the whole text
        self.window_positions: Positions | None = None
        if c.window_base is not None:
            self.window_positions = _positions(c, base=c.window_base)
        score: DotScore | Dot = c.score
        if c.scale is not None or c.score_cap is not None:
            # the score "scaled" has a fixed scale, 1 / sqrt(head dimension), and no cap
            score = Dot(c.scale, c.score_cap)
        self.blocks = nn.ModuleList(
            Block(
                c.width,
                c.heads,
                kv_heads=c.kv_heads,
                head=c.head,
                hidden=c.hidden,
                order=c.order,
                norm=c.norm,
                eps=c.eps,
                mlp=c.mlp,
                project=c.project,
                score=score,
                qk_norm=c.qk_norm,
                bias=c.bias,
                dropout=c.dropout,
            )
            for _ in range(c.depth)
        )
        # a block that ends with a norm needs none after it
        self.norm = make_norm("none" if c.order == "post" else c.norm, c.width, eps=c.eps)
        self.head: Linear
        if c.logit_cap is None:
            self.head = Linear(c.width, c.vocab, bias=False)
        else:
            # Gemma 2, section 2: cap * tanh(z / cap)
            self.head = Readout(c.width, c.vocab, cap=c.logit_cap)
        if c.tied:
            # one parameter under two names: gradients of both uses add up
            self.head.weight = self.embed.table

    @property
    def max_tokens(self) -> int | None:
        return None if self.config.endless else self.config.context

    @property
    def decoder_stack(self) -> DecoderStack | None:
        # a fast decoder has one mask and one table of angles for all blocks
        if self.config.full_every or self.window_positions is not None:
            return None  # blocks differ in their windows, or in their positions
        return DecoderStack(
            embed=self.embed,
            positions=self.positions,
            blocks=self.blocks,
            norm=self.norm,
            head=self.head,
            window=self.config.window,
        )

    def states(
        self,
        ids: Int[Tensor, "b t"],
        *,
        documents: Int[Tensor, "b t"] | None = None,
        at: Int[Tensor, "*b t"] | None = None,
    ) -> Float[Tensor, "b t d"]:
        """The residual stream after the final norm: the input of `head`.

        Args:
            ids: Token ids.
            documents: Document number of each token of packed rows; no token attends to another document.
            at: Position of each token in its own document; 0, 1, ... if not given.
        """
        if at is None:
            at = torch.arange(ids.shape[1], device=ids.device)
        # one mask per window, shared by all its blocks, so that kernels prepare it once
        masks = {w: Mask(causal=True, window=w, documents=documents) for w in self._windows()}
        x = self.positions.add(self.embed(ids), at)
        return self._run_blocks(x, masks, at)

    def encode(
        self, ids: Int[Tensor, "b t"], *, lengths: Int[Tensor, "b"] | None = None
    ) -> Float[Tensor, "b t d"]:
        """A vector per token: `states`. `lengths` is not needed, since no token attends to padding after it."""
        return self.states(ids)

    def forward(
        self,
        ids: Int[Tensor, "b t"],
        *,
        documents: Int[Tensor, "b t"] | None = None,
        at: Int[Tensor, "*b t"] | None = None,
    ) -> Float[Tensor, "b t v"]:
        return self.head(self.states(ids, documents=documents, at=at))

    def start(self, inputs: Mapping[str, Tensor], rows: int, limit: int) -> DecoderState:
        """Make a KV cache for `limit` tokens per row, prompt and answer together. `inputs` is empty."""
        c, like = self.config, self.embed.table
        if self.max_tokens is not None and limit > self.max_tokens:
            # the model was not trained on later positions, and a learned table has no rows for them
            raise InputError(
                f"{limit} tokens, prompt and answer together: this model reads {c.context} at once"
            )
        value = None
        if c.depth:  # values that are not projected may be wider than keys
            value = cast(Block, self.blocks[0]).attn.value_width
        # with grouped heads the cache holds only the key heads
        kv = KVState(
            c.depth,
            rows,
            c.kv_heads or c.heads,
            limit,
            c.head_width,
            value=value,
            dtype=like.dtype,
            device=like.device,
        )
        return DecoderState(kv)

    def read(
        self, ids: Int[Tensor, "b t"], state: DecoderState, counts: Int[Tensor, "b"] | None = None
    ) -> DecoderState:
        """Append prompt tokens without computing logits: the first `counts[i]` of row i, or all of them."""
        self._append(ids, state)
        # a row advances by the tokens that it really had: the next ones overwrite its padding
        state.kv.advance(ids.shape[1] if counts is None else counts)
        return state

    def step(
        self, ids: Int[Tensor, "b t"], state: DecoderState
    ) -> tuple[Float[Tensor, "b t v"], DecoderState]:
        """Append tokens to every row, and return the logits after each of them."""
        x = self._append(ids, state)
        state.kv.advance(ids.shape[1])
        return self.head(x), state

    def _append(self, ids: Tensor, state: DecoderState) -> Tensor:
        at = state.kv.positions(ids.shape[1])  # (b, t): rows may be at different positions
        x = self.positions.add(self.embed(ids), at)
        # one mask per kind of block, over the keys of the cache and the new ones
        masks = {window: state.kv.mask(window) for window in self._windows()}
        return self._run_blocks(x, masks, at, state.kv.caches)

    def _windows(self) -> set[int | None]:
        """The different windows of its blocks; None stands for blocks that attend to all keys."""
        return {self.config.window_of(i) for i in range(self.config.depth)}

    def _run_blocks(
        self,
        x: Tensor,
        masks: Mapping[int | None, Mask],
        at: Tensor,
        caches: Sequence[Cache | None] = (),
    ) -> Tensor:
        """The blocks and the final norm; `masks` has the mask of each window."""
        x = F.dropout(x, self.config.dropout, self.training)
        for i, block in enumerate(self.blocks):
            # blocks with and without a window interleave; each kind has one mask
            window = self.config.window_of(i)
            positions = self.positions
            if window is not None and self.window_positions is not None:
                # blocks with a window have a rotary base of their own
                positions = self.window_positions
            # each block has its own keys and values; outside decoding there are none to keep
            cache = caches[i] if caches else None
            x = block(x, mask=masks[window], positions=positions, at=at, cache=cache)
        return self.norm(x)


def _positions(c: Config, **rotary: Any) -> Positions:
    # `rotary` holds the options of rotary positions, and so of no other kind
    options: dict[str, Any] = {}
    if c.positions == "rotary":
        options = {**rotary, "columns": c.rotated}
    context = c.context
    # a learned table has the stretched context, others know the trained one
    if c.positions != "learned":
        context = c.trained or int(c.context / c.factor)
    return make_positions(
        c.positions,
        width=c.width,
        heads=c.heads,
        head=c.head_width,
        causal=True,
        context=context,
        **options,
    )
