"""Token files: written and read back, memory-mapped, and refused where the files and their header do not agree."""

import errno
import json
import os
import time
from pathlib import Path

import numpy as np
import pytest

from clearhead.config import ConfigError
from clearhead.data import IGNORE, DataError, make_data, write_tokens

DOCUMENTS = [np.arange(i % 7, i % 7 + i % 11) for i in range(60)]
WHOLE = np.concatenate(DOCUMENTS)


@pytest.fixture
def path(tmp_path):
    return write_tokens(tmp_path / "x.bin", iter(DOCUMENTS), vocab=20)


def open_tokens(path, **options):
    return make_data("tokens", {"path": str(path), "context": 8, "rows": 5, **options}, seed=0)


def test_written_ids_and_documents_are_read_back(path):
    source = open_tokens(path, share=0.5, documents=True)
    assert sorted(p.name for p in path.parent.iterdir()) == ["x.bin", "x.bin.ends", "x.bin.json"]
    assert np.array_equal(source.ids, WHOLE)
    assert source.ends.tolist() == sorted(set(np.cumsum([len(d) for d in DOCUMENTS if len(d)]).tolist()))
    assert source.sizes == {"vocab": 20}
    assert source.tokens is None
    plain = open_tokens(path, share=0.5)
    windows = {WHOLE[i : i + 8].tobytes() for i in range(len(WHOLE) // 2)}
    for step in range(20):
        batch, apart = plain.batch(step), source.batch(step)
        assert {ids.tobytes() for ids in batch["ids"]} <= windows
        assert np.array_equal(batch["ids"], apart["ids"])
        assert set(batch) == {"ids", "targets"}
        # ids of a document rise by one, so a target is the next number or does not count
        counted = apart["targets"] != IGNORE
        assert np.array_equal(apart["targets"][counted], apart["ids"][counted] + 1)
        assert (counted[:, :-1] == (np.diff(apart["documents"]) == 0)).all()


def test_a_large_vocabulary_takes_four_bytes_per_id(tmp_path):
    for vocab, size in ((65536, 2), (65537, 4)):
        path = write_tokens(tmp_path / f"{size}.bin", [np.array([vocab - 1] * 30)], vocab=vocab)
        assert path.stat().st_size == 30 * size
        assert open_tokens(path).batch(0)["ids"].max() == vocab - 1


def test_a_large_file_is_not_read_completely(tmp_path):
    """A sparse file of 64 gigabytes: opened, and a batch read, in milliseconds."""
    path = tmp_path / "large.bin"
    with path.open("wb") as file:
        file.truncate(1 << 36)
    header = {"kind": "clearhead tokens", "dtype": "uint16", "tokens": 1 << 35, "documents": 0, "vocab": 100}
    (tmp_path / "large.bin.json").write_text(json.dumps(header))
    started = time.perf_counter()
    source = open_tokens(path, context=256, rows=64)
    batch = source.batch(123)
    assert time.perf_counter() - started < 10  # reading it would take a minute
    assert batch["ids"].shape == (64, 256)
    assert source.valid(source.valid_batches - 1)["ids"].max() == 0


def test_bad_ids_are_not_written(tmp_path):
    path = tmp_path / "y.bin"
    for documents, words in (
        ([[1, 2], [3, 20]], "document 1 has ids from 3 to 20: expected 0 to 19"),
        ([[-1]], "document 0 has ids from -1"),
        ([[0.5]], "expected a row of integers"),
        ([[[1]]], r"shape \(1, 1\)"),
        ([[]], "no ids to write"),
        ([], "no ids to write"),
    ):
        with pytest.raises(ValueError, match=words):
            write_tokens(path, [np.array(d) for d in documents], vocab=20)
        assert not list(tmp_path.iterdir())
    with pytest.raises(ValueError, match="vocab=0"):
        write_tokens(path, [], vocab=0)


def test_a_failed_write_leaves_the_old_files(path):
    with pytest.raises(ValueError, match="document 1"):
        write_tokens(path, [np.array([1]), np.array([99])], vocab=20)
    assert np.array_equal(open_tokens(path).ids, WHOLE)
    write_tokens(path, [np.arange(15)], vocab=15)
    assert open_tokens(path).sizes == {"vocab": 15}


@pytest.mark.skipif(not Path("/dev/full").exists(), reason="needs /dev/full, a device without space")
@pytest.mark.parametrize("suffix", ["", ".ends", ".json"])
def test_a_full_disk_is_reported_with_the_name_of_a_file(tmp_path, suffix):
    """Each of the three files is written to a temporary file beside it, which is here a device without space."""
    path = tmp_path / f"y.bin{suffix}"
    path.with_name(f".{path.stem}.{os.getpid()}.tmp{path.suffix}").symlink_to("/dev/full")
    with pytest.raises(OSError) as caught:  # noqa: PT011 - the number and the name are checked below
        write_tokens(tmp_path / "y.bin", [np.arange(20)], vocab=20)
    assert caught.value.errno == errno.ENOSPC
    assert caught.value.filename == str(tmp_path / ("y.bin.json" if suffix == ".json" else "y.bin"))
    with pytest.raises((DataError, FileNotFoundError)):
        open_tokens(tmp_path / "y.bin")


def test_files_that_do_not_agree_with_their_header_are_refused(path, tmp_path):
    with pytest.raises(FileNotFoundError, match=r"no\.bin"):
        open_tokens(tmp_path / "no.bin")
    with pytest.raises(DataError, match="context=300 needs 301 or more"):
        open_tokens(path, context=300)
    ends = (tmp_path / "x.bin.ends").read_bytes()
    (tmp_path / "x.bin.ends").write_bytes(ends[:-8] + np.array([5], "<i8").tobytes())
    with pytest.raises(DataError, match=r"x\.bin\.ends ends at 5: expected \d+, as in the header"):
        open_tokens(path)
    (tmp_path / "x.bin.ends").unlink()
    with pytest.raises(DataError, match=r"x\.bin\.ends is missing"):
        open_tokens(path)
    with path.open("ab") as file:
        file.write(b"x")
    with pytest.raises(
        DataError, match=rf"x\.bin has {2 * len(WHOLE) + 1} bytes: its header says {len(WHOLE)} numbers"
    ):
        open_tokens(path)
    (tmp_path / "x.bin.json").unlink()
    with pytest.raises(DataError, match=r"no header x\.bin\.json beside it"):
        open_tokens(path)


@pytest.mark.parametrize(
    ("change", "words"),
    [
        ({"dtype": "float32"}, "dtype"),
        ({"kind": "other"}, "kind"),
        ({"tokens": "many"}, "tokens"),
        ({"size": 3}, "size"),
        ({"vocab": None}, "vocab"),
    ],
)
def test_bad_headers_are_refused(path, change, words):
    beside = path.with_name("x.bin.json")
    header = {k: v for k, v in {**json.loads(beside.read_text()), **change}.items() if v is not None}
    beside.write_text(json.dumps(header))
    with pytest.raises(ConfigError, match=rf"x\.bin\.json.*{words}"):
        open_tokens(path)


def test_ids_above_the_vocabulary_are_refused(path):
    beside = path.with_name("x.bin.json")
    beside.write_text(beside.read_text().replace("20", "3"))
    with pytest.raises(DataError, match=r"x\.bin has the id \d+: expected ids below vocab=3"):
        open_tokens(path).batch(0)


def test_documents_true_needs_the_ends_of_documents(path):
    beside = path.with_name("x.bin.json")
    beside.write_text(json.dumps({**json.loads(beside.read_text()), "documents": 0}))
    assert open_tokens(path).batch(0)["ids"].shape == (5, 8)
    with pytest.raises(DataError, match="has no ends of documents, as its header says: documents=true needs them"):
        open_tokens(path, documents=True)
