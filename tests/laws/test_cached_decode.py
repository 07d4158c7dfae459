"""Cached decoding equals uncached: for any chunks, any kind of positions, and rows at different positions."""

from functools import cache

import pytest
import torch
from drawn import normal, seeds, shared
from hypothesis import given
from hypothesis import strategies as st
from torch import Tensor
from tower import WIDTH, Tower
from written_out import TIGHT

from clearhead.layers import POSITIONS, Cache, Mask

tower = cache(lambda kind: Tower(kind, kv_heads=1).double().requires_grad_(False))


class Reader:
    """A model, its caches, and all tokens of each row so far, which are read again without a cache to compare."""

    def __init__(self, kind: str, rows: int, limit: int, window: int | None = None) -> None:
        self.model, self.window = tower(kind), window
        self.caches = self.model.caches(rows, limit)
        self.tokens: list[list[Tensor]] = [[] for _ in range(rows)]

    def step(self, chunk: Tensor, counts: list[int]) -> None:
        """Read a padded chunk (b, t, d), of which each row has `counts` real tokens, and check every output."""
        t, lead = chunk.shape[1], self.caches[0]
        out = self.model(chunk, at=lead.positions(t), mask=lead.mask(window=self.window), caches=self.caches)
        for each in self.caches:
            each.advance(counts[0] if len(set(counts)) == 1 else torch.tensor(counts))
        for row, n in enumerate(counts):
            self.tokens[row] += list(chunk[row, :n])
            if n:
                whole = self.model(torch.stack(self.tokens[row])[None], mask=Mask(causal=True, window=self.window))
                torch.testing.assert_close(out[row, :n], whole[0, -n:], **TIGHT)

    def reorder(self, index: list[int]) -> None:
        for each in self.caches:
            each.reorder(torch.tensor(index))
        self.tokens = [list(self.tokens[row]) for row in index]

    def expand(self, n: int) -> None:
        for each in self.caches:
            each.expand(n)
        self.tokens = [list(tokens) for tokens in self.tokens for _ in range(n)]


def chunks(rows: int) -> st.SearchStrategy[list[list[int]]]:
    """For each step, the number of tokens of each row."""
    step = st.lists(st.integers(0, 4), min_size=rows, max_size=rows).filter(any)
    return st.lists(step, min_size=1, max_size=4)


@pytest.mark.parametrize("window", [None, 3])
@pytest.mark.parametrize("kind", POSITIONS)
@shared
@given(plan=st.integers(1, 3).flatmap(chunks), seed=seeds)
def test_any_chunks_and_ragged_rows_equal_one_pass_over_the_text(kind, window, plan, seed):
    reader = Reader(kind, len(plan[0]), 16, window)
    for i, counts in enumerate(plan):
        reader.step(normal(seed + i, len(counts), max(counts), WIDTH), counts)


@pytest.mark.parametrize("sizes", [[1] * 7, [7], [3, 3, 1], [2, 5], [6, 1]], ids=str)
@pytest.mark.parametrize("kind", POSITIONS)
def test_chunks_of_every_size_equal_one_pass(kind, sizes):
    reader, x = Reader(kind, 2, 7), normal(0, 2, 7, WIDTH)
    for chunk in x.split(sizes, dim=1):
        reader.step(chunk, [chunk.shape[1]] * 2)


@pytest.mark.parametrize("kind", POSITIONS)
@shared
@given(data=st.data(), seed=seeds)
def test_reordered_and_expanded_rows_continue_from_their_own_tokens(kind, data, seed):
    reader = Reader(kind, 3, 16)
    prompt = data.draw(st.lists(st.integers(0, 4), min_size=3, max_size=3).filter(any))
    reader.step(normal(seed, 3, max(prompt), WIDTH), prompt)
    reader.reorder(data.draw(st.lists(st.integers(0, 2), min_size=1, max_size=4)))
    reader.step(normal(seed + 1, len(reader.tokens), 2, WIDTH), [2] * len(reader.tokens))
    reader.expand(data.draw(st.integers(1, 3)))
    counts = data.draw(
        st.lists(st.integers(0, 2), min_size=len(reader.tokens), max_size=len(reader.tokens)).filter(any)
    )
    reader.step(normal(seed + 2, len(reader.tokens), max(counts), WIDTH), counts)
    reader.step(normal(seed + 3, len(reader.tokens), 1, WIDTH), [1] * len(reader.tokens))


def test_the_one_row_that_is_kept_keeps_its_position():
    reader = Reader("rotary", 2, 16)
    reader.step(normal(0, 2, 5, WIDTH), [3, 5])
    reader.reorder([0])
    reader.step(normal(1, 1, 2, WIDTH), [2])


def test_a_full_cache_raises_and_one_with_room_does_not():
    k = torch.randn(2, 1, 3, 4)
    cache = Cache(2, 1, 5, 4)
    cache.append(k, k)
    cache.advance(3)
    with pytest.raises(ValueError, match="3 more tokens after 3: the cache holds 5"):
        cache.append(k, k)
    cache.append(k[:, :, :2], k[:, :, :2])


@given(moves=st.lists(st.tuples(st.integers(0, 3), st.integers(0, 3)), max_size=6), keep=st.integers(0, 1))
def test_furthest_is_the_largest_position_however_the_rows_advanced(moves, keep):
    """Rows that advance in turn do not fill a cache that has room for each of them."""
    cache = Cache(2, 1, 32, 4)
    for counts in moves:
        cache.advance(torch.tensor(counts))
        assert cache.furthest == int(cache.at.max())
    cache.reorder(torch.tensor([keep]))
    assert cache.furthest == int(cache.at.max())
