"""Data that changes under a run: a finished model stays as it is, and no id or class gets another meaning."""

import os
import signal
from pathlib import Path

import pytest
import torch

import clearhead as ch
from clearhead.data import files as fingerprints
from clearhead.data.files import fingerprint
from clearhead.training import train
from clearhead.training.checkpoints import Checkpoint
from clearhead.training.optim import optimisers as optim
from clearhead.training.run_folder import FolderError

LABELS = {
    "steps": 4, "model": {"name": "bert", "answer": "class", "width": 8, "depth": 1, "heads": 2},
    "data": {"name": "labelled", "path": "reviews.csv", "vocabulary": "words", "size": 40, "minimum": 1},
    "run": {"save_every": 2},
}  # fmt: skip
TEXT = {
    "steps": 3, "data": {"name": "text", "path": "a.txt", "context": 8, "rows": 2},
    "model": {"name": "gpt", "width": 8, "depth": 1, "heads": 2},
}  # fmt: skip


@pytest.fixture(autouse=True)
def here(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)


def reviews(*names, more=0):
    rows = "".join(f"a film {i % 7} {i},{names[i % len(names)]}\n" for i in range(24 + more))
    Path("reviews.csv").write_text("text,label\n" + rows)


def go(table, *words, quiet=True):
    return train(table, *words, out="run", device="cpu", quiet=quiet)


def content(folder):
    return {path.name: path.read_bytes() for path in folder.iterdir()}


def stopped(monkeypatch, step):
    """Stop the next training after a step."""
    real, left = optim.Optimiser.step, [step]

    def counted(self, *args):
        left[0] -= 1
        if left[0] == 0:
            os.kill(os.getpid(), signal.SIGTERM)
        return real(self, *args)

    monkeypatch.setattr(optim.Optimiser, "step", counted)


@pytest.mark.parametrize("names", [("zero", "pos"), ("neg", "neutral", "pos")], ids=["renamed", "one more"])
def test_a_finished_run_keeps_its_classes_whatever_becomes_of_the_file(names, capsys):
    reviews("neg", "pos")
    first = go(LABELS)
    before = content(first.folder / "model")
    reviews(*names)
    again = go(LABELS, quiet=False)
    assert again.finished
    assert again.step == 4
    assert again.model.labels == ("neg", "pos")
    assert content(first.folder / "model") == before
    said = capsys.readouterr().err
    assert "run: already finished at step 4 of 4" in said
    assert "changed: reviews.csv has changed: the model is the one that was saved, trained on the earlier data" in said


def test_a_finished_run_keeps_its_tokenizer(capsys):
    Path("a.txt").write_text("the cat sat on the mat. " * 30)
    first = go(TEXT)
    Path("a.txt").write_text("xhe cax sax on xhe max. " * 30)
    assert go(TEXT, quiet=False).model.tokens == first.model.tokens
    os.unlink("a.txt")
    capsys.readouterr()
    assert go(TEXT, quiet=False).finished
    assert "changed: a.txt is no longer there" in capsys.readouterr().err


def test_a_model_that_is_missing_is_written_again_and_only_from_the_same_classes(tmp_path):
    reviews("neg", "pos")
    first = go(LABELS, "run.keep=9")
    weights = first.model.model.state_dict()
    for name in ("config.json", "model.safetensors"):
        (first.folder / "model" / name).unlink()
    again = go(LABELS, "run.keep=9")
    assert all(torch.equal(weights[name], x) for name, x in again.model.model.state_dict().items())
    reviews("pos", "zero")
    with pytest.raises(FolderError, match=r"run was trained on the classes neg, pos, and the data now has pos, zero"):
        go(LABELS, "run.keep=9", "run.average=2")
    assert ch.load(first.folder).labels == ("neg", "pos")


@pytest.mark.parametrize("names", [("alpha", "pos"), ("neg", "neutral", "pos")], ids=["renamed", "one more"])
def test_a_run_is_not_resumed_with_other_classes(names, monkeypatch):
    reviews("neg", "pos")
    with monkeypatch.context() as patch:
        stopped(patch, 2)
        assert not go(LABELS).finished
    reviews(*names)
    with pytest.raises(FolderError, match=r"run was trained on the classes neg, pos, .* \(reviews.csv changed\)\. Exp"):
        go(LABELS)
    reviews("neg", "pos")
    assert go(LABELS).finished


def test_a_run_is_not_resumed_with_another_tokenizer(monkeypatch):
    Path("a.txt").write_text("the cat sat on the mat. " * 30)
    with monkeypatch.context() as patch:
        stopped(patch, 2)
        go(TEXT)
    for text in ("xhe cax sax on xhe max. ", "the cat sat on the mat; "):
        Path("a.txt").write_text(text * 30)
        with pytest.raises(FolderError, match=r"run was trained with another tokenizer than the data now gives"):
            go(TEXT)


def test_other_changes_of_the_data_are_stated(monkeypatch, capsys):
    Path("a.txt").write_text("the cat sat on the mat. " * 30)
    with monkeypatch.context() as patch:
        stopped(patch, 2)
        go(TEXT)
    Path("a.txt").write_text("the mat sat on the cat. " * 30)
    assert go(TEXT, quiet=False).finished
    said = capsys.readouterr().err
    assert "changed: data file a.txt: the files have changed, and this run differs from an uninterrupted one" in said
    assert list(Checkpoint("run/checkpoints/step-00000003").facts["data"]["files"]) == ["a.txt"]


def test_fingerprints_of_files_and_folders(tmp_path, monkeypatch):
    (tmp_path / "a").mkdir()
    one, two = tmp_path / "a" / "1.txt", tmp_path / "a" / "2.txt"
    one.write_bytes(bytes(range(200)))
    two.write_bytes(b"two")
    before = fingerprint(tmp_path / "a"), fingerprint(one)
    (tmp_path / "a" / ".hidden").write_text("x")
    assert (fingerprint(tmp_path / "a"), fingerprint(one)) == before
    two.write_bytes(b"owt")
    assert fingerprint(tmp_path / "a") != before[0]
    monkeypatch.setattr(fingerprints, "WHOLE", 100)
    monkeypatch.setattr(fingerprints, "BLOCK", 8)
    monkeypatch.setattr(fingerprints, "BLOCKS", 4)
    large = fingerprint(one)
    for place, noticed in ((0, True), (199, True), (20, False)):  # in the first block, in the last, between two
        data = bytearray(range(200))
        data[place] ^= 255
        one.write_bytes(data)
        assert (fingerprint(one) != large) == noticed
