"""Sizes that come from the data or a checkpoint: the context, and the options of pretrained models."""

import json
import re
import shutil
from typing import ClassVar
from unittest.mock import patch

import numpy as np
import pytest
import torch
import torch.nn.functional as F
from trainings import GAN, go, pictures, recipe, same_bits, state

from clearhead import build, generate
from clearhead.config import ConfigError
from clearhead.layers import resize
from clearhead.training import objectives
from clearhead.training.loop import Trainer
from clearhead.training.objectives import Measurement, Objective, Role, Update
from clearhead.training.recipe import Pretrained
from clearhead.weights import Bundle, WeightsError, load, save
from clearhead.weights.checkpoints.pretrained import fill_pretrained

pytestmark = pytest.mark.usefixtures("own_models")
TEXT = "the cat sat on the mat and the dog lay on the log. " * 40
SMALL = {"name": "gpt", "width": 12, "depth": 1, "heads": 3}


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


@pytest.mark.parametrize(
    ("option", "value"),
    [("heads", 2), ("window", 3), ("base", 77.0), ("mlp", "relu"), ("context", 48), ("factor", 2.0)],
)
def test_an_option_that_contradicts_the_checkpoint_is_refused_unless_it_may_differ(
    tmp_path, text, checkpoint, option, value
):
    start = {"folder": str(checkpoint.folder)}
    table = recipe(steps=1, data=text, model={option: value}, pretrained=start)
    advice = f'pretrained = {{folder = "{checkpoint.folder}", differ = ["{option}"]}}'
    message = rf"model\.{option} = .*: the checkpoint .* has .*; leave it out or, if the .* write {re.escape(advice)}$"
    with pytest.raises(ConfigError, match=message):
        go(table, tmp_path / "run")
    assert not (tmp_path / "run" / "recipe.toml").exists()
    run = go(table, tmp_path / "run", advice.replace(" = ", "=", 1))  # the advice works
    assert getattr(run.model.config, option) == value


@pytest.mark.parametrize(
    ("option", "value", "problem"),
    [
        ("width", 24, r"embed\.table has the shape \(\d+, 12\), expected \(\d+, 24\)"),
        ("hidden", 32, r"blocks\.0\.mlp\.up\.weight has the shape \(48, 12\), expected \(32, 12\)"),
        ("depth", 2, r"blocks\.1\.\S+ is missing, expected"),
        ("norm", "rms", r"blocks\.0\.\S+ has no place in the model"),
        ("heads", 4, None),  # an odd head dimension cannot rotate
    ],
)
def test_an_option_that_the_weights_cannot_be_used_with_is_refused_without_advice(
    tmp_path, text, checkpoint, option, value, problem
):
    if option == "hidden":
        checkpoint = go(recipe(steps=1, data=text, model=SMALL | {"hidden": 48}), tmp_path / "hidden")
    table = recipe(steps=2, data=text, model={option: value}, pretrained=str(checkpoint.folder))
    fit = f", and its weights do not fit \\({problem}.*\\)" if problem else ""
    with pytest.raises(ConfigError, match=rf"model\.{option} = .*: the checkpoint \S+ has \S+{fit}; leave it out$"):
        go(table, tmp_path / "run")


def test_an_option_that_the_checkpoint_does_not_have_is_compared_too(tmp_path, text):
    plain = go(recipe(steps=1, data=text, model=SMALL), tmp_path / "plain")
    table = recipe(steps=1, data=text, model={"window": 3}, pretrained=str(plain.folder))
    with pytest.raises(ConfigError, match=r"model\.window = 3: the checkpoint \S+ has none; leave it out or"):
        go(table, tmp_path / "run")
    same = recipe(steps=1, data=text, model={"hidden": 48, "kv_heads": 3}, pretrained=str(plain.folder))
    assert go(same, tmp_path / "run").model.config.hidden == 48  # the defaults, written out
    with pytest.raises(WeightsError, match=r"mlp\.up\.weight has the shape \(48, 12\), expected \(32, 12\)"):
        go(recipe(steps=1, data=text, model={"hidden": 32}, pretrained=str(plain.folder)), tmp_path / "other")


def test_a_misspelt_option_in_differ_is_refused(tmp_path, text, checkpoint):
    start = {"folder": str(checkpoint.folder), "differ": ["windw"]}
    table = recipe(steps=2, data=text, model={"window": 8}, pretrained=start)
    message = r"pretrained: differ = \[\"windw\"\]: a gpt has no such option; the nearest is window"
    with pytest.raises(ConfigError, match=message):
        go(table, tmp_path / "run")
    with pytest.raises(ConfigError, match=r"a gpt has no such option; its options are vocab, context"):
        go(table, tmp_path / "run", 'pretrained.differ=["qqqqq"]')


def test_a_longer_context_than_the_checkpoints_says_what_to_write(tmp_path, text):
    def tune(start, *overrides):
        table = recipe(steps=1, data=text, model={}, pretrained=str(start.folder))
        return go(table, tmp_path / start.folder.name / "tuned", *overrides)

    rotary, learned = (
        go(recipe(steps=1, data=text | {"context": 12}, model=SMALL | {"positions": name}), tmp_path / name)
        for name in ("rotary", "learned")
    )
    source = r"model\.context = 12 comes from the checkpoint \S+, and the data has rows of up to 24 tokens"
    written = f'pretrained = {{folder = "{rotary.folder}", differ = ["context"]}}'
    with pytest.raises(ConfigError, match=rf"{source}; write model\.context = 24 and {re.escape(written)}$"):
        tune(rotary)
    assert tune(rotary, "model.context=24", written).model.config.context == 24
    with pytest.raises(ConfigError, match=rf"{source}: its learned positions cannot be extended; expected data with"):
        tune(learned)
    fixed = (
        r"positions\.table has the shape \(12, 12\), expected \(24, 12\): learned positions cannot be used with another"
    )
    with pytest.raises(ConfigError, match=rf"model\.context = 24: the checkpoint .* has 12, and .*{fixed} context\)"):
        tune(learned, "model.context=24")
    with pytest.raises(WeightsError, match=rf"pretrained='.*': {fixed} context$"):
        tune(learned, "model.context=24", written.replace("rotary", "learned"))


def test_a_vocabulary_that_differs_from_the_checkpoints_names_its_source(tmp_path, text, checkpoint):
    (tmp_path / "other.txt").write_text("abcabd" * 400)
    table = recipe(
        steps=1, data=text | {"path": str(tmp_path / "other.txt")}, model={}, pretrained=str(checkpoint.folder)
    )
    with pytest.raises(ConfigError, match=r"model\.vocab = \d+ comes from the checkpoint \S+, and the data has 4;"):
        go(table, tmp_path / "run")


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
    left = fill_pretrained(tower, Pretrained(folder=str(tmp_path / "grid"), into="encoder")).left_out
    assert left == []
    wanted = resize(source.patches.places, (2, 2), (4, 4))
    torch.testing.assert_close(tower.encoder.patches.places, wanted)
    torch.testing.assert_close(tower.encoder.blocks[0].mlp.up.weight, source.blocks[0].mlp.up.weight)


def test_unused_pretrained_weights_are_listed(tmp_path):
    saved(tmp_path / "grid", "grid", classes=5)
    tower = build("tower", classes=2)
    before = tower.encoder.head.weight.clone()
    folder = str(tmp_path / "grid")
    left = fill_pretrained(tower, Pretrained(folder=folder, into="encoder")).left_out
    assert left == [f"{folder}: head.weight", f"{folder}: head.bias"]
    assert torch.equal(tower.encoder.head.weight, before)


def test_a_submodule_that_does_not_exist_or_does_not_fit_is_refused(tmp_path):
    saved(tmp_path / "grid", "grid", attention=False)
    folder = str(tmp_path / "grid")
    for into, message in (
        ("encodr", r"into = 'encodr': this model has no such submodule: it has encoder, head; the nearest is encoder"),
        (
            "encoder.patch",
            r"this model has no such submodule: encoder has encoder\.patches, encoder\.stages, .*; the nearest",
        ),
    ):
        with pytest.raises(WeightsError, match=message):
            fill_pretrained(build("tower"), Pretrained(folder=folder, into=into))
    with pytest.raises(
        WeightsError, match=r"part = 'pathces': the checkpoint \S+ has no such submodule: it has patches,"
    ):
        fill_pretrained(build("tower"), Pretrained(folder=folder, part="pathces", into="encoder"))
    with pytest.raises(WeightsError, match=r"blocks\.0\.\S+ is missing, expected \("):
        fill_pretrained(build("tower"), Pretrained(folder=folder, into="encoder"))
    saved(tmp_path / "more", "grid")
    with pytest.raises(WeightsError, match=r"blocks\.0\.\S+ has no place in the model of this recipe"):
        fill_pretrained(build("grid", attention=False), Pretrained(folder=str(tmp_path / "more")))
    start = Pretrained(folder=str(tmp_path / "more"), into="encoder")
    more = fill_pretrained(build("tower", attention=False), start).left_out
    assert all("blocks.0." in name for name in more)
    assert more


def test_a_part_of_a_checkpoint_fills_a_part_of_a_model_or_a_whole_one(tmp_path):
    source, folder = saved(tmp_path / "tower", "tower", classes=3), str(tmp_path / "tower")
    for start, model, filled in (
        (Pretrained(folder=folder, part="encoder", into="encoder"), tower := build("tower", classes=3), tower.encoder),
        (Pretrained(folder=folder, part="encoder"), grid := build("grid", classes=3), grid),
    ):
        assert fill_pretrained(model, start).left_out == [f"{folder}: head.weight", f"{folder}: head.bias"]
        same_bits(filled.state_dict(), source.encoder.state_dict())
    blocks = build("tower", classes=3)
    left = fill_pretrained(blocks, Pretrained(folder=folder, part="encoder.blocks", into="encoder.blocks")).left_out
    assert f"{folder}: encoder.patches.places" in left
    same_bits(blocks.encoder.blocks.state_dict(), source.encoder.blocks.state_dict())
    assert not torch.equal(blocks.encoder.patches.places, source.encoder.patches.places)


def test_missing_weights_that_a_part_of_the_checkpoint_has_are_pointed_out(tmp_path):
    saved(tmp_path / "tower", "tower")
    message = (
        r"patches\.\S+ is missing, expected .*; the checkpoint has encoder\.patches\.\S+: .* write part = \"encoder\"$"
    )
    for start, model in (
        (Pretrained(folder=str(tmp_path / "tower"), into="encoder"), build("tower")),
        (Pretrained(folder=str(tmp_path / "tower")), build("grid")),
    ):
        with pytest.raises(WeightsError, match=message):
            fill_pretrained(model, start)


@pytest.fixture
def pairs(tmp_path):
    (tmp_path / "pairs.tsv").write_text("".join(f"{a} {b} c\tc {b} {a}\n" for a in "abcd" for b in "abcd"))
    path, options = str(tmp_path / "pairs.tsv"), {"vocabulary": "characters", "minimum": 1, "joint": True}
    return {"name": "pairs", "path": path, "join": False, "share": 0.2, **options}


TRANSLATOR = {"name": "transformer", "width": 12, "depth": 1, "heads": 3, "context": 64}


def test_the_options_of_a_checkpoint_for_a_submodule_are_compared(tmp_path, pairs):
    def tune(*overrides, **more):
        start = [{"folder": str(tmp_path / "gpt"), "into": "encoder"} | more]
        return go(recipe(steps=1, data=pairs, model=TRANSLATOR, pretrained=start), tmp_path / "run", *overrides)

    vocab = go(recipe(steps=1, data=pairs, model=TRANSLATOR), tmp_path / "translator").model.config.vocab
    sizes = {name: size for name, size in TRANSLATOR.items() if name != "name"}
    saved(tmp_path / "gpt", "gpt", vocab=vocab, positions="sinusoid", scaled=True, dropout=0.3, **sizes)
    options = r"model\.order = 'post', model\.mlp = 'relu': the checkpoint \S+ has order = 'pre', mlp = 'gelu_tanh'"
    written = f'pretrained = {{folder = "{tmp_path / "gpt"}", into = "encoder", differ = ["order", "mlp"]}}'
    with pytest.raises(ConfigError, match=rf"{options}; expected the same or, if .*, {re.escape(written)}$"):
        tune()
    assert tune(written.replace(" = ", "=", 1)).finished
    shutil.rmtree(tmp_path / "run")
    with pytest.raises(ConfigError, match=r"^on the command line: model\.order = 'post'"):
        tune("model.order=post", "model.mlp=gelu_tanh")
    assert tune("model.order=pre", "model.mlp=gelu_tanh").finished
    shutil.rmtree(tmp_path / "run")
    with pytest.raises(ConfigError, match=r"a transformer has no such option; the nearest is norm"):
        tune(differ=["nrom"])
    saved(
        tmp_path / "gpt",
        "gpt",
        vocab=vocab,
        positions="sinusoid",
        scaled=True,
        mlp="relu",
        order="post",
        **sizes | {"width": 20, "heads": 5},
    )
    with pytest.raises(
        WeightsError, match=r"pretrained='.*gpt': embed\.table has the shape \(\d+, 20\), expected \(\d+, 12"
    ):
        tune()
    same = {"positions": "sinusoid", "scaled": True, "mlp": "relu", "order": "post"}
    saved(tmp_path / "gpt", "gpt", vocab=vocab, **same, **sizes | {"heads": 4})
    with pytest.raises(ConfigError, match=r"model\.heads = 3: the checkpoint \S+ has heads = 4; expected the same"):
        tune()


def test_an_encoder_is_taken_from_a_checkpoint_of_another_recipe(tmp_path, pairs):
    first = go(recipe(steps=1, data=pairs, model=TRANSLATOR), tmp_path / "first")
    start = [{"folder": str(first.folder), "part": "encoder", "into": "encoder"}]
    table = recipe(steps=1, data=pairs, model=TRANSLATOR | {"decoder_depth": 2}, pretrained=start)
    with patch.object(Trainer, "step", side_effect=RuntimeError), pytest.raises(RuntimeError):
        go(table, tmp_path / "run")
    assert go(table, tmp_path / "run").model.config.decoder_depth == 2
    left = json.loads((tmp_path / "run" / "facts.json").read_text())["attempts"][0]["left_out"]
    assert f"{first.folder}: decoder.blocks.0.mlp.up.weight" in left
    assert not any(": encoder." in name for name in left)
    with pytest.raises(
        ConfigError, match=r"model\.order = 'pre': the checkpoint \S+ has order = 'post'; expected the same"
    ):
        go(table, tmp_path / "other", "model.order=pre")


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
    table = GAN | {"data": recipe()["data"]}
    with pytest.raises(ValueError, match=r"objective gan reads x .*the data gives ids, targets"):
        go(table, tmp_path / "run")


def test_messages_about_pretrained_weights_name_the_player(tmp_path):
    go(GAN, tmp_path / "gan", "steps=1")
    folder = tmp_path / "gan" / "model"
    for words, message in (
        ([f"players.generator.pretrained={tmp_path / 'nope'}"],
         r"players\.generator\.pretrained: \S+nope: there is no such"),
        ([f"players.generator.pretrained={folder}", "players.generator.model.hidden=32"],
         r"players\.generator\.model\.hidden = 32: the checkpoint \S+ has 8, and its weights do not fit"),
        ([f"players.generator.pretrained={folder}", "players.generator.model.activation=tanh"],
         r"players\.generator\.model\.activation = 'tanh': .* write players\.generator\.pretrained = \{folder"),
        ([f"players.discriminator.pretrained={folder}"],
         r"players\.discriminator\.model\.inputs = 3 comes from the checkpoint \S+, and the data has 2"),
        ([f'players.generator.pretrained={{folder="{folder}",into="blocs"}}'],
         r"players\.generator\.pretrained: into = 'blocs': this model has no such submodule: it has blocks, head"),
    ):  # fmt: skip
        with pytest.raises(ValueError, match=f"^on the command line: {message}"):
            go(GAN, tmp_path / "run", *words)
    assert go(GAN, tmp_path / "run", f"players.generator.pretrained={folder}").finished


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


def test_pretrained_weights_of_other_tokens_are_refused_unless_the_recipe_allows_it(tmp_path, text):
    first = go(recipe(steps=1, data=text, model=SMALL), tmp_path / "first").folder
    (tmp_path / "other.txt").write_text(TEXT.replace("t", "z"))
    other = recipe(steps=1, data=text | {"path": str(tmp_path / "other.txt")}, pretrained=str(first))
    del other["model"]
    message = r"token \d+ is 't' in the checkpoint and 'y' in the data: expected the same tokens"
    with pytest.raises(WeightsError, match=message):
        go(other, tmp_path / "second")
    go(other | {"pretrained": {"folder": str(first), "differ": ["tokens"]}}, tmp_path / "third")
