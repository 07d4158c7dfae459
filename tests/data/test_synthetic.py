"""The generated tasks have the documented inputs, and the right targets."""

import numpy as np
import pytest

from clearhead.data import IGNORE, make_data


def rows_of(name, **options):
    """Each row of some batches, as (the list of ids, {place: target})."""
    source = make_data(name, {"rows": 50, "valid_batches": 2, **options}, seed=1)
    for batch in [source.batch(s) for s in range(4)] + [source.valid(i) for i in range(2)]:
        for ids, targets in zip(batch["ids"].tolist(), batch["targets"].tolist(), strict=True):
            yield ids, {i: t for i, t in enumerate(targets) if t != IGNORE}


@pytest.mark.parametrize(("name", "turn"), [("copy", 1), ("reverse", -1)])
@pytest.mark.parametrize("length", [1, 5, (1, 6)])
def test_copy_and_reverse_predict_the_symbols_after_sep(name, turn, length):
    lengths = set()
    for ids, targets in rows_of(name, symbols=4, length=length):
        n = ids.index(4)
        lengths.add(n)
        x = ids[:n]
        assert list(targets) == list(range(n, 2 * n))  # from SEP on, whose target is the first symbol
        assert list(targets.values()) == x[::turn]
        assert ids[n + 1 : 2 * n] == x[::turn][:-1]  # the earlier targets are inputs
        assert set(ids[2 * n + 1 :]) <= {4}  # padding, after the input of the last symbol
    assert lengths == ({length} if isinstance(length, int) else {1, 2, 3, 4, 5, 6})


@pytest.mark.parametrize(("symbols", "length"), [(3, (1, 9)), (10, 10), (1, 4), (50, 2), (2, 8)])
def test_most_has_exactly_one_most_frequent_symbol(symbols, length):
    winners = []
    for ids, targets in rows_of("most", symbols=symbols, length=length):
        n = ids.index(symbols)
        ((at, answer),) = targets.items()
        assert at == n
        assert set(ids[n:]) == {symbols}
        counts = np.bincount(ids[:n], minlength=symbols)
        assert np.flatnonzero(counts == counts.max()).tolist() == [answer]
        winners.append(answer)
    share = np.bincount(winners, minlength=symbols) / len(winners)
    assert abs(share - 1 / symbols).max() < 0.15  # all symbols are equally likely


@pytest.mark.parametrize(("length", "age"), [(6, None), (6, 0), (6, 5), ((3, 8), 2), ((1, 5), None)])
def test_recall_predicts_the_marked_guest(length, age):
    mark, ask = 7, 8
    ages = set()
    for ids, targets in rows_of("recall", symbols=7, length=length, age=age):
        ((at, answer),) = targets.items()
        assert at == ids.index(ask)
        assert set(ids[at:]) == {ask}
        guests = [x for x in ids[:at] if x != mark]
        assert ids.count(mark) == 1
        assert ids[ids.index(mark) + 1] == answer
        assert all(0 <= guest < 7 for guest in guests)
        ages.add(at - ids.index(mark) - 2)
    longest = length if isinstance(length, int) else length[1]
    assert ages == (set(range(longest)) if age is None else {age})


def test_recall_may_validate_at_another_age():
    source = make_data("recall", {"length": 5, "age": 0, "valid_length": 20, "valid_age": 19}, seed=0)
    assert (source.batch(0)["ids"][:, 4] == 10).all()
    assert (source.valid(0)["ids"][:, 0] == 10).all()
    assert source.valid(0)["ids"].shape == (64, 22)


def test_validation_rows_may_be_longer():
    source = make_data("reverse", {"length": [2, 4], "valid_length": 9, "valid_rows": 3, "valid_batches": 1}, seed=0)
    assert source.batch(0)["ids"].shape == (64, 8)
    assert source.valid(0)["ids"].shape == (3, 18)
    assert source.valid_batches == 1
    assert source.sizes == {"vocab": 11}
    assert source.steps_per_epoch is None
    assert make_data("recall", {}, seed=0).sizes == {"vocab": 12}


def test_identity_has_equal_standard_normal_inputs_and_targets():
    batch = make_data("identity", {"width": 7, "rows": 4000}, seed=0).batch(3)
    assert np.array_equal(batch["x"], batch["y"])
    assert abs(batch["x"].mean(axis=0)).max() < 0.1
    assert abs(batch["x"].var(axis=0) - 1).max() < 0.15


def gaussians(**options):
    return make_data("gaussians", {"modes": 6, "radius": 3.0, "deviation": 0.2, **options}, seed=0)


def test_gaussians_are_normal_around_centres_on_a_circle():
    data = gaussians(rows=6000)
    batch = data.batch(3)
    assert np.allclose(np.linalg.norm(data.centres, axis=1), 3.0)
    assert np.allclose(data.centres[0], [3.0, 0.0])
    angles = np.unwrap(np.arctan2(data.centres[:, 1], data.centres[:, 0]))
    assert np.allclose(np.diff(angles), 2 * np.pi / 6, atol=1e-6)
    assert abs(np.bincount(batch["labels"], minlength=6) / 6000 - 1 / 6).max() < 0.03
    for mode in range(6):
        offsets = batch["x"][batch["labels"] == mode] - data.centres[mode]
        assert abs(offsets.mean(axis=0)).max() < 0.03
        assert abs(np.cov(offsets.T) / 0.2**2 - np.eye(2)).max() < 0.2
    assert data.sizes == {"width": 2, "classes": 6}
    assert len(data.classes) == 6


def judged(data, points):
    """The qualities of generated points, from the mean of each score."""
    scores = data.judge(np.asarray(points, np.float32))
    assert all(score.shape == (len(points),) and score.dtype == np.float32 for score in scores.values())
    return data.judged({name: float(score.mean()) for name, score in scores.items()})


def test_the_judge_measures_real_points_as_near_and_of_all_modes():
    data = gaussians(rows=6000)
    result = judged(data, data.batch(0)["x"])
    assert set(result) == set(data.qualities)
    assert result["near"] == pytest.approx(1 - np.exp(-(3.0**2) / 2), abs=0.006)  # within three standard deviations
    assert result["modes"] == 6


def test_the_judge_finds_missing_modes_and_points_far_from_all_centres():
    data = gaussians()
    centre, far = data.centres[2], [0.0, 0.0]
    assert judged(data, [centre] * 10) == {"near": pytest.approx(1.0), "modes": 1}
    assert judged(data, [far] * 10) == {"near": 0.0, "modes": 0}
    assert judged(data, [centre, far]) == {"near": pytest.approx(0.5), "modes": 1}
    edge = centre + np.array([0.59, 0.0], np.float32)  # three standard deviations are 0.6
    assert judged(data, [edge])["near"] == 1
    assert judged(data, [centre + np.array([0.61, 0.0], np.float32)])["near"] == 0
    # A mode counts from half of its fair share of points on: here 1/12.
    assert judged(data, [centre] * 11 + [data.centres[0]])["modes"] == 2
    assert judged(data, [centre] * 12 + [data.centres[0]])["modes"] == 1


def test_the_judge_counts_a_point_between_two_centres_once():
    data = gaussians(deviation=3.0)  # every point is near several centres
    scores = data.judge(data.batch(0)["x"])
    assert np.stack(list(scores.values())).sum(axis=0).max() == 1
