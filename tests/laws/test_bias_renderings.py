"""All renderings of a bias agree, and it gets the same gradient on every path."""

import pytest
import torch
import written_out
from drawn import Size, biases, masks, normal, seeds, sizes, windows
from hypothesis import given
from hypothesis import strategies as st
from paths import PATHS, output_and_gradients, path, tensors
from written_out import TIGHT

from clearhead.layers import Alibi, Bias, Mask, Relative, attend

cases = sizes().flatmap(lambda size: st.tuples(st.just(size), biases(size)))


@given(cases, st.data())
def test_tile_equals_the_loop_over_pairs(case: tuple[Size, dict], data: st.DataObject):
    (b, h, q, k), fields = case[0].full, case[1]
    bias, truth = Bias(**fields), written_out.bias(b, h, q, k, **fields)
    bias.fit(b, h, q, k)
    start, low = data.draw(st.integers(0, q - 1)), data.draw(st.integers(0, k - 1))
    for rows, keys in [((0, q), (0, k)), ((start, q), (low, k)), ((0, start + 1), (0, low + 1))]:
        want = truth[:, :, slice(*rows), slice(*keys)]
        torch.testing.assert_close(bias.tile(rows, keys).expand_as(want), want, **TIGHT)


@given(cases)
def test_the_score_mod_equals_the_loop_over_pairs(case: tuple[Size, dict]):
    (b, h, q, k), fields = case[0].full, case[1]
    index = torch.meshgrid(*(torch.arange(n) for n in (b, h, q, k)), indexing="ij")
    scores = Bias(**fields).mod()(torch.zeros(b, h, q, k, dtype=torch.float64), *index)
    torch.testing.assert_close(scores, written_out.bias(b, h, q, k, **fields), **TIGHT)


@pytest.mark.parametrize("way", PATHS)
@given(case=cases, data=st.data(), seed=seeds)
def test_learned_parts_get_the_gradient_of_the_formula(way: str, case: tuple[Size, dict], data, seed: int):
    size, fields = case
    masked = data.draw(masks(size) | windows)
    q, k, v, toward = tensors(seed, size, 3, 5, torch.float64)
    may = written_out.allowed(*size.full, **masked)

    def learned() -> tuple[dict, list[torch.Tensor]]:
        own = {n: x.clone().requires_grad_(x.is_floating_point()) for n, x in fields.items()}
        return own, [x for x in own.values() if x.requires_grad]

    parts, leaves = learned()
    out = written_out.attention(q, k, v, may, written_out.bias(*size.full, **parts))
    want = torch.autograd.grad(out, leaves, toward)
    parts, leaves = learned()
    with path(way) as how:
        out = attend(q, k, v, mask=Mask(**masked), bias=Bias(**parts), **how)
    gradients = torch.autograd.grad(out, leaves, toward)
    for have, wanted in zip(gradients, want, strict=True):
        torch.testing.assert_close(have, wanted, rtol=1e-8, atol=1e-10)


@pytest.mark.parametrize("rows", ["shared", "per row"])
@pytest.mark.parametrize("kind", ["alibi", "relative"])
@given(seed=seeds)
def test_positions_by_bias_agree_on_every_path(kind: str, rows: str, seed: int):
    b, h, t = 2, 6, 9
    q, k, v, _ = tensors(seed, Size(b, h, 2, t, t), 3, 5, torch.float64)
    positions = (Alibi(h) if kind == "alibi" else Relative(h, buckets=8, reach=6)).double()
    if kind == "relative":
        positions.table.data = normal(seed, 8, h)
    at = torch.arange(t) * 2
    at = at if rows == "shared" else torch.stack([at, at.flip(0) + 3])
    bias = positions.bias(at, at)
    fields = {"q_at": at, "k_at": at, "slope": bias.slope, "table": bias.table}
    may = written_out.allowed(b, h, t, t, causal=True)
    want = written_out.attention(q, k, v, may, written_out.bias(b, h, t, t, **fields))
    for way in ("fused", "bands", "explicit"):
        with path(way) as how:
            out = attend(q, k, v, mask=Mask(causal=True), bias=bias, **how)
        torch.testing.assert_close(out, want, **TIGHT)
        for table in positions.parameters():
            have, wanted = (torch.autograd.grad(x.sin().sum(), table, retain_graph=True)[0] for x in (out, want))
            torch.testing.assert_close(have, wanted, **TIGHT)


@pytest.mark.parametrize("way", PATHS)
def test_a_bias_of_minus_infinity_forbids_as_a_mask_does(way: str):
    may = torch.tensor([[1, 1, 0], [0, 0, 0], [0, 1, 1], [1, 0, 0]], dtype=torch.bool)
    dense = torch.zeros(4, 3, dtype=torch.float64).masked_fill(~may, float("-inf"))
    *inputs, toward = tensors(0, Size(2, 6, 2, 4, 3), 3, 5, torch.float64)
    with path(way) as how:
        results = output_and_gradients(lambda q, k, v: attend(q, k, v, bias=dense, **how), inputs, toward)
    expected = output_and_gradients(lambda q, k, v: written_out.attention(q, k, v, may), inputs, toward)
    for have, want in zip(results, expected, strict=True):
        torch.testing.assert_close(have, want, **TIGHT)
