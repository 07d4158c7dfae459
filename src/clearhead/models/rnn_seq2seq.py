"""Sequence to sequence with two recurrent networks: an encoder reads a sentence, a decoder writes its translation.

attention="none"      the source is passed on as one vector: the encoder's last state is the decoder's first (Sutskever
                      et al. 2014); with feed="input" the decoder also reads it at every step (Cho et al. 2014)
attention="additive"  before every token the decoder attends to all states of the encoder (Bahdanau et al. 2015)
"dot", "bilinear"     the same with scores that are products, after every step of the cell (Luong et al. 2015)

    source -> embed -> recurrent layers in both directions -> memory, one vector h_j per token
    ids    -> embed -> cell, with cross-attention to the memory -> readout -> head -> logits

With s the decoder's state, e the embedding of the previous token and c = sum_j softmax_j(score(s, h_j)) h_j the
context (Bahdanau et al. 2015, Eqs. 5 and 6):

feed="input"     c from the previous state; s' = cell([e, c], s); readout of [s', c, e]    (Bahdanau et al. 2015)
feed="readout"   s' = cell(e, s); c from s'; readout of [s', c]                            (Luong et al. 2015)

Both directions of the encoder together are as wide as the decoder's state, so that its last states start the decoder
as they are (Bahdanau et al. map the backward one by a learned layer), and that a product with the state is a score.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import ClassVar, Literal, cast

import torch
import torch.nn.functional as F
from jaxtyping import Float, Int
from torch import Tensor, nn

from ..checks import at_least, fraction
from ..errors import InputError
from ..layers import Additive, Attention, Bilinear, Linear, Tokens
from ..layers.recurrent import RecurrentLayers
from .decoder_state import SourceMemory
from .model import Model

# Where the context goes if the config does not say, by the kind of attention: as in its paper. With "readout" no step
# needs the context of another, so that all steps of a training batch are computed at once.
FEEDS = {"none": "start", "additive": "input", "dot": "readout", "bilinear": "readout"}


@dataclass(frozen=True, kw_only=True, slots=True)
class Config:
    """The sizes and choices of the two networks; the defaults are a small version of Bahdanau et al. 2015."""

    vocab: int  # number of tokens in the source vocabulary
    # number of tokens in the target vocabulary; None: one vocabulary and one embedding for both
    target_vocab: int | None = None
    context: int = 512  # tokens per sentence that it is meant for; no weight depends on it
    width: int = 256  # width of the embeddings and of the readout
    # width of the decoder's state, and of the encoder's, both directions together
    hidden: int = 512
    depth: int = 1  # number of recurrent layers of encoder and decoder
    cell: Literal["gru", "lstm"] = "gru"  # kind of recurrent cell
    # score of a state and a source token
    attention: Literal["none", "additive", "dot", "bilinear"] = "additive"
    # where the context goes; None: as in the paper
    feed: Literal["start", "input", "readout"] | None = None
    bidirectional: bool = True  # the source is read in both directions
    tied: bool = True  # the weights of the output layer are the target's embedding table
    # share dropped in training: of embeddings, between layers, and of the readout
    dropout: float = 0.2

    def __post_init__(self) -> None:
        at_least(self, 1, "vocab", "target_vocab", "context", "width", "hidden", "depth")
        fraction(self, "dropout")
        if self.bidirectional and self.hidden % 2:
            # each direction has half of the width, so that both together fit the decoder's state
            raise InputError(
                f"hidden={self.hidden} does not divide into two directions: expected an even number"
            )
        if self.feed == "start" and self.attention != "none":
            raise InputError(
                f"feed='start' uses no attention: with attention={self.attention!r} expected input or readout"
            )


class State:
    """What the decoder keeps between two steps.

    Args:
        cell: The state of each layer (b, hidden), and after them the memory of each LSTM layer.
        source: The source: keys and values, or the one vector, or nothing.
        at: The number of target tokens of each row.
    """

    def __init__(self, cell: list[Tensor], source: SourceMemory, at: Int[Tensor, "b"]) -> None:
        self.cell, self.source, self.at = cell, source, at

    @property
    def rows(self) -> int:
        return self.at.shape[0]

    def expand(self, n: int) -> None:
        """Each row becomes n neighbouring rows."""
        self.source.expand(n)
        self._move(torch.arange(self.rows, device=self.at.device).repeat_interleave(n))

    def reorder(self, index: Int[Tensor, "n"]) -> None:
        """Replace row i by row index[i], for all i at once; rows that share a source must stay together."""
        self.source.reorder(index, self.rows)
        self._move(index)

    def _move(self, index: Tensor) -> None:
        self.cell, self.at = [x[index] for x in self.cell], self.at[index]


class RNNEncoder(nn.Module):
    """Encodes a source: recurrent layers in both directions (Bahdanau et al. 2015, section 3.2)."""

    def __init__(self, c: Config, embed: Tokens) -> None:
        super().__init__()
        self.embed, self.dropout, self.directions = embed, c.dropout, 1 + c.bidirectional
        layers = RecurrentLayers(
            c.width,
            c.hidden // self.directions,
            cell=c.cell,
            depth=c.depth,
            bidirectional=c.bidirectional,
            dropout=c.dropout,
        )
        self.blocks = nn.ModuleList([layers])

    def forward(
        self,
        source: Int[Tensor, "b s"],
        lengths: Int[Tensor, "b"] | None = None,
        last: list[Tensor] | None = None,
    ) -> Float[Tensor, "b s d"]:
        """Return one vector per token; `last`, an empty list, is filled with the last state of every layer."""
        if last is None:
            last = []
        x = F.dropout(self.embed(source), self.dropout, self.training)  # (b, s, d)
        for block in self.blocks:
            # lengths leave the padding out: the backward direction starts at each row's last token
            x = block(x, last, lengths=lengths)
        # both directions of a layer side by side: as wide as the decoder's state
        joined = []
        for i in range(0, len(last), self.directions):
            # (b, o / 2) forward and backward -> (b, o), layer by layer
            joined.append(torch.cat(last[i : i + self.directions], dim=-1))
        last[:] = joined
        return x


class DecoderLayer(nn.Module):
    """The decoder's cell and its attention to the source: decoder.blocks.0."""

    def __init__(self, c: Config) -> None:
        super().__init__()
        self.feed = c.feed or FEEDS[c.attention]
        width = c.width
        if self.feed == "input":
            width += c.hidden  # the context beside the token
        self.cell = RecurrentLayers(width, c.hidden, cell=c.cell, depth=c.depth, dropout=c.dropout)
        self.cross = _attention(c)

    def remember(self, memory: Float[Tensor, "b s d"], last: list[Tensor]) -> tuple[Tensor, ...]:
        """Return what all decoding steps read of a source: keys and values, the encoder's last state, or nothing."""
        if self.cross is not None:
            # keys and values, computed once for all steps
            return self.cross.remember(memory)
        if self.feed == "start":  # the decoder's first state is all it gets (Sutskever et al. 2014)
            return ()
        return (last[self.cell.cell.num_layers - 1],)

    def forward(self, x: Float[Tensor, "b t d"], state: State) -> Float[Tensor, "b t o"]:
        """The input of the readout: the state, the context, and with feed="input" also x; `state` is advanced."""
        if self.feed == "input" and self.cross is not None:
            return self._step_by_step(x, state)
        # Luong et al. 2015: c depends on the new state, so that all tokens are computed at once.
        # Without attention the context is one vector, the same for all tokens; with feed="start" there is none
        context: list[Tensor] = []
        if self.cross is None and self.feed != "start":
            ((vector,),), fold = state.source.memory, state.source.fold
            if fold != 1:
                # beams of a source share its vector: (b, c) -> (b n, c)
                vector = vector.repeat_interleave(fold, dim=0)
            context = [vector[:, None].expand(-1, x.shape[1], -1)]
        if self.feed == "input":
            # Cho et al. 2014: the cell reads [e, c], and so does the readout with s'
            out = self.cell(torch.cat([x, *context], dim=-1), state.cell)
            return torch.cat([out, *context, x], dim=-1)
        out = self.cell(x, state.cell)
        if self.cross is not None:
            # from s', after the cell has read all tokens: one call for all of them
            context = [self._attend(out, state.source)]
        return torch.cat([out, *context], dim=-1)

    def _step_by_step(self, x: Float[Tensor, "b t d"], state: State) -> Float[Tensor, "b t o"]:
        """Run the cell token by token, since each step needs the context of the state before it (feed="input")."""
        gates, weight = self.cell.input_gates(x)
        top = self.cell.cell.num_layers - 1
        outs, contexts = [], []
        for token in gates.unbind(1):
            # a(s_{i-1}, h_j), Bahdanau et al. 2015, section 3.1: the state before this token
            context = self._attend(state.cell[top].unsqueeze(1), state.source)  # (b, 1, c)
            # W [e, c]: the part of e is in `token` already
            token = torch.addmm(token, context.squeeze(1), weight.T)
            outs.append(self.cell(token.unsqueeze(1), state.cell, gates=True))
            contexts.append(context)
        return torch.cat([torch.cat(outs, dim=1), torch.cat(contexts, dim=1), x], dim=-1)

    def _attend(self, x: Float[Tensor, "b t o"], source: SourceMemory) -> Float[Tensor, "b t c"]:
        """The context of each state; rows that share a source are the queries of one call."""
        assert self.cross is not None
        queries = x.reshape(-1, source.fold * x.shape[1], x.shape[2])  # (b n, t, o) -> (b, n t, o)
        context = self.cross(queries, source.memory[0], mask=source.mask)
        return context.reshape(x.shape)


class RNNDecoder(nn.Module):
    """Decodes a target, token by token."""

    def __init__(self, c: Config, embed: Tokens) -> None:
        super().__init__()
        self.embed, self.dropout = embed, c.dropout
        self.blocks = nn.ModuleList([DecoderLayer(c)])
        feed = c.feed or FEEDS[c.attention]
        # the readout reads s', or [s', c], or [s', c, e]: see the table at the top
        width = {"start": c.hidden, "readout": 2 * c.hidden, "input": 2 * c.hidden + c.width}[feed]
        self.readout = nn.Linear(width, c.width)

    def forward(self, ids: Int[Tensor, "b t"], state: State) -> Float[Tensor, "b t d"]:
        """The input of `head`: tanh(W [state, context, token]); `state` is advanced by these tokens.

        Eq. 5 of Luong et al. 2015; Bahdanau et al. 2015, A.2.2, have a maxout layer instead.
        """
        x = F.dropout(self.embed(ids), self.dropout, self.training)
        for block in self.blocks:
            x = block(x, state)
        state.at = state.at + ids.shape[1]
        return F.dropout(torch.tanh(self.readout(x)), self.dropout, self.training)


class RNNSeq2Seq(Model):
    """Source ids (b, s) and target ids (b, t) -> logits of each next target token (b, t, v)."""

    reads = "pairs"
    can = frozenset({"translate"})
    methods: ClassVar[tuple[str, ...]] = ("states",)
    config: Config

    def __init__(self, config: Config) -> None:
        super().__init__()
        c = self.config = config
        embed = Tokens(c.vocab, c.width, scale=True)
        target = embed
        if c.target_vocab is not None:
            # two vocabularies: the target has a table of its own
            target = Tokens(c.target_vocab, c.width, scale=True)
        self.encoder = RNNEncoder(c, embed)
        self.decoder = RNNDecoder(c, target)
        self.head = Linear(c.width, c.target_vocab or c.vocab, bias=False)
        if c.tied:
            self.head.weight = target.table

    def states(
        self,
        ids: Int[Tensor, "b t"],
        *,
        source: Int[Tensor, "b s"],
        lengths: Int[Tensor, "b"] | None = None,
    ) -> Float[Tensor, "b t d"]:
        """The decoder's output: the input of `head`.

        Args:
            ids: Target tokens.
            source: Source tokens.
            lengths: Tokens of each source that are not padding; all if not given. Lengths on the host avoid a wait
                for the device.
        """
        return self.decoder(ids, self._encode(source, lengths))

    def forward(
        self,
        ids: Int[Tensor, "b t"],
        *,
        source: Int[Tensor, "b s"],
        lengths: Int[Tensor, "b"] | None = None,
    ) -> Float[Tensor, "b t v"]:
        return self.head(self.states(ids, source=source, lengths=lengths))

    def start(self, inputs: Mapping[str, Tensor], rows: int, limit: int) -> State:
        """Encode the sources (`source`, and `lengths` if they differ); the limit is not needed."""
        return self._encode(inputs["source"], inputs.get("lengths"))

    def step(self, ids: Int[Tensor, "b t"], state: State) -> tuple[Float[Tensor, "b t v"], State]:
        """Append tokens to every row, and return the logits after each of them."""
        return self.head(self.decoder(ids, state)), state

    def _encode(self, source: Tensor, lengths: Tensor | None) -> State:
        # `last`, the state after the source, is the decoder's first
        last: list[Tensor] = []
        memory = self.encoder(source, lengths, last)
        context = cast(DecoderLayer, self.decoder.blocks[0]).remember(memory, last)
        if lengths is not None:
            # packing reads lengths on the host, a mask on the device
            lengths = lengths.to(source.device)
        at = torch.zeros(source.shape[0], dtype=torch.long, device=source.device)
        return State(last, SourceMemory([context], lengths), at)


def _attention(c: Config) -> Attention | None:
    """Cross-attention with one head; its values are the memory. Only the additive score projects keys (U h, A.1.2)."""
    if c.attention == "none":
        return None
    if c.attention == "additive":
        # v . tanh(W s + U h), Bahdanau et al. 2015, A.1.2
        return Attention(c.hidden, project="qk", out=False, bias=False, score=Additive(c.hidden))
    if c.attention == "bilinear":
        # s W h, "general" in Luong et al. 2015, section 3.1
        return Attention(c.hidden, project="none", out=False, score=Bilinear(c.hidden))
    return Attention(c.hidden, project="none", out=False, score="dot")
