"""Counter-based random numbers on the device of a batch, with the same bits as those of counter_rng.

A number depends only on (seed, stream, step, row, column): it is the same for any number of workers, and no random
state has to be saved to resume a training.
"""

from __future__ import annotations

import math

import torch
from jaxtyping import Float, Int
from torch import Tensor

from .. import counter_rng


class DeviceRng:
    """Random numbers for some rows of the batch of a step; `Moment.rng` returns one.

    Args:
        seed: The seed of the training.
        step: The step, from 0.
        rows: The index of each row in the batch of all workers, (b,).
        stream: Each use of random numbers in a step has its own stream.

    Examples:
        >>> rng = DeviceRng(seed=1, step=10, rows=torch.arange(4), stream=7)
        >>> rng.normal(2, 3).shape
        torch.Size([4, 2, 3])
        >>> half = DeviceRng(seed=1, step=10, rows=torch.tensor([1, 3]), stream=7)  # one of two workers
        >>> torch.equal(rng.uniform(5)[[1, 3]], half.uniform(5))
        True
    """

    def __init__(self, seed: int, step: int, rows: Int[Tensor, "b"], stream: int = 0) -> None:
        self.seed, self.step, self.rows, self.stream = seed, step, rows, stream

    def bits(self, columns: int) -> Int[Tensor, "b c"]:
        """64 random bits per row and column, as int64."""
        row = _absorb(_signed(counter_rng.key(self.seed, self.step, self.stream)), self.rows)
        return _absorb(row[:, None], torch.arange(columns, device=self.rows.device))

    def uniform(self, *shape: int) -> Float[Tensor, "b *n"]:
        """Uniform numbers 0 <= u < 1 with 24 random bits, float32, of shape (rows, *shape)."""
        columns = math.prod(shape)
        return (_shift(self.bits(columns), 40).to(torch.float32) * 2.0**-24).view(-1, *shape)

    def normal(self, *shape: int) -> Float[Tensor, "b *n"]:
        """Standard normal numbers, float32, of shape (rows, *shape) (Box and Muller 1958)."""
        columns = math.prod(shape)
        u = self.uniform(2 * columns)
        radius = (-2 * torch.log1p(-u[:, :columns])).sqrt()
        return (radius * torch.cos(2 * math.pi * u[:, columns:])).view(-1, *shape)


def _signed(x: int) -> int:
    """The signed 64-bit integer with the same bits as an unsigned one."""
    return x - (1 << 64) if x >= 1 << 63 else x


_GOLDEN, _FIRST, _SECOND = (_signed(c) for c in counter_rng.CONSTANTS)


def _absorb(key: Tensor | int, word: Tensor) -> Tensor:
    return _mix(_mix(word + _GOLDEN) ^ key)


def _mix(x: Tensor) -> Tensor:
    x = (x ^ _shift(x, 30)) * _FIRST
    x = (x ^ _shift(x, 27)) * _SECOND
    return x ^ _shift(x, 31)


def _shift(x: Tensor, n: int) -> Tensor:
    """A logical right shift; >> on int64 would be arithmetic."""
    return (x >> n) & ((1 << (64 - n)) - 1)
