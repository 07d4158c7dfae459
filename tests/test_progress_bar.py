"""Work before a training without a terminal: a line per stage that takes long, and none for short work."""

import time

import pytest

from clearhead import progress
from clearhead.training import train


def line(capsys):
    """The next line on stderr, which a timer prints."""
    seen = ""
    for _ in range(500):
        seen += capsys.readouterr().err
        if seen:
            break
        time.sleep(0.01)
    return seen


def test_long_stages_are_named_in_a_line_each(capsys, monkeypatch):
    monkeypatch.setattr(progress, "SILENT", 0.01)
    with progress.progress_bar() as stage:
        stage("training the tokenizer", 0.0)
        assert line(capsys) == "training the tokenizer ...\n"
        for share in (0.0, 0.5, 1.0):
            stage("tokenizing", share)
        assert line(capsys) == "tokenizing ...\n"


def test_short_work_says_nothing_even_if_it_fails(capsys, monkeypatch):
    monkeypatch.setattr(progress, "SILENT", 0.2)

    def fails():
        with progress.progress_bar() as stage:
            stage("tokenizing", 0.0)
            raise KeyError

    with pytest.raises(KeyError):
        fails()
    time.sleep(0.4)
    assert capsys.readouterr().err == ""


def test_a_quiet_training_says_nothing(tmp_path, capsys, monkeypatch):
    monkeypatch.setattr(progress, "SILENT", 0.0)
    (tmp_path / "play.txt").write_text("Mary sold a red car.\n" * 99)
    words = ["steps=1", "data.size=270", "model.width=12", "model.depth=1", "model.heads=2"]
    train(tmp_path / "play.txt", *words, out=tmp_path / "run", device="cpu", quiet=True)
    assert capsys.readouterr().err == ""
