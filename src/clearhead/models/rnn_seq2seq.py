"""Two recurrent networks that translate: one reads a sentence, the other writes it in another language.

attention="none"      all that was read goes through one vector: the reader's last state is where the writer begins
                      (Sutskever et al. 2014; with feed="input" the writer also sees it at every step: Cho et al. 2014)
attention="additive"  the writer looks back at all that was read, before every word (Bahdanau et al. 2015)
"dot", "bilinear"     the same with scores that are products, asked after every word (Luong et al. 2015)

    source -> embed -> recurrent layers, both ways -> memory, one vector a token
    ids    -> embed -> cell, and cross looks at the memory -> readout -> head -> logits

Both directions of the encoder together are as wide as the decoder's state, so that its last states start the decoder
as they are, and their product with it is a score.
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
from ..layers import Additive, Attention, Bilinear, Linear, Recurrent, Tokens
from ..layers.mask import PerRow
from .model import Model, random_ids
from .state import SourceMemory

# Where what was looked up goes, if the config does not say: with the additive score the state before asks, and the
# cell is told; with products the state after asks, and only the readout is told: all steps are computed at once.
FEEDS = {"none": "start", "additive": "input", "dot": "readout", "bilinear": "readout"}


@dataclass(frozen=True, kw_only=True, slots=True)
class Config:
    """The sizes and choices of two recurrent networks; the defaults are a small version of Bahdanau et al. 2015."""

    vocab: int  # different tokens of the source
    target_vocab: int | None = None  # of the target; None: source and target share one vocabulary and one table
    context: int = 512  # tokens of a sentence it is meant for; nothing in it has that size
    width: int = 256  # of a token's vector, and of what the readout sees
    hidden: int = 512  # of the decoder's state, and of the encoder's, both directions together
    depth: int = 1  # recurrent layers of each
    cell: Literal["gru", "lstm"] = "gru"  # how a state is carried on
    attention: Literal["none", "additive", "dot", "bilinear"] = "additive"  # how the state is compared with the memory
    feed: Literal["start", "input", "readout"] | None = None  # where what was read goes; None: as the paper has it
    bidirectional: bool = True  # the source is read both ways
    tied: bool = True  # the readout is the target's table
    dropout: float = 0.2  # share of what is dropped, in training: of tokens' vectors, between layers, of the readout

    def __post_init__(self) -> None:
        at_least(self, 1, "vocab", "target_vocab", "context", "width", "hidden", "depth")
        fraction(self, "dropout")
        if self.bidirectional and self.hidden % 2:
            raise InputError(f"hidden={self.hidden} does not divide into two directions: expected an even number")
        if self.feed == "start" and self.attention != "none":
            raise InputError(
                f"feed='start' uses no attention: with attention={self.attention!r} expected input, readout"
            )


class State:
    """What a decoder holds of a sentence while it writes."""

    def __init__(self, cell: list[Tensor], source: SourceMemory, at: Int[Tensor, "b"]) -> None:
        self.cell = cell  # of each layer its state (b, hidden), and after them the LSTMs' memories
        self.source = source  # its memory: keys and values, or the one vector, or nothing
        self.at = at  # how many tokens each row has written

    @property
    def rows(self) -> int:
        return self.at.shape[0]

    def expand(self, n: int) -> None:
        """Each row becomes n neighbouring rows."""
        self.source.expand(n)
        self._move(torch.arange(self.rows, device=self.at.device).repeat_interleave(n))

    def reorder(self, index: Int[Tensor, "n"]) -> None:
        """Row i becomes what row index[i] was; rows that share a source must go on sharing one."""
        self.source.reorder(index, self.rows)
        self._move(index)

    def _move(self, index: Tensor) -> None:
        self.cell, self.at = [x[index] for x in self.cell], self.at[index]


class Layers(Recurrent):
    """A stack of recurrent layers that takes up a state and leaves its last one in the same hands."""

    def forward(
        self,
        x: Float[Tensor, "b t d"],
        state: list[Tensor] | None = None,
        *,
        lengths: PerRow | None = None,
        gates: bool = False,
    ) -> Float[Tensor, "b t o"]:
        """The top layer's states; `state` (empty at the start) is replaced by the last of every layer.

        With `gates`, x is what `ahead` made of one token, and whatever else was added to it.
        """
        state = [] if state is None else state
        if gates:
            return self._step(x.squeeze(1), state).unsqueeze(1)
        before: Tensor | tuple[Tensor, Tensor] | None = None
        if state and isinstance(self.cell, nn.LSTM):
            half = len(state) // 2
            before = torch.stack(state[:half]), torch.stack(state[half:])
        elif state:
            before = torch.stack(state)
        out, last = self.run(x, before, lengths=lengths)
        state[:] = [layer for part in (last if isinstance(last, tuple) else (last,)) for layer in part]
        return out

    def ahead(self, x: Float[Tensor, "b t d"]) -> tuple[Float[Tensor, "b t g"], Float[Tensor, "g c"]]:
        """What the first d inputs say to the first layer's gates, for all tokens at once; and how the others say it."""
        weight, _, bias, _ = self.cell.all_weights[0]
        known, other = weight.split([x.shape[-1], weight.shape[1] - x.shape[-1]], dim=1)
        return F.linear(x, known, bias), other

    def _step(self, x: Float[Tensor, "b g"], state: list[Tensor]) -> Float[Tensor, "b o"]:
        """One token through all layers, written out: it costs no more than its products."""
        depth = self.cell.num_layers
        for i, (w_ih, w_hh, b_ih, b_hh) in enumerate(self.cell.all_weights):
            if i:
                x = F.linear(F.dropout(state[i - 1], self.cell.dropout, self.training), w_ih, b_ih)
            h = F.linear(state[i], w_hh, b_hh)
            if isinstance(self.cell, nn.LSTM):
                state[i], state[depth + i] = _lstm(x, h, state[depth + i])
            else:
                state[i] = _gru(x, h, state[i])
        return state[depth - 1]


def _gru(x: Float[Tensor, "b g"], h: Float[Tensor, "b g"], state: Float[Tensor, "b o"]) -> Float[Tensor, "b o"]:
    """A step of nn.GRU from what the input (x) and the state (h) say to its gates."""
    if x.is_cuda and not torch.compiler.is_compiling():  # one kernel, the one behind nn.GRUCell
        return torch.ops.aten._thnn_fused_gru_cell(x, h, state)[0]
    (x, x_new), (h, h_new) = (gates.split([2 * state.shape[1], state.shape[1]], dim=1) for gates in (x, h))
    reset, keep = torch.sigmoid(x + h).chunk(2, dim=1)
    new = torch.tanh(x_new + reset * h_new)
    return new + keep * (state - new)


def _lstm(x: Float[Tensor, "b g"], h: Float[Tensor, "b g"], memory: Float[Tensor, "b o"]) -> tuple[Tensor, Tensor]:
    """A step of nn.LSTM, in the same way: its state and its memory."""
    if x.is_cuda and not torch.compiler.is_compiling():
        state, memory, _ = torch.ops.aten._thnn_fused_lstm_cell(x, h, memory)
        return state, memory
    write, keep, new, show = (x + h).chunk(4, dim=1)
    memory = torch.sigmoid(keep) * memory + torch.sigmoid(write) * torch.tanh(new)
    return torch.sigmoid(show) * torch.tanh(memory), memory


class Encoder(nn.Module):
    """Reads a sentence, forwards and backwards."""

    def __init__(self, c: Config, embed: Tokens) -> None:
        super().__init__()
        self.embed, self.dropout, self.directions = embed, c.dropout, 1 + c.bidirectional
        self.blocks = nn.ModuleList([
            Layers(
                c.width, c.hidden // self.directions, cell=c.cell, depth=c.depth, bidirectional=c.bidirectional,
                dropout=c.dropout,
            )
        ])  # fmt: skip

    def forward(
        self, source: Int[Tensor, "b s"], lengths: Int[Tensor, "b"] | None = None, last: list[Tensor] | None = None
    ) -> Float[Tensor, "b s d"]:
        """One vector a token; `last`, an empty list, gets the last state of every layer."""
        last = [] if last is None else last
        x = F.dropout(self.embed(source), self.dropout, self.training)
        for block in self.blocks:
            x = block(x, last, lengths=lengths)
        last[:] = [torch.cat(last[i : i + self.directions], dim=-1) for i in range(0, len(last), self.directions)]
        return x


class Turn(nn.Module):
    """The decoder's cell, and its look at the source: decoder.blocks.0."""

    def __init__(self, c: Config) -> None:
        super().__init__()
        self.feed = c.feed or FEEDS[c.attention]
        width = c.width + (c.hidden if self.feed == "input" else 0)
        self.cell = Layers(width, c.hidden, cell=c.cell, depth=c.depth, dropout=c.dropout)
        self.cross = _attention(c)

    def remember(self, memory: Float[Tensor, "b s d"], last: list[Tensor]) -> tuple[Tensor, ...]:
        """All that a decoder will want of a source: keys and values, or the one vector where it is fed."""
        if self.cross is not None:
            return self.cross.remember(memory)
        return () if self.feed == "start" else (last[self.cell.cell.num_layers - 1],)

    def forward(self, x: Float[Tensor, "b t d"], state: State) -> Float[Tensor, "b t o"]:
        """What the readout sees of each token: the state, what was looked up, and, where the cell saw that too, x.

        `state` moves on.
        """
        if self.feed == "input" and self.cross is not None:
            return self._turns(x, state)
        seen: list[Tensor] = []
        if self.cross is None and self.feed != "start":  # the same for all tokens
            ((vector,),), fold = state.source.memory, state.source.fold
            vector = vector if fold == 1 else vector.repeat_interleave(fold, dim=0)
            seen = [vector[:, None].expand(-1, x.shape[1], -1)]
        out = self.cell(torch.cat([x, *seen], dim=-1) if self.feed == "input" else x, state.cell)
        if self.cross is not None:
            seen = [self._ask(out, state.source)]
        return torch.cat([out, *seen, x] if self.feed == "input" else [out, *seen], dim=-1)

    def _turns(self, x: Float[Tensor, "b t d"], state: State) -> Float[Tensor, "b t o"]:
        """The cell must wait for what its last state looks up; all that need not wait is computed before."""
        gates, weight = self.cell.ahead(x)
        top, outs, contexts = self.cell.cell.num_layers - 1, [], []
        for token in gates.unbind(1):
            context = self._ask(state.cell[top].unsqueeze(1), state.source)
            token = torch.addmm(token, context.squeeze(1), weight.T)
            outs.append(self.cell(token.unsqueeze(1), state.cell, gates=True))
            contexts.append(context)
        return torch.cat([torch.cat(outs, dim=1), torch.cat(contexts, dim=1), x], dim=-1)

    def _ask(self, x: Float[Tensor, "b t o"], source: SourceMemory) -> Float[Tensor, "b t c"]:
        """Rows that share a source ask it together, as one."""
        assert self.cross is not None
        asked = x.reshape(-1, source.fold * x.shape[1], x.shape[2])  # (b n, t, o) -> (b, n t, o)
        return self.cross(asked, source.memory[0], mask=source.mask).reshape(x.shape)


class Decoder(nn.Module):
    """Writes a sentence, token after token."""

    def __init__(self, c: Config, embed: Tokens) -> None:
        super().__init__()
        self.embed, self.dropout = embed, c.dropout
        self.blocks = nn.ModuleList([Turn(c)])
        feed = c.feed or FEEDS[c.attention]
        seen = {"start": c.hidden, "readout": 2 * c.hidden, "input": 2 * c.hidden + c.width}[feed]
        self.readout = nn.Linear(seen, c.width)

    def forward(self, ids: Int[Tensor, "b t"], state: State) -> Float[Tensor, "b t d"]:
        """tanh(W [state, context, token]): Eq. 5 of Luong et al. 2015; Bahdanau et al. 2015, A.2.2, have a maxout.

        `state` moves on by these tokens.
        """
        x = F.dropout(self.embed(ids), self.dropout, self.training)
        for block in self.blocks:
            x = block(x, state)
        state.at = state.at + ids.shape[1]
        return F.dropout(torch.tanh(self.readout(x)), self.dropout, self.training)


class RNNSeq2Seq(Model):
    """A source sentence and the target's tokens so far -> logits of each next one."""

    reads = "pairs"
    can = frozenset({"translate"})
    methods: ClassVar[tuple[str, ...]] = ("states",)
    config: Config

    def __init__(self, config: Config) -> None:
        super().__init__()
        c = self.config = config
        embed = Tokens(c.vocab, c.width, scale=True)
        target = embed if c.target_vocab is None else Tokens(c.target_vocab, c.width, scale=True)
        self.encoder = Encoder(c, embed)
        self.decoder = Decoder(c, target)
        self.head = Linear(c.width, c.target_vocab or c.vocab, bias=False)
        if c.tied:
            self.head.weight = target.table

    def example_inputs(self, rows: int, size: int, generator: torch.Generator) -> dict[str, Tensor]:
        c = self.config
        ids = random_ids(c.target_vocab or c.vocab, rows, size, generator)
        return {"ids": ids, "source": random_ids(c.vocab, rows, size, generator)}

    def states(
        self, ids: Int[Tensor, "b t"], *, source: Int[Tensor, "b s"], lengths: Int[Tensor, "b"] | None = None
    ) -> Float[Tensor, "b t d"]:
        """The decoder's output: the input of `head`.

        `lengths` are those of the sources; if they are on the host, an accelerator need not be waited for.
        """
        return self.decoder(ids, self._encode(source, lengths))

    def forward(
        self, ids: Int[Tensor, "b t"], *, source: Int[Tensor, "b s"], lengths: Int[Tensor, "b"] | None = None
    ) -> Float[Tensor, "b t v"]:
        return self.head(self.states(ids, source=source, lengths=lengths))

    def start(self, inputs: Mapping[str, Tensor], rows: int, limit: int) -> State:
        """Encode the sources (`source`, and `lengths` where they differ); the limit does not matter."""
        return self._encode(inputs["source"], inputs.get("lengths"))

    def step(self, ids: Int[Tensor, "b t"], state: State) -> tuple[Float[Tensor, "b t v"], State]:
        """Append tokens to every row, and return the logits of what follows each."""
        return self.head(self.decoder(ids, state)), state

    def _encode(self, source: Tensor, lengths: Tensor | None) -> State:
        last: list[Tensor] = []
        memory = self.encoder(source, lengths, last)
        held = cast(Turn, self.decoder.blocks[0]).remember(memory, last)
        at = torch.zeros(source.shape[0], dtype=torch.long, device=source.device)
        return State(last, SourceMemory([held], None if lengths is None else lengths.to(source.device)), at)


def _attention(c: Config) -> Attention | None:
    """One head; the values are the memory itself. Only the additive score has keys of its own (U h, A.1.2)."""
    if c.attention == "none":
        return None
    if c.attention == "additive":
        return Attention(c.hidden, project="qk", out=False, bias=False, score=Additive(c.hidden))
    if c.attention == "bilinear":
        return Attention(c.hidden, project="none", out=False, score=Bilinear(c.hidden))
    return Attention(c.hidden, project="none", out=False, score="dot")
