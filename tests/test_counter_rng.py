"""Random numbers as a function: uniform, and independent between seeds, steps, rows, columns and streams."""

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from clearhead import counter_rng

ROWS = np.arange(7)


@given(seed=st.integers(-(2**63), 2**64), step=st.integers(0, 2**40), pick=st.lists(st.integers(0, 2**40), min_size=1))
def test_a_rows_numbers_do_not_depend_on_the_other_rows(seed, step, pick):
    rows = np.array(pick)
    for draw in (counter_rng.bits, counter_rng.uniform, counter_rng.normal):
        together = draw(seed, step, rows, 5)
        alone = np.concatenate([draw(seed, step, rows[i : i + 1], 5) for i in range(len(rows))])
        assert np.array_equal(together, alone)
        assert np.array_equal(draw(seed, step, rows, 3), together[:, :3])  # fewer columns are the first columns


def test_seed_step_and_stream_change_all_numbers():
    base = counter_rng.bits(1, 2, ROWS, 5, 3)
    for other in (
        counter_rng.bits(2, 2, ROWS, 5, 3),
        counter_rng.bits(1, 3, ROWS, 5, 3),
        counter_rng.bits(1, 2, ROWS, 5, 4),
    ):
        assert not np.intersect1d(base, other).size
    assert not np.array_equal(counter_rng.bits(1, 2, ROWS, 5, 3), counter_rng.bits(2, 1, ROWS, 5, 3))
    many = np.concatenate([counter_rng.bits(0, step, np.arange(100), 100).ravel() for step in range(10)])
    assert len(np.unique(many)) == len(many)


def slow_bits(*words):
    """The same function in plain integers: absorb seed, stream, step, row and column, one after the other."""

    def mix(x):
        x = (x ^ (x >> 30)) * 0xBF58476D1CE4E5B9 % 2**64
        x = (x ^ (x >> 27)) * 0x94D049BB133111EB % 2**64
        return x ^ (x >> 31)

    key = 0
    for word in words:
        key = mix(key ^ mix((word + 0x9E3779B97F4A7C15) % 2**64))
    return key


def test_the_numbers_never_change():
    """A change would change the batches of every training run that is resumed."""
    assert counter_rng.bits(5, 7, np.array([3, 0, 2**40]), 4, 2).tolist() == [
        [slow_bits(5, 2, 7, row, column) for column in range(4)] for row in (3, 0, 2**40)
    ]
    assert counter_rng.bits(0, 0, np.arange(1), 2).tolist() == [[6032501310980943459, 12115386553892380266]]
    assert counter_rng.permutation(7, 1, 8).tolist() == [2, 7, 6, 1, 3, 0, 4, 5]


def test_bits_are_unbiased_and_uncorrelated():
    x = counter_rng.bits(3, 4, np.arange(2000), 50)
    planes = (x[..., None] >> np.arange(64, dtype=np.uint64)) & np.uint64(1)
    n = x.size
    assert abs(planes.mean(axis=(0, 1)) - 0.5).max() < 5 * 0.5 / n**0.5  # each bit, five standard errors
    u = counter_rng.uniform(3, 4, np.arange(2000), 50)
    corr = np.corrcoef(np.stack([u[:-1].ravel(), u[1:].ravel()]))[0, 1]
    assert abs(corr) < 5 / n**0.5
    corr = np.corrcoef(np.stack([u[:, :-1].ravel(), u[:, 1:].ravel()]))[0, 1]
    assert abs(corr) < 5 / n**0.5


def test_integers_are_uniform():
    x = counter_rng.integers(0, 0, np.arange(1000), 100, -3, 4)
    counts = np.bincount(x.ravel() + 3, minlength=7)
    assert len(counts) == 7
    assert abs(counts - 1e5 / 7).max() < 5 * (1e5 / 7) ** 0.5
    with pytest.raises(ValueError, match="at least 3 and below 3"):
        counter_rng.integers(0, 0, ROWS, 1, 3, 3)


def test_uniform_and_normal_numbers_have_the_right_moments():
    u = counter_rng.uniform(0, 0, np.arange(1000), 101)
    assert u.min() >= 0
    assert u.max() < 1
    assert abs(u.mean() - 0.5) < 0.005
    x = counter_rng.normal(0, 0, np.arange(1000), 101)
    assert x.shape == (1000, 101)
    assert np.isfinite(x).all()
    assert abs(x.mean()) < 0.02
    assert abs(x.var() - 1) < 0.03
    assert abs((x**4).mean() - 3) < 0.2


@given(seed=st.integers(0, 2**64), epoch=st.integers(0, 1000), n=st.integers(0, 300))
def test_a_permutation_contains_each_number_once(seed, epoch, n):
    assert np.array_equal(np.sort(counter_rng.permutation(seed, epoch, n)), np.arange(n))


def test_epochs_have_different_orders():
    orders = {tuple(counter_rng.permutation(0, epoch, 20)) for epoch in range(50)}
    assert len(orders) == 50
