"""The Transformer: an encoder reads a sentence, and a decoder that attends to it writes another.

Vaswani et al. 2017, section 3; the defaults are their base model (table 3), and every other choice is one option: a
norm of the embeddings gives BART (Lewis et al. 2020), norms before each sublayer M2M-100 and NLLB (Fan et al. 2020),
relative positions, RMS norms and unscaled scores T5 (Raffel et al. 2020).

    source -> embed (+ positions) -> encoder blocks -> memory
    ids    -> embed (+ positions) -> decoder blocks, which attend to the memory -> head -> logits

To decode, `start` encodes the sources and makes the KV cache, and `step` appends target tokens.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import ClassVar, cast

import torch.nn.functional as F
from jaxtyping import Float, Int
from torch import Tensor, nn

from ..checks import above_zero, at_least, fraction
from ..errors import InputError
from ..layers import Block, Linear, Mask, Positions, Readout, Tokens, make_norm, make_positions
from ..layers.choices import DotScore, MLPKind, Norm, Order, Pairs, Position
from .decoder_state import DecoderState, KVState, SourceMemory
from .model import DecoderStack, Model, check_heads

# Options of some kinds of positions only.
POSITION_OPTIONS = {
    "base": ("sinusoid", "rotary"),
    "offset": ("sinusoid", "learned"),
    "buckets": ("relative",),
    "reach": ("relative",),
}


@dataclass(frozen=True, kw_only=True, slots=True)
class Config:
    """The sizes and choices of a Transformer; the defaults are the base model of Vaswani et al. 2017."""

    vocab: int  # number of tokens in the source vocabulary
    # number of tokens in the target vocabulary; None: one vocabulary and one embedding for both
    target_vocab: int | None = None
    context: int = 512  # tokens per sentence; learned positions have a table of this size
    width: int = 512  # width of the residual stream (d_model)
    depth: int = 6  # number of encoder blocks
    decoder_depth: int | None = None  # number of decoder blocks; None: depth
    heads: int = 8  # attention heads per block
    # key and value heads, each shared by heads / kv_heads query heads; None: heads
    kv_heads: int | None = None
    head: int | None = None  # head dimension; None: width / heads
    hidden: int | None = None  # width inside the MLP; None: 4 x width
    positions: Position = "sinusoid"  # how token order is encoded
    pairs: Pairs | None = None  # sinusoid, rotary: columns that make a pair; None: the usual ones
    base: float = 10_000.0  # sinusoid, rotary: the longest wavelength is almost 2 pi base tokens
    # sinusoid, learned: position of the first token; those before are not used (BART, M2M-100)
    offset: int = 0
    buckets: int = 32  # relative: number of buckets of distances, each with a bias per head
    reach: int = 128  # relative: distance from which all share the last bucket
    score: DotScore = "scaled"  # how a query is compared with a key
    # norms before each sublayer, after each addition, of each output, or before and of output
    order: Order = "post"
    norm: Norm = "layer"  # kind of normalisation
    eps: float = 1e-5  # added to the variance in a norm
    mlp: MLPKind = "relu"  # activation of the MLP; swiglu and geglu have a gate
    bias: bool = True  # linear maps have a bias
    scaled: bool = True  # embeddings are multiplied by sqrt(width) (section 3.4)
    embed_norm: bool = False  # embeddings with their positions are normalised (BART)
    # the weights of the output layer are the target's embedding table (section 3.4)
    tied: bool = True
    readout_bias: bool = False  # the output layer has a bias (Marian)
    readout_scaled: bool = False  # the input of the output layer is divided by sqrt(width) (T5)
    # share dropped in training: of embeddings and what each sublayer adds (section 5.4)
    dropout: float = 0.1
    inner_dropout: float = 0.0  # share dropped in training: of attention weights and inside the MLP

    def __post_init__(self) -> None:
        at_least(
            self,
            1,
            "vocab",
            "target_vocab",
            "context",
            "width",
            "heads",
            "kv_heads",
            "head",
            "hidden",
            "decoder_depth",
            "buckets",
            "reach",
        )
        at_least(self, 0, "depth", "offset")
        above_zero(self, "base")
        fraction(self, "dropout", "inner_dropout")
        check_heads(
            self.width, self.heads, positions=self.positions, head=self.head, kv_heads=self.kv_heads
        )
        # an option of other positions would be ignored in silence
        for name, kinds in POSITION_OPTIONS.items():
            # only a value that was changed can be a mistake
            usual = type(self).__dataclass_fields__[name].default
            if getattr(self, name) != usual and self.positions not in kinds:
                raise InputError(
                    f"{name}={getattr(self, name)} is for positions={' or '.join(kinds)}, not {self.positions!r}"
                )

    @property
    def head_width(self) -> int:
        """The head dimension."""
        return self.head or self.width // self.heads


class TransformerEncoder(nn.Module):
    """Encodes a source: each token attends to all of them."""

    def __init__(self, c: Config, embed: Tokens) -> None:
        super().__init__()
        self.embed, self.dropout = embed, c.dropout
        self.positions = _positions(c, causal=False)
        self.embed_norm = make_norm(c.norm if c.embed_norm else "none", c.width, eps=c.eps)
        self.blocks = nn.ModuleList(_block(c, cross=False) for _ in range(c.depth))
        self.norm = make_norm("none" if c.order == "post" else c.norm, c.width, eps=c.eps)

    def forward(self, source: Int[Tensor, "b s"], mask: Mask) -> Float[Tensor, "b s d"]:
        # section 3.4 and 3.5: scaled embeddings plus position vectors, then dropout (5.4)
        x = self.embed_norm(self.positions.add(self.embed(source)))
        x = F.dropout(x, self.dropout, self.training)
        for block in self.blocks:
            # the mask hides padding only: tokens attend in both directions
            x = block(x, mask=mask, positions=self.positions)
        return self.norm(x)


class TransformerDecoder(nn.Module):
    """Decodes a target: each token attends to itself, to those before it, and to the encoded source."""

    def __init__(self, c: Config, embed: Tokens) -> None:
        super().__init__()
        self.embed, self.dropout = embed, c.dropout
        self.positions = _positions(c, causal=True)
        self.embed_norm = make_norm(c.norm if c.embed_norm else "none", c.width, eps=c.eps)
        self.blocks = nn.ModuleList(
            _block(c, cross=True) for _ in range(c.decoder_depth or c.depth)
        )
        self.norm = make_norm("none" if c.order == "post" else c.norm, c.width, eps=c.eps)

    def forward(
        self,
        ids: Int[Tensor, "b t"],
        memory: Float[Tensor, "c s d"] | list[tuple[Tensor, ...]],
        context_mask: Mask,
        *,
        documents: Int[Tensor, "b t"] | None = None,
        at: Int[Tensor, "*b t"] | None = None,
        kv: KVState | None = None,
    ) -> Float[Tensor, "b t d"]:
        """The input of `head`.

        Args:
            ids: Target tokens.
            memory: The encoder's output; or, while decoding, its keys and values for each block, which neighbouring
                rows may share (see SourceMemory).
            context_mask: Mask of the cross-attention.
            documents: Document number of each token of packed rows; no token attends to another document.
            at: Position of each token in its own document; 0, 1, ... if not given.
            kv: The KV cache, while decoding.
        """
        # in training all tokens at once, each seeing those before it; while decoding from where the cache ends
        if kv is None:
            mask = Mask(causal=True, documents=documents)
        else:
            # a row's next token is at the position where its cache ends
            mask, at = kv.mask(), kv.positions(ids.shape[1])
        x = self.embed_norm(self.positions.add(self.embed(ids), at))
        x = F.dropout(x, self.dropout, self.training)
        for i, block in enumerate(self.blocks):
            x = block(
                x,
                # a list holds the keys and values of each block; a tensor is projected by each
                # block
                memory[i] if isinstance(memory, list) else memory,
                mask=mask,
                context_mask=context_mask,
                positions=self.positions,
                at=at,
                cache=None if kv is None else kv.caches[i],
            )
        return self.norm(x)


class Transformer(Model):
    """Source ids (b, s) and target ids (b, t) -> logits of each next target token (b, t, v)."""

    reads = "pairs"
    can = frozenset({"translate"})
    methods: ClassVar[tuple[str, ...]] = ("states",)
    config: Config

    def __init__(self, config: Config) -> None:
        super().__init__()
        c = self.config = config
        embed = Tokens(c.vocab, c.width, scale=c.scaled)
        self.encoder = TransformerEncoder(c, embed)
        target = embed
        if c.target_vocab is not None:
            # two vocabularies: the target has a table of its own
            target = Tokens(c.target_vocab, c.width, scale=c.scaled)
        self.decoder = TransformerDecoder(c, target)
        # the output layer predicts target tokens
        sizes = (c.width, c.target_vocab or c.vocab, c.readout_bias)
        self.head: Linear
        if c.readout_scaled:
            # T5 with tied weights: the numbers of its table have variance 1, for embeddings as they are
            self.head = Readout(*sizes, scale=c.width**-0.5)
        else:
            self.head = Linear(*sizes)
        if c.tied:
            # section 3.4 of Vaswani et al. 2017
            self.head.weight = target.table

    @property
    def decoder_stack(self) -> DecoderStack:
        d = self.decoder
        return DecoderStack(
            embed=d.embed,
            positions=d.positions,
            blocks=d.blocks,
            norm=d.norm,
            head=self.head,
            cross=True,
            owner=d,
            embed_norm=d.embed_norm,
        )

    def states(
        self,
        ids: Int[Tensor, "b t"],
        *,
        source: Int[Tensor, "b s"],
        lengths: Int[Tensor, "b"] | None = None,
        documents: Int[Tensor, "b t"] | None = None,
        at: Int[Tensor, "*b t"] | None = None,
    ) -> Float[Tensor, "b t d"]:
        """The decoder's output: the input of `head`.

        Args:
            ids: Target tokens.
            source: Source tokens.
            lengths: Tokens of each source that are not padding; all if not given.
            documents: Document number of each target token of packed rows.
            at: Position of each target token in its own document; 0, 1, ... if not given.
        """
        mask = Mask(lengths=lengths)  # of the source: its tokens attend to it, and the target's do
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
        return self.head(
            self.states(ids, source=source, lengths=lengths, documents=documents, at=at)
        )

    def start(self, inputs: Mapping[str, Tensor], rows: int, limit: int) -> DecoderState:
        """Encode the sources (`source`, and `lengths` if they differ), and make KV caches for `limit` target tokens."""
        source, lengths = inputs["source"], inputs.get("lengths")
        # without padding no mask is needed; another device would have to be waited for
        if lengths is not None and lengths.device.type == "cpu":
            padded = bool((lengths != source.shape[1]).any())
            # without a mask the cross-attention can use the fastest kernel
            lengths = lengths if padded else None
        x = self.encoder(source, Mask(lengths=lengths))
        # the keys and values of each block's cross-attention, computed once for all steps
        memory = [cast(Block, block).cross.remember(x) for block in self.decoder.blocks]  # type: ignore[union-attr]
        c, like = self.config, memory[0][0]
        # self-attention's cache holds target tokens only; the source is in SourceMemory
        kv = KVState(
            len(memory),
            rows,
            c.kv_heads or c.heads,
            limit,
            c.head_width,
            dtype=like.dtype,
            device=like.device,
        )
        return DecoderState(kv, SourceMemory(memory, lengths))

    def read(
        self, ids: Int[Tensor, "b t"], state: DecoderState, counts: Int[Tensor, "b"] | None = None
    ) -> DecoderState:
        """Append target tokens without computing logits: the first `counts[i]` of row i, or all of them."""
        assert state.source is not None
        self.decoder(ids, state.source.memory, state.source.mask, kv=state.kv)
        state.kv.advance(ids.shape[1] if counts is None else counts)
        return state

    def step(
        self, ids: Int[Tensor, "b t"], state: DecoderState
    ) -> tuple[Float[Tensor, "b t v"], DecoderState]:
        """Append tokens to every row, and return the logits after each of them."""
        assert state.source is not None
        x = self.decoder(ids, state.source.memory, state.source.mask, kv=state.kv)
        state.kv.advance(ids.shape[1])
        return self.head(x), state


def _block(c: Config, cross: bool) -> Block:
    return Block(
        c.width,
        c.heads,
        kv_heads=c.kv_heads,
        head=c.head,
        hidden=c.hidden,
        order=c.order,
        norm=c.norm,
        eps=c.eps,
        mlp=c.mlp,
        cross=cross,
        score=c.score,
        cross_score=c.score,
        bias=c.bias,
        dropout=c.dropout,
        inner_dropout=c.inner_dropout,
    )


def _positions(c: Config, causal: bool) -> Positions:
    options = {
        name: getattr(c, name) for name, kinds in POSITION_OPTIONS.items() if c.positions in kinds
    }
    return make_positions(
        c.positions,
        width=c.width,
        heads=c.heads,
        head=c.head_width,
        context=c.context,
        causal=causal,
        pairs=c.pairs,
        **options,
    )
