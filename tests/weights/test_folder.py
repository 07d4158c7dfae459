"""Finding a model's folder, and what can be known of it: its layout, its config, a description."""

import json
import shutil

import pytest
import torch

import clearhead as ch
from clearhead.data.images.preprocessing import Preprocessing
from clearhead.weights import WeightsError, read_config, shipped
from clearhead.weights.folder import describe, find
from clearhead.weights.tensor_files import Tensors
from support.image_models import picture, pixels_model, registered
from support.letters import TEXT, TOKENS, build


@pytest.fixture
def folder(tmp_path):
    """A saved model."""
    return ch.save(build(), tmp_path / "model", tokens=TOKENS)


def test_the_folder_of_a_finished_training_loads_its_model(folder, tmp_path):
    run = tmp_path / "run"
    run.mkdir()
    (run / "recipe.toml").write_text("steps = 1\n")
    with pytest.raises(WeightsError, match="run: this run has no model/ yet"):
        ch.load(run)
    shutil.copytree(folder, run / "model")
    assert torch.equal(ch.load(run, device="cpu")(TEXT), ch.load(folder, device="cpu")(TEXT))


def test_a_missing_folder_or_file_is_named(folder, tmp_path):
    with pytest.raises(WeightsError, match=r"modle: there is no such folder; the nearest is model"):
        ch.load(tmp_path / "modle")
    with pytest.raises(WeightsError, match=r"config\.json: is a file, not a folder"):
        ch.load(folder / "config.json")
    for name in ("model.safetensors", "config.json"):
        (folder / name).unlink()
        with pytest.raises(WeightsError, match=f"{folder}: there is no {name} in this folder"):
            ch.load(folder)


@pytest.mark.parametrize("name", ["smal.gguf", "models/smal.gguf"])
def test_a_missing_file_is_no_missing_folder(name, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    (tmp_path / name).parent.mkdir(exist_ok=True)
    (tmp_path / name).with_name("small.gguf").touch()
    with pytest.raises(WeightsError, match=r"smal\.gguf: there is no such file; the nearest is small\.gguf$"):
        ch.load(name)
    with pytest.raises(WeightsError, match=r"nowhere/a\.gguf: there is no such file$"):
        ch.load("nowhere/a.gguf")


def test_an_unknown_name_lists_similar_names_or_all_shipped_models(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    with pytest.raises(WeightsError, match=r"en-dee: there is no such folder; the nearest is en-de$"):
        ch.load("en-dee")
    names = ", ".join(shipped())
    with pytest.raises(WeightsError, match=rf"nope: .* folder; the models that ship with the package are {names}$"):
        ch.load("nope")


def test_a_config_older_than_the_key_model_type(tmp_path):
    folder = ch.save(build(), tmp_path / "a", layout="huggingface")
    table = json.loads((folder / "config.json").read_text())
    del table["model_type"]
    (folder / "config.json").write_text(json.dumps(table))
    assert find(folder) == (folder, "huggingface gpt2")
    assert ch.load(folder, device="cpu").config == build().config


@pytest.mark.parametrize("layout", ["clearhead", "huggingface"])
def test_read_config_returns_what_build_takes(layout, tmp_path):
    model = build(dropout=0.25)
    name, options = read_config(ch.save(model, tmp_path, layout=layout))
    assert name == "gpt"
    assert ch.build(name, **options).config == model.config
    json.dumps(options)


@pytest.mark.parametrize("layout", ["clearhead", "compact", "huggingface"])
def test_on_the_meta_device_everything_is_there_but_the_values(layout, tmp_path, monkeypatch):
    folder = ch.save(build(), tmp_path, tokens=None if layout == "huggingface" else TOKENS, layout=layout)
    whole = ch.load(folder, device="cpu")
    monkeypatch.setattr(Tensors, "__getitem__", lambda tensors, name: pytest.fail(f"{name} was read"))
    bundle = ch.load(folder, device="meta")
    assert (bundle.config, bundle.tokens, bundle.special) == (whole.config, whole.tokens, whole.special)
    assert {x.device.type for x in bundle.model.parameters()} == {"meta"}
    assert [tuple(x.shape) for x in bundle.model.parameters()] == [tuple(x.shape) for x in whole.model.parameters()]


def test_on_the_meta_device_shapes_are_checked(folder):
    table = json.loads((folder / "config.json").read_text())
    table["options"]["width"] = 9
    (folder / "config.json").write_text(json.dumps(table))
    with pytest.raises(WeightsError, match="has the shape"):
        ch.load(folder, device="meta")


def test_read_config_of_our_own_folder_needs_no_weights(folder):
    (folder / "model.safetensors").unlink()
    assert read_config(folder)[1]["width"] == 6
    with pytest.raises(WeightsError, match="there is no such folder"):
        read_config(folder / "x")


def test_a_description_of_a_text_model(folder):
    about = describe(folder)
    assert about == {
        "family": "GPT", "parameters": sum(p.numel() for p in build().parameters()), "can": sorted(build().can),
        "options": ch.config.dump(build().config), "tokens": repr(TOKENS),
    }  # fmt: skip
    json.dumps(about)


def test_a_description_of_an_image_classifier_and_of_a_chat_model(tmp_path):
    preprocessing = Preprocessing(resize=8)
    with registered():
        bundle = ch.Bundle(pixels_model(), preprocessing=preprocessing, labels=("cat", "dog"))
        about = describe(ch.save(bundle, tmp_path / "image"))
    assert about["preprocessing"] == ch.config.dump(preprocessing)
    assert (about["labels"], about["can"], "tokens" in about) == (["cat", "dog"], ["classify"], False)
    assert bundle(picture()).shape == (2,)
    ch.save(ch.Bundle(build(), TOKENS, chat="{{ messages }}"), tmp_path / "chat")
    assert describe(tmp_path / "chat")["chat"] == "it has a chat template"


def test_a_description_of_a_shipped_model():
    assert describe("everyday")["parameters"] == shipped()["everyday"].parameters
