"""Recurrent networks, which take one step per token: attention was first added to them, then replaced them."""

from __future__ import annotations

import torch
import torch.nn.functional as F
from jaxtyping import Float
from torch import Tensor, nn
from torch.nn.utils.rnn import pack_padded_sequence, pad_packed_sequence

from ..checks import one_of
from ..errors import InputError
from .choices import Cell
from .mask import PerRow

# "rnn": h = tanh(W x + U h + b). "gru": Cho et al. 2014, with the reset gate after the product with U, as in
# cuDNN. "lstm": Hochreiter and Schmidhuber 1997 with a forget gate (Gers et al. 2000).
CELLS: dict[str, type[nn.RNN] | type[nn.GRU] | type[nn.LSTM]] = {
    "rnn": nn.RNN,
    "gru": nn.GRU,
    "lstm": nn.LSTM,
}
# (layers x directions, b, d); for an LSTM also its cell state
State = Tensor | tuple[Tensor, Tensor]


class Recurrent(nn.Module):
    """Recurrent layers over padded sequences; padding is packed away and does not change the results.

    `forward` returns the outputs, zeros past each row's length; `run` returns the state after each row's last token
    too, and takes a state to continue from.

    Args:
        width: width of the input.
        hidden: width of the state; that of the input if not given.
        cell: "rnn", "gru" or "lstm".
        depth: number of layers.
        bidirectional: also read from right to left, which doubles the width of the output.
        dropout: share of the outputs dropped between layers in training.

    Examples:
        >>> layer = Recurrent(4, 3, cell="lstm", bidirectional=True)
        >>> out, (state, memory) = layer.run(torch.zeros(2, 7, 4), lengths=[3, 7])
        >>> out.shape, state.shape
        (torch.Size([2, 7, 6]), torch.Size([2, 2, 3]))
        >>> out[0, 3:].any()
        tensor(False)
    """

    def __init__(
        self,
        width: int,
        hidden: int | None = None,
        *,
        cell: Cell = "gru",
        depth: int = 1,
        bidirectional: bool = False,
        dropout: float = 0.0,
    ) -> None:
        super().__init__()
        one_of("cell", cell, CELLS)
        self.cell = CELLS[cell](
            width,
            hidden or width,
            depth,
            batch_first=True,
            bidirectional=bidirectional,
            dropout=dropout if depth > 1 else 0.0,
        )

    def forward(
        self, x: Float[Tensor, "b t d"], *, lengths: PerRow | None = None
    ) -> Float[Tensor, "b t o"]:
        return self.run(x, lengths=lengths)[0]

    def run(
        self,
        x: Float[Tensor, "b t d"],
        state: State | None = None,
        *,
        lengths: PerRow | None = None,
    ) -> tuple[Float[Tensor, "b t o"], State]:
        """Return the outputs and the state after each row's last token.

        Args:
            x: the tokens.
            state: the state before the first token; zeros if not given.
            lengths: the number of tokens of each row, or of all rows; all tokens if not given.
        """
        if lengths is None:
            out, state = self.cell(x, state)
            return out, state
        sizes = torch.as_tensor(lengths).reshape(-1).cpu()
        if sizes.is_floating_point() or sizes.shape[0] not in (1, x.shape[0]):
            raise InputError(
                f"lengths={lengths}: expected an int, or {x.shape[0]} ints, one per row"
            )
        sizes = sizes.expand(x.shape[0])
        if int(sizes.min()) < 1 or int(sizes.max()) > x.shape[1]:
            raise InputError(
                f"lengths from {int(sizes.min())} to {int(sizes.max())}: expected 1 to {x.shape[1]}"
            )
        # packing leaves the padding out: the backward direction starts at each row's last token
        packed = pack_padded_sequence(x, sizes, batch_first=True, enforce_sorted=False)
        out, state = self.cell(packed, state)
        return pad_packed_sequence(out, batch_first=True, total_length=x.shape[1])[0], state


class RecurrentLayers(Recurrent):
    """Recurrent layers that start from a state, a list of tensors, and update it in place."""

    def forward(
        self,
        x: Float[Tensor, "b t d"],
        state: list[Tensor] | None = None,
        *,
        lengths: PerRow | None = None,
        gates: bool = False,
    ) -> Float[Tensor, "b t o"]:
        """The states of the top layer at every token.

        Args:
            x: The tokens; with `gates`, the gates of the first layer's input for one token.
            state: The state of each layer (b, o), and then the memory of each LSTM layer; empty at the start. It is
                replaced by the last one in place.
            lengths: The number of tokens of each row; all if not given.
            gates: Take one step from gates (`input_gates`, plus whatever was added to them).
        """
        if state is None:
            state = []
        if gates:
            return self._step(x.squeeze(1), state).unsqueeze(1)
        # the list of layers <-> nn.GRU's state (layers, b, o), or nn.LSTM's pair of states and cell states
        before: State | None = None
        if state and isinstance(self.cell, nn.LSTM):
            # hidden states of all layers first, then their cell states
            half = len(state) // 2
            before = torch.stack(state[:half]), torch.stack(state[half:])
        elif state:
            before = torch.stack(state)
        out, last = self.run(x, before, lengths=lengths)
        if isinstance(last, tuple):
            # in place, because the caller holds this list
            state[:] = [*last[0], *last[1]]
        else:
            state[:] = [*last]
        return out

    def input_gates(
        self, x: Float[Tensor, "b t d"]
    ) -> tuple[Float[Tensor, "b t g"], Float[Tensor, "g c"]]:
        """What the first d inputs contribute to the first layer's gates, and the weights of the other inputs."""
        # W [x, z] = W_x x + W_z z: the first part needs no step before it
        weight, _, bias, _ = self.cell.all_weights[0]
        first, other = weight.split([x.shape[-1], weight.shape[1] - x.shape[-1]], dim=1)
        return F.linear(x, first, bias), other

    def _step(self, x: Float[Tensor, "b g"], state: list[Tensor]) -> Float[Tensor, "b o"]:
        """One token through all layers, from the gates of the first layer's input."""
        depth = self.cell.num_layers
        for i, (w_ih, w_hh, b_ih, b_hh) in enumerate(self.cell.all_weights):
            if i:  # the input of a further layer is the new state of the one below
                below = F.dropout(state[i - 1], self.cell.dropout, self.training)
                x = F.linear(below, w_ih, b_ih)
            # U h, with the gates side by side: (b, 3 o) of a GRU, (b, 4 o) of an LSTM
            h = F.linear(state[i], w_hh, b_hh)
            if isinstance(self.cell, nn.LSTM):
                state[i], state[depth + i] = lstm_step(x, h, state[depth + i])
            else:
                state[i] = gru_step(x, h, state[i])
        return state[depth - 1]


def gru_step(
    x: Float[Tensor, "b g"], h: Float[Tensor, "b g"], state: Float[Tensor, "b o"]
) -> Float[Tensor, "b o"]:
    """A step of nn.GRU from the gates of its input (x) and of its state (h).

    Cho et al. 2014, Eqs. 5 to 8, but with the reset gate after the product with U, as in cuDNN.
    """
    if x.is_cuda and not torch.compiler.is_compiling():  # one kernel, the one of nn.GRUCell
        return torch.ops.aten._thnn_fused_gru_cell(x, h, state)[0]
    # reset gate r and update gate z, then the candidate
    sizes = [2 * state.shape[1], state.shape[1]]
    x, x_new = x.split(sizes, dim=1)
    h, h_new = h.split(sizes, dim=1)
    reset, update = torch.sigmoid(x + h).chunk(2, dim=1)
    new = torch.tanh(x_new + reset * h_new)
    return new + update * (state - new)  # z h + (1 - z) h~


def lstm_step(
    x: Float[Tensor, "b g"], h: Float[Tensor, "b g"], memory: Float[Tensor, "b o"]
) -> tuple[Tensor, Tensor]:
    """A step of nn.LSTM from its gates: the new state and the new memory (cell state)."""
    if x.is_cuda and not torch.compiler.is_compiling():
        # one kernel, the one of nn.LSTMCell
        state, memory, _ = torch.ops.aten._thnn_fused_lstm_cell(x, h, memory)
        return state, memory
    # input gate, forget gate, candidate, output gate
    write, keep, new, show = (x + h).chunk(4, dim=1)
    memory = torch.sigmoid(keep) * memory + torch.sigmoid(write) * torch.tanh(new)
    return torch.sigmoid(show) * torch.tanh(memory), memory
