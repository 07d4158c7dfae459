"""The run folder: one writer, and files that a crash does not damage."""

import json
import math
import os
import signal
import subprocess
import sys

import numpy as np
import pytest
import torch

from clearhead.training import run_folder as folder_module
from clearhead.training.run_folder import Folder, FolderError, atomic_write


def test_atomic_write_is_all_or_nothing(tmp_path, monkeypatch):
    path = tmp_path / "a.json"
    atomic_write(path, b"old")

    def full(*_):
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(folder_module.os, "fsync", full)
    with pytest.raises(OSError, match="No space"):
        atomic_write(path, b"new and longer")
    assert path.read_bytes() == b"old"
    assert os.listdir(tmp_path) == ["a.json"]


def test_metrics_are_read_back_the_same(tmp_path):
    with Folder(tmp_path / "run") as folder:
        folder.log({"loss": 0.1 + 0.2, "step": 1, "rows": np.int64(3), "norm": torch.tensor(0.5)})
        folder.log({"step": 2, "loss": math.nan, "valid": {"loss": math.inf, "tiny": 5e-324}})
        assert folder.metrics() == [
            {"step": 1, "loss": 0.1 + 0.2, "rows": 3, "norm": 0.5},
            {"step": 2, "loss": None, "valid": {"loss": None, "tiny": 5e-324}},
        ]
    text = (tmp_path / "run" / "metrics.jsonl").read_text()
    assert text.startswith('{"step": 1, ')
    assert "NaN" not in text


@pytest.mark.parametrize("step", [None, 1.0, "1", True])
def test_a_record_without_a_step_is_refused(tmp_path, step):
    with Folder(tmp_path) as folder, pytest.raises(ValueError, match="whole number as its step"):
        folder.log({"step": step, "loss": 1.0})


@pytest.mark.parametrize("torn", [b'{"step": 4, "lo', b"\0\0\0\0", b'{"step": 4}', b'{"step": 4, "loss": 1}garbage\n'])
def test_a_partial_last_line_is_ignored_and_removed(tmp_path, torn):
    with Folder(tmp_path) as folder:
        for step in (1, 2, 3):
            folder.log({"step": step})
    with open(tmp_path / "metrics.jsonl", "ab") as file:
        file.write(torn)
    whole = [1, 2, 3, 4] if torn.endswith(b"}") else [1, 2, 3]
    before = (tmp_path / "metrics.jsonl").read_bytes()
    assert [r["step"] for r in Folder(tmp_path, lock=False).metrics()] == whole
    assert (tmp_path / "metrics.jsonl").read_bytes() == before  # readers change nothing
    with Folder(tmp_path) as folder:
        folder.log({"step": 5})
        assert [r["step"] for r in folder.metrics()] == [*whole, 5]


def test_cut_removes_later_records(tmp_path):
    with Folder(tmp_path) as folder:
        folder.cut(3)
        for step in (1, 2, 2, 3, 4):
            folder.log({"step": step, "x": step / 3})
        kept = (tmp_path / "metrics.jsonl").read_bytes().splitlines(keepends=True)[:3]
        folder.cut(2)
        assert (tmp_path / "metrics.jsonl").read_bytes() == b"".join(kept)
        folder.log({"step": 3})
        assert [r["step"] for r in folder.metrics()] == [1, 2, 2, 3]
        folder.cut(0)
        assert folder.metrics() == []


def test_a_damaged_line_is_reported_with_its_number(tmp_path):
    (tmp_path / "metrics.jsonl").write_text('{"step": 1}\n{"st\n{"step": 3}\n')
    with pytest.raises(FolderError, match=r"metrics\.jsonl:2: this is not a line of JSON: [^b]"):
        Folder(tmp_path, lock=False).metrics()
    (tmp_path / "metrics.jsonl").write_text('{"step": 1}\n[3]\n')
    with pytest.raises(FolderError, match=r"metrics\.jsonl:2: expected an object with a step"):
        Folder(tmp_path, lock=False).metrics()


HOLD = """
import sys, time
from clearhead.training.run_folder import Folder
held = Folder(sys.argv[1])
print("ready", flush=True)
time.sleep(60)
"""


@pytest.mark.skipif(os.name == "nt", reason="kills with SIGKILL")
def test_only_one_process_can_hold_the_lock_and_its_end_releases_it(tmp_path):
    other = subprocess.Popen([sys.executable, "-c", HOLD, str(tmp_path)], stdout=subprocess.PIPE, text=True)
    try:
        assert other.stdout.readline() == "ready\n"
        with pytest.raises(FolderError, match=f"{tmp_path.name} is in use by process {other.pid} on "):
            Folder(tmp_path)
        Folder(tmp_path, lock=False)  # readers need no lock
    finally:
        other.send_signal(signal.SIGKILL)
        other.wait()
        other.stdout.close()
    with Folder(tmp_path), pytest.raises(FolderError, match=f"in use by process {os.getpid()}"):
        Folder(tmp_path)
    Folder(tmp_path).close()


def test_unusable_folders_are_reported(tmp_path, monkeypatch):
    (tmp_path / "file").write_text("")
    with pytest.raises(FolderError, match="file cannot be created: File exists"):
        Folder(tmp_path / "file")
    with pytest.raises(FolderError, match="cannot be created: Not a directory"):
        Folder(tmp_path / "file" / "run")
    with pytest.raises(FolderError, match="there is no run folder"):
        Folder(tmp_path / "none", create=False)

    def refuse(*_):
        raise PermissionError(13, "Permission denied")

    monkeypatch.setattr(folder_module, "atomic_write", refuse)
    with pytest.raises(FolderError, match="cannot be written to: Permission denied"):
        Folder(tmp_path / "run")
    monkeypatch.undo()
    Folder(tmp_path / "run").close()  # the failed start did not keep the lock


@pytest.mark.skipif(os.name == "nt" or os.geteuid() == 0, reason="root may write anywhere")
def test_a_folder_without_write_permission_is_reported(tmp_path):
    tmp_path.chmod(0o500)
    with pytest.raises(FolderError, match="Permission denied"):
        Folder(tmp_path)


RECIPE = {
    "model": {"name": "gpt", "width": 64, "heads": (1, 2), "dropout": None},
    "optim": {"lr": 1e-3, "betas": [0.9, 0.95]},
    "train": {"steps": 100},
}


def test_a_recipe_is_saved_and_compared(tmp_path):
    with Folder(tmp_path) as folder:
        folder.keep_recipe(RECIPE)
        before = (tmp_path / "recipe.toml").read_bytes()
        assert folder.compare_recipe({**RECIPE, "model": {**RECIPE["model"], "heads": [1, 2]}}) == []
        longer = {**RECIPE, "train": {"steps": 200}}
        with pytest.raises(FolderError, match=r"another recipe: train\.steps was 100, now 200\. Resume"):
            folder.compare_recipe(longer)
        other = {**longer, "model": {"name": "gpt", "width": 96, "positions": "rotary"}}
        heads, positions = "model.heads was [1, 2], now not set", "model.positions was not set, now 'rotary'"
        with pytest.raises(FolderError) as caught:
            folder.compare_recipe(other, may_change=["train"])
        assert f"{heads}; {positions}; model.width was 64, now 96." in str(caught.value)
        assert "train.steps" not in str(caught.value)
        changes = folder.compare_recipe(longer, may_change=["train.steps"])
        assert changes == ["train.steps was 100, now 200"]
        assert (tmp_path / "recipe.toml").read_bytes() == before
        folder.keep_recipe(longer)
        assert folder.compare_recipe(longer) == []
    assert {p.name for p in tmp_path.iterdir()} <= {"recipe.toml", "lock", "holder.json"}


def test_facts_record_every_attempt(tmp_path):
    with Folder(tmp_path) as folder:
        assert folder.facts() == {}
        first = folder.begin(command=["clearhead", "train"], seed=7, device="cpu")
        second = folder.begin(command=["clearhead", "train", "--more"], seed=7, device="cpu", step=40)
        with pytest.raises(FolderError, match="seed 7, not with 8"):
            folder.begin(command=[], seed=8, device="cpu")
        facts = json.loads((tmp_path / "facts.json").read_text())
        assert facts == folder.facts()
        assert [a["name"] for a in facts["attempts"]] == [first, second]
        assert first != second
        assert [a["step"] for a in facts["attempts"]] == [0, 40]
        assert facts["attempts"][0]["versions"].keys() == {"python", "torch", "clearhead", "numpy"}
        assert facts["attempts"][1]["command"][-1] == "--more"
        (tmp_path / "facts.json").write_text("{")
        with pytest.raises(FolderError, match=r"facts\.json is damaged"):
            folder.facts()
