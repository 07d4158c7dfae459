"""Moment: the step and the rows of a batch, and the random numbers on the device that they key."""

from __future__ import annotations

import math
from dataclasses import dataclass

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
        # on the host, once: only rows and columns are mixed in on the device
        key = _signed(counter_rng.key(self.seed, self.step, self.stream))
        row_keys = _absorb(key, self.rows)
        return _absorb(row_keys[:, None], torch.arange(columns, device=self.rows.device))

    def uniform(self, *shape: int) -> Float[Tensor, "b *n"]:
        """Uniform numbers 0 <= u < 1 with 24 random bits, float32, of shape (rows, *shape)."""
        high = _shift(self.bits(math.prod(shape)), 40)  # 24 bits are exact in float32
        return (high.to(torch.float32) * 2.0**-24).view(-1, *shape)

    def normal(self, *shape: int) -> Float[Tensor, "b *n"]:
        """Standard normal numbers, float32, of shape (rows, *shape) (Box and Muller 1958)."""
        columns = math.prod(shape)
        u = self.uniform(2 * columns)
        radius = (-2 * torch.log1p(-u[:, :columns])).sqrt()  # log(1 - u), since u may be 0
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


@dataclass(frozen=True, kw_only=True, slots=True)
class Moment:
    """The step and the rows of a batch: the only things that its random numbers may depend on.

    Examples:
        >>> moment = Moment(seed=1, step=10, steps=60, rows=torch.arange(4))
        >>> half = Moment(seed=1, step=10, steps=60, rows=torch.tensor([1, 3]))  # the rows of one of two workers
        >>> torch.equal(moment.rng(1).normal(5)[[1, 3]], half.rng(1).normal(5))
        True
    """

    seed: int  # seed of the training
    step: int  # step, from 0
    steps: int  # number of steps of the training
    rows: Tensor  # (b,) the index of each row in the batch of all workers

    def rng(self, stream: int) -> DeviceRng:
        """Random numbers keyed by (seed, step, row), whatever the number of workers; each use needs its own stream."""
        return DeviceRng(self.seed, self.step, self.rows, stream)
