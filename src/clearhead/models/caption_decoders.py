"""The decoders of a captioner: a recurrent network that looks at one place after the other, and a Transformer.

Both read a memory, one vector a_i per place of an image, and have the same three methods: `read` a whole caption,
`begin` a state for decoding, and `advance` it by some tokens.

The recurrent one is that of Show, Attend and Tell (Xu et al. 2015, section 3.1.2), with E y the embedding of the
previous token and h the state:

    e_i   = w . tanh(W a_i + U h_{t-1} + b)          Eq. 4, the additive score
    alpha = softmax(e)                               Eq. 5
    z     = beta sum_i alpha_i a_i                   Eq. 13; beta = sigmoid(v . h_{t-1} + c), section 4.2.1
    h_t   = cell([E y, z], h_{t-1})                  Eq. 1 to 3
    out   = E y + L_h h_t + L_z z                    Eq. 7, the deep output; the head maps it to logits

attention="hard"  takes the vector of one place instead of the weighted sum: in training a sampled one (section 4.1),
                  else the one with the largest weight
attention="none"  takes the mean of all places, the same at every step: the bottleneck
"""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, NamedTuple, cast

import torch
import torch.nn.functional as F
from jaxtyping import Float, Int
from torch import Tensor, nn

from ..layers import Additive, Attention, Block, Mask, Tokens
from . import transformer
from .recurrent_steps import RecurrentLayers
from .rnn_seq2seq import State
from .state import DecoderState, KVState, SourceMemory

if TYPE_CHECKING:
    from .captioner import Config


class Trace(NamedTuple):
    """What a training objective needs of the attention: lists that a pass appends to, one tensor per step.

    Examples:
        >>> trace = Trace([], [])
        >>> len(trace.weights)
        0
    """

    weights: list[Tensor]  # (b, k) the weights of all places
    places: list[Tensor]  # (b,) the number of the sampled place; hard attention only


class LookLayer(nn.Module):
    """The recurrent cell, and its attention to the places of an image: decoder.blocks.0."""

    def __init__(self, c: Config) -> None:
        super().__init__()
        self.hard = c.attention == "hard"
        self.cell = RecurrentLayers(
            2 * c.width, c.state_width, cell=c.cell, depth=c.depth, dropout=c.dropout
        )
        attends = c.attention != "none"
        self.cross = (
            Attention(
                c.state_width,
                head=c.state_width,
                value=c.width,
                context=c.width,
                project="qk",
                out=False,
                score=Additive(c.state_width),
            )
            if attends
            else None
        )
        self.gate = nn.Linear(c.state_width, 1) if attends and c.gate else None

    def remember(self, memory: Float[Tensor, "b k d"]) -> tuple[Tensor, ...]:
        """What the steps need of an image: keys and values, or the mean of its places."""
        if self.cross is None:
            return (memory.mean(1),)
        return self.cross.remember(memory)

    def forward(
        self,
        x: Float[Tensor, "b t d"],
        state: State,
        draws: Float[Tensor, "b t"] | None,
        trace: Trace | None,
    ) -> Float[Tensor, "b t o"]:
        """The states and what was looked at, side by side; `state` is advanced."""
        if self.cross is None:  # the same for all tokens
            ((mean,),), fold = state.source.memory, state.source.fold
            if fold != 1:
                mean = mean.repeat_interleave(fold, dim=0)
            looked = mean[:, None].expand(-1, x.shape[1], -1)
            return torch.cat(
                [self.cell(torch.cat([x, looked], dim=-1), state.cell), looked], dim=-1
            )
        gates, weight = self.cell.input_gates(x)
        top, outs, contexts = self.cell.cell.num_layers - 1, [], []
        for i, token in enumerate(gates.unbind(1)):
            z = self._look(
                state.cell[top], state.source, None if draws is None else draws[:, i], trace
            )
            outs.append(
                self.cell(torch.addmm(token, z, weight.T).unsqueeze(1), state.cell, gates=True)
            )
            contexts.append(z)
        return torch.cat([torch.cat(outs, dim=1), torch.stack(contexts, dim=1)], dim=-1)

    def _look(
        self,
        h: Float[Tensor, "b o"],
        source: SourceMemory,
        draws: Float[Tensor, "b"] | None,
        trace: Trace | None,
    ) -> Float[Tensor, "b d"]:
        """The gated vector of what a state looks at; rows that share an image are the queries of one call."""
        assert self.cross is not None
        queries = h.reshape(-1, source.fold, h.shape[1])
        z = self.cross(queries, source.memory[0], choose=self._choice(draws, trace)).reshape(
            h.shape[0], -1
        )
        if self.gate is None:
            return z
        return torch.sigmoid(self.gate(h)) * z

    def _choice(
        self, draws: Tensor | None, trace: Trace | None
    ) -> Callable[[Tensor], Tensor] | None:
        """A function from the weights (b, 1, q, k) to those that are used; None: they are used as they are."""
        sampled = self.hard and draws is not None
        greedy = self.hard and not self.training
        if trace is None and not sampled and not greedy:
            return None

        def choose(weights: Tensor) -> Tensor:
            if trace is not None:
                trace.weights.append(weights[:, 0, 0])
            if not sampled:
                if greedy:
                    return one_hot(weights.argmax(-1), weights)
                return weights
            assert draws is not None
            places = sample_places(weights[:, 0, 0], draws)
            if trace is not None:
                trace.places.append(places)
            return torch.where(
                (draws < 0)[:, None, None, None], weights, one_hot(places[:, None, None], weights)
            )

        return choose


class RecurrentDecoder(nn.Module):
    """Writes a caption with a recurrent network, which looks at the image before every token."""

    def __init__(self, c: Config, embed: Tokens) -> None:
        super().__init__()
        self.embed, self.dropout = embed, c.dropout
        self.blocks = nn.ModuleList([LookLayer(c)])
        self.states = c.depth * (2 if c.cell == "lstm" else 1)
        self.first = nn.Linear(c.width, self.states * c.state_width)
        self.readout = nn.Linear(c.state_width + c.width, c.width)

    def forward(
        self,
        ids: Int[Tensor, "b t"],
        state: State,
        draws: Float[Tensor, "b t"] | None = None,
        trace: Trace | None = None,
    ) -> Float[Tensor, "b t d"]:
        x = F.dropout(self.embed(ids), self.dropout, self.training)
        looked = self.blocks[0](x, state, draws, trace)
        state.at = state.at + ids.shape[1]
        return F.dropout(x + self.readout(looked), self.dropout, self.training)

    def read(
        self, ids: Tensor, memory: Tensor, draws: Tensor | None, trace: Trace | None
    ) -> Tensor:
        return cast(Tensor, self(ids, self.begin(memory, ids.shape[0], 0), draws, trace))

    def begin(self, memory: Float[Tensor, "b k d"], rows: int, limit: int) -> State:
        """The state before the first token, computed from the mean of all places (section 3.1.2)."""
        cell = torch.tanh(self.first(memory.mean(1))).chunk(self.states, dim=-1)
        at = torch.zeros(memory.shape[0], dtype=torch.long, device=memory.device)
        return State(
            list(cell), SourceMemory([cast(LookLayer, self.blocks[0]).remember(memory)], None), at
        )

    def advance(self, ids: Tensor, state: State | DecoderState) -> Tensor:
        assert isinstance(state, State)
        return cast(Tensor, self(ids, state))


class TransformerDecoder(transformer.Decoder):
    """Writes a caption with the decoder of a Transformer, every layer of which attends to the image."""

    def __init__(self, c: Config, embed: Tokens) -> None:
        sizes = transformer.Config(
            vocab=c.vocab,
            context=c.context,
            width=c.width,
            depth=c.depth,
            heads=c.heads,
            hidden=c.hidden,
            positions=c.positions,
            order=c.order,
            eps=c.eps,
            mlp=c.mlp,
            dropout=c.dropout,
            inner_dropout=c.inner_dropout,
        )
        super().__init__(sizes, embed)
        self.sizes = sizes

    def read(
        self, ids: Tensor, memory: Tensor, draws: Tensor | None, trace: Trace | None
    ) -> Tensor:
        return cast(Tensor, self(ids, memory, Mask()))

    def begin(self, memory: Float[Tensor, "b k d"], rows: int, limit: int) -> DecoderState:
        context = [cast(Block, block).cross.remember(memory) for block in self.blocks]  # type: ignore[union-attr]
        c, like = self.sizes, context[0][0]
        kv = KVState(
            len(context),
            rows,
            c.heads,
            limit,
            c.width // c.heads,
            dtype=like.dtype,
            device=like.device,
        )
        return DecoderState(kv, SourceMemory(context, None))

    def advance(self, ids: Tensor, state: State | DecoderState) -> Tensor:
        assert isinstance(state, DecoderState)
        assert state.source is not None
        x: Tensor = self(ids, state.source.memory, state.source.mask, kv=state.kv)
        state.kv.advance(ids.shape[1])
        return x


DECODERS: dict[str, type[RecurrentDecoder] | type[TransformerDecoder]] = {
    "rnn": RecurrentDecoder,
    "transformer": TransformerDecoder,
}


def sample_places(weights: Float[Tensor, "b k"], draws: Float[Tensor, "b"]) -> Int[Tensor, "b"]:
    """The place at which the cumulative weight passes a row's uniform random number."""
    cumulative = weights.detach().float().cumsum(-1)
    passed = (cumulative <= draws[:, None] * cumulative[:, -1:]).sum(-1)
    return passed.clamp(max=weights.shape[-1] - 1)


def one_hot(places: Tensor, like: Tensor) -> Tensor:
    """Weights that are 1 at one place; they carry no gradient."""
    return F.one_hot(places, like.shape[-1]).to(like.dtype)
