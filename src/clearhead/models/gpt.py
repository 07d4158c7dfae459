"""GPT: a decoder that reads a text and says, at every token, which one comes next.

Radford et al. 2018 and 2019 (GPT-2: learned positions, norms before, a final norm, the readout tied to the
embedding). Every choice of the core is one word of the config: rotary positions, grouped heads, rms norms and a
gated MLP turn it into the Llama of Touvron et al. 2023.

    ids -> embed (+ positions) -> dropout -> blocks -> norm -> head -> logits
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

import torch.nn.functional as F
from jaxtyping import Float, Int
from torch import Tensor, nn

from ..layers import Block, Linear, Mask, Tokens, make_norm, make_positions


@dataclass(frozen=True, kw_only=True, slots=True)
class Config:
    """The sizes and choices of a GPT; the defaults are GPT-2's."""

    vocab: int  # different tokens
    context: int = 1024  # tokens it is trained to read at once
    width: int = 768  # of the stream of vectors, one a token
    depth: int = 12  # blocks
    heads: int = 12  # of attention, in each block
    kv_heads: int | None = None  # key and value heads, each serving heads / kv_heads; None for as many as heads
    hidden: int | None = None  # width inside the MLP; None for 4 x width
    positions: Literal["none", "sinusoid", "learned", "rotary", "alibi", "relative"] = "learned"  # how order is told
    score: Literal["dot", "scaled", "cosine"] = "scaled"  # how a query is compared with a key
    project: Literal["qkv", "q=k", "k=v", "q=k=v", "qk", "none"] = "qkv"  # which of queries, keys, values are learned
    order: Literal["pre", "post"] = "pre"  # norms before what a block adds, or after it
    norm: Literal["layer", "rms", "none"] = "layer"  # keeps the stream's size
    eps: float = 1e-5  # added to a variance before its root
    mlp: Literal["relu", "leaky_relu", "gelu", "gelu_tanh", "silu", "tanh", "swiglu"] = "gelu_tanh"  # its activation
    bias: bool = True  # linear maps have one
    tied: bool = True  # the readout is the embedding's table
    dropout: float = 0.0  # share of what is dropped, in training

    def __post_init__(self) -> None:
        for name in ("vocab", "context", "width", "heads", "kv_heads", "hidden"):
            if getattr(self, name) is not None and getattr(self, name) < 1:
                raise ValueError(f"{name}={getattr(self, name)}: expected 1 or more")
        if self.depth < 0:
            raise ValueError(f"depth={self.depth}: expected 0 or more")
        if self.width % self.heads:
            raise ValueError(f"width={self.width} does not divide into heads={self.heads}")
        if self.kv_heads is not None and self.heads % self.kv_heads:
            raise ValueError(f"kv_heads={self.kv_heads} does not divide heads={self.heads}")
        if self.positions == "rotary" and self.width // self.heads % 2:
            raise ValueError(
                f"positions='rotary' turn pairs of columns: width={self.width} / heads={self.heads} is not even"
            )
        if not 0.0 <= self.dropout < 1.0:
            raise ValueError(f"dropout={self.dropout}: expected a share from 0 to below 1")


class GPT(nn.Module):
    """Token ids (b, t) -> the logits of each next token (b, t, v)."""

    def __init__(self, config: Config) -> None:
        super().__init__()
        c = self.config = config
        waves = c.positions == "sinusoid"  # as large as 1: a small table would drown in them (Vaswani et al. 2017, 3.4)
        self.embed = Tokens(c.vocab, c.width, scale=waves)
        self.positions = make_positions(
            c.positions, width=c.width, heads=c.heads, head=c.width // c.heads, context=c.context, causal=True
        )
        self.blocks = nn.ModuleList(
            Block(
                c.width, c.heads, kv_heads=c.kv_heads, hidden=c.hidden, order=c.order, norm=c.norm, eps=c.eps,
                mlp=c.mlp, project=c.project, score=c.score, bias=c.bias, dropout=c.dropout,
            )
            for _ in range(c.depth)
        )  # fmt: skip
        self.norm = make_norm(c.norm if c.order == "pre" else "none", c.width, eps=c.eps)
        self.head = Linear(c.width, c.vocab, bias=False)
        if c.tied:
            self.head.weight = self.embed.table

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
        mask = Mask(causal=True, documents=documents)
        x = self.positions.add(self.embed(ids), at)
        x = F.dropout(x, self.config.dropout, self.training)
        for block in self.blocks:
            x = block(x, mask=mask, positions=self.positions, at=at)
        return self.norm(x)

    def forward(
        self,
        ids: Int[Tensor, "b t"],
        *,
        documents: Int[Tensor, "b t"] | None = None,
        at: Int[Tensor, "*b t"] | None = None,
    ) -> Float[Tensor, "b t v"]:
        return self.head(self.states(ids, documents=documents, at=at))
