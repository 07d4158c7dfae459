"""Models of Hugging Face's hub, by name; the hub is replaced by a fake one."""

import sys
from types import SimpleNamespace

import pytest

import clearhead as ch
from clearhead.weights import WeightsError
from clearhead.weights.folder import needed_files

FILES = ["config.json", "model.safetensors", "pytorch_model.bin", "onnx/model.onnx", "README.md", "vocab.txt"]
MODEL = ch.build("gpt", vocab=7, width=6, depth=1, heads=3, context=20)


@pytest.fixture
def downloads(tmp_path, monkeypatch):
    """A hub with the model org/name, and a cache with org/cached; returns the list of downloads."""
    ch.save(MODEL, tmp_path / "cache", layout="huggingface")
    downloads = []

    def snapshot_download(name, allow_patterns=None, local_files_only=False):
        if local_files_only and name != "org/cached":
            raise OSError(f"{name} is not in the cache")
        downloads.append((name, allow_patterns))
        return str(tmp_path / "cache")

    def model_info(self, name):
        if name != "org/name":
            raise OSError(f"404 for {name}")
        return SimpleNamespace(siblings=[SimpleNamespace(rfilename=file) for file in FILES])

    fake = SimpleNamespace(HfApi=type("HfApi", (), {"model_info": model_info}), snapshot_download=snapshot_download)
    monkeypatch.setitem(sys.modules, "huggingface_hub", fake)
    monkeypatch.chdir(tmp_path)
    return downloads


def test_a_name_is_downloaded(downloads):
    assert ch.load("org/name", device="cpu").config == MODEL.config
    assert downloads == [("org/name", ["config.json", "vocab.txt", "model.safetensors"])]
    message = r"org/nme: there is no such folder, and the hub has no such model \(404 for org/nme\)"
    with pytest.raises(WeightsError, match=message):
        ch.load("org/nme")


def test_without_a_network_the_cache_is_used(downloads):
    assert ch.load("org/cached", device="cpu").config == MODEL.config
    assert downloads == [("org/cached", None)]


def test_local_folders_need_no_network(downloads, monkeypatch):
    ch.save(MODEL, "runs/a")
    ch.load("runs/a", device="cpu")
    for name in ("runs/b", "./x/y", "a/b/c", "name", "~/x"):
        with pytest.raises(WeightsError, match="there is no such folder"):
            ch.load(name)
    assert downloads == []
    monkeypatch.setitem(sys.modules, "huggingface_hub", None)
    ch.load("runs/a", device="cpu")
    with pytest.raises(WeightsError, match=r"org/name: there is no such folder.* pip install clearhead\[hub\]"):
        ch.load("org/name")


def test_only_files_that_we_read_are_downloaded():
    parts = ["model-00001-of-00002.safetensors", "model-00002-of-00002.safetensors"]
    assert needed_files(["model.safetensors.index.json", *parts, "a/model.safetensors", "tf_model.h5"]) == [
        "model.safetensors.index.json",
        *parts,
    ]
    assert needed_files(["pytorch_model.bin", "training_args.bin", "x.py"]) == ["pytorch_model.bin"]
    # the pooling of sentence-transformers, without which the vectors would be others
    pooling = "1_Pooling/config.json"
    assert needed_files(iter(["onnx/model.onnx", pooling, "model.safetensors"])) == [pooling, "model.safetensors"]
