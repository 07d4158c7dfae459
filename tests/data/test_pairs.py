"""Pairs: what is joined and counted, every pair once an epoch, sources never on both sides, and bad lines."""

import gzip
from collections import Counter

import numpy as np
import pytest

from clearhead.config import ConfigError
from clearhead.data import IGNORE, DataError, make_data

RNG = np.random.default_rng(1)
WORDS = ["".join(RNG.choice(list("abcdé "), n)).strip() or "a" for n in RNG.integers(1, 30, 400)]
PAIRS = [(WORDS[i // 2], WORDS[-1 - i]) for i in range(300)]  # two targets a source


@pytest.fixture
def folder(tmp_path):
    write(tmp_path / "p.tsv", PAIRS)
    return tmp_path


def write(path, pairs):
    path.write_text("".join(f"{a}\t{b}\n" for a, b in pairs), encoding="utf-8")


def open_pairs(folder, seed=0, **options):
    options = {"path": "p.tsv", "batch_tokens": 300, **options}
    return make_data("pairs", options, seed=seed, root=folder)


def told(source, batch):
    """The pairs of a batch, read back from what is told and what is asked."""
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
def test_every_pair_once_an_epoch_within_the_budget(folder, batch_tokens, rounding):
    source = open_pairs(folder, batch_tokens=batch_tokens, rounding=rounding, share=0)
    n = source.steps_an_epoch
    for epoch in range(3):
        seen = []
        for step in range(epoch * n, (epoch + 1) * n):
            batch = source.batch(step)
            assert batch["ids"].size <= batch_tokens
            assert batch["ids"].shape[1] % rounding == 0 or batch["ids"].shape[1] == batch_tokens
            seen += told(source, batch)
        assert Counter(seen) == Counter(PAIRS)
    assert source.valid_batches == 0
    assert source.sizes == {"vocab": len(source.tokens) + 2}


def test_like_lengths_waste_little(folder):
    source = open_pairs(folder, rounding=1, share=0)
    total = sum(source.batch(step)["ids"].size for step in range(source.steps_an_epoch))
    assert total < 1.15 * sum(len(a) + len(b) + 1 for a, b in PAIRS)


def test_epochs_and_seeds_have_other_orders(folder):
    source, other = open_pairs(folder), open_pairs(folder, seed=1)
    n = source.steps_an_epoch
    epochs = [[tuple(told(s, s.batch(e * n + i))) for i in range(n)] for s in (source, other) for e in (0, 1)]
    assert len({tuple(epoch) for epoch in epochs}) == 4
    assert set(epochs[0]) != set(epochs[1])  # other batches too, not only another order of them


def test_a_source_never_stands_on_both_sides(folder):
    source = open_pairs(folder, share=0.3)
    train = [pair for step in range(source.steps_an_epoch) for pair in told(source, source.batch(step))]
    valid = [pair for index in range(source.valid_batches) for pair in told(source, source.valid(index))]
    assert Counter(train) + Counter(valid) == Counter(PAIRS)
    assert not {a for a, _ in train} & {a for a, _ in valid}
    assert 60 <= len(valid) <= 120
    assert open_pairs(folder, share=0.3, valid_most=1).valid_batches == 1


def test_a_second_file_validates(folder):
    write(folder / "v.tsv", [("xyz", "zyx"), ("a", "b")])
    source = open_pairs(folder, valid_path="v.tsv")
    assert sorted(told(source, source.valid(0))) == [("a", "b"), ("xyz", "zyx")]
    train = [pair for step in range(source.steps_an_epoch) for pair in told(source, source.batch(step))]
    assert Counter(train) == Counter(PAIRS)


def test_other_line_ends_and_gzip_are_read(folder):
    (folder / "q.tsv.gz").write_bytes(gzip.compress("\ufeffa b\tc\r\nd\u2028e\tf".encode()))
    source = open_pairs(folder, path="q.tsv.gz", share=0)
    assert sorted(told(source, source.batch(0))) == [("a b", "c"), ("d\u2028e", "f")]


@pytest.mark.parametrize(
    ("content", "words"),
    [
        ("", r"bad\.tsv is empty"),
        ("a\tb\na b\nc\td\n", r"bad\.tsv:2: expected two columns, source TAB target, found 1 columns: 'a b'"),
        ("a\tb\tc\n", r"bad\.tsv:1: .*found 3 columns"),
        ("a\tb\n\nc\td\n", r"bad\.tsv:2: .*found 1 columns"),
        ("a\tb\nc\t\n", r"bad\.tsv:2: .*found an empty one"),
        ("a\tb\n" + "c" * 200 + "\t" + "d" * 200, r"bad\.tsv:2: this pair is 401 tokens long: batch_tokens=300"),
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


def test_bad_options_of_pairs_are_refused(folder):
    with pytest.raises(FileNotFoundError, match=r"no\.tsv"):
        open_pairs(folder, path="no.tsv")
    for options, words in (({"batch_tokens": 0}, "batch_tokens=0"), ({"share": -1}, "share"), ({"rows": 3}, "rows")):
        with pytest.raises(ConfigError, match=words):
            open_pairs(folder, **options)
