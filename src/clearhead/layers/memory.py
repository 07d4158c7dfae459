"""The composite memory with forgetting: what attention replaced, in its two equal forms."""

from __future__ import annotations

import torch
from jaxtyping import Float
from torch import Tensor, nn


class Memory(nn.Module):
    """sum_i gamma^(T-i) (W x_i + b), for every T at once or one step at a time.

    The width is split over `heads`, each with its own gamma in (0, 1]: fixed, or learned from there. With
    gamma = 1 nothing is ever forgotten and the memory is a plain sum; below 1 an old guest at the party
    fades however important, since gamma does not look at what it forgets.
    """

    def __init__(self, width: int, heads: int = 1, *, gamma: float | list[float] = 0.9, learned: bool = False) -> None:
        super().__init__()
        if width % heads:
            raise ValueError(f"width={width} does not divide into heads={heads}")
        rate = torch.as_tensor(gamma, dtype=torch.get_default_dtype()).reshape(-1)
        if rate.numel() not in (1, heads):
            raise ValueError(f"{rate.numel()} gammas for {heads} heads: expected one, or one a head")
        if not ((rate > 0) & (rate <= 1)).all():
            raise ValueError(f"gamma={gamma}: expected numbers in (0, 1]; 1 forgets nothing")
        rate = rate.expand(heads).clone()
        self.heads, self.learned = heads, learned
        self.value = nn.Linear(width, width)
        if learned:
            if (rate == 1).any():
                raise ValueError("gamma=1 is the end of its range, where it cannot learn: start below 1")
            self.rate = nn.Parameter(rate.logit())  # a sigmoid keeps gamma in (0, 1)
        else:
            self.register_buffer("rate", rate)

    @property
    def gamma(self) -> Float[Tensor, "h"]:
        """How much of a head's memory is left after a step."""
        return self.rate.sigmoid() if self.learned else self.rate

    def forward(
        self, x: Float[Tensor, "b t d"], state: Float[Tensor, "b d"] | None = None, *, chunk: int = 128
    ) -> Float[Tensor, "b t d"]:
        """The memory after each token, in parallel: within a chunk by the matrix gamma^(i-j), between by the carry."""
        v = self.value(x).unflatten(-1, (self.heads, -1)).transpose(1, 2)  # (b, h, t, e)
        log = self.gamma.log()[:, None, None]
        carry = None if state is None else state.unflatten(-1, (self.heads, -1))[:, :, None]  # (b, h, 1, e)
        out = []
        for part in v.split(chunk, dim=2):
            i = torch.arange(part.shape[2], device=x.device)
            age = i[:, None] - i  # of what token j said, at token i
            decay = torch.where(age >= 0, (log * age.clamp(min=0)).exp(), 0.0)  # (h, t, t)
            memory = decay @ part
            if carry is not None:
                memory = memory + (log * (i + 1)[:, None]).exp() * carry
            carry = memory[:, :, -1:]
            out.append(memory)
        return torch.cat(out, dim=2).transpose(1, 2).flatten(2) if out else x

    def step(self, x: Float[Tensor, "b d"], state: Float[Tensor, "b d"] | None = None) -> Float[Tensor, "b d"]:
        """The memory after one more token: gamma * state + W x + b."""
        now = self.value(x)
        if state is None:
            return now
        return (self.gamma[:, None] * state.unflatten(-1, (self.heads, -1))).flatten(-2) + now
