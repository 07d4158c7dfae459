"""The KV cache: its dtype and device, its rows, its positions, and that recorded maps do not share its storage."""

import pytest
import torch
from torch import Tensor

from clearhead import watch
from clearhead.layers import Attention, Cache, Mask, Rotary

B, H, E = 2, 3, 4
WIDTH = H * E


def filled(tokens: int = 3, *, limit: int = 8, **more) -> Cache:
    """A cache in which all numbers are different."""
    cache = Cache(B, H, limit, E, **more)
    k = torch.arange(B * H * tokens * E, dtype=torch.float64).reshape(B, H, tokens, E)
    cache.append(k, k + 0.5)
    cache.advance(tokens)
    return cache


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16, torch.float32, torch.float64], ids=str)
def test_the_dtype_is_kept(dtype):
    cache = filled(dtype=dtype)
    assert cache.k.dtype == cache.v.dtype == dtype
    cache.reorder(torch.tensor([1, 1]))
    cache.expand(2)
    k, v = cache.append(torch.ones(4, H, 1, E), torch.ones(4, H, 1, E))
    assert k.dtype == v.dtype == dtype
    assert cache.at.dtype == torch.long


def test_the_device_is_kept():
    cache = filled(device="meta")
    cache.reorder(torch.tensor([1, 0], device="meta"))
    cache.expand(2)
    for tensor in (cache.k, cache.v, cache.at, cache.positions(3)):
        assert tensor.device.type == "meta"


def test_values_may_have_another_head_dimension():
    cache = Cache(B, H, 8, E, value=5)
    k, v = cache.append(torch.ones(B, H, 3, E), torch.ones(B, H, 3, 5))
    assert k.shape == (B, H, 3, E)
    assert v.shape == (B, H, 3, 5)


@pytest.mark.parametrize("index", [[0, 0], [1, 0], [1], [0, 1, 1, 0]], ids=str)
def test_reordered_rows_share_no_storage(index):
    cache = filled()
    old, view = (cache.k.clone(), cache.v.clone()), cache.k[:, :, :3]
    cache.reorder(torch.tensor(index))
    assert cache.at.tolist() == [3] * len(index)
    for now, was in zip((cache.k, cache.v), old, strict=True):
        assert torch.equal(now, was[index])
    for row in range(len(index)):  # a write to one row changes no other, nor the storage from before
        cache.k[row] = -row - 1
    assert [cache.k[row].unique().tolist() for row in range(len(index))] == [[-row - 1] for row in range(len(index))]
    assert torch.equal(view, old[0][:, :, :3])


def test_expanded_rows_are_neighbouring_copies():
    cache = filled()
    cache.advance(torch.tensor([0, 2]))
    k, v = cache.k, cache.v
    cache.expand(3)
    assert torch.equal(cache.k, k[[0, 0, 0, 1, 1, 1]])
    assert torch.equal(cache.v, v[[0, 0, 0, 1, 1, 1]])
    assert cache.at.tolist() == [3, 3, 3, 5, 5, 5]


def test_positions_continue_from_the_position_of_each_row():
    cache = filled()
    cache.advance(torch.tensor([0, 2]))
    assert cache.positions(3).tolist() == [[3, 4, 5], [5, 6, 7]]
    assert cache.positions(0).shape == (B, 0)


@pytest.mark.parametrize("window", [None, 1, 3])
@pytest.mark.parametrize("rows", [1, 2])
def test_the_mask_equals_that_of_the_last_tokens_of_a_whole_text(rows, window):
    cache, places = Cache(rows, H, 16, E), [5, 2][:rows]
    cache.advance(torch.tensor(places))
    tile = cache.mask(window=window).dense(3, 8)
    whole = Mask(causal=True, window=window).dense(8, 8)
    for row, at in zip(tile.expand(rows, -1, -1, -1), places, strict=True):
        assert torch.equal(row[0], whole[0, 0, at : at + 3])


def test_furthest_is_the_largest_position():
    """Rows that advance in turn need room for the longest only, and the returned keys end with it."""
    cache = Cache(B, H, 4, E)
    for moves in ([2, 0], [0, 2], [1, 1]):
        cache.advance(torch.tensor(moves))
    assert cache.at.tolist() == [3, 3]
    assert cache.furthest == 3
    k, v = cache.append(torch.ones(B, H, 1, E), torch.ones(B, H, 1, E))
    assert k.shape == v.shape == (B, H, 4, E)


def test_furthest_is_that_of_the_rows_that_are_kept():
    cache = Cache(B, H, 4, E)
    cache.advance(torch.tensor([1, 3]))
    cache.reorder(torch.tensor([0]))
    assert cache.furthest == 1
    assert cache.mask().dense(1, 4).flatten().tolist() == [True, True, False, False]


@pytest.mark.parametrize("room", [0, 3], ids=["exactly full", "room"])
@pytest.mark.parametrize("prompt", [1, 20])  # recorded as dense weights, and as queries and keys
@torch.no_grad()
def test_a_recorded_map_is_not_changed_by_later_writes_to_the_cache(prompt, room):
    torch.manual_seed(0)
    attention, turn = Attention(WIDTH, H), Rotary(E)
    cache = Cache(B, H, prompt + 2 + room, E)

    def step(x: Tensor) -> None:
        attention(x, mask=cache.mask(), positions=turn, at=cache.positions(x.shape[1]), cache=cache)
        cache.advance(x.shape[1])

    leaves = ("q", "k", "v", "scores", "weights", "heads", "entropy")
    with watch(attention, *leaves) as tape:
        for tokens in (prompt, 1, 1):
            step(torch.randn(B, tokens, WIDTH))

    def records() -> list[Tensor]:
        calls = [call for leaf in leaves for call in tape.calls(leaf)]
        return [call.clone() if isinstance(call, Tensor) else call.dense() for call in calls]

    def stored() -> list[Tensor]:
        """All tensors that a map would be computed from later."""
        parts = [vars(source) for call in tape.calls("weights") for source in call.sources]
        return [part.clone() for source in parts for part in source.values() if isinstance(part, Tensor)]

    kept, storage = stored(), {cache.k.untyped_storage().data_ptr(), cache.v.untyped_storage().data_ptr()}
    for record in (*tape.calls("k"), *tape.calls("v")):
        assert record.untyped_storage().data_ptr() not in storage
    cache.reorder(torch.tensor([1, 1]))
    cache.k.fill_(9), cache.v.fill_(9)
    if room:
        step(torch.randn(B, room, WIDTH))
    for now, was in zip(stored(), kept, strict=True):
        assert torch.equal(now, was)
    before = records()
    cache.k.fill_(7), cache.v.fill_(7)
    for now, was in zip(records(), before, strict=True):
        assert torch.equal(now, was)
