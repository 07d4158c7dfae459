"""Recurrent networks, one step a token: what attention was first added to, and then did without."""

from __future__ import annotations

import torch
from jaxtyping import Float
from torch import Tensor, nn
from torch.nn.utils.rnn import pack_padded_sequence, pad_packed_sequence

from ..errors import InputError
from .mask import PerRow

# "rnn": h = tanh(W x + U h + b). "gru": Cho et al. 2014, with the reset gate after the product with U, as
# cuDNN has it. "lstm": Hochreiter and Schmidhuber 1997 with a forget gate (Gers et al. 2000).
CELLS: dict[str, type[nn.RNN] | type[nn.GRU] | type[nn.LSTM]] = {
    "rnn": nn.RNN,
    "gru": nn.GRU,
    "lstm": nn.LSTM,
}
State = Tensor | tuple[Tensor, Tensor]  # (layers x directions, b, d), and the LSTM's memory beside it


class Recurrent(nn.Module):
    """A stack of recurrent layers over padded sequences; padding is packed away and cannot matter.

    forward gives the outputs (b, t, d), zeros past each row's length; `run` gives the last state beside them,
    that of each row's own last token, and takes one to go on from. Both directions double the output's width.
    """

    def __init__(
        self,
        width: int,
        hidden: int | None = None,
        *,
        cell: str = "gru",
        depth: int = 1,
        bidirectional: bool = False,
        dropout: float = 0.0,  # between layers
    ) -> None:
        super().__init__()
        if cell not in CELLS:
            raise InputError(f"cell={cell!r}: expected one of {', '.join(CELLS)}")
        self.cell = CELLS[cell](
            width, hidden or width, depth, batch_first=True, bidirectional=bidirectional,
            dropout=dropout if depth > 1 else 0.0,
        )  # fmt: skip

    def forward(self, x: Float[Tensor, "b t d"], *, lengths: PerRow | None = None) -> Float[Tensor, "b t o"]:
        return self.run(x, lengths=lengths)[0]

    def run(
        self, x: Float[Tensor, "b t d"], state: State | None = None, *, lengths: PerRow | None = None
    ) -> tuple[Float[Tensor, "b t o"], State]:
        """Outputs, and the state after each row's last token."""
        if lengths is None:
            out, state = self.cell(x, state)
            return out, state
        sizes = torch.as_tensor(lengths).reshape(-1).cpu()
        if sizes.is_floating_point() or sizes.shape[0] not in (1, x.shape[0]):
            raise InputError(f"lengths={lengths}: expected an int, or {x.shape[0]} of them, one a row")
        sizes = sizes.expand(x.shape[0])
        if int(sizes.min()) < 1 or int(sizes.max()) > x.shape[1]:
            raise InputError(f"lengths from {int(sizes.min())} to {int(sizes.max())}: expected 1 to {x.shape[1]}")
        packed = pack_padded_sequence(x, sizes, batch_first=True, enforce_sorted=False)
        out, state = self.cell(packed, state)
        return pad_packed_sequence(out, batch_first=True, total_length=x.shape[1])[0], state
