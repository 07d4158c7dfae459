"""GPT: a decoder that reads a text and says, at every token, which one comes next.

Radford et al. 2018 and 2019 (GPT-2: learned positions, norms before, a final norm, the readout tied to the
embedding). Every choice of the core is one word of the config: rotary positions, grouped heads, rms norms and a
gated MLP turn it into the Llama of Touvron et al. 2023; a window besides into the Mistral of Jiang et al. 2023, and
biases of queries, keys and values alone into Qwen2 (Yang et al. 2024).

    ids -> embed (+ positions) -> dropout -> blocks -> norm -> head -> logits

Decoding: start makes room, read takes a prompt, each row of its own length, and step writes.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Literal, cast

import torch
import torch.nn.functional as F
from jaxtyping import Float, Int
from torch import Tensor, nn

from ..errors import InputError
from ..layers import Block, Cache, Linear, Mask, Swift, Tokens, make_norm, make_positions
from ..layers.fused import rows_allowed
from .state import KVState


@dataclass(frozen=True, kw_only=True, slots=True)
class Config:
    """The sizes and choices of a GPT; the defaults are GPT-2's."""

    vocab: int  # different tokens
    context: int = 1024  # tokens it is trained to read at once
    width: int = 768  # of the stream of vectors, one a token
    depth: int = 12  # blocks
    heads: int = 12  # of attention, in each block
    kv_heads: int | None = None  # key and value heads, each serving heads / kv_heads; None for as many as heads
    head: int | None = None  # width of a head; None for width / heads
    hidden: int | None = None  # width inside the MLP; None for 4 x width
    positions: Literal["none", "sinusoid", "learned", "rotary", "alibi", "relative"] = "learned"  # how order is told
    base: float = 10_000.0  # rotary: of the wavelengths, the longest of which is nearly 2 pi base tokens
    scaling: Literal["linear", "ntk", "yarn", "llama3"] | None = None  # rotary: how a shorter context was stretched
    factor: float = 1.0  # rotary: by how much
    trained: int | None = None  # rotary: tokens of the context before it was stretched; None for context / factor
    window: int | None = None  # a token looks at so many, itself the last of them; None: at all before it
    score: Literal["dot", "scaled", "cosine"] = "scaled"  # how a query is compared with a key
    project: Literal["qkv", "q=k", "k=v", "q=k=v", "qk", "none"] = "qkv"  # which of queries, keys, values are learned
    order: Literal["pre", "post"] = "pre"  # norms before what a block adds, or after it
    norm: Literal["layer", "rms", "none"] = "layer"  # keeps the stream's size
    eps: float = 1e-5  # added to a variance before its root
    mlp: Literal["relu", "leaky_relu", "gelu", "gelu_tanh", "silu", "tanh", "swiglu"] = "gelu_tanh"  # its activation
    bias: bool | Literal["qkv"] = True  # linear maps have one; "qkv": only those of queries, keys and values
    tied: bool = True  # the readout is the embedding's table
    dropout: float = 0.0  # share of what is dropped, in training

    def __post_init__(self) -> None:
        for name in ("vocab", "context", "width", "heads", "kv_heads", "head", "hidden", "trained", "window"):
            if getattr(self, name) is not None and getattr(self, name) < 1:
                raise InputError(f"{name}={getattr(self, name)}: expected 1 or more")
        if self.depth < 0:
            raise InputError(f"depth={self.depth}: expected 0 or more")
        if self.head is None and self.width % self.heads:
            raise InputError(f"width={self.width} does not divide into heads={self.heads}: give head, the width of one")
        if self.kv_heads is not None and self.heads % self.kv_heads:
            raise InputError(f"kv_heads={self.kv_heads} does not divide heads={self.heads}")
        if self.positions == "rotary" and self.each % 2:
            raise InputError(f"positions='rotary' turn pairs of columns: a head's width of {self.each} is not even")
        if self.positions != "rotary" and (self.scaling or self.base != 10_000.0):
            raise InputError(f"base and scaling are of positions='rotary', and these are {self.positions!r}")
        if self.base <= 1.0 or self.factor < 1.0:
            raise InputError(f"base={self.base}, factor={self.factor}: expected a base above 1, a factor of 1 or more")
        if not 0.0 <= self.dropout < 1.0:
            raise InputError(f"dropout={self.dropout}: expected a share from 0 to below 1")

    @property
    def each(self) -> int:
        """The width of a head."""
        return self.head or self.width // self.heads

    @property
    def endless(self) -> bool:
        """Whether texts of any length look to it like those of its context."""
        return self.window is not None and self.positions in ("none", "rotary", "alibi", "relative")


class State(KVState):
    """What each row has read and written, and the quick way to go on by one token, where there is one."""

    swift: Swift | None = None


class GPT(nn.Module):
    """Token ids (b, t) -> the logits of each next token (b, t, v)."""

    def __init__(self, config: Config) -> None:
        super().__init__()
        c = self.config = config
        waves = c.positions == "sinusoid"  # as large as 1: a small table would drown in them (Vaswani et al. 2017, 3.4)
        self.embed = Tokens(c.vocab, c.width, scale=waves)
        rotary = c.positions == "rotary"
        stretch: dict[str, Any] = {"base": c.base, "scaling": c.scaling, "factor": c.factor} if rotary else {}
        self.positions = make_positions(
            c.positions, width=c.width, heads=c.heads, head=c.each, causal=True, **stretch,
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
    def reach(self) -> int | None:
        """Tokens of a text that it can read at once, prompt and answer together; None: any number."""
        return None if self.config.endless else self.config.context

    def states(
        self,
        ids: Int[Tensor, "b t"],
        *,
        documents: Int[Tensor, "b t"] | None = None,
        at: Int[Tensor, "*b t"] | None = None,
    ) -> Float[Tensor, "b t d"]:
        """What the model has made of each token, ready for the readout.

        `documents` numbers the texts that were packed into one row, none of which sees another; `at` says where
        each token stands in its own.
        """
        at = torch.arange(ids.shape[1], device=ids.device) if at is None else at
        mask = Mask(causal=True, window=self.config.window, documents=documents)
        return self._through(self.positions.add(self.embed(ids), at), mask, at)

    def forward(
        self,
        ids: Int[Tensor, "b t"],
        *,
        documents: Int[Tensor, "b t"] | None = None,
        at: Int[Tensor, "*b t"] | None = None,
    ) -> Float[Tensor, "b t v"]:
        return self.head(self.states(ids, documents=documents, at=at))

    def start(self, inputs: Mapping[str, Tensor], rows: int, limit: int) -> State:
        """Make room for `limit` tokens a row, those of the prompt among them; there is nothing to read before them."""
        c, like = self.config, self.embed.table
        if self.reach is not None and limit > self.reach:
            raise InputError(f"{limit} tokens, prompt and answer together: this model reads {c.context} at once")
        state = State(c.depth, rows, c.kv_heads or c.heads, limit, c.each, dtype=like.dtype, device=like.device)
        if not self.training and not torch.is_grad_enabled():
            for block in self.blocks:
                cast(Block, block).join()
            if like.device.type == "cpu":
                state.swift = Swift.of(self.blocks, self.positions, c.window)
        return state

    def read(self, ids: Int[Tensor, "b t"], state: State, counts: Int[Tensor, "b"] | None = None) -> State:
        """Read tokens of which nothing is asked: a prompt but for its last. Of each row only the first `counts`."""
        self._step(ids, state)
        state.advance(ids.shape[1] if counts is None else counts)
        return state

    def step(self, ids: Int[Tensor, "b t"], state: State) -> tuple[Float[Tensor, "b t v"], State]:
        """Write the next tokens of every row, and say what may come after each."""
        x = self._step(ids, state)
        state.advance(ids.shape[1])
        return self.head(x), state

    def _step(self, ids: Tensor, state: State) -> Tensor:
        at, mask = state.positions(ids.shape[1]), state.mask(self.config.window)
        x = self.positions.add(self.embed(ids), at)
        if ids.shape[1] == 1 and state.swift is not None and state.swift.unheard:
            allowed = rows_allowed(mask, state.caches[0].furthest + 1, ids.device)
            quick = state.swift(x, at, state.caches, allowed)
            if quick is not None:
                return self.norm(quick)
        return self._through(x, mask, at, state.caches)

    def _through(self, x: Tensor, mask: Mask, at: Tensor, caches: Sequence[Cache | None] = ()) -> Tensor:
        x = F.dropout(x, self.config.dropout, self.training)
        for block, cache in zip(self.blocks, caches or [None] * len(self.blocks), strict=False):
            x = block(x, mask=mask, positions=self.positions, at=at, cache=cache)
        return self.norm(x)
