"""The properties of each kind of positions, measured: which have which, and why."""

import math

import pytest
import torch
from drawn import normal
from torch import Tensor
from tower import CONTEXT, HEAD, HEADS, WIDTH, Tower, places

from clearhead.layers import POSITIONS, Alibi, Learned, Relative, Rotary, SinCos2d, Sinusoid, make_positions

# unique         any two positions have different effects on the scores of the first token
# consistent     the effect on a score depends on the distance of two tokens, not on where they are, nor on the length
# bounded        the effect does not grow with the length
# longer         positions past the trained length can be used
# deterministic  the same position always has the same effect, in training too
HAS = {
    "none": ("consistent bounded longer deterministic", "no effect anywhere"),
    "sinusoid": ("unique consistent bounded longer deterministic", "p_i . p_j is a sum of cosines of i - j"),
    "learned": ("unique bounded deterministic", "an independent row per position, and none past the last"),
    "sincos2d": ("unique consistent bounded longer deterministic", "sinusoids of a row and of a column"),
    "rotary": ("unique consistent bounded longer deterministic", "only the difference of two rotations remains"),
    "alibi": ("unique consistent longer deterministic", "a slope by distance alone, which falls without bound"),
    "relative": ("consistent bounded longer deterministic", "all distances past its reach share a bucket"),
}
REACH = CONTEXT // 2  # of relative positions, shorter than the context


def make(kind: str) -> torch.nn.Module:
    torch.manual_seed(0)
    if kind == "relative":
        positions = Relative(HEADS, buckets=16, reach=REACH)
    else:
        positions = make_positions(kind, width=WIDTH, heads=HEADS, head=HEAD, context=CONTEXT)
    for table in positions.parameters():
        torch.nn.init.normal_(table)
    return positions.double()


def effect(positions: torch.nn.Module, kind: str, at: Tensor) -> Tensor:
    """The effect of positions on the scores, (h, t, t): all tokens are 0, or 1 where nothing is added to them."""
    x = positions.add(torch.zeros(1, len(at), WIDTH, dtype=torch.float64), places(kind, at))
    x = x if x.any() else torch.ones_like(x)
    q = x.unflatten(-1, (HEADS, HEAD)).transpose(1, 2)
    q, k = positions.turn(q, q, at)
    bias = positions.bias(at, at)
    scores = q @ k.mT + (0.0 if bias is None else bias.tile((0, len(at)), (0, len(at))))
    return scores[0].detach()


def unique(kind: str) -> bool:
    effects = effect(make(kind), kind, torch.arange(CONTEXT))[:, 0].T  # a vector (h,) per position
    apart = torch.cdist(effects, effects, p=1) + torch.eye(CONTEXT)
    return bool(apart.min() > 1e-6)


def consistent(kind: str) -> bool:
    positions, short = make(kind), torch.arange(7)
    here = effect(positions, kind, short)
    further = effect(positions, kind, short + 12)  # three rows of a grid of four columns
    longer = effect(positions, kind, torch.arange(CONTEXT))[:, 12:19, 12:19]
    return torch.allclose(further, here, atol=1e-9) and torch.allclose(longer, here, atol=1e-9)


def bounded(kind: str) -> bool:
    positions = make(kind)
    last = CONTEXT * (20 if longer(kind) else 1)
    near = effect(positions, kind, torch.arange(CONTEXT // 2))[:, 0]
    far = effect(positions, kind, torch.cat([torch.zeros(1).long(), torch.arange(last - 20, last)]))[:, 0]
    return bool(far.abs().max() <= 2 * near.abs().max())


def longer(kind: str) -> bool:
    try:
        return bool(effect(make(kind), kind, torch.arange(3 * CONTEXT)).isfinite().all())
    except ValueError:
        return False


def deterministic(kind: str) -> bool:
    one, other, x = Tower(kind, seed=0), Tower(kind, seed=1), normal(0, 2, 7, WIDTH, dtype=torch.float32)
    other.load_state_dict(one.state_dict())
    first = one.train()(x)
    return torch.equal(one(x), first) and torch.equal(other.train()(x), first)


@pytest.mark.parametrize("measure", [unique, consistent, bounded, longer, deterministic])
@pytest.mark.parametrize("kind", POSITIONS)
def test_each_kind_has_the_properties_of_the_table(kind, measure):
    properties, why = HAS[kind]
    assert measure(kind) == (measure.__name__ in properties.split()), why


def test_relative_positions_distinguish_small_distances_and_merge_large_ones():
    effects = effect(make("relative"), "relative", torch.arange(CONTEXT))[:, 0].T
    exact = 4  # half of the eight buckets of one direction
    assert torch.cdist(effects[:exact], effects[:exact]).fill_diagonal_(1.0).min() > 1e-6
    assert torch.equal(effects[REACH:], effects[REACH:][:1].expand(CONTEXT - REACH, -1))


def test_rotary_scores_depend_on_the_distance_and_norms_are_kept():
    for pairs in ("halves", "neighbours"):
        q, k = normal(0, 1, 1, 1, 6), normal(1, 1, 1, 1, 6)
        rotary = Rotary(6, pairs=pairs)

        def score(i: int, j: int, q=q, k=k, rotary=rotary) -> float:
            turned = rotary.turn(q, q, torch.tensor([i]))[0], rotary.turn(k, k, torch.tensor([j]))[1]
            assert all(
                math.isclose(float(x.norm()), float(y.norm()), rel_tol=1e-12)
                for x, y in zip(turned, (q, k), strict=True)
            )
            return float((turned[0] * turned[1]).sum())

        assert math.isclose(score(5, 2), score(905, 902), rel_tol=1e-9)
        assert not math.isclose(score(5, 2), score(5, 3), rel_tol=1e-3)


def test_alibi_falls_linearly_with_the_distance():
    bias = Alibi(8).bias(torch.arange(9), torch.arange(9)).tile((0, 9), (0, 9))[0]
    for head, i, j in torch.cartesian_prod(torch.arange(8), torch.arange(9), torch.arange(9)).tolist():
        assert math.isclose(bias[head, i, j], -(2.0 ** -(head + 1)) * abs(i - j), abs_tol=1e-7)


@pytest.mark.parametrize("width", [1, 5, 8])
def test_sinusoids_equal_their_formula(width):
    vectors = Sinusoid(width).vectors(torch.arange(30))
    for p in range(30):
        for column in range(width):
            angle = p / 10_000 ** ((column - column % 2) / width)
            want = math.cos(angle) if column % 2 else math.sin(angle)
            assert math.isclose(vectors[p, column], want, abs_tol=1e-12)


def test_sinusoids_of_a_grid_are_those_of_the_row_and_those_of_the_column():
    at = torch.tensor([[3, 1], [0, 6]])
    line = Sinusoid(4).vectors(torch.arange(7))
    want = torch.stack([torch.cat([line[3], line[1]]), torch.cat([line[0], line[6]])])
    torch.testing.assert_close(SinCos2d(8).vectors(at), want)


def test_positions_are_added_or_concatenated_as_in_the_lecture():
    token, place = [0.12, 0.22, 0.31, 0.03, 0.10], [0.02, 0.21, 0.33, 0.43, 0.98]
    x = torch.tensor([[token]])
    for join, want in [("add", [0.14, 0.43, 0.64, 0.46, 1.08]), ("concatenate", token + place)]:
        positions = Learned(5, 1, join=join)
        positions.table.data = torch.tensor([place])
        torch.testing.assert_close(positions.add(x), torch.tensor([[want]]))
        assert positions.add(x).shape[-1] == 5 + positions.extra
