"""The Transformer: an encoder that reads a whole sentence, and a decoder that looks at it while it writes another.

Vaswani et al. 2017; the defaults are their base model. Every choice of the core is one word.

    source -> embed (+ positions) -> encoder blocks -> memory
    ids    -> embed (+ positions) -> decoder blocks, each looking at the memory -> head -> logits
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Literal, cast

import torch
import torch.nn.functional as F
from jaxtyping import Float, Int
from torch import Tensor, nn

from ..errors import InputError
from ..layers import Block, Linear, Mask, Positions, Swift, Tokens, make_norm, make_positions
from ..layers.fused import rows_allowed
from ..layers.linear import Step, quick_many
from .state import KVState, SourceMemory


@dataclass(frozen=True, kw_only=True, slots=True)
class Config:
    """The sizes and choices of a Transformer; the defaults are the base model of Vaswani et al. 2017."""

    vocab: int  # different tokens of the source
    target_vocab: int | None = None  # of the target; None: source and target share one vocabulary and one table
    context: int = 512  # tokens of a sentence that a learned table of positions has room for
    width: int = 512  # of the stream of vectors, one a token
    depth: int = 6  # blocks of the encoder
    decoder_depth: int | None = None  # blocks of the decoder; None for as many as the encoder's
    heads: int = 8  # of attention, in each block
    kv_heads: int | None = None  # key and value heads, each serving heads / kv_heads; None for as many as heads
    hidden: int | None = None  # width inside the MLP; None for 4 x width
    positions: Literal["none", "sinusoid", "learned", "rotary", "alibi", "relative"] = "sinusoid"  # how order is told
    pairs: Literal["halves", "neighbours"] | None = None  # columns that make a wave; None: as is usual
    order: Literal["pre", "post"] = "post"  # norms before what a block adds, or after it
    norm: Literal["layer", "rms", "none"] = "layer"  # keeps the stream's size
    eps: float = 1e-5  # added to a variance before its root
    mlp: Literal["relu", "leaky_relu", "gelu", "gelu_tanh", "silu", "tanh", "swiglu"] = "relu"  # its activation
    bias: bool = True  # linear maps have one
    scaled: bool = True  # embeddings are multiplied by sqrt(width)
    tied: bool = True  # the readout is the target's table
    readout_bias: bool = False  # the readout has a bias (Marian's)
    dropout: float = 0.1  # share of what is dropped, in training, of embeddings and of what blocks add (5.4)
    inner_dropout: float = 0.0  # of attention's weights and inside the MLP

    def __post_init__(self) -> None:
        sizes = ("vocab", "target_vocab", "context", "width", "heads", "kv_heads", "hidden", "decoder_depth")
        for name in sizes:
            if getattr(self, name) is not None and getattr(self, name) < 1:
                raise InputError(f"{name}={getattr(self, name)}: expected 1 or more")
        if self.depth < 0:
            raise InputError(f"depth={self.depth}: expected 0 or more")
        if self.width % self.heads:
            raise InputError(f"width={self.width} does not divide into heads={self.heads}")
        if self.kv_heads is not None and self.heads % self.kv_heads:
            raise InputError(f"kv_heads={self.kv_heads} does not divide heads={self.heads}")
        if self.positions == "rotary" and self.width // self.heads % 2:
            raise InputError(
                f"positions='rotary' turn pairs of columns: width={self.width} / heads={self.heads} is not even"
            )
        for name in ("dropout", "inner_dropout"):
            if not 0.0 <= getattr(self, name) < 1.0:
                raise InputError(f"{name}={getattr(self, name)}: expected a share from 0 to below 1")


class State:
    """What a decoder holds of a sentence while it writes: the source once, and what each row has written.

    `swift` is the quick way to go on by one token, and `readout` that to its logits, where there is one.
    """

    swift: Swift | None = None
    readout: Step | None = None

    def __init__(self, written: KVState, source: SourceMemory) -> None:
        self.written, self.source = written, source

    @property
    def rows(self) -> int:
        return self.written.rows

    def expand(self, n: int) -> None:
        """Each row becomes n neighbouring rows."""
        self.source.expand(n)
        self.written.expand(n)

    def reorder(self, index: Int[Tensor, "n"]) -> None:
        """Row i becomes what row index[i] was; rows that share a source must go on sharing one."""
        self.source.reorder(index, self.rows)
        self.written.reorder(index)


class Encoder(nn.Module):
    """Reads a sentence, every token looking at every other."""

    def __init__(self, c: Config, embed: Tokens) -> None:
        super().__init__()
        self.embed, self.dropout = embed, c.dropout
        self.positions = _positions(c, causal=False)
        self.blocks = nn.ModuleList(_block(c, cross=False) for _ in range(c.depth))
        self.norm = make_norm(c.norm if c.order == "pre" else "none", c.width, eps=c.eps)

    def forward(self, source: Int[Tensor, "b s"], mask: Mask) -> Float[Tensor, "b s d"]:
        x = F.dropout(self.positions.add(self.embed(source)), self.dropout, self.training)
        for block in self.blocks:
            x = block(x, mask=mask, positions=self.positions)
        return self.norm(x)


class Decoder(nn.Module):
    """Writes a sentence, every token looking at those before it and at the memory of another."""

    def __init__(self, c: Config, embed: Tokens) -> None:
        super().__init__()
        self.embed, self.dropout = embed, c.dropout
        self.positions = _positions(c, causal=True)
        self.blocks = nn.ModuleList(_block(c, cross=True) for _ in range(c.decoder_depth or c.depth))
        self.norm = make_norm(c.norm if c.order == "pre" else "none", c.width, eps=c.eps)

    def forward(
        self,
        ids: Int[Tensor, "b t"],
        memory: Float[Tensor, "c s d"] | list[tuple[Tensor, ...]],
        context_mask: Mask,
        *,
        documents: Int[Tensor, "b t"] | None = None,
        at: Int[Tensor, "*b t"] | None = None,
        written: KVState | None = None,
    ) -> Float[Tensor, "b t d"]:
        """Its states; `memory` is the encoder's answer, or what each block's cross-attention remembers of it."""
        mask = Mask(causal=True, documents=documents) if written is None else written.mask()
        if written is not None:
            at = written.positions(ids.shape[1])
        x = F.dropout(self.positions.add(self.embed(ids), at), self.dropout, self.training)
        for i, block in enumerate(self.blocks):
            x = block(
                x, memory[i] if isinstance(memory, list) else memory, mask=mask, context_mask=context_mask,
                positions=self.positions, at=at, cache=None if written is None else written.caches[i],
            )  # fmt: skip
        return self.norm(x)

    def step(self, ids: Int[Tensor, "b t"], state: State) -> Float[Tensor, "b t d"]:
        """The states of the next tokens of every row: a single one by the quick way, if it can go it."""
        written, source, swift = state.written, state.source, state.swift
        heard = self._forward_hooks or self._forward_pre_hooks or torch.is_grad_enabled()
        if ids.shape[1] == 1 and swift is not None and swift.unheard and not heard:
            at = written.positions(1)
            allowed = rows_allowed(written.mask(), written.caches[0].furthest + 1, ids.device)
            shown = rows_allowed(source.mask, source.memory[0][0].shape[2], ids.device, source.fold)
            x = swift(self.positions.add(self.embed(ids), at), at, written.caches, allowed, source.memory, shown)
            if x is not None:
                return self.norm(x)
        return self(ids, source.memory, source.mask, written=written)


class Transformer(nn.Module):
    """A source sentence and the target's tokens so far -> the logits of each next one."""

    def __init__(self, config: Config) -> None:
        super().__init__()
        c = self.config = config
        embed = Tokens(c.vocab, c.width, scale=c.scaled)
        self.encoder = Encoder(c, embed)
        target = embed if c.target_vocab is None else Tokens(c.target_vocab, c.width, scale=c.scaled)
        self.decoder = Decoder(c, target)
        self.head = Linear(c.width, c.target_vocab or c.vocab, bias=c.readout_bias)
        if c.tied:
            self.head.weight = target.table

    def states(
        self,
        ids: Int[Tensor, "b t"],
        *,
        source: Int[Tensor, "b s"],
        lengths: Int[Tensor, "b"] | None = None,
        documents: Int[Tensor, "b t"] | None = None,
        at: Int[Tensor, "*b t"] | None = None,
    ) -> Float[Tensor, "b t d"]:
        """What the decoder has made of each token, ready for the readout. `lengths` are those of the sources."""
        mask = Mask(lengths=lengths)
        return self.decoder(ids, self.encoder(source, mask), mask, documents=documents, at=at)

    def forward(
        self,
        ids: Int[Tensor, "b t"],
        *,
        source: Int[Tensor, "b s"],
        lengths: Int[Tensor, "b"] | None = None,
        documents: Int[Tensor, "b t"] | None = None,
        at: Int[Tensor, "*b t"] | None = None,
    ) -> Float[Tensor, "b t v"]:
        return self.head(self.states(ids, source=source, lengths=lengths, documents=documents, at=at))

    def start(self, inputs: Mapping[str, Tensor], rows: int, limit: int) -> State:
        """Read the sources (`source`, and `lengths` where they differ), and make room to write `limit` tokens each."""
        source, lengths = inputs["source"], inputs.get("lengths")
        if lengths is not None and lengths.device.type == "cpu" and bool((lengths == source.shape[1]).all()):
            lengths = None  # nothing is padding
        quick = not self.training and not torch.is_grad_enabled()
        if quick:
            for block in (*self.encoder.blocks, *self.decoder.blocks):
                cast(Block, block).join()
        x = self.encoder(source, Mask(lengths=lengths))
        memory = [cast(Block, block).cross.remember(x) for block in self.decoder.blocks]  # type: ignore[union-attr]
        c, like = self.config, memory[0][0]
        written = KVState(
            len(memory), rows, c.kv_heads or c.heads, limit, c.width // c.heads, dtype=like.dtype, device=like.device
        )
        # What is not a number, and a sentence of no tokens, are the blocks' to answer.
        plain = quick and x.device.type == "cpu" and not any(k.sum().isnan() for k, _ in memory)
        plain = plain and (lengths is None or bool((lengths > 0).all()))
        state = State(written, SourceMemory(memory, lengths))
        if plain:
            state.swift = Swift.of(self.decoder.blocks, self.decoder.positions, None, copies=True)
            state.readout = quick_many(self.head) if type(self.head) is Linear else None
        return state

    def step(self, ids: Int[Tensor, "b t"], state: State) -> tuple[Float[Tensor, "b t v"], State]:
        """Write the next tokens of every row, and say what may come after each."""
        x = self.decoder.step(ids, state)
        state.written.advance(ids.shape[1])
        heard = self.head._forward_hooks or self.head._forward_pre_hooks or torch.is_grad_enabled()
        return self.head(x) if state.readout is None or heard else state.readout(x), state


def _block(c: Config, cross: bool) -> Block:
    return Block(
        c.width, c.heads, kv_heads=c.kv_heads, hidden=c.hidden, order=c.order, norm=c.norm, eps=c.eps, mlp=c.mlp,
        cross=cross, bias=c.bias, dropout=c.dropout,
        inner_dropout=c.inner_dropout,
    )  # fmt: skip


def _positions(c: Config, causal: bool) -> Positions:
    return make_positions(
        c.positions, width=c.width, heads=c.heads, head=c.width // c.heads, context=c.context, causal=causal,
        pairs=c.pairs,
    )  # fmt: skip
