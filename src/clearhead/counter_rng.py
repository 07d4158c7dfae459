"""Randomness as a function: a number depends on (seed, stream, step, row, column) and on nothing else.

Counter-based, so there is no state to save, to share or to lose (Salmon et al. 2011, "Parallel random numbers: as easy
as 1, 2, 3"); the mixing is the finaliser of SplitMix64 (Steele, Lea and Flood 2014). Not for secrets.
"""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from .errors import InputError

CONSTANTS = (0x9E3779B97F4A7C15, 0xBF58476D1CE4E5B9, 0x94D049BB133111EB)
_ONES = 2**64 - 1
_GOLDEN, _FIRST, _SECOND = (np.uint64(c) for c in CONSTANTS)


def bits(seed: int, step: int, rows: NDArray[np.int64], columns: int, stream: int = 0) -> NDArray[np.uint64]:
    """64 random bits for each (row, column). A row gets the same whatever other rows are asked for."""
    row = _absorb(np.array([key(seed, step, stream)], np.uint64), np.asarray(rows).astype(np.uint64))
    return _absorb(row[:, None], np.arange(columns, dtype=np.uint64))


def key(seed: int, step: int, stream: int = 0) -> int:
    """The state that rows and columns are mixed into."""
    state = np.zeros(1, np.uint64)
    for word in (seed, stream, step):
        state = _absorb(state, np.array([word & _ONES], np.uint64))
    return int(state[0])


def integers(
    seed: int, step: int, rows: NDArray[np.int64], columns: int, low: int, high: int, stream: int = 0
) -> NDArray[np.int64]:
    """Integers of low <= n < high, alike in probability to high - low parts in 2^64."""
    if high <= low:
        raise InputError(f"no integer is at least {low} and below {high}")
    return (bits(seed, step, rows, columns, stream) % np.uint64(high - low)).astype(np.int64) + low


def uniform(seed: int, step: int, rows: NDArray[np.int64], columns: int, stream: int = 0) -> NDArray[np.float64]:
    """Numbers of 0 <= u < 1 with 53 random bits."""
    return (bits(seed, step, rows, columns, stream) >> np.uint64(11)).astype(np.float64) * 2.0**-53


def normal(seed: int, step: int, rows: NDArray[np.int64], columns: int, stream: int = 0) -> NDArray[np.float64]:
    """Standard normal numbers, two from each two uniform ones (Box and Muller 1958)."""
    u = uniform(seed, step, rows, columns + columns % 2, stream)
    # Whole arrays, not strided views: the same code path, so the same bits, whatever the number of rows.
    radius = np.sqrt(-2 * np.log1p(-np.ascontiguousarray(u[:, 0::2])))
    angle = 2 * np.pi * np.ascontiguousarray(u[:, 1::2])
    return np.stack([radius * np.cos(angle), radius * np.sin(angle)], axis=2).reshape(u.shape)[:, :columns]


def permutation(seed: int, epoch: int, n: int, stream: int = 0) -> NDArray[np.int64]:
    """The numbers 0 to n - 1 in the order of an epoch."""
    return np.argsort(bits(seed, epoch, np.zeros(1, np.int64), n, stream)[0], kind="stable").astype(np.int64)


def _absorb(key: NDArray[np.uint64], word: NDArray[np.uint64]) -> NDArray[np.uint64]:
    return _mix(key ^ _mix(word + _GOLDEN))


def _mix(x: NDArray[np.uint64]) -> NDArray[np.uint64]:
    x = x ^ (x >> np.uint64(30))
    x *= _FIRST
    x ^= x >> np.uint64(27)
    x *= _SECOND
    x ^= x >> np.uint64(31)
    return x
