"""Masked and labelled texts: batches as functions of (seed, step), and their content."""

import gzip
from pathlib import Path

import numpy as np
import pytest

from clearhead.data import IGNORE, DataError, make_data
from clearhead.data.text.labelled import mask_of, read_sst2, with_special
from clearhead.tokens import Subwords, Words, save

TEXTS = [f"film {i} was {'good' if i % 3 else 'bad'} and {'long ' * (i % 7)}so it went on" for i in range(200)]
LABELS = ["good" if i % 3 else "bad" for i in range(200)]


@pytest.fixture
def lines(tmp_path: Path) -> Path:
    path = tmp_path / "texts.txt"
    path.write_text("\n".join(TEXTS) + "\n")
    return path


@pytest.fixture
def labels(tmp_path: Path) -> Path:
    path = tmp_path / "labels.tsv"
    path.write_text("".join(f"{text}\t{label}\n" for text, label in zip(TEXTS, LABELS, strict=True)))
    return path


def masked(lines: Path, seed: int = 0, **more):
    return make_data("masked", {"of": str(lines), "vocabulary": "words", "valid_share": 0.2, **more}, seed=seed)


def test_four_fifths_of_the_targets_are_masked_a_tenth_replaced_and_a_tenth_unchanged(lines):
    data = masked(lines, batch_tokens=4000)
    targets = masks = others = same = tokens = 0
    for step in range(60):
        batch = data.batch(step)
        there = np.arange(batch["ids"].shape[1]) < batch["lengths"][:, None]
        masked_at = batch["targets"] != IGNORE
        assert not masked_at[~there].any()
        assert not np.isin(batch["targets"][masked_at], [data.tokens.start, data.tokens.end, data.tokens.pad]).any()
        assert (masked_at.sum(1) >= 1).all()
        targets, tokens = targets + masked_at.sum(), tokens + there.sum() - 2 * len(there)
        now, was = batch["ids"][masked_at], batch["targets"][masked_at]
        masks, same = masks + (now == data.mask).sum(), same + (now == was).sum()
        others += ((now != data.mask) & (now != was)).sum()
        whole = np.where(masked_at, batch["targets"], batch["ids"])[0]
        text = data.tokens.decode(whole[1 : batch["lengths"][0] - 1])
        assert text in {data.tokens.decode(data.tokens.encode(one)) for one in TEXTS}
    assert targets / tokens == pytest.approx(0.15, abs=0.02)
    assert masks / targets == pytest.approx(0.8, abs=0.02)
    assert others / targets == pytest.approx(0.1, abs=0.02)
    assert same / targets == pytest.approx(0.1, abs=0.02)


def test_masks_are_a_function_of_seed_step_and_text(lines):
    data, again, other = masked(lines), masked(lines), masked(lines, seed=1)
    for step in (0, 3, data.steps_per_epoch + 1):
        whole = data.batch(step)
        for name, array in again.batch(step).items():
            assert np.array_equal(array, whole[name])
        parts = [data.batch(step, part, 2) for part in range(2)]
        for row in range(len(whole["ids"])):
            part = parts[row % 2]
            assert np.array_equal(part["ids"][row // 2], whole["ids"][row])
            assert np.array_equal(part["targets"][row // 2], whole["targets"][row])
    assert any(not np.array_equal(data.batch(s)["ids"], other.batch(s)["ids"]) for s in range(3))
    valid = [data.valid(i)["ids"] for i in range(data.valid_batches)]
    assert valid
    assert all(np.array_equal(a, other.valid(i)["ids"]) for i, a in enumerate(valid))


def test_the_mask_token_is_that_of_the_vocabulary_or_added_at_its_end():
    words = Words.of(TEXTS)
    assert mask_of(words) == (len(words), len(words) + 1)
    pieces = Subwords.of(TEXTS, size=300)
    assert mask_of(pieces) == (len(pieces), len(pieces) + 1)
    tokenizers = pytest.importorskip("tokenizers")
    tokenizer = tokenizers.Tokenizer.from_str(pieces.to_str())
    tokenizer.add_special_tokens(["[MASK]"])
    foreign = Subwords(tokenizer.to_str())
    assert mask_of(foreign) == (len(pieces), len(pieces) + 1) == (tokenizer.token_to_id("[MASK]"), len(foreign))


def test_a_long_text_is_cut_before_its_end_token():
    words = Words.of(["a b c d"])
    ids = words.encode("a b c d")
    assert with_special(words, ids).tolist() == [words.start, *ids, words.end]
    assert with_special(words, ids, 4).tolist() == [words.start, *ids[:2], words.end]


def test_labels_belong_to_their_texts(labels):
    data = make_data("labelled", {"path": str(labels), "size": 400, "share": 0.2}, seed=0)
    assert data.classes == ("bad", "good")
    assert data.sizes == {"vocab": len(data.tokens) + 1, "classes": 2}
    known, seen = dict(zip(TEXTS, LABELS, strict=True)), []
    batches = [data.batch(step) for step in range(data.steps_per_epoch)]
    valid = [data.valid(i) for i in range(data.valid_batches)]
    for part in (batches, valid):
        texts = []
        for batch in part:
            for ids, length, label in zip(batch["ids"], batch["lengths"], batch["labels"], strict=True):
                text = data.tokens.decode(ids[1 : length - 1])
                assert known[text] == data.classes[label]
                texts.append(text)
        seen.append(texts)
    assert sorted(seen[0] + seen[1]) == sorted(TEXTS)  # each once, in training or in validation
    uneven = data.batch(0, 0, 7)
    assert ("weight" in uneven) == bool(len(data.batch(0)["ids"]) % 7)


def test_the_tokenizer_of_a_folder_is_used(labels, tmp_path):
    words = Words.of(["good bad film"])
    save(words, tmp_path / "run" / "model")
    for folder in ("run", "run/model"):
        options = {"path": str(labels), "tokens": str(tmp_path / folder)}
        assert make_data("labelled", options, seed=0).tokens == words
    with pytest.raises(DataError, match="there is no tokenizer in such a folder"):
        make_data("labelled", {"path": str(labels), "tokens": str(tmp_path)}, seed=0)


def test_sst2_is_read_from_a_data_folder(tmp_path):
    folder = tmp_path / "sst2"
    folder.mkdir()
    parts = {"train": "fine film\t1\ndull film\t0\n", "dev": "a fine one\t1\n", "test": "a dull one\t0\n"}
    for name, text in parts.items():
        (folder / f"{name}.tsv.gz").write_bytes(gzip.compress(text.encode()))
    phrases = "sentence\tlabel\nfine \t1\nA dull one \t0\nfine  film\t1\n"
    (folder / "glue-train.tsv").write_text(phrases)
    assert [(line.text, line.label) for line in read_sst2("train", tmp_path)] == [
        ("fine film", "positive"), ("dull film", "negative"),
    ]  # fmt: skip
    more = read_sst2("train", tmp_path, phrases=True)
    assert [line.text for line in more] == ["fine film", "dull film", "fine"]  # no sentence of the other parts
    data = make_data("sst2", {"vocabulary": "words", "minimum": 1}, seed=0, root=tmp_path)
    assert data.classes == ("negative", "positive")
    assert data.valid(0)["labels"].tolist() == [1]
    with pytest.raises(DataError, match="sst2 has no part 'dev': expected one of train, valid, test"):
        read_sst2("dev", tmp_path)


@pytest.mark.parametrize(
    ("content", "problem"),
    [
        ("a\t1\nb\n", r":2: expected 2 columns, as in the first row, got 1 column: 'b'"),
        ("a\tb\tc\n", r":1: expected"),
    ],
)
def test_a_wrong_line_is_reported_with_its_number(tmp_path, content, problem):
    path = tmp_path / "x.tsv"
    path.write_text(content)
    with pytest.raises(DataError, match=problem):
        make_data("labelled", {"path": str(path)}, seed=0)
