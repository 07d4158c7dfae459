"""The door: whose a folder is, names that are fetched, and certificates of what came in."""

import json
import sys
from pathlib import Path
from types import SimpleNamespace

import pytest
import torch
from safetensors.torch import load_file, save_file

import clearhead as ch
from clearhead.tokens import Characters
from clearhead.weights import WeightsError, certificate, hub, write_probe

TOKENS = Characters.of("to be or not to be")


def build(**options):
    torch.manual_seed(0)
    return ch.build("gpt", vocab=len(TOKENS), **{"width": 6, "depth": 1, "heads": 3, "context": 20} | options)


@pytest.fixture
def shelf(tmp_path, monkeypatch):
    """A hub with one model; says what was asked of it."""
    ch.save(build(), tmp_path / "cache", layout="huggingface")
    asked = []

    def download(name, allow_patterns=None, local_files_only=False):
        if local_files_only and name != "org/cached":
            raise OSError(f"{name} is not in the cache")
        asked.append((name, allow_patterns))
        return str(tmp_path / "cache")

    def info(self, name):
        if name != "org/name":
            raise OSError(f"404 for {name}")
        files = ["config.json", "model.safetensors", "pytorch_model.bin", "onnx/model.onnx", "README.md", "vocab.txt"]
        return SimpleNamespace(siblings=[SimpleNamespace(rfilename=file) for file in files])

    there = SimpleNamespace(HfApi=type("HfApi", (), {"model_info": info}), snapshot_download=download)
    monkeypatch.setitem(sys.modules, "huggingface_hub", there)
    return asked


def test_a_name_is_fetched(shelf, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    assert ch.load("org/name", device="cpu").config == build().config
    assert shelf == [("org/name", ["config.json", "vocab.txt", "model.safetensors"])]
    with pytest.raises(
        WeightsError, match=r"org/nme: there is no such folder, and the hub gave none \(404 for org/nme\)"
    ):
        ch.load("org/nme")


def test_without_a_network_the_cache_answers(shelf, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    assert ch.load("org/cached", device="cpu").config == build().config
    assert shelf == [("org/cached", None)]


def test_a_folder_here_needs_no_network(shelf, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    ch.save(build(), "runs/a")
    ch.load("runs/a", device="cpu")
    for name in ("runs/b", "./x/y", "a/b/c", "name", "~/x"):
        with pytest.raises(WeightsError, match="there is no such folder"):
            ch.load(name)
    assert shelf == []
    monkeypatch.setitem(sys.modules, "huggingface_hub", None)
    ch.load("runs/a", device="cpu")
    with pytest.raises(WeightsError, match=r"pip install clearhead\[hub\]"):
        ch.load("org/name")


def test_what_is_wanted_of_a_model():
    parts = ["model-00001-of-00002.safetensors", "model-00002-of-00002.safetensors"]
    assert hub.wanted(["model.safetensors.index.json", *parts, "a/model.safetensors", "tf_model.h5"]) == [
        "model.safetensors.index.json",
        *parts,
    ]
    assert hub.wanted(["pytorch_model.bin", "training_args.bin", "x.py"]) == ["pytorch_model.bin"]


def test_a_config_older_than_the_word_model_type(tmp_path):
    folder = ch.save(build(), tmp_path / "a", layout="huggingface")
    said = json.loads((folder / "config.json").read_text())
    del said["model_type"]
    (folder / "config.json").write_text(json.dumps(said))
    assert ch.load(folder, device="cpu").config == build().config


def test_a_certificate_of_our_own_folder(tmp_path):
    folder = ch.save(build().half(), tmp_path / "a", tokens=TOKENS)
    found = certificate(folder)
    assert (found.kind, found.model, found.ignored) == ("clearhead", "gpt", {})
    assert found.used == {name: tuple(p.shape) for name, p in build().named_parameters()}
    assert found.types == {"float16": found.parameters}
    assert found.difference is None
    assert "to the bit" in str(found)
    write_probe(ch.load(folder, device="cpu", dtype="float32"), folder)
    again = certificate(folder)
    assert again.reference == "probe.safetensors"
    assert again.difference == 0.0
    assert json.loads(json.dumps(again.to_dict()))["used"]["norm.weight"] == [6]


def test_a_certificate_against_the_reference(tmp_path):
    pytest.importorskip("transformers")
    folder = ch.save(build(), tmp_path / "a", layout="huggingface")
    found = certificate(folder)
    assert found.reference.startswith("transformers ")
    assert 0.0 <= found.difference < 1e-5 < found.largest
    assert found.files == ("model.safetensors",)
    assert found.used["transformer.h.0.attn.c_attn.weight"] == (6, 18)
    assert "largest difference" in str(found)
    assert certificate(folder, compare=False).difference is None


def test_a_probe_tells_what_is_wrong(tmp_path):
    """The numbers of another model load without an error; a probe shows them."""
    folder = ch.save(build(), tmp_path / "a", layout="huggingface")
    write_probe(ch.load(folder, device="cpu"), folder)
    assert certificate(folder).difference == 0.0
    tensors = load_file(folder / "model.safetensors")
    tensors["transformer.h.0.attn.c_attn.weight"] = tensors["transformer.h.0.attn.c_attn.weight"].flip(0).contiguous()
    save_file(tensors, folder / "model.safetensors")
    assert certificate(folder).difference > 1e-4
    save_file({"ids": torch.zeros(1, 3, dtype=torch.long)}, folder / "probe.safetensors")
    with pytest.raises(WeightsError, match=r"probe.safetensors: there are no ids and logits"):
        certificate(folder)


def test_a_translator_has_a_certificate_too(tmp_path):
    pytest.importorskip("transformers")
    torch.manual_seed(0)
    model = ch.build("transformer", vocab=11, width=12, depth=1, heads=3, pairs="halves")
    bundle = ch.Bundle(model, None, model.config, special=ch.weights.Special(pad=0, start=0, ends=(1,)))
    found = certificate(ch.save(bundle, tmp_path / "a", layout="huggingface"))
    assert found.kind == "huggingface marian"
    assert found.difference < 1e-5
    assert Path(found.folder) == tmp_path / "a"
