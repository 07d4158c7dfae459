"""GPT: a decoder that predicts the next token at every position of a text.

Radford et al. 2018, Eq. 2, and 2019, section 2.3 (GPT-2: norms before each sublayer, a final norm; the output layer is
tied to the embedding). Every other choice is one option: rotary positions, grouped heads, RMS norms and a gated MLP
give Llama (Touvron et al. 2023, section 2.2); a window as well gives Mistral (Jiang et al. 2023, section 2); biases of
queries, keys and values only give Qwen2 (Yang et al. 2024).

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

from ..checks import at_least, fraction
from ..errors import InputError
from ..layers import Block, Cache, Linear, Mask, Tokens, make_norm, make_positions
from ..layers.words import DotScore, MLPKind, Norm, Order, Position, Projection, Rope
from .heads import check_heads
from .model import DecoderStack, Model, random_ids
from .state import DecoderState, KVState


@dataclass(frozen=True, kw_only=True, slots=True)
class Config:
    """The sizes and choices of a GPT; the defaults are GPT-2's."""

    vocab: int  # number of tokens in the vocabulary
    context: int = 1024  # tokens per row that it is trained on; learned positions have a table of this size
    width: int = 768  # width of the residual stream (d_model)
    depth: int = 12  # number of blocks
    heads: int = 12  # attention heads per block
    kv_heads: int | None = None  # key and value heads, each shared by heads / kv_heads query heads; None: heads
    head: int | None = None  # head dimension; None: width / heads
    hidden: int | None = None  # width inside the MLP; None: 4 x width
    positions: Position = "learned"  # how token order is encoded
    base: float = 10_000.0  # rotary: the longest wavelength is almost 2 pi base tokens
    scaling: Rope | None = None  # rotary: how positions are stretched to a longer context; None: not at all
    factor: float = 1.0  # rotary: ratio of the stretched context to the trained one
    trained: int | None = None  # rotary: tokens of the context before stretching; None: context / factor
    window: int | None = None  # number of keys that a query attends to, its own included; None: all before it
    score: DotScore = "scaled"  # how a query is compared with a key
    project: Projection = "qkv"  # which of queries, keys and values are projected
    order: Order = "pre"  # norm before each sublayer, or after each residual addition
    norm: Norm = "layer"  # kind of normalisation
    eps: float = 1e-5  # added to the variance in a norm
    mlp: MLPKind = "gelu_tanh"  # activation of the MLP; swiglu has a gate
    bias: bool | Literal["qkv"] = True  # linear maps have a bias; "qkv": only those of queries, keys and values
    tied: bool = True  # the weights of the output layer are the embedding table
    dropout: float = 0.0  # share dropped in training: of embeddings, attention weights, and what each sublayer adds

    def __post_init__(self) -> None:
        at_least(self, 1, "vocab", "context", "width", "heads", "kv_heads", "head", "hidden", "trained", "window")
        at_least(self, 0, "depth")
        fraction(self, "dropout")
        check_heads(self.width, self.heads, positions=self.positions, head=self.head, kv_heads=self.kv_heads)
        if self.positions != "rotary" and (self.scaling or self.base != 10_000.0):
            raise InputError(f"base and scaling are for positions='rotary', not {self.positions!r}")
        if self.base <= 1.0 or self.factor < 1.0:
            raise InputError(f"base={self.base}, factor={self.factor}: expected a base above 1, a factor of 1 or more")

    @property
    def head_width(self) -> int:
        """The head dimension."""
        return self.head or self.width // self.heads

    @property
    def endless(self) -> bool:
        """True if it reads texts of any length: it has a window, and no table or waves of absolute positions."""
        return self.window is not None and self.positions in ("none", "rotary", "alibi", "relative")


class GPT(Model):
    """Token ids (b, t) -> logits of each next token (b, t, v)."""

    can = frozenset({"predict", "generate", "encode"})
    methods: ClassVar[tuple[str, ...]] = ("states",)
    config: Config

    def __init__(self, config: Config) -> None:
        super().__init__()
        c = self.config = config
        # Sinusoids have amplitude 1: embeddings are scaled, so as not to drown (Vaswani et al. 2017, section 3.4).
        self.embed = Tokens(c.vocab, c.width, scale=c.positions == "sinusoid")
        rotary = c.positions == "rotary"
        stretch: dict[str, Any] = {"base": c.base, "scaling": c.scaling, "factor": c.factor} if rotary else {}
        self.positions = make_positions(
            c.positions, width=c.width, heads=c.heads, head=c.head_width, causal=True, **stretch,
            context=c.context if c.positions == "learned" else c.trained or int(c.context / c.factor),
        )  # fmt: skip
        self.blocks = nn.ModuleList(
            Block(
                c.width, c.heads, kv_heads=c.kv_heads, head=c.head, hidden=c.hidden, order=c.order, norm=c.norm,
                eps=c.eps, mlp=c.mlp, project=c.project, score=c.score, bias=c.bias, dropout=c.dropout,
            )
            for _ in range(c.depth)
        )  # fmt: skip
        self.norm = make_norm(c.norm if c.order == "pre" else "none", c.width, eps=c.eps)
        self.head = Linear(c.width, c.vocab, bias=False)
        if c.tied:
            self.head.weight = self.embed.table

    @property
    def max_tokens(self) -> int | None:
        return None if self.config.endless else self.config.context

    @property
    def decoder_stack(self) -> DecoderStack:
        return DecoderStack(
            embed=self.embed, positions=self.positions, blocks=self.blocks, norm=self.norm, head=self.head,
            window=self.config.window,
        )  # fmt: skip

    def example_inputs(self, rows: int, size: int, generator: torch.Generator) -> dict[str, Tensor]:
        return {"ids": random_ids(self.config.vocab, rows, min(size, self.config.context), generator)}

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
        at = torch.arange(ids.shape[1], device=ids.device) if at is None else at
        mask = Mask(causal=True, window=self.config.window, documents=documents)
        return self._run_blocks(self.positions.add(self.embed(ids), at), mask, at)

    def encode(self, ids: Int[Tensor, "b t"], *, lengths: Int[Tensor, "b"] | None = None) -> Float[Tensor, "b t d"]:
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
            raise InputError(f"{limit} tokens, prompt and answer together: this model reads {c.context} at once")
        attention = cast(Block, self.blocks[0]).attn if c.depth else None
        return DecoderState(
            KVState(
                c.depth, rows, c.kv_heads or c.heads, limit, c.head_width,
                value=None if attention is None else attention.value_width, dtype=like.dtype, device=like.device,
            )
        )  # fmt: skip

    def read(
        self, ids: Int[Tensor, "b t"], state: DecoderState, counts: Int[Tensor, "b"] | None = None
    ) -> DecoderState:
        """Append prompt tokens without computing logits: the first `counts[i]` of row i, or all of them."""
        self._append(ids, state)
        state.kv.advance(ids.shape[1] if counts is None else counts)
        return state

    def step(self, ids: Int[Tensor, "b t"], state: DecoderState) -> tuple[Float[Tensor, "b t v"], DecoderState]:
        """Append tokens to every row, and return the logits after each of them."""
        x = self._append(ids, state)
        state.kv.advance(ids.shape[1])
        return self.head(x), state

    def _append(self, ids: Tensor, state: DecoderState) -> Tensor:
        at = state.kv.positions(ids.shape[1])
        x = self.positions.add(self.embed(ids), at)
        return self._run_blocks(x, state.kv.mask(self.config.window), at, state.kv.caches)

    def _run_blocks(self, x: Tensor, mask: Mask, at: Tensor, caches: Sequence[Cache | None] = ()) -> Tensor:
        x = F.dropout(x, self.config.dropout, self.training)
        for block, cache in zip(self.blocks, caches or [None] * len(self.blocks), strict=False):
            x = block(x, mask=mask, positions=self.positions, at=at, cache=cache)
        return self.norm(x)
