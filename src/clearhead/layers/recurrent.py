"""Recurrent networks, which take one step per token: attention was first added to them, then replaced them."""

from __future__ import annotations

import torch
from jaxtyping import Float
from torch import Tensor, nn
from torch.nn.utils.rnn import pack_padded_sequence, pad_packed_sequence

from ..checks import one_of
from ..errors import InputError
from .mask import PerRow
from .words import Cell

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
        packed = pack_padded_sequence(x, sizes, batch_first=True, enforce_sorted=False)
        out, state = self.cell(packed, state)
        return pad_packed_sequence(out, batch_first=True, total_length=x.shape[1])[0], state
