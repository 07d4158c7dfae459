"""All renderings of a mask agree: tile, predicate and reach against a loop over all pairs."""

import torch
import written_out
from drawn import Size, masks, sizes
from hypothesis import given
from hypothesis import strategies as st

from clearhead.layers import Mask

cases = sizes().flatmap(lambda size: st.tuples(st.just(size), masks(size)))


def spans(n: int) -> st.SearchStrategy[tuple[int, int]]:
    return st.tuples(st.integers(0, n), st.integers(0, n)).map(lambda span: (min(span), max(span)))


@given(cases, st.data())
def test_dense_equals_the_loop_over_pairs_on_the_whole_and_on_any_tile(case: tuple[Size, dict], data: st.DataObject):
    (b, h, q, k), fields = case[0].full, case[1]
    mask, truth = Mask(**fields), written_out.allowed(b, h, q, k, **fields)
    mask.fit(b, h, q, k)
    for rows, keys in [((0, q), (0, k)), (data.draw(spans(q)), data.draw(spans(k)))]:
        tile = mask.dense(q, k, rows=rows, keys=keys)
        want = truth[:, :, slice(*rows), slice(*keys)]
        assert torch.equal(tile.expand_as(want), want)


@given(cases)
def test_the_predicate_equals_the_loop_over_pairs(case: tuple[Size, dict]):
    (b, h, q, k), fields = case[0].full, case[1]
    index = torch.meshgrid(*(torch.arange(n) for n in (b, h, q, k)), indexing="ij")
    assert torch.equal(
        Mask(**fields).predicate(k, "cpu")(*index).expand(b, h, q, k),
        written_out.allowed(b, h, q, k, **fields),
    )


@given(cases, st.data())
def test_reach_leaves_out_no_allowed_key(case: tuple[Size, dict], data: st.DataObject):
    (b, h, q, k), fields = case[0].full, case[1]
    start, stop = data.draw(spans(q))
    low, high = Mask(**fields).reach(start, stop, k)
    assert 0 <= low <= high <= k
    beyond = torch.ones(k, dtype=torch.bool)
    beyond[low:high] = False
    assert not written_out.allowed(b, h, q, k, **fields)[:, :, start:stop, beyond].any()


@given(cases)
def test_free_and_plain_causal_masks_are_what_they_claim(case: tuple[Size, dict]):
    (b, h, q, k), fields = case[0].full, case[1]
    mask, truth = Mask(**fields), written_out.allowed(b, h, q, k, **fields)
    if mask.free:
        assert truth.all()
    if mask.plain_causal:
        assert torch.equal(truth, torch.ones(b, h, q, k, dtype=torch.bool).tril())
