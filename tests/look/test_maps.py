"""AttentionMap: every method agrees with the full matrix, and computes no more than it returns."""

import pytest
import torch
from torch import Tensor

from clearhead import watch
from clearhead.layers import Additive, Alibi, Attention, Bias, Cache, Mask
from clearhead.look import AttentionMap
from clearhead.look.maps.attention_map import compact_copy
from clearhead.look.maps.call import DenseCall, LazyCall

B, H, E = 2, 3, 5


def lazy(q: int, k: int, *, groups: int = H, mask: Mask | None = None, bias: Bias | None = None, **kind) -> LazyCall:
    torch.manual_seed(q + k)
    mask = Mask() if mask is None else mask
    return LazyCall(
        q=torch.randn(B, H, q, E, **kind), k=torch.randn(B, groups, k, E, **kind), mask=mask, bias=bias, scale=0.7
    )


def weights_of(source: LazyCall | DenseCall) -> Tensor:
    """The full matrix in float64; the weights of a query whose keys are all masked are zeros."""
    if isinstance(source, DenseCall):
        return source.weights.double()
    (_, _, n, m), far = source.shape, source.k.double().repeat_interleave(H // source.k.shape[1], dim=1)
    scores = source.q.double() @ far.mT * source.scale
    if source.bias is not None:
        scores = scores + source.bias.tile((0, n), (0, m))
    allowed = source.mask.dense(n, m)
    if allowed is not None:
        scores = scores.masked_fill(~allowed, float("-inf"))
    return scores.softmax(-1).nan_to_num(0.0)


def stored(source: LazyCall) -> DenseCall:
    return DenseCall(weights=weights_of(source).float(), offset=source.offset)


places = torch.arange(40)
MAPS = {
    "lazy": [lazy(7, 11)],
    "lazy, causal": [lazy(40, 40, mask=Mask(causal=True))],
    "lazy, grouped, window": [lazy(40, 40, groups=1, mask=Mask(causal=True, window=4))],
    "lazy, wide window": [lazy(40, 40, mask=Mask(window=3))],
    "lazy, lengths": [lazy(9, 9, mask=Mask(lengths=[4, 0]))],
    "lazy, alibi": [lazy(40, 40, mask=Mask(causal=True), bias=Alibi(H).bias(places, places))],
    "lazy, double": [lazy(7, 11, dtype=torch.float64)],
    "stored": [stored(lazy(7, 11))],
    "stored, edited": [DenseCall(weights=weights_of(lazy(7, 11)).float() * (torch.arange(11) != 2) * 0.5)],
    "stored, causal": [stored(lazy(9, 9, mask=Mask(causal=True)))],
    "joined": [
        lazy(9, 9, mask=Mask(causal=True)),
        stored(lazy(1, 10, mask=Mask(causal=True, offset=9))),
        lazy(3, 13, mask=Mask(causal=True, offset=10)),
    ],
    "joined, window": [
        lazy(9, 9, mask=Mask(causal=True, window=3)),
        lazy(2, 11, mask=Mask(causal=True, window=3, offset=[9, 9])),
        stored(lazy(1, 12, mask=Mask(causal=True, window=3, offset=11))),
    ],
}


def whole(sources: list) -> Tensor:
    keys = max(source.shape[3] for source in sources)
    parts = [weights_of(source) for source in sources]
    return torch.cat([torch.nn.functional.pad(part, (0, keys - part.shape[3])) for part in parts], dim=2)


@pytest.fixture(params=MAPS)
def both(request) -> tuple[AttentionMap, Tensor]:
    """A map, and its full matrix."""
    return AttentionMap(MAPS[request.param]), whole(MAPS[request.param])


def close(result: Tensor, expected: Tensor) -> None:
    torch.testing.assert_close(result.double(), expected.double(), atol=2e-6, rtol=1e-5)


def test_dense_is_the_matrix(both):
    map, full = both
    assert map.shape == full.shape
    close(map.dense(), full)
    close(map.dense(limit=full.numel()), full)


def test_rows_are_those_of_the_matrix_from_either_end(both):
    map, full = both
    for i in (0, 1, full.shape[2] - 1, -1, -full.shape[2]):
        close(map.row(i), full[:, :, i])


def test_tiles_are_those_of_the_matrix(both):
    map, full = both
    n, m = full.shape[2:]
    for rows, keys in [((0, n), (0, 1)), ((n // 2, n), (m // 3, m)), ((1, n - 1), (m - 1, m)), ((n - 1, n), (0, m))]:
        close(map.tile(rows, keys), full[:, :, slice(*rows), slice(*keys)])


def test_weights_outside_of_reach_are_zero(both):
    map, full = both
    n = full.shape[2]
    for rows in [(0, n), (0, 1), (n // 2, n), (n - 1, n)]:
        first, last = map.reach(rows)
        weights = full[:, :, slice(*rows)]
        close(weights[..., first:last].sum(-1), weights.sum(-1))


def test_one_head_is_that_of_the_matrix(both):
    map, full = both
    for head in range(H):
        close(map.only(head).dense(), full[:, head : head + 1])
        close(map.only(head).entropy(), map.entropy()[:, head : head + 1])
    with pytest.raises(IndexError, match=f"head {H}: there are {H}"):
        map.only(H)


def test_top_returns_the_largest_weights_of_each_query(both):
    map, full = both
    for k in (1, 3, full.shape[3]):
        weights, keys = map.top(k)
        close(weights, full.topk(k).values)
        close(full.gather(-1, keys), weights)


def test_maximum_is_the_first_of_the_top(both):
    map, full = both
    most, key = map.maximum()
    close(most, full.amax(-1))
    close(full.gather(-1, key[..., None])[..., 0], most)


def test_an_overview_is_the_mean_over_queries_of_the_sum_over_keys(both):
    map, full = both

    def cells(axis: int, size: int) -> Tensor:
        """One-hot rows that say which cell each query or key belongs to."""
        n = full.shape[axis]
        return torch.nn.functional.one_hot(torch.arange(n) * min(size, n) // n).double()

    for ny, nx in ((1, 1), (3, 2), (2, 5), (1000, 1000)):
        rows, columns = cells(2, ny), cells(3, nx)
        pool = map.pool(ny if ny == nx else (ny, nx))
        assert pool.shape == (B, H, rows.shape[1], columns.shape[1])
        close(pool, (rows / rows.sum(0)).T @ full @ columns)
        if full.sum(-1).min() > 0.9:  # no query has all its keys masked
            close(pool.sum(-1), torch.ones(pool.shape[:3]))


def test_mass_is_the_weight_on_a_set_of_keys(both):
    map, full = both
    for keys in ([3, 1, 1], [], list(range(full.shape[3]))):
        chosen = torch.zeros(full.shape[3], dtype=torch.bool)
        chosen[torch.tensor(keys, dtype=torch.long)] = True
        close(map.mass(keys), full[..., chosen].sum(-1))
        close(map.mass(chosen), full[..., chosen].sum(-1))


def test_received_is_the_sum_over_queries(both):
    map, full = both
    close(map.received(), full.sum(-2))
    close(map.entropy(), -torch.special.xlogy(full, full).sum(-1))


@pytest.mark.parametrize("path", ["lazy", "stored"])
def test_weights_in_half_precision_are_summed_in_float32(path):
    """In bfloat16 a sum of thousands of small weights would stop far below 1."""
    torch.manual_seed(0)
    q, k = torch.randn(1, 1, 64, 8).bfloat16(), torch.randn(1, 1, 2000, 8).bfloat16()
    source = LazyCall(q=q, k=k, mask=Mask(), bias=None, scale=0.1)
    source = source if path == "lazy" else DenseCall(weights=AttentionMap([source]).dense().bfloat16())
    map = AttentionMap([source])
    full = map.dense().double()
    close(map.pool((8, 2)), full.unflatten(3, (2, 1000)).sum(-1).unflatten(2, (8, 8)).mean(3))
    close(map.received(), full.sum(-2))
    close(map.mass(list(range(1000))), full[..., :1000].sum(-1))


@pytest.mark.parametrize("causal", [False, True])
def test_a_tile_of_a_long_map_computes_few_scores(monkeypatch, causal):
    """Of 100,000 x 100,000 weights, a tile of 64 x 64 needs at most the softmax denominators of 64 queries."""
    n, computed, scores = 100_000, [], LazyCall.scores

    def counted(self, rows, keys):
        computed.append((rows[1] - rows[0]) * (keys[1] - keys[0]))
        return scores(self, rows, keys)

    monkeypatch.setattr(LazyCall, "scores", counted)
    torch.manual_seed(0)
    q, k = torch.randn(1, 1, n, 8), torch.randn(1, 1, n, 8)
    map = AttentionMap([LazyCall(q=q, k=k, mask=Mask(causal=causal), bias=None, scale=0.5)])
    rows, keys = (70_000, 70_064), (69_990, 70_054)
    tile = map.tile(rows, keys)
    assert max(computed) <= 64 * n
    assert sum(computed) <= 64 * n + 64 * 64
    full = q[:, :, slice(*rows)].double() @ k.double().mT * 0.5
    if causal:
        full.masked_fill_(torch.arange(n) > torch.arange(*rows)[:, None], float("-inf"))
    close(tile * 1e4, full.softmax(-1)[..., slice(*keys)] * 1e4)
    computed.clear()
    assert torch.equal(map.tile(rows, keys), tile)
    assert sum(computed) == 64 * 64  # the denominators are kept
    map.row(3)
    assert sum(computed) <= 64 * 64 + 2 * n


@pytest.mark.parametrize(("q", "k"), [(1, 1), (1, 90), (2, 9), (10, 10), (11, 11), (40, 40), (90, 1)])
def test_settle_keeps_the_smaller_form(q, k):
    source = lazy(q, k)
    smaller = compact_copy(source)
    inputs, weights = source.q.numel() + source.k.numel(), B * H * q * k
    assert isinstance(smaller, DenseCall if weights <= inputs else LazyCall)
    close(AttentionMap([smaller]).dense(), weights_of(source))


def test_a_settled_call_keeps_the_positions_of_its_queries():
    source = lazy(1, 10, mask=Mask(causal=True, offset=9))
    now, then = AttentionMap([compact_copy(source)]), AttentionMap([source])
    assert isinstance(now.sources[0], DenseCall)
    for name, value in then.statistics("distance", "rms", "position").items():
        close(now.statistics(name)[name], value)


def test_a_map_from_inference_mode_can_be_used_outside():
    """Softmax denominators of which some were computed in inference mode are completed outside."""
    with torch.inference_mode():
        map = AttentionMap([lazy(40, 40, mask=Mask(causal=True))])
        first = map.row(3)
    close(map.dense(), weights_of(lazy(40, 40, mask=Mask(causal=True))))
    close(map.row(3), first)


def test_its_repr_shows_the_sizes():
    assert repr(AttentionMap(MAPS["joined"])) == "AttentionMap(batch=2, heads=3, queries=13, keys=13)"


@pytest.mark.parametrize("score", ["scaled", "cosine", "additive"])
@torch.no_grad()
def test_a_decoding_loop_is_one_map(score):
    """Prompt and steps join into the map of the whole text, from either kind of source."""
    torch.manual_seed(0)
    attention = Attention(H * E, H, score=Additive(E, H) if score == "additive" else score)
    x, cache = torch.randn(B, 13, H * E), Cache(B, H, 13, E)
    with watch(attention, "weights", "entropy", "received", "distance") as steps:
        for chunk in x.split([9, 1, 1, 2], dim=1):
            attention(chunk, mask=cache.mask(), cache=cache)
            cache.advance(chunk.shape[1])
    with watch(attention, *steps.names) as tape:
        attention(x, mask=Mask(causal=True))
    assert len(steps.calls("weights")) == 4
    close(steps["weights"].dense(), tape["weights"].dense())
    for name in ("entropy", "received", "distance"):
        close(steps[name], tape[name])
        close(steps["weights"].statistics(name)[name], tape[name])
