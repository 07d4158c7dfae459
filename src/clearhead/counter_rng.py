"""Random numbers as a function: each depends on (seed, stream, step, row, column) and on nothing else.

Counter-based, so there is no state to save, to share or to lose (Salmon et al. 2011, "Parallel random numbers: as easy
as 1, 2, 3"); the mixing function is the finaliser of SplitMix64 (Steele, Lea and Flood 2014). Not for cryptography.
"""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from .errors import InputError

CONSTANTS = (0x9E3779B97F4A7C15, 0xBF58476D1CE4E5B9, 0x94D049BB133111EB)
_ONES = 2**64 - 1
_GOLDEN, _FIRST, _SECOND = (np.uint64(c) for c in CONSTANTS)


def bits(
    seed: int, step: int, rows: NDArray[np.int64], columns: int, stream: int = 0
) -> NDArray[np.uint64]:
    """Return 64 random bits for each row and column; a row's bits do not depend on which other rows are drawn.

    Args:
        seed: The seed of the run.
        step: The training step, or another counter.
        rows: The numbers of the rows to draw.
        columns: The number of values per row. Fewer columns are a prefix of more columns.
        stream: The number of an independent stream, so that two uses of one seed and step do not correlate.

    Returns:
        An array of shape (len(rows), columns).

    Examples:
        >>> bits(7, 0, np.array([5, 2]), 3).shape
        (2, 3)
        >>> bool((bits(7, 0, np.array([5, 2]), 3)[1] == bits(7, 0, np.array([2]), 3)[0]).all())
        True
    """
    # the words seed, stream, step, row and column are mixed in one after the other
    state = np.array([key(seed, step, stream)], np.uint64)
    row = _absorb(state, np.asarray(rows).astype(np.uint64))
    return _absorb(row[:, None], np.arange(columns, dtype=np.uint64))


def key(seed: int, step: int, stream: int = 0) -> int:
    """Return the 64-bit state into which `bits` mixes rows and columns, for implementations on other devices.

    Args:
        seed: The seed of the run.
        step: The training step, or another counter.
        stream: The number of an independent stream.

    Examples:
        >>> key(0, 0) != key(0, 1)
        True
    """
    state = np.zeros(1, np.uint64)
    for word in (seed, stream, step):
        # `& _ONES` lets negative seeds through, as their two's complement
        state = _absorb(state, np.array([word & _ONES], np.uint64))
    return int(state[0])


def integers(
    seed: int,
    step: int,
    rows: NDArray[np.int64],
    columns: int,
    low: int,
    high: int,
    stream: int = 0,
) -> NDArray[np.int64]:
    """Return uniform integers n with low <= n < high, to a bias of at most (high - low) / 2^64.

    Args:
        seed: The seed of the run.
        step: The training step, or another counter.
        rows: The numbers of the rows to draw.
        columns: The number of values per row.
        low: The smallest integer.
        high: One more than the largest integer.
        stream: The number of an independent stream.

    Examples:
        >>> integers(0, 0, np.arange(2), 3, 0, 10).shape
        (2, 3)
    """
    if high <= low:
        raise InputError(f"no integer is at least {low} and below {high}")
    # the remainder favours the lowest integers by at most one in 2^64 / (high - low)
    return (bits(seed, step, rows, columns, stream) % np.uint64(high - low)).astype(np.int64) + low


def uniform(
    seed: int, step: int, rows: NDArray[np.int64], columns: int, stream: int = 0
) -> NDArray[np.float64]:
    """Return uniform numbers u with 0 <= u < 1, of 53 random bits each.

    Args:
        seed: The seed of the run.
        step: The training step, or another counter.
        rows: The numbers of the rows to draw.
        columns: The number of values per row.
        stream: The number of an independent stream.

    Examples:
        >>> u = uniform(0, 0, np.arange(1000), 2)
        >>> u.shape, bool(abs(u.mean() - 0.5) < 0.05)
        ((1000, 2), True)
    """
    # the upper 53 bits, as many as a float64 has, times 2^-53
    return (bits(seed, step, rows, columns, stream) >> np.uint64(11)).astype(np.float64) * 2.0**-53


def normal(
    seed: int, step: int, rows: NDArray[np.int64], columns: int, stream: int = 0
) -> NDArray[np.float64]:
    """Return standard normal numbers, two from each pair of uniform ones (Box and Muller 1958).

    Args:
        seed: The seed of the run.
        step: The training step, or another counter.
        rows: The numbers of the rows to draw.
        columns: The number of values per row.
        stream: The number of an independent stream.

    Examples:
        >>> x = normal(0, 0, np.arange(1000), 2)
        >>> x.shape, bool(abs(x.std() - 1) < 0.05)
        ((1000, 2), True)
    """
    u = uniform(seed, step, rows, columns + columns % 2, stream)
    # Whole arrays, not strided views: the same code path, so the same bits, whatever the number of rows.
    radius = np.sqrt(-2 * np.log1p(-np.ascontiguousarray(u[:, 0::2])))
    angle = 2 * np.pi * np.ascontiguousarray(u[:, 1::2])
    pairs = np.stack([radius * np.cos(angle), radius * np.sin(angle)], axis=2)
    return pairs.reshape(u.shape)[:, :columns]


def permutation(seed: int, epoch: int, n: int, stream: int = 0) -> NDArray[np.int64]:
    """Return the numbers 0 to n - 1 in the random order of an epoch.

    Args:
        seed: The seed of the run.
        epoch: The number of the epoch.
        n: The number of items.
        stream: The number of an independent stream.

    Examples:
        >>> permutation(7, 1, 8)
        array([2, 7, 6, 1, 3, 0, 4, 5])
    """
    numbers = bits(seed, epoch, np.zeros(1, np.int64), n, stream)[0]
    # sorting random keys gives every order the same chance
    return np.argsort(numbers, kind="stable").astype(np.int64)


def _absorb(key: NDArray[np.uint64], word: NDArray[np.uint64]) -> NDArray[np.uint64]:
    """The state after one more word; both are mixed, so that close words give unrelated states."""
    return _mix(key ^ _mix(word + _GOLDEN))


def _mix(x: NDArray[np.uint64]) -> NDArray[np.uint64]:
    """SplitMix64's finaliser: each bit of the result depends on every bit of x."""
    # not in place: x belongs to the caller
    x = x ^ (x >> np.uint64(30))
    x *= _FIRST
    x ^= x >> np.uint64(27)
    x *= _SECOND
    x ^= x >> np.uint64(31)
    return x
