"""The composite memory with forgetting, which attention replaced, in its two equal forms."""

from __future__ import annotations

import math
from collections.abc import Sequence

import torch
import torch.nn.functional as F
from jaxtyping import Float, Int
from torch import Tensor, nn

from ..errors import InputError
from .linear import Exact


class Memory(Exact):
    """The composite memory sum_i gamma^(T-i) (W x_i + b), for every T in parallel or one step at a time.

    With gamma = 1 nothing is ever forgotten and the memory is a plain sum. Below 1 every token fades with age, however
    important it is, because gamma does not depend on the content.

    Args:
        width: width of the tokens, split over the heads.
        heads: number of heads, each with its own gamma.
        gamma: share of the memory that is left after a step, in (0, 1]; one number, or one per head.
        learned: learn gamma, starting from the given value.

    Examples:
        >>> memory = Memory(1, gamma=0.5)
        >>> _ = memory.value.weight.data.fill_(1.0), memory.value.bias.data.zero_()
        >>> memory(torch.tensor([[[8.0], [0.0], [0.0]]])).flatten().tolist()
        [8.0, 4.0, 2.0]
    """

    def __init__(
        self,
        width: int,
        heads: int = 1,
        *,
        gamma: float | Sequence[float] = 0.9,
        learned: bool = False,
    ) -> None:
        super().__init__()
        if heads < 1 or width % heads:
            raise InputError(f"width={width} does not divide into heads={heads}")
        if isinstance(gamma, Sequence):
            gammas = [float(g) for g in gamma]
        else:
            gammas = [float(gamma)] * heads
        if len(gammas) != heads:
            raise InputError(
                f"{len(gammas)} gammas for {heads} heads: expected one number, or one per head"
            )
        if not all(0 < g <= 1 for g in gammas):
            raise InputError(f"gamma={gamma}: expected numbers in (0, 1]; 1 forgets nothing")
        if learned and 1.0 in gammas:
            raise InputError(
                "gamma=1 with learned=True: expected a start below 1, since the sigmoid has no gradient at 1"
            )
        self.heads = heads
        self.value = nn.Linear(width, width)
        # A learned gamma is a sigmoid, which keeps it in (0, 1); the logarithm of a fixed one is exact in any dtype.
        self.rate: nn.Parameter | None = None
        if learned:
            self.rate = nn.Parameter(torch.tensor([math.log(g / (1 - g)) for g in gammas]))
        else:
            logs = [math.log(g) for g in gammas]
            self.constant("log", torch.tensor(logs, dtype=torch.float64, device="cpu"))

    def log_gamma(self, dtype: torch.dtype) -> Float[Tensor, "h"]:
        """Return log(gamma) of each head, in float32 or float64."""
        wide = torch.float64 if dtype == torch.float64 else torch.float32
        if self.rate is None:
            return self.get_buffer("log").to(wide)
        return F.logsigmoid(self.rate.to(wide))

    @property
    def gamma(self) -> Float[Tensor, "h"]:
        """The share of each head's memory that is left after a step."""
        return self.log_gamma(self.value.weight.dtype).exp()

    def forward(
        self,
        x: Float[Tensor, "b t d"],
        state: Float[Tensor, "b d"] | None = None,
        *,
        documents: Int[Tensor, "b t"] | None = None,
        chunk: int = 128,
    ) -> Float[Tensor, "b t d"]:
        """Return the memory after each token: within a chunk by the matrix gamma^(i-j), between chunks by a carry.

        Args:
            x: the tokens.
            state: the memory before the first token; empty if not given.
            documents: document number of each token of packed rows; where it changes, the memory starts empty.
            chunk: tokens that are computed in parallel.
        """
        v = self.value(x).unflatten(-1, (self.heads, -1)).transpose(1, 2)  # (b, h, t, e)
        log = self.log_gamma(x.dtype)[:, None, None]  # (h, 1, 1)
        carry = None  # the memory before a chunk
        if state is not None:
            carry = state.unflatten(-1, (self.heads, -1))[:, :, None]  # (b, h, 1, e)
        changes = None  # how often the document has changed up to each token: (b, t)
        if documents is not None:
            changes = F.pad(documents[:, 1:] != documents[:, :-1], (1, 0)).cumsum(1)
        out = []
        for start, part in zip(range(0, v.shape[2], chunk), v.split(chunk, dim=2), strict=True):
            # inside a chunk the sum over earlier tokens is one product, computed in parallel
            i = torch.arange(part.shape[2], device=x.device)
            age = i[:, None] - i  # (t, t): of token j, seen from token i
            decay = torch.where(age >= 0, (log * age.clamp(min=0)).exp(), 0.0)  # (h, t, t)
            left = (log * (i + 1)[:, None]).exp()  # share of the carry: (h, t, 1)
            # nothing is left of another document
            if changes is not None:
                now = changes[:, start : start + chunk]
                before = changes[:, max(start - 1, 0), None]
                decay = decay * (now[:, None, :, None] == now[:, None, None, :])  # (b, h, t, t)
                left = left * (now == before)[:, None, :, None]
            memory = decay.to(part.dtype) @ part  # sum_j gamma^(i-j) v_j
            if carry is not None:
                memory = memory + left.to(part.dtype) * carry
            # (b, h, 1, e): all that the next chunk needs of the past
            carry = memory[:, :, -1:]
            out.append(memory)
        if out:
            return torch.cat(out, dim=2).transpose(1, 2).flatten(2)
        return x

    def step(
        self, x: Float[Tensor, "b d"], state: Float[Tensor, "b d"] | None = None
    ) -> Float[Tensor, "b d"]:
        """Return the memory after one more token: gamma * state + W x + b."""
        now = self.value(x)
        if state is None:
            return now
        gamma = self.gamma.to(state.dtype)[:, None]
        return (gamma * state.unflatten(-1, (self.heads, -1))).flatten(-2) + now
