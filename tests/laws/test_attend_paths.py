"""Every code path of attend equals Eq. 1 written out in float64, forward and backward."""

import pytest
import torch
import written_out
from drawn import Size, biases, masks, normal, seeds, sizes, windows
from hypothesis import given
from hypothesis import strategies as st
from paths import PATHS, output_and_gradients, path, tensors
from written_out import TIGHT

from clearhead.layers import Additive, Bias, Bilinear, Mask, attend

# Sums in another order: a few roundings of numbers of size 1 (and of their products, in a gradient).
NEAR = {torch.float64: TIGHT, torch.float32: {"rtol": 1e-4, "atol": 2e-5}}


def rendered(fields: dict | None, dtype: torch.dtype) -> Bias | None:
    if fields is None:
        return None
    return Bias(**{name: x.to(dtype) if x.is_floating_point() else x for name, x in fields.items()})


@st.composite
def cases(draw) -> tuple:
    size = draw(sizes())
    bias = draw(st.none() | biases(size))
    widths = draw(st.sampled_from([(3, 3), (3, 5), (5, 3)]))
    return size, draw(masks(size) | windows), bias, widths, draw(seeds)


@pytest.mark.parametrize("dtype", NEAR, ids=str)
@pytest.mark.parametrize("way", PATHS)
@given(case=cases())
def test_every_path_is_the_formula(way: str, dtype: torch.dtype, case: tuple):
    size, fields, bias, (e, w), seed = case
    *inputs, toward = tensors(seed, size, e, w, dtype)
    may = written_out.allowed(*size.full, **fields)
    added = 0.0 if bias is None else written_out.bias(*size.full, **bias)
    with path(way) as how:
        call = {"mask": Mask(**fields), "bias": rendered(bias, dtype), **how}
        results = output_and_gradients(lambda q, k, v: attend(q, k, v, **call), inputs, toward)
    expected = output_and_gradients(
        lambda q, k, v: written_out.attention(q, k, v, may, added), [x.double() for x in inputs], toward
    )
    for have, want in zip(results, expected, strict=True):
        assert have.dtype == dtype
        torch.testing.assert_close(have.double(), want.double(), **NEAR[dtype])


@pytest.mark.parametrize("way", PATHS)
@given(case=cases())
def test_a_query_that_may_attend_to_no_key_gets_exact_zeros(way: str, case: tuple):
    size, fields, bias, (e, w), seed = case
    *inputs, toward = tensors(seed, size, e, w, torch.float32)
    may = written_out.allowed(*size.full, **fields)
    with path(way) as how:
        call = {"mask": Mask(**fields), "bias": rendered(bias, torch.float32), **how}
        out, dq, dk, dv = output_and_gradients(lambda q, k, v: attend(q, k, v, **call), inputs, toward)
    empty = ~may.any(-1)
    assert not out[empty].any()
    assert not dq[empty].any()
    unused = ~may.reshape(size.b, size.g, -1, size.q, size.k).any((2, 3))  # by any query of the key's group
    assert not dk[unused].any()
    assert not dv[unused].any()
    assert all(x.isfinite().all() for x in (out, dq, dk, dv))


@pytest.mark.parametrize("way", PATHS)
@pytest.mark.parametrize("fields", [{"lengths": 0}, {"lengths": [0, 0]}, {"window": 1, "offset": 9}], ids=str)
def test_all_is_zero_where_no_query_may_attend_to_any_key(way: str, fields: dict):
    *inputs, toward = tensors(0, Size(2, 6, 2, 5, 7), 3, 5, torch.float32)
    with path(way) as how:
        results = output_and_gradients(lambda q, k, v: attend(q, k, v, mask=Mask(**fields), **how), inputs, toward)
    assert not any(x.any() for x in results)


@pytest.mark.parametrize("way", ["fused", "bands", "explicit"])
@pytest.mark.parametrize("score", ["dot", "scaled", "cosine"])
@given(seed=seeds, sharpness=st.sampled_from([-1.5, 0.0]) | st.floats(0.1, 3.0))
def test_named_scores_equal_their_formulas(way: str, score: str, seed: int, sharpness: float):
    size = Size(2, 6, 2, 5, 7)
    q, k, v, _ = tensors(seed, size, 3, 5, torch.float64)
    with path(way) as how:
        out = attend(q, k, v, mask=Mask(lengths=[4, 7]), score=score, sharpness=sharpness, **how)
    if score == "cosine":
        q, k = (x / x.square().sum(-1, keepdim=True).sqrt() for x in (q, k))
    scale = sharpness * (3**-0.5 if score == "scaled" else 1.0)
    may = written_out.allowed(*size.full, lengths=[4, 7])
    torch.testing.assert_close(out, written_out.attention(q, k, v, may, scale=scale), **TIGHT)


@pytest.mark.parametrize("sharpness", [0.0, -2.0])
def test_a_sharpness_of_zero_or_less_keeps_the_mask(sharpness: float):
    """With sharpness 0 the output is the mean of all values that the query may attend to."""
    q, k, v, _ = tensors(0, Size(2, 6, 2, 7, 7), 3, 5, torch.float64)
    out = attend(q, k, v, mask=Mask(causal=True), sharpness=sharpness)
    may = written_out.allowed(2, 6, 7, 7, causal=True)
    torch.testing.assert_close(out, written_out.attention(q, k, v, may, scale=sharpness * 3**-0.5), **TIGHT)


@given(seed=seeds)
def test_module_scores_equal_their_formulas(seed: int):
    q, k, v, _ = tensors(seed, Size(2, 6, 2, 5, 7), 3, 5, torch.float64)
    additive = Additive(3, heads=6).double()
    queries, keys = q[:, :, :, None], written_out.spread(k, 6)[:, :, None]
    e = (torch.tanh(queries + keys) * additive.v[:, None, None]).sum(-1)
    may = written_out.allowed(2, 6, 5, 7, lengths=[4, 7])
    want = written_out.weights(e, may) @ written_out.spread(v, 6)
    out = attend(q, k, v, mask=Mask(lengths=[4, 7]), score=additive)
    torch.testing.assert_close(out, want, **TIGHT)

    wide = normal(seed + 9, 2, 2, 7, 4)  # keys of a bilinear score may have another head dimension
    bilinear = Bilinear(3, heads=6, key=4).double()
    e = torch.stack([q[:, i] @ bilinear.weight[i] @ wide[:, i // 3].mT for i in range(6)], dim=1)
    want = written_out.weights(e, may) @ written_out.spread(v, 6)
    for way in ("fused", "bands", "explicit"):
        with path(way) as how:
            out = attend(q, wide, v, mask=Mask(lengths=[4, 7]), **(how | {"score": bilinear}))
        torch.testing.assert_close(out, want, **TIGHT)


@pytest.mark.parametrize("way", PATHS)
@given(case=cases(), data=st.data())
def test_a_nan_reaches_every_query_that_attends_to_it_and_no_other_row_or_head(
    way: str, case: tuple, data: st.DataObject
):
    size, fields, bias, (e, w), seed = case
    inputs = tensors(seed, size, e, w, torch.float32)[:3]
    may = written_out.allowed(*size.full, **fields)
    which = data.draw(st.integers(0, 2))
    place = tuple(data.draw(st.integers(0, n - 1)) for n in inputs[which].shape)
    inputs[which][place] = float("nan")
    with path(way) as how:
        out = attend(*inputs, mask=Mask(**fields), bias=rendered(bias, torch.float32), **how)
    row, head, token, _ = place
    nan, near, group = out.isnan().any(-1), torch.zeros(size.full[:3], dtype=torch.bool), size.h // size.g
    if which == 0:
        near[row, head, token] = True
    else:  # a key or a value, which serves a group of heads
        near[row, head * group : (head + 1) * group] = True
    attends = may.any(-1) if which == 0 else may[..., token]
    assert nan[near & attends].all()
    assert not nan[~near].any()
