"""Text as windows: the split, what validation covers, separate documents, and bad files."""

import gzip

import numpy as np
import pytest

from clearhead.data import IGNORE, DataError, make_data
from clearhead.data.text.documents import divided

TEXT = "".join(np.random.default_rng(0).choice(list("abcdefgh \n"), 600))


@pytest.fixture
def folder(tmp_path):
    (tmp_path / "a.txt").write_text(TEXT)
    return tmp_path


def open_text(folder, **options):
    return make_data("text", {"path": "a.txt", "context": 9, "rows": 6, **options}, seed=0, root=folder)


def test_training_windows_come_from_the_first_part(folder):
    source = open_text(folder, share=0.2)
    cut = int(len(TEXT) * 0.8)
    starts = set()
    for step in range(300):
        batch = source.batch(step)
        assert np.array_equal(batch["ids"][:, 1:], batch["targets"][:, :-1])
        for window in map(source.tokens.decode, np.concatenate([batch["ids"], batch["targets"][:, -1:]], axis=1)):
            assert window in TEXT[:cut]
            starts.add(TEXT.index(window))
    assert min(starts) == 0  # both ends are reached
    assert len(starts) > 200
    assert source.sizes == {"vocab": len(set(TEXT))}


@pytest.mark.parametrize("context", [1, 9, 50, 400])
@pytest.mark.parametrize("valid_rows", [1, 4, 1000])
def test_validation_covers_each_character_once(folder, context, valid_rows):
    source = open_text(folder, share=0.25, context=context, valid_rows=valid_rows)
    rest = TEXT[int(len(TEXT) * 0.75) :]
    targets, inputs = [], []
    for index in range(source.valid_batches):
        batch = source.valid(index)
        assert 1 <= len(batch["ids"]) <= valid_rows
        counted = batch["targets"] != IGNORE
        targets += batch["targets"][counted].tolist()
        inputs += batch["ids"][counted].tolist()
    assert source.tokens.decode(np.array(targets)) == rest[1:]
    assert source.tokens.decode(np.array(inputs)) == rest[:-1]


def test_validation_may_be_limited_or_empty(folder):
    assert open_text(folder, valid_rows=2, valid_most=2).valid_batches == 2
    assert open_text(folder, share=0).valid_batches == 0
    assert open_text(folder, share=0.001).valid_batches == 0  # one character has no successor


def test_documents_are_separate(folder):
    """Against a slow count over a text in which every character is different, and so shows its place."""
    text = "".join(chr(0x4E00 + i) for i in range(400))
    cuts = [3, 4, 10, 60, 61, 200, 290, 300, 330]
    parts = [text[i:j] for i, j in zip([0, *cuts], [*cuts, 400], strict=True)]
    for i, part in enumerate(parts):
        (folder / f"{i}.txt").write_text(part)
    paths = [f"{i}.txt" for i in range(len(parts))]
    source = open_text(folder, path=paths, documents=True, context=40, share=0.3, valid_rows=2)
    document = [d for d, part in enumerate(parts) for _ in part]
    assert source.ends.tolist() == [*cuts, 400]
    batches = [(280, source.batch(step)) for step in range(50)]
    batches += [(400, source.valid(index)) for index in range(source.valid_batches)]
    for limit, batch in batches:
        for ids, targets, documents, at in zip(*(batch[k].tolist() for k in KEYS), strict=True):
            for i, place in enumerate(range(ids[0], min(ids[0] + 40, limit))):
                assert ids[i] == place  # all characters of the text, sorted, are the text
                assert documents[i] == document[place] - document[ids[0]]
                assert at[i] == sum(d == document[place] for d in document[ids[0] : place])
                same = place + 1 < limit and document[place + 1] == document[place]
                assert targets[i] == (place + 1 if same else IGNORE)
            assert set(targets[limit - ids[0] :]) <= {IGNORE}


KEYS = ("ids", "targets", "documents", "at")


def test_documents_end_with_a_separator_or_a_file():
    for texts, separator, expected in (
        (["a", "b"], None, ["ab"]),
        (["a||b|", "|c"], "||", ["a||", "b||", "c"]),
        (["||a"], "||", ["||", "a"]),
        (["a||"], "||", ["a||"]),
    ):
        pieces = list(divided(texts, separator))
        assert [piece.text for piece in pieces] == expected
        assert all(piece.ends for piece in pieces)
    assert [piece.text for piece in divided(["a||b|", "|c"], "||", joined=False)] == ["a", "b", "c"]


def test_gzip_files_are_read(folder):
    (folder / "z.txt.gz").write_bytes(gzip.compress(TEXT.encode()))
    assert np.array_equal(open_text(folder, path="z.txt.gz").batch(3)["ids"], open_text(folder).batch(3)["ids"])


def test_shakespeare_has_the_customary_split(folder):
    text = "To be, or not to be\n\n" * 53114
    (folder / "shakespeare.txt").write_text((text + "x" * 1115394)[:1115394])
    source = make_data("shakespeare", {"context": 256}, seed=0, root=folder)
    assert source.cut == 1003854
    assert len(source.ids) - source.cut == 111540
    assert source.valid_batches == 7
    assert source.ids.dtype == np.uint8


@pytest.mark.parametrize(
    ("content", "words"),
    [
        (b"", "bad.txt is empty: expected text"),
        (b"abc\nd\xff\n", r"bad.txt:2: column 2: the byte 0xFF is not UTF-8 text"),
        (b"abc", "bad.txt has 2 tokens to train on .*context=9 needs 10 or more"),
    ],
)
def test_bad_text_is_refused(folder, content, words):
    (folder / "bad.txt").write_bytes(content)
    with pytest.raises(DataError, match=words):
        open_text(folder, path="bad.txt")


def test_bad_files_are_refused(folder):
    with pytest.raises(FileNotFoundError, match=r"no file or folder .*no\.txt or .*no\.txt"):
        open_text(folder, path="no.txt")
    (folder / "none").mkdir()
    with pytest.raises(DataError, match=r"none has no text files \(\.txt, .*and no tables"):
        open_text(folder, path="none")
    (folder / "half.gz").write_bytes(gzip.compress(TEXT.encode())[:-9])
    with pytest.raises(DataError, match=r"half\.gz is not a complete gzip file"):
        open_text(folder, path="half.gz")
    (folder / "not.gz").write_bytes(b"plain")
    with pytest.raises(DataError, match=r"not\.gz is not a complete gzip file"):
        open_text(folder, path="not.gz")


def everyday(tmp_path, **options):
    """Small versions of the sets whose English sentences are used."""
    (tmp_path / "tatoeba").mkdir(exist_ok=True)
    (tmp_path / "multi30k").mkdir(exist_ok=True)
    for language in ("fra", "deu"):  # half of the English is in both
        lines = [f"Tom sees {n} dogs .\t{language} {n}\n" for n in range(0 if language == "fra" else 100, 300)]
        (tmp_path / "tatoeba" / f"{language}.txt").write_text("".join(lines))
    for language in ("en", "de"):
        (tmp_path / "multi30k" / f"train.{language}").write_text("A man eats .\nA dog runs .\nA man eats .\n")
    return make_data("everyday", {"context": 16, "rows": 4, "size": 300, **options}, seed=0, root=tmp_path)


def test_everyday_english_has_each_sentence_once_in_random_order(tmp_path):
    source = everyday(tmp_path, share=0.2)
    text = source.tokens.decode(source.ids.astype(np.int64))
    lines = text.splitlines()
    assert len(lines) == len(set(lines)) == len(source.ends)
    assert {"A man eats .", "A dog runs ."} < set(lines)
    assert lines != sorted(lines)
    assert everyday(tmp_path, share=0.2).ids.tolist() == source.ids.tolist()
    kept = [n for n in range(300) if f"Tom sees {n} dogs ." not in lines]  # the validation and test parts of tatoeba
    assert 0 < len(kept) < 30
    first, second = source.ends[:2]
    assert source.tokens.decode(source.ids[first:second].astype(np.int64)) == f"{lines[1]}\n"
