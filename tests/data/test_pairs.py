"""Joined pairs: inputs and targets, every pair once per epoch, no source in both training and validation, bad lines."""

import gzip
from collections import Counter

import numpy as np
import pytest

from clearhead.data import IGNORE, DataError, make_data

RNG = np.random.default_rng(1)
WORDS = ["".join(RNG.choice(list("abcdé "), n)).strip() or "a" for n in RNG.integers(1, 30, 400)]
PAIRS = [(WORDS[i // 2], WORDS[-1 - i]) for i in range(300)]  # two targets per source


@pytest.fixture
def folder(tmp_path):
    write(tmp_path / "p.tsv", PAIRS)
    return tmp_path


def write(path, pairs):
    path.write_text("".join(f"{a}\t{b}\n" for a, b in pairs), encoding="utf-8")


def open_pairs(folder, seed=0, **options):
    options = {"path": "p.tsv", "batch_tokens": 300, **options}
    return make_data("pairs", options, seed=seed, root=folder)


def decoded(source, batch):
    """The pairs of a batch, from its inputs and targets."""
    sep, end = len(source.tokens), len(source.tokens) + 1
    for ids, targets in zip(batch["ids"].tolist(), batch["targets"].tolist(), strict=True):
        n = ids.index(sep)
        counted = [i for i, t in enumerate(targets) if t != IGNORE]
        assert counted == list(range(n, counted[-1] + 1))
        answer = [targets[i] for i in counted]
        assert answer[-1] == end
        assert ids[n + 1 : counted[-1] + 1] == answer[:-1]
        assert set(ids[counted[-1] + 1 :]) <= {end}
        yield source.tokens.decode(ids[:n]), source.tokens.decode(answer[:-1])


@pytest.mark.parametrize("rounding", [1, 8, 1000])
@pytest.mark.parametrize("batch_tokens", [70, 300, 100000])
def test_every_pair_is_seen_once_per_epoch_within_batch_tokens(folder, batch_tokens, rounding):
    source = open_pairs(folder, batch_tokens=batch_tokens, rounding=rounding, share=0)
    n = source.steps_per_epoch
    for epoch in range(3):
        seen = []
        for step in range(epoch * n, (epoch + 1) * n):
            batch = source.batch(step)
            assert batch["ids"].size <= batch_tokens
            assert batch["ids"].shape[1] % rounding == 0 or batch["ids"].shape[1] == batch_tokens
            seen += decoded(source, batch)
        assert Counter(seen) == Counter(PAIRS)
    assert source.valid_batches == 0
    assert source.sizes == {"vocab": len(source.tokens) + 2}


def test_batches_of_similar_length_have_little_padding(folder):
    source = open_pairs(folder, rounding=1, share=0)
    total = sum(source.batch(step)["ids"].size for step in range(source.steps_per_epoch))
    assert total < 1.15 * sum(len(a) + len(b) + 1 for a, b in PAIRS)


def test_epochs_and_seeds_have_different_orders(folder):
    source, other = open_pairs(folder), open_pairs(folder, seed=1)
    n = source.steps_per_epoch
    epochs = [[tuple(decoded(s, s.batch(e * n + i))) for i in range(n)] for s in (source, other) for e in (0, 1)]
    assert len({tuple(epoch) for epoch in epochs}) == 4
    assert set(epochs[0]) != set(epochs[1])  # different batches too, not only another order of them


def test_a_source_is_never_in_both_training_and_validation(folder):
    source = open_pairs(folder, share=0.3)
    train = [pair for step in range(source.steps_per_epoch) for pair in decoded(source, source.batch(step))]
    valid = [pair for index in range(source.valid_batches) for pair in decoded(source, source.valid(index))]
    assert Counter(train) + Counter(valid) == Counter(PAIRS)
    assert not {a for a, _ in train} & {a for a, _ in valid}
    assert 60 <= len(valid) <= 120
    assert open_pairs(folder, share=0.3, valid_most=1).valid_batches == 1


def test_a_part_of_validation_is_of_all_lengths(folder):
    whole, part = (open_pairs(folder, share=0.5, batch_tokens=70, valid_most=most) for most in (None, 5))
    every, some = ([s.valid(i)["ids"] for i in range(s.valid_batches)] for s in (whole, part))
    widths = [ids.shape[1] for ids in every]
    assert len(some) == 5 < len(every)
    edges = [len(every) * i // 5 for i in range(6)]
    for ids, first, after in zip(some, edges[:-1], edges[1:], strict=True):  # a batch of each fifth of the lengths
        assert any(np.array_equal(ids, one) for one in every[first:after])
    assert some[0].shape[1] < some[-1].shape[1]
    rows = sum(map(len, some))
    assert part.description.endswith(
        f"; validation measures {rows} of its {sum(map(len, every))} rows (valid_most = 5)"
    )
    again = open_pairs(folder, share=0.5, batch_tokens=70, valid_most=5, seed=3)
    assert all(np.array_equal(ids, again.valid(i)["ids"]) for i, ids in enumerate(some))
    assert "measures" not in whole.description
    assert widths == sorted(widths)


def test_a_second_file_is_used_for_validation(folder):
    write(folder / "v.tsv", [("xyz", "zyx"), ("a", "b")])
    source = open_pairs(folder, valid_path="v.tsv")
    assert sorted(decoded(source, source.valid(0))) == [("a", "b"), ("xyz", "zyx")]
    train = [pair for step in range(source.steps_per_epoch) for pair in decoded(source, source.batch(step))]
    assert Counter(train) == Counter(PAIRS)


def test_the_hint_leads_from_joined_pairs_to_translations(folder):
    joined, apart = open_pairs(folder), open_pairs(folder, join=False, size=300)
    assert "join=false" in joined.hint
    assert joined.hint[0].isupper()  # it follows another sentence, and is the last one of a message
    assert joined.hint[-1] != "."
    assert "source" not in joined.keys
    assert "source" in apart.keys
    assert apart.hint == ""


def test_other_line_ends_and_gzip_are_read(folder):
    (folder / "q.tsv.gz").write_bytes(gzip.compress("\ufeffa b\tc\r\nd\u2028e\tf".encode()))
    source = open_pairs(folder, path="q.tsv.gz", share=0)
    assert sorted(decoded(source, source.batch(0))) == [("a b", "c"), ("d\u2028e", "f")]


@pytest.mark.parametrize(
    ("content", "words"),
    [
        ("", r"bad\.tsv is empty"),
        ("a\tb\na b\nc\td\n", r"bad\.tsv:2: expected 2 columns, as in the first row, got 1 column: 'a b'"),
        ("a\tb\tc\n", r"bad\.tsv:1: .*got 3 columns"),
        ("a\tb\n\nc\td\n", r"bad\.tsv:2: .*got 1 column: ''"),
        ("a\t\nc\t\n", r"bad\.tsv: no row has a value in '1' and in '2'"),
        (
            "a\tb\n" + "c" * 200 + "\t" + "d" * 200,
            r"bad\.tsv:2: this pair has 401 tokens: expected batch_tokens=300 or fewer",
        ),
        ("a\tb\n", r"share=0.9 leaves no pair to train on"),
    ],
)
def test_bad_pairs_are_refused(folder, content, words):
    (folder / "bad.tsv").write_text(content)
    with pytest.raises(DataError, match=words):
        open_pairs(folder, path="bad.tsv", share=0.9 if "leaves" in words else 0)
    if "leaves" not in words:
        with pytest.raises(DataError, match=words):
            open_pairs(folder, valid_path="bad.tsv")


def test_a_missing_file_of_pairs_is_named(folder):
    with pytest.raises(FileNotFoundError, match=r"no\.tsv"):
        open_pairs(folder, path="no.tsv")
