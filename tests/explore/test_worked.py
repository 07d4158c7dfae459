"""Attention by hand: every option of the Build view does what it says."""

import math

import numpy as np
import pytest
import torch

from clearhead.explore.build import WK, WQ, WV, ByHand, X, by_hand, example, tell

EXAMPLE = {"x": X.tolist(), "wq": WQ.tolist(), "wk": WK.tolist(), "wv": WV.tolist()}


def test_the_printed_example_has_the_numbers_of_by_hand_and_of_the_layer():
    result = by_hand(**EXAMPLE)
    assert isinstance(result, ByHand)
    assert torch.allclose(example()(X[None])[0].double(), result.out, atol=1e-5)
    for m in (result.weights[0], result.out):
        for row in m.tolist():
            assert "  ".join(f"{x:.4f}".rjust(7) for x in row) in tell()


def test_every_number_equals_the_written_out_computation():
    found = by_hand(**EXAMPLE, score="scaled", sharpness=2.0, causal=True)
    x, q, k, v = X.double(), X.double() @ WQ.double(), X.double() @ WK.double(), X.double() @ WV.double()
    scores = 2.0 * q @ k.T / math.sqrt(3)
    assert torch.allclose(found.x, x)
    assert torch.allclose(found.scores[0], scores)
    weights = scores.masked_fill(torch.ones(3, 3).triu(1).bool(), -math.inf).softmax(-1)
    assert torch.allclose(found.weights[0], weights)
    assert torch.allclose(found.out, weights @ v)


@pytest.mark.parametrize(("options", "masked"), [
    ({}, [[0, 0, 0], [0, 0, 0], [0, 0, 0]]), ({"causal": True}, [[0, 1, 1], [0, 0, 1], [0, 0, 0]]),
    ({"window": 2}, [[0, 0, 1], [0, 0, 0], [1, 0, 0]]),
])  # fmt: skip
def test_masked_pairs_are_named_and_have_no_weight(options, masked):
    found = by_hand(**EXAMPLE, **options)
    assert found.masked.int().tolist() == masked
    assert torch.equal(found.weights[0] == 0, found.masked)
    assert found.to_dict()["masked"] == [[bool(x) for x in row] for row in masked]
    assert torch.isfinite(found.scores).all()  # before the mask


def test_rotary_positions_report_queries_and_keys_before_and_after_their_rotation():
    wide = EXAMPLE | {name: [[*row, 1.0] for row in EXAMPLE[name]] for name in ("wq", "wk")}
    found = by_hand(**wide, positions="rotary")
    plain = X.double() @ torch.tensor(wide["wq"]).double()
    assert torch.allclose(found.projected_q[0], plain)
    assert torch.allclose(found.angles, torch.tensor([[i, i / 100] for i in range(3)]).double())
    cos, sin = found.angles.cos(), found.angles.sin()
    first, second = plain[:, :2], plain[:, 2:]
    rotated = torch.cat([first * cos - second * sin, second * cos + first * sin], dim=1)
    assert torch.allclose(found.q[0], rotated)
    assert torch.allclose(found.scores[0], rotated @ found.k[0].T)
    assert by_hand(**EXAMPLE).angles is None
    assert torch.equal(by_hand(**EXAMPLE).q, by_hand(**EXAMPLE).projected_q)


def test_alibi_reports_the_slope_of_each_head():
    wide = {name: [row * 2 for row in EXAMPLE[name]] for name in ("wq", "wk", "wv")}
    found, plain = (by_hand(EXAMPLE["x"], **wide, heads=2, positions=p) for p in ("alibi", "none"))
    assert found.slopes.tolist() == [1 / 16, 1 / 256]
    distance = torch.tensor([[0.0, 1, 2], [1, 0, 1], [2, 1, 0]])
    assert torch.allclose(found.scores, plain.scores - found.slopes[:, None, None] * distance)
    assert plain.slopes is None


@pytest.mark.parametrize("score", ["dot", "scaled", "cosine", "additive"])
def test_high_sharpness_makes_attention_a_lookup(score):
    soft, sharp = (by_hand(**EXAMPLE, score=score, sharpness=s).weights[0] for s in (1e-3, 1e4))
    assert torch.allclose(soft, torch.full_like(soft, 1 / 3), atol=0.01)
    best = by_hand(**EXAMPLE, score=score).scores[0]
    hits = (best == best.amax(-1, keepdim=True)).double()
    assert torch.allclose(sharp, hits / hits.sum(-1, keepdim=True), atol=1e-3)


def test_heads_are_independent():
    wide = {name: [row * 2 for row in EXAMPLE[name]] for name in ("wq", "wk", "wv")}
    found = by_hand(EXAMPLE["x"], **wide, heads=2)
    one = by_hand(**EXAMPLE)
    assert torch.allclose(found.weights[0], one.weights[0])
    assert torch.allclose(found.weights[1], one.weights[0])
    assert torch.allclose(found.out, torch.cat([one.out, one.out], dim=1))


@pytest.mark.parametrize(("options", "moves"), [
    ({}, False), ({"score": "cosine"}, False), ({"causal": True}, True), ({"window": 1}, False), ({"window": 2}, True),
    ({"positions": "sinusoid"}, True), ({"positions": "alibi"}, True),
])  # fmt: skip
def test_attention_is_permutation_equivariant_without_positions_and_masks(options, moves):
    found = by_hand(**EXAMPLE, **options, order=[2, 0, 1])
    assert (found.moved > 1e-6) is moves
    if not moves:
        assert torch.allclose(found.out, by_hand(**EXAMPLE, **options).out[[2, 0, 1]])


def test_rotary_positions_need_heads_of_even_width():
    wide = EXAMPLE | {name: [[*row, 0.0] for row in EXAMPLE[name]] for name in ("wq", "wk")}
    assert by_hand(**wide, positions="rotary", order=[1, 0, 2]).moved > 1e-6
    with pytest.raises(ValueError, match="even"):
        by_hand(**EXAMPLE, positions="rotary")


@pytest.mark.parametrize(("change", "words"), [
    ({"wq": [[1.0]]}, "Wq has 1 rows"), ({"heads": 2}, "3 columns: expected a multiple of 2 heads"),
    ({"x": []}, "X is no matrix"),
    ({"wk": [[1.0, 2]] * 4}, "Wq has 3 columns and Wk 2"), ({"order": [0, 0, 1]}, "each once"),
    ({"x": [[1e300, 0, 0, 0]]}, "beyond"), ({"score": "guess"}, "score='guess': expected one of dot"),
    ({"positions": "guess"}, "positions='guess': expected one of none"), ({"x": [[float("nan"), 0, 0, 0]]}, "NaN"),
])  # fmt: skip
def test_a_wrong_argument_is_a_sentence(change, words):
    with pytest.raises(ValueError, match=words.replace("[", r"\[")):
        by_hand(**EXAMPLE | change)


@pytest.mark.parametrize("score", ["dot", "scaled"])
def test_weights_sum_to_one_however_large_the_scores_are(score):
    rng = np.random.default_rng(0)
    x, wq, wk, wv = ((1e5 * rng.standard_normal((3, 3))).tolist() for _ in range(4))
    found = by_hand(x, wq, wk, wv, score=score, sharpness=1e4, causal=True)
    assert float(found.scores.abs().max()) > 1e15
    assert np.allclose(found.weights.sum(-1), 1.0, atol=1e-12)
    assert np.allclose((found.weights @ found.v)[0], found.out)
