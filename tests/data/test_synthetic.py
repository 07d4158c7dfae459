"""The small tasks ask what they say, and the answers are right."""

import numpy as np
import pytest

from clearhead.config import ConfigError
from clearhead.data import IGNORE, make_data


def rows_of(name, **options):
    """Each row of some batches, as (the list of ids, {place: target})."""
    source = make_data(name, {"rows": 50, "valid_batches": 2, **options}, seed=1)
    for batch in [source.batch(s) for s in range(4)] + [source.valid(i) for i in range(2)]:
        for ids, targets in zip(batch["ids"].tolist(), batch["targets"].tolist(), strict=True):
            yield ids, {i: t for i, t in enumerate(targets) if t != IGNORE}


@pytest.mark.parametrize(("name", "turn"), [("copy", 1), ("reverse", -1)])
@pytest.mark.parametrize("length", [1, 5, (1, 6)])
def test_copy_and_reverse(name, turn, length):
    lengths = set()
    for ids, asked in rows_of(name, symbols=4, length=length):
        n = ids.index(4)
        lengths.add(n)
        x = ids[:n]
        assert list(asked) == list(range(n, 2 * n))  # from SEP on, which asks for the first
        assert list(asked.values()) == x[::turn]
        assert ids[n + 1 : 2 * n] == x[::turn][:-1]  # what it was told before
        assert set(ids[2 * n + 1 :]) <= {4}  # the last symbol is only an answer, or told in vain
    assert lengths == ({length} if isinstance(length, int) else {1, 2, 3, 4, 5, 6})


@pytest.mark.parametrize(("symbols", "length"), [(3, (1, 9)), (10, 10), (1, 4), (50, 2), (2, 8)])
def test_most_has_one_answer(symbols, length):
    winners = []
    for ids, asked in rows_of("most", symbols=symbols, length=length):
        n = ids.index(symbols)
        ((at, answer),) = asked.items()
        assert at == n
        assert set(ids[n:]) == {symbols}
        counts = np.bincount(ids[:n], minlength=symbols)
        assert np.flatnonzero(counts == counts.max()).tolist() == [answer]
        winners.append(answer)
    share = np.bincount(winners, minlength=symbols) / len(winners)
    assert abs(share - 1 / symbols).max() < 0.15  # no symbol is favoured


@pytest.mark.parametrize(("length", "age"), [(6, None), (6, 0), (6, 5), ((3, 8), 2), ((1, 5), None)])
def test_recall_asks_for_the_marked_guest(length, age):
    mark, ask = 7, 8
    ages = set()
    for ids, asked in rows_of("recall", symbols=7, length=length, age=age):
        ((at, answer),) = asked.items()
        assert at == ids.index(ask)
        assert set(ids[at:]) == {ask}
        guests = [x for x in ids[:at] if x != mark]
        assert ids.count(mark) == 1
        assert ids[ids.index(mark) + 1] == answer
        assert all(0 <= guest < 7 for guest in guests)
        ages.add(at - ids.index(mark) - 2)
    longest = length if isinstance(length, int) else length[1]
    assert ages == (set(range(longest)) if age is None else {age})


def test_recall_is_asked_at_another_age():
    source = make_data("recall", {"length": 5, "age": 0, "valid_length": 20, "valid_age": 19}, seed=0)
    assert (source.batch(0)["ids"][:, 4] == 10).all()
    assert (source.valid(0)["ids"][:, 0] == 10).all()
    assert source.valid(0)["ids"].shape == (64, 22)


def test_validation_may_be_longer():
    source = make_data("reverse", {"length": [2, 4], "valid_length": 9, "valid_rows": 3, "valid_batches": 1}, seed=0)
    assert source.batch(0)["ids"].shape == (64, 8)
    assert source.valid(0)["ids"].shape == (3, 18)
    assert source.valid_batches == 1
    assert source.sizes == {"vocab": 11}
    assert source.steps_an_epoch is None
    assert make_data("recall", {}, seed=0).sizes == {"vocab": 12}


def test_identity_is_normal_and_itself():
    batch = make_data("identity", {"width": 7, "rows": 4000}, seed=0).batch(3)
    assert np.array_equal(batch["x"], batch["y"])
    assert abs(batch["x"].mean(axis=0)).max() < 0.1
    assert abs(batch["x"].var(axis=0) - 1).max() < 0.15


@pytest.mark.parametrize(
    ("name", "options", "words"),
    [
        ("copy", {"symbols": 0}, "symbols=0: expected 1 or more"),
        ("copy", {"length": 0}, "length=0"),
        ("copy", {"length": [4, 2]}, r"length=\(4, 2\).*shortest, longest"),
        ("copy", {"valid_length": 0}, "valid_length=0"),
        ("copy", {"rows": 0}, "rows=0"),
        ("copy", {"valid_batches": -1}, "valid_batches=-1"),
        ("recall", {"age": 10}, "age=10: expected 0 to 9"),
        ("recall", {"age": 8, "valid_length": 5}, "valid_age=8: expected 0 to 4"),
        ("identity", {"width": 0}, "width=0"),
    ],
)
def test_bad_options_are_refused(name, options, words):
    with pytest.raises(ConfigError, match=words):
        make_data(name, options, seed=0)
