"""Statistics of a lazy map equal those of the full matrix in float64, however it is cut into bands."""

import math
from itertools import product

import pytest
import torch
import written_out
from drawn import Size, biases, masks, normal, seeds, sizes, windows
from hypothesis import given
from hypothesis import strategies as st
from torch import Tensor
from tower import HEAD, HEADS, WIDTH, Tower

import clearhead
import clearhead.look.maps.call
from clearhead.layers import Additive, Alibi, Attention, Bias, Cache, Mask, Rotary
from clearhead.look import AttentionMap
from clearhead.look.maps.call import DenseCall, LazyCall

DTYPES = (torch.float32, torch.bfloat16, torch.float64)
MASS = {"rtol": 0.0, "atol": 1e-4}  # of entropies and masses
SIZE = {"rtol": 1e-4, "atol": 1e-5}  # of places, distances and received weights


@pytest.fixture(autouse=True)
def narrow_bands(monkeypatch):
    """As many bands as possible: sixteen queries each."""
    monkeypatch.setattr(clearhead.look.maps.call, "TILE", 1)


def close(result: Tensor, expected: Tensor, tolerance: dict) -> None:
    assert result.shape == expected.shape
    torch.testing.assert_close(result.double(), expected, equal_nan=True, **tolerance)


def of_matrix(weights: Tensor, here: Tensor, there: Tensor) -> dict[str, Tensor]:
    """Every statistic of a full matrix (b, h, q, k); `here` (b|1, q, c) and `there` (k, c) place queries and keys."""
    d = (here[:, :, None] - there).square().sum(-1).sqrt()[:, None]
    return {
        "entropy": torch.special.entr(weights).sum(-1),
        "distance": (weights * d).sum(-1),
        "rms": (weights * d.square()).sum(-1).sqrt(),
        "position": weights @ there,
        "sink": weights[..., 0],
        "maximum": weights.amax(-1),
        "received": weights.sum(2),
    }


def line(size: Size, offset: int | list[int] | Tensor | None) -> tuple[Tensor, Tensor]:
    first = [0 if offset is None else written_out.of_row(offset, row) for row in range(size.b)]
    here = torch.tensor(first)[:, None] + torch.arange(size.q)
    return here[..., None].double(), torch.arange(size.k)[:, None].double()


def check(results: dict[str, Tensor], expected: dict[str, Tensor]) -> None:
    for name in expected:
        close(results[name], expected[name], SIZE if name in ("distance", "rms", "position", "received") else MASS)


@st.composite
def cases(draw, size: st.SearchStrategy[Size]) -> tuple:
    size = draw(size)
    fields, bias = draw(masks(size) | windows), draw(st.none() | biases(size))
    return size, fields, bias, draw(st.sampled_from(DTYPES)), draw(st.floats(0.1, 3.0)), draw(seeds)


def both(case: tuple) -> tuple[AttentionMap, Tensor]:
    """The lazy map of a call of attention, and its full matrix in float64."""
    size, fields, bias, dtype, scale, seed = case
    b, h, g, n, m = size
    q, k = normal(seed, b, h, n, 3, dtype=dtype), normal(seed + 1, b, g, m, 3, dtype=dtype)
    if bias is not None and dtype != torch.float64:
        bias = {name: x.float() if x.is_floating_point() else x for name, x in bias.items()}
    added = 0.0 if bias is None else written_out.bias(*size.full, **bias)
    may = written_out.allowed(*size.full, **fields)
    call = LazyCall(q=q, k=k, mask=Mask(**fields), bias=None if bias is None else Bias(**bias), scale=scale)
    return AttentionMap([call]), written_out.weights(written_out.scores(q, k, scale, added), may)


anything = cases(sizes() | sizes(23, 37) | st.just(Size(2, 6, 2, 37, 37)))


@given(anything)
def test_every_statistic_of_any_mask_and_bias(case):
    map, weights = both(case)
    want = of_matrix(weights, *line(case[0], case[1].get("offset")))
    check(map.statistics(*want), want)


@given(anything)
def test_the_peak_is_the_key_of_the_maximum_and_0_where_all_keys_are_masked(case):
    map, weights = both(case)
    most, peak = map.maximum()
    close(most, weights.amax(-1), MASS)
    assert ((peak >= 0) & (peak < weights.shape[-1])).all()
    close(weights.gather(-1, peak[..., None])[..., 0], weights.amax(-1), MASS)
    assert not peak[weights.sum(-1) == 0].any()


@given(anything, st.data())
def test_mass_on_any_set_of_keys(case, data):
    map, weights = both(case)
    keys = data.draw(st.lists(st.integers(0, case[0].k - 1), unique=True))
    chosen = torch.zeros(case[0].k, dtype=torch.bool)
    chosen[keys] = True
    for given_as in (keys, torch.tensor(keys, dtype=torch.long), chosen):
        close(map.mass(given_as), weights[..., chosen].sum(-1), MASS)


@given(anything, st.data())
def test_top_row_tile_dense_and_pool_of_any_mask_and_bias(case, data):
    (map, weights), (b, h, q, k) = both(case), case[0].full
    close(map.dense(), weights, MASS)
    i, n = data.draw(st.integers(-q, q - 1)), data.draw(st.integers(1, k))
    close(map.row(i), weights[:, :, i], MASS)
    top, keys = map.top(n)
    close(top, weights.topk(n, dim=-1).values, MASS)
    close(top, weights.gather(-1, keys), MASS)
    rows = sorted(data.draw(st.lists(st.integers(0, q), min_size=2, max_size=2, unique=True)))
    columns = sorted(data.draw(st.lists(st.integers(0, k), min_size=2, max_size=2, unique=True)))
    close(map.tile(tuple(rows), tuple(columns)), weights[:, :, slice(*rows), slice(*columns)], MASS)
    ny, nx = data.draw(st.integers(1, q)), data.draw(st.integers(1, k))
    want = torch.zeros(b, h, ny, nx, dtype=torch.float64)
    members = [sum(i * ny // q == y for i in range(q)) for y in range(ny)]
    for i, j in product(range(q), range(k)):
        y = i * ny // q
        want[:, :, y, j * nx // k] += weights[:, :, i, j] / members[y]
    close(map.pool((ny, nx)), want, MASS)


@st.composite
def grids(draw) -> tuple:
    grid = draw(st.sampled_from([(1, 1), (2, 3), (3, 2), (4, 5)]))
    special = draw(st.integers(0, 2))
    n = math.prod(grid) + special
    return grid, special, draw(cases(sizes().map(lambda size: size._replace(q=n, k=n))))


@given(grids())
def test_distances_over_a_grid_leave_out_special_tokens(case):
    grid, special, case = case
    map, weights = both(case)
    points = torch.tensor([(0, 0)] * special + list(product(range(grid[0]), range(grid[1])))).double()
    placed = weights.clone()
    placed[..., :special] = 0.0
    total = placed.sum(-1, keepdim=True)
    want = of_matrix(placed / (total + (total == 0)), points[None], points)
    for name in ("distance", "rms"):
        want[name][:, :, :special] = math.nan
    want = {name: want[name] for name in ("distance", "rms", "position")}
    check(map.statistics(*want, grid=grid, special=special), want)
    close(map.distance(grid=grid, special=special, rms=True), want["rms"], SIZE)


@pytest.mark.parametrize("dtype", DTYPES, ids=str)
@given(seed=seeds, factor=st.sampled_from([0.5, 1.0]))
def test_stored_weights_are_measured_as_they_are(dtype, seed, factor):
    """After an edit, or in half precision, they need not sum to 1: they are what the model used."""
    size = Size(2, 3, 3, 37, 19)
    weights = written_out.weights(normal(seed, *size.full), normal(seed + 1, *size.full) > 0)
    weights = (factor * weights).to(dtype)
    map, truth = AttentionMap([DenseCall(weights=weights)]), weights.double()
    want = of_matrix(truth, *line(size, None))
    check(map.statistics(*want), want)
    close(map.dense(), truth, MASS)
    close(map.top(3)[0], truth.topk(3, dim=-1).values, MASS)
    close(map.mass([1, 4, 5]), truth[..., [1, 4, 5]].sum(-1), MASS)
    close(map.pool((1, 19))[:, :, 0], truth.mean(2), MASS)


def test_a_bias_of_minus_infinity_masks_a_key():
    dense = torch.zeros(5, 7).masked_fill(normal(0, 5, 7) > 0.5, -math.inf)
    q, k = normal(1, 2, 3, 5, 4, dtype=torch.float32), normal(2, 2, 3, 7, 4, dtype=torch.float32)
    call = LazyCall(q=q, k=k, mask=Mask(), bias=Bias(dense=dense), scale=1.0)
    weights = written_out.weights(written_out.scores(q, k, 1.0), dense == 0)
    want = of_matrix(weights, *line(Size(2, 3, 3, 5, 7), None))
    check(AttentionMap([call]).statistics(*want), want)


@pytest.mark.parametrize("dtype", DTYPES, ids=str)
@pytest.mark.parametrize("fields", [{}, {"causal": True}, {"lengths": [9, 20]}], ids=str)
@pytest.mark.parametrize("score", ["scaled", "cosine", "additive"])
def test_records_of_a_watched_attention_agree_with_each_other(score, fields, dtype):
    torch.manual_seed(0)
    score = Additive(HEAD, HEADS) if score == "additive" else score
    attention = Attention(WIDTH, HEADS, score=score).to(dtype)
    with clearhead.watch(attention, "q", "k", "scores", "weights", "entropy", "received", "rms") as tape:
        attention(normal(0, 2, 20, WIDTH, dtype=dtype), mask=Mask(**fields))
    scores = tape["scores"].double()
    size = Size(2, HEADS, HEADS, 20, 20)
    weights = written_out.weights(scores, written_out.allowed(*size.full, **fields))
    dense = tape["weights"].dense()
    if isinstance(score, Additive):  # the weights that were used, rounded as they were
        close(dense, weights, {"rtol": 0.0, "atol": torch.finfo(dtype).eps})
        weights = dense.double()
    elif score == "scaled":
        close(tape["scores"], written_out.scores(tape["q"], tape["k"], HEAD**-0.5), MASS)
    close(dense, weights, MASS)
    want = of_matrix(weights, *line(size, None))
    check(tape["weights"].statistics(*want), want)
    check(tape.match("*"), {name: want[name] for name in ("entropy", "received", "rms")})


def test_a_statistic_of_all_layers_at_once():
    model, x = Tower(depth=3), normal(0, 2, 20, WIDTH, dtype=torch.float32)
    with clearhead.watch(model, "**.entropy", "**.received", "**.distance") as measured:
        model(x)
    with clearhead.watch(model, "**.weights") as maps:
        model(x)
    weights = torch.stack([map.dense().double() for map in maps.match("**.weights").values()])
    want = [of_matrix(layer, *line(Size(2, HEADS, HEADS, 20, 20), None)) for layer in weights]
    for name in ("entropy", "received", "distance"):
        for tape in (measured, maps):
            close(getattr(clearhead.look, name)(tape), torch.stack([layer[name] for layer in want]), SIZE)


@pytest.mark.parametrize("positions", [Rotary(HEAD), Alibi(HEADS)], ids=["rotary", "alibi"])
@pytest.mark.parametrize("window", [None, 5])
@pytest.mark.parametrize("chunks", [[18, 1, 1, 3], [1] * 23, [20, 3]], ids=str)
def test_the_maps_of_decoding_steps_join_into_that_of_one_pass(chunks, window, positions):
    torch.manual_seed(0)
    attention, x = Attention(WIDTH, HEADS, kv_heads=1), normal(0, 2, 23, WIDTH, dtype=torch.float32)
    want = ("entropy", "distance", "rms", "position", "sink", "maximum", "peak", "received")
    names = ("weights", *want)
    with torch.no_grad(), clearhead.watch(attention, *names) as whole:
        attention(x, mask=Mask(causal=True, window=window), positions=positions)
    cache = Cache(2, 1, 23, HEAD)
    with torch.no_grad(), clearhead.watch(attention, *names) as tape:
        for chunk in x.split(chunks, dim=1):
            t = chunk.shape[1]
            attention(chunk, mask=cache.mask(window=window), positions=positions, at=cache.positions(t), cache=cache)
            cache.advance(t)
    one, joined = whole["weights"], tape["weights"]
    assert joined.shape == one.shape == (2, HEADS, 23, 23)
    close(joined.dense(), one.dense().double(), MASS)
    close(joined.pool(4), one.pool(4).double(), MASS)
    close(joined.top(3)[0], one.top(3)[0].double(), MASS)
    close(joined.mass([0, 3]), one.mass([0, 3]).double(), MASS)
    for name in want:
        for result in (joined.statistics(name)[name], tape[name]):
            close(result, whole[name].double(), SIZE)


def test_dense_raises_for_a_map_over_its_limit():
    q = torch.zeros(1, 2, 5, 3)
    map = AttentionMap([LazyCall(q=q, k=q, mask=Mask(), bias=None, scale=1.0)])
    assert map.dense(limit=50).shape == (1, 2, 5, 5)
    with pytest.raises(ValueError, match="1 x 2 x 5 x 5 holds 50 weights, over the limit of 49"):
        map.dense(limit=49)
    long = torch.zeros(1, 1, 2**14, 1)
    with pytest.raises(ValueError, match="over the limit"):
        AttentionMap([LazyCall(q=long, k=long, mask=Mask(), bias=None, scale=1.0)]).dense()
