"""The sizes and the preprocessing of images in a training: of the data, the recipe and a checkpoint."""

import json

import numpy as np
import pytest
import torch
from PIL import Image

import clearhead as ch
from clearhead.config import ConfigError
from clearhead.data.images.preprocessing import Preprocessing

VIT = {"name": "vit", "patch": 4, "width": 16, "depth": 1, "heads": 2}


@pytest.fixture
def recipe(tmp_path):
    """A training of one step on a folder of eight images of 12 x 16 pixels in two classes."""
    rng = np.random.default_rng(0)
    for i in range(8):
        folder = tmp_path / "photos" / "ab"[i % 2]
        folder.mkdir(parents=True, exist_ok=True)
        Image.fromarray(rng.integers(0, 256, (12, 16, 3), np.uint8)).save(folder / f"{i}.png")
    data = {"name": "images", "path": str(tmp_path / "photos"), "size": 8, "rows": 4}
    return {"data": data, "model": dict(VIT), "steps": 1, "out": tmp_path / "run"}


def trained(recipe):
    out = recipe.pop("out")
    ch.train(recipe, out=out)
    return ch.load(out, device="cpu"), json.loads((out / "setup.json").read_text())


def test_the_size_of_a_vision_transformer_follows_from_the_data(recipe):
    bundle, setup = trained(recipe)
    assert bundle.config.size == 8
    assert bundle.preprocessing.crop == (8, 8)
    assert "224" not in json.dumps(setup)


def test_the_recipe_may_have_another_size(recipe):
    recipe["model"]["size"] = 16  # positions are interpolated
    assert trained(recipe)[0].config.size == 16


def test_other_channels_than_those_of_the_data_are_named(recipe):
    recipe["model"]["channels"] = 1
    with pytest.raises(ConfigError, match=r"model.channels = 1: the data has 3"):
        trained(recipe)


@pytest.fixture
def checkpoint(tmp_path):
    model = ch.build("vit", classes=3, size=8, **{key: value for key, value in VIT.items() if key != "name"})
    own = Preprocessing(resize=8, crop=(8, 8), mean=(0.1, 0.2, 0.3), deviation=(0.4, 0.5, 0.6))
    return str(ch.save(ch.Bundle(model, preprocessing=own), tmp_path / "checkpoint"))


def test_images_are_prepared_as_for_the_checkpoint_unless_the_recipe_says_otherwise(recipe, checkpoint):
    recipe |= {"pretrained": checkpoint, "model": {}}
    with pytest.raises(ConfigError, match=r"write data.mean = \[0.1, 0.2, 0.3\], data.deviation = \[0.4, 0.5, 0.6\]"):
        trained(dict(recipe))
    recipe["data"] |= {"mean": [0.1, 0.2, 0.3], "deviation": [0.4, 0.5, 0.6]}
    bundle, _ = trained(dict(recipe))
    assert bundle.preprocessing.mean == (0.1, 0.2, 0.3)
    assert len(bundle.labels) == 2


def test_a_size_that_is_not_that_of_the_checkpoint_must_be_written(recipe, checkpoint):
    recipe |= {"pretrained": checkpoint, "model": {}}
    recipe["data"] |= {"mean": [0.1, 0.2, 0.3], "deviation": [0.4, 0.5, 0.6]}
    del recipe["data"]["size"]
    with pytest.raises(ConfigError, match=r"write data.size = 8 to prepare them alike"):
        trained(dict(recipe))
    recipe["data"]["size"] = 16
    assert trained(recipe)[0].config.size == 8  # positions of the checkpoint, interpolated to 16 pixels


def test_learning_only_the_head_leaves_the_batch_norms_as_they_are(recipe, tmp_path):
    model = ch.build("resnet", classes=3, width=4, depths=(1, 1))
    start = ch.save(ch.Bundle(model, preprocessing=Preprocessing(resize=8, crop=(8, 8))), tmp_path / "start")
    recipe.update(model={"name": "resnet", "width": 4, "depths": [1, 1]}, pretrained=str(start), learn="head", steps=3)
    bundle, _ = trained(recipe)
    after = bundle.model.state_dict()
    changed = {name for name, x in model.state_dict().items() if name in after and not torch.equal(x, after[name])}
    assert changed == {"head.weight", "head.bias"}


def test_a_pretrained_class_token_may_be_left_out(recipe, tmp_path):
    model = ch.build("vit", classes=2, size=8, **{name: x for name, x in VIT.items() if name != "name"})
    start = ch.save(ch.Bundle(model, preprocessing=Preprocessing(resize=8, crop=(8, 8))), tmp_path / "start")
    recipe.update(pretrained=str(start), model={"pool": "mean"})
    bundle, _ = trained(recipe)
    assert (bundle.config.pool, "embed.cls" in dict(bundle.model.named_parameters())) == ("mean", False)
