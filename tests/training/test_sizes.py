"""Sizes that come from the data or a checkpoint: the context, and the options of pretrained models."""

import json
import shutil
from typing import ClassVar
from unittest.mock import patch

import numpy as np
import pytest
import torch
import torch.nn.functional as F
from trainings import pictures, recipe, state

from clearhead import build, generate, train
from clearhead.config import ConfigError
from clearhead.layers import resize
from clearhead.training import objectives
from clearhead.training.loop import Trainer
from clearhead.training.objectives import Measurement, Objective, Role, Update
from clearhead.training.pretrained import fill_pretrained
from clearhead.training.recipe import Pretrained
from clearhead.weights import Bundle, WeightsError, load, save

pytestmark = pytest.mark.usefixtures("own_models")
TEXT = "the cat sat on the mat and the dog lay on the log. " * 40
SMALL = {"name": "gpt", "width": 12, "depth": 1, "heads": 3}


def go(table, out, *overrides):
    return train(table, *overrides, out=out, device="cpu", quiet=True)


@pytest.fixture
def text(tmp_path):
    (tmp_path / "text.txt").write_text(TEXT)
    return {"name": "text", "path": str(tmp_path / "text.txt"), "context": 24, "rows": 2, "valid_rows": 2}


# The context


def test_the_default_context_is_that_of_the_data(tmp_path, text):
    run = go(recipe(steps=2, data=text, model=SMALL), tmp_path / "run")
    assert run.model.config.context == 24
    with pytest.raises(ValueError, match="a prompt of 20 tokens and 10 more: this model reads 24 at once"):
        generate(run.model, "the cat sat on the m", max_new=10)


def test_learned_positions_that_no_row_reaches_are_refused(tmp_path, text):
    message = r"model\.context = 64: the data has rows of up to 24 tokens, and learned positions past them"
    with pytest.raises(ConfigError, match=message):
        go(recipe(steps=2, data=text, model=SMALL | {"context": 64}), tmp_path / "run")
    rotary = go(recipe(steps=2, data=text, model=SMALL | {"context": 64, "positions": "rotary"}), tmp_path / "rotary")
    assert rotary.model.config.context == 64


def test_a_context_shorter_than_the_rows_is_refused(tmp_path, text):
    with pytest.raises(ConfigError, match=r"model\.context = 8: the data has rows of up to 24 tokens"):
        go(recipe(steps=2, data=text, model=SMALL | {"context": 8}), tmp_path / "run")


def test_the_default_context_of_an_encoder_is_that_of_the_data(tmp_path):
    (tmp_path / "lines.txt").write_text(
        "\n".join(f"the {a} sat on the {b}" for a in ["cat", "dog", "cow", "hen"] for b in ["mat", "log", "hay"])
    )
    data = {"name": "masked", "of": str(tmp_path / "lines.txt"), "vocabulary": "words", "minimum": 1, "longest": 16,
            "batch_tokens": 64, "valid_share": 0.5}  # fmt: skip
    run = go(recipe(steps=2, data=data, model=SMALL | {"name": "bert"}), tmp_path / "run")
    assert run.model.config.context == 16


# The options of a checkpoint


@pytest.fixture
def checkpoint(tmp_path, text):
    """A trained GPT over the text's characters, with rotary positions and a window."""
    model = {**SMALL, "positions": "rotary", "base": 100.0, "window": 8}
    return go(recipe(steps=2, data=text, model=model), tmp_path / "checkpoint")


def test_options_that_the_recipe_omits_come_from_the_checkpoint(tmp_path, text, checkpoint):
    table = recipe(steps=2, data=text, model={}, pretrained=str(checkpoint.folder))
    run = go(table, tmp_path / "run")
    assert run.model.config == checkpoint.model.config


@pytest.mark.parametrize(("option", "value"), [("heads", 4), ("window", 3), ("base", 77.0), ("norm", "rms")])
def test_an_option_that_contradicts_the_checkpoint_is_refused(tmp_path, text, checkpoint, option, value):
    table = recipe(steps=2, data=text, model={option: value}, pretrained=str(checkpoint.folder))
    message = rf"model\.{option} = .*: the checkpoint .* has .*; leave it out or, if the weights"
    with pytest.raises(ConfigError, match=message):
        go(table, tmp_path / "run")
    assert not (tmp_path / "run" / "recipe.toml").exists()


def test_an_option_listed_in_differ_may_contradict_the_checkpoint(tmp_path, text, checkpoint):
    start = {"folder": str(checkpoint.folder), "differ": ["window"]}
    run = go(recipe(steps=2, data=text, model={"window": 3, "dropout": 0.1}, pretrained=start), tmp_path / "run")
    assert (run.model.config.window, run.model.config.dropout) == (3, 0.1)
    with pytest.raises(ValueError, match=r"is a gpt: \[model\] expects a bert"):
        go(recipe(steps=2, data=text, model={"name": "bert"}, pretrained=start), tmp_path / "other")


def test_a_resumed_run_does_not_need_its_pretrained_folder(tmp_path, text, checkpoint, monkeypatch):
    table = recipe(
        steps=6, data=text, model={}, pretrained=str(checkpoint.folder), run__valid_every=2, run__save_every=2
    )
    whole = go(table, tmp_path / "whole")
    real = Trainer.step

    def gone(self, *args):
        shutil.rmtree(checkpoint.folder, ignore_errors=True)
        return real(self, *args)

    monkeypatch.setattr(Trainer, "step", gone)
    run = go(table, tmp_path / "run")
    assert run.finished
    assert not checkpoint.folder.exists()
    monkeypatch.undo()
    longer = go(table, tmp_path / "run", "steps=8")  # resumed from its own checkpoint
    assert longer.finished
    for name, tensor in state(whole.folder).items():
        assert tensor.shape == state(longer.folder)[name].shape


# Weights for a part of a model, and for images of another size


def saved(folder, name, **options):
    torch.manual_seed(1)
    model = build(name, **options)
    save(Bundle(model, None, model.config), folder)
    return model


def test_a_part_of_a_model_is_filled_and_its_patch_positions_are_interpolated(tmp_path):
    source = saved(tmp_path / "grid", "grid", grid=2, classes=3)
    tower = build("tower", grid=4, classes=3)
    left = fill_pretrained(tower, Pretrained(folder=str(tmp_path / "grid"), into="encoder"))
    assert left == []
    wanted = resize(source.patches.places, (2, 2), (4, 4))
    torch.testing.assert_close(tower.encoder.patches.places, wanted)
    torch.testing.assert_close(tower.encoder.blocks[0].mlp.up.weight, source.blocks[0].mlp.up.weight)


def test_unused_pretrained_weights_are_listed(tmp_path):
    saved(tmp_path / "grid", "grid", classes=5)
    tower = build("tower", classes=2)
    before = tower.encoder.head.weight.clone()
    folder = str(tmp_path / "grid")
    left = fill_pretrained(tower, Pretrained(folder=folder, into="encoder"))
    assert left == [f"{folder}: head.weight", f"{folder}: head.bias"]
    assert torch.equal(tower.encoder.head.weight, before)


def test_a_part_that_does_not_exist_or_does_not_fit_is_refused(tmp_path):
    saved(tmp_path / "grid", "grid", attention=False)
    folder = str(tmp_path / "grid")
    with pytest.raises(WeightsError, match=r"into = 'encodr': this model has no such part; the nearest is encoder"):
        fill_pretrained(build("tower"), Pretrained(folder=folder, into="encodr"))
    with pytest.raises(WeightsError, match=r"blocks\.0\.\S+ is missing, expected \("):
        fill_pretrained(build("tower"), Pretrained(folder=folder, into="encoder"))
    saved(tmp_path / "more", "grid")
    with pytest.raises(WeightsError, match=r"blocks\.0\.\S+ has no place in the model of this recipe"):
        fill_pretrained(build("grid", attention=False), Pretrained(folder=str(tmp_path / "more")))
    more = fill_pretrained(build("tower", attention=False), Pretrained(folder=str(tmp_path / "more"), into="encoder"))
    assert all("blocks.0." in name for name in more)
    assert more


def test_unused_pretrained_weights_are_recorded_in_the_run_folder(tmp_path, text, checkpoint):
    (tmp_path / "lines.txt").write_text("\n".join(sorted(set(TEXT))) + "\n")
    assert "left_out" not in json.loads((checkpoint.folder / "facts.json").read_text())["attempts"][0]
    saved(tmp_path / "grid", "grid", classes=5)
    data = pictures(tmp_path / "pictures")
    start = {"folder": str(tmp_path / "grid"), "into": "encoder"}
    run = go(recipe(steps=1, data=data, model={"name": "tower", "grid": 3}, pretrained=start), tmp_path / "run")
    facts = json.loads((run.folder / "facts.json").read_text())
    assert facts["attempts"][0]["left_out"] == [f"{tmp_path / 'grid'}: head.weight", f"{tmp_path / 'grid'}: head.bias"]


def test_augmentation_of_data_without_images_is_refused(tmp_path, text):
    with pytest.raises(ValueError, match=r"augment needs images, and this data gives ids, targets"):
        go(recipe(data=text, model=SMALL, augment=[{"name": "flip"}]), tmp_path / "run")


def test_data_that_does_not_fit_a_named_objective_is_refused(tmp_path):
    table = recipe(objective={"name": "gan"}, model={"name": "mlp"})
    with pytest.raises(ValueError, match=r"objective gan reads x .*the data gives ids, targets"):
        go(table, tmp_path / "run")


def test_a_perceptron_learns_a_regression_with_the_sizes_of_its_data(tmp_path):
    table = recipe(steps=2, data={"name": "identity", "width": 4, "rows": 6}, model={"name": "mlp", "hidden": 8})
    assert go(table, tmp_path / "run").model.config.inputs == 4


def test_a_misspelt_key_of_pretrained_is_refused(tmp_path):
    with pytest.raises(ValueError, match=r"pretrained"):
        go(recipe(pretrained={"folder": "x", "int": "encoder"}), tmp_path / "run")


# Inputs


def test_a_model_that_reads_something_else_than_the_data_gives_is_refused(tmp_path):
    data = pictures(tmp_path / "images")
    bert = {"name": "bert", "vocab": 9, "width": 8, "depth": 1, "heads": 2, "answer": "class", "context": 8}
    message = "the model is a bert, which reads tokens, and the data gives images, labels: expected data with ids"
    with pytest.raises(ValueError, match=message):
        go(recipe(steps=1, data=data, model=bert), tmp_path / "run")


class TwoClassifiers(Objective):
    """Two classifiers of the same images."""

    roles: ClassVar = {"first": Role(can="classify"), "second": Role(can="classify")}
    updates = (Update("first", "first_loss"), Update("second", "second_loss"))
    reads = ("images", "labels")
    measurements: ClassVar = {"loss": Measurement("nats/row")}
    result = "first"

    def first_loss(self, batch):
        return F.cross_entropy(self.outputs("first", batch["images"]), batch["labels"], reduction="sum")

    def second_loss(self, batch):
        return F.cross_entropy(self.outputs("second", images=batch["images"]), batch["labels"], reduction="sum")

    def measure(self, batch):
        return {"loss": self.first_loss(batch)}


@patch.dict(objectives.OBJECTIVES)
@patch.dict(objectives._REGISTERED)
def test_every_player_gets_its_sizes_and_is_saved_with_labels_and_preprocessing(tmp_path):
    objectives.register("two", TwoClassifiers)
    players = {name: {"model": {"name": "pixels"}} for name in ("first", "second")}
    table = recipe(steps=1, data=pictures(tmp_path / "images")) | {"objective": {"name": "two"}, "players": players}
    del table["model"]
    run = go(table, tmp_path / "run")
    for bundle in (run.model, load(run.folder / "players" / "second", device="cpu")):
        assert bundle.config.classes == 2
        assert bundle.labels == ("green", "red")
        assert bundle.preprocessing.size == run.model.preprocessing.size
        assert bundle(np.zeros((20, 20, 3), np.uint8)).shape == (2,)
