"""Large texts: tokenized once into a token file in the cache, by one process, whole or not at all."""

import json
import multiprocessing
import os
import subprocess
import sys
import time
from pathlib import Path

import numpy as np
import pytest

from clearhead.data import make_data
from clearhead.data.files import cached
from clearhead.data.text import plain as tokenized

TEXT = "the cat sat on the mat, and the dog ran.\n" * 500


@pytest.fixture
def folder(tmp_path, monkeypatch):
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    monkeypatch.setattr(tokenized, "LARGE", 1000)
    (tmp_path / "a.txt").write_text(TEXT)
    return tmp_path


def entries(folder):
    return sorted(p.name for p in (folder / "cache" / "clearhead" / "tokens").glob("*") if p.suffix != ".lock")


def open_text(folder, **options):
    return make_data("text", {"path": "a.txt", "context": 9, "rows": 6, "size": 300, **options}, seed=0, root=folder)


@pytest.mark.parametrize("tokens", ["characters", "words", "bpe"])
def test_a_token_file_has_the_batches_of_a_text_in_memory(folder, tokens, monkeypatch):
    filed = open_text(folder, tokens=tokens, documents=True, separator="\n")
    monkeypatch.setattr(tokenized, "LARGE", 1 << 30)
    kept = open_text(folder, tokens=tokens, documents=True, separator="\n")
    assert isinstance(filed.ids.base, np.memmap)
    assert not isinstance(kept.ids.base, np.memmap)
    assert filed.tokens == kept.tokens
    assert (filed.cut, filed.special, filed.description) == (kept.cut, kept.special, kept.description)
    for step in range(3):
        for key, x in filed.batch(step).items():
            assert np.array_equal(x, kept.batch(step)[key])
    assert np.array_equal(filed.valid(0)["targets"], kept.valid(0)["targets"])


def test_a_second_start_reads_the_cache(folder, monkeypatch):
    first = open_text(folder, tokens="bpe")
    made = entries(folder)
    assert len(made) == 1
    with monkeypatch.context() as patch:
        patch.setattr(tokenized, "_write", lambda *given: pytest.fail("tokenized again"))
        again = open_text(folder, tokens="bpe")
    assert np.array_equal(first.ids, again.ids)
    assert first.tokens == again.tokens


@pytest.mark.parametrize(
    "change",
    [{"tokens": "words"}, {"size": 301}, {"share": 0.2}, {"separator": "\n"}, {"lower": True}, {"minimum": 3}],
    ids=str,
)
def test_what_the_ids_depend_on_has_its_own_file(folder, change):
    open_text(folder, tokens="bpe")
    open_text(folder, tokens="bpe", context=5, rows=3)
    assert len(entries(folder)) == 1  # windows do not change the ids
    open_text(folder, **{"tokens": "bpe", **change})
    assert len(entries(folder)) == 2


def test_a_changed_file_is_tokenized_again(folder):
    before = open_text(folder).ids.tolist()
    (folder / "a.txt").write_text(TEXT.replace("cat", "act"))  # of the same size
    os.utime(folder / "a.txt", ns=(1, time.time_ns()))
    assert open_text(folder).ids.tolist() != before
    assert len(entries(folder)) == 2


def test_an_interrupted_write_leaves_nothing(folder, monkeypatch):
    real = tokenized.write_parts

    def interrupted(path, parts, *, vocab):
        def some():
            yield next(iter(parts))
            raise KeyboardInterrupt

        real(path, some(), vocab=vocab)

    with monkeypatch.context() as patch:
        patch.setattr(tokenized, "write_parts", interrupted)
        with pytest.raises(KeyboardInterrupt):
            open_text(folder)
    assert entries(folder) == []
    assert open_text(folder).tokens.decode(open_text(folder).ids.astype(np.int64)) == TEXT


def test_what_a_killed_process_has_left_is_replaced(folder):
    name = cached({"a": 1}, lambda made: (made / "x").write_text("whole")).name
    part = folder / "cache" / "clearhead" / "tokens" / name
    part.rename(part.with_name(f"{name}.part"))
    (part.with_name(f"{name}.part") / "y").write_text("half")
    again = cached({"a": 1}, lambda made: (made / "x").write_text("new"))
    assert [file.name for file in again.iterdir()] == ["x"]
    assert entries(folder) == [name]


def _make(folder, counts):
    def fill(made):
        counts.put(os.getpid())
        time.sleep(0.3)
        (made / "x").write_text("whole")

    assert (cached({"a": 2}, fill) / "x").read_text() == "whole"


def test_of_several_processes_one_makes_the_folder(folder):
    context = multiprocessing.get_context("fork")
    counts = context.Queue()
    workers = [context.Process(target=_make, args=(folder, counts)) for _ in range(3)]
    for worker in workers:
        worker.start()
    for worker in workers:
        worker.join()
    assert [worker.exitcode for worker in workers] == [0, 0, 0]
    assert counts.get() is not None
    assert counts.empty()


CODE = """
import json, re, sys, time
from clearhead.data import make_data
start = time.perf_counter()
data = make_data("text", {"path": sys.argv[1], "tokens": sys.argv[2], "context": 64}, seed=0)
data.batch(0)
seconds = time.perf_counter() - start
peak = int(re.search(r"VmHWM:\\s+(\\d+) kB", open("/proc/self/status").read())[1])
print(json.dumps({"peak": peak, "seconds": seconds, "tokens": len(data.ids)}))
"""


@pytest.mark.slow
@pytest.mark.skipif(not Path("/proc/self/status").exists(), reason="needs /proc, which has the peak of memory")
@pytest.mark.parametrize("tokens", ["characters", "bpe"])
def test_a_gigabyte_is_tokenized_in_bounded_memory(tmp_path, tokens):
    """The peak stays below half of the text's size, which is not read as a whole at any time."""
    rng, path = np.random.default_rng(0), tmp_path / "large.txt"
    words = np.array(["".join(rng.choice(list("etaoinshrdlu"), n)) for n in rng.integers(2, 9, 20000)], dtype=object)
    with path.open("w") as file:
        while file.tell() < 1 << 30:
            file.write(" ".join(words[rng.zipf(1.3, 200_000) % len(words)]) + "\n")
    environment = os.environ | {"XDG_CACHE_HOME": str(tmp_path / "cache")}
    line = [sys.executable, "-c", CODE, str(path), tokens]
    runs = [
        json.loads(subprocess.run(line, env=environment, capture_output=True, check=True, text=True).stdout)
        for _ in range(2)
    ]
    print(tokens, runs)
    assert runs[0]["tokens"] == runs[1]["tokens"] > 1 << 27
    assert runs[0]["peak"] * 1024 < 1 << 29
    assert runs[1]["seconds"] < 5
