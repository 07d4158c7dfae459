"""A training that is not finished opens as its last or best checkpoint, with the weights that would have been saved."""

import shutil

import pytest
import torch
from trainings import GAN, STUDENT, VECTORS, go, recipe, same_bits, weights

from clearhead import Bundle, build, load, save
from clearhead.errors import Notice
from clearhead.tasks.evaluation.columns import trained_columns
from clearhead.tokens import Subwords
from clearhead.training import finetune_recipe, loop
from clearhead.training.checkpoints import CheckpointError
from clearhead.weights import WeightsError, read_config
from clearhead.weights.checkpoints import unfinished
from clearhead.weights.folder import find

pytestmark = [pytest.mark.usefixtures("own_models"), pytest.mark.filterwarnings("ignore::clearhead.errors.Notice")]


def stopped(table, out, monkeypatch, step):
    """Train until a step, and stop there; returns what would be saved as the model at the step of each checkpoint."""
    exported, real = {}, {"save": loop.Loop._save, "update": loop.Loop._step}

    def save(self):
        real["save"](self)
        exported[self.step] = weights(next(iter(self.trainer.export().values())))

    def update(self, parts):
        found = real["update"](self, parts)
        self.stopping = self.step == step
        return found

    with monkeypatch.context() as patch:
        patch.setattr(loop.Loop, "_save", save)
        patch.setattr(loop.Loop, "_step", update)
        assert not go(table, out).finished
    return exported


CASES = {
    "last": {},
    "ema": {"optim__ema": 0.8, "model__dropout": 0.3},
    "masters": {"precision": "bfloat16", "optim__ema": 0.9},
    "frozen": {"freeze": ["blocks.0"]},
    "batch norm": {**VECTORS, "model": {"name": "normed"}, "optim__ema": 0.5},
    "batch norm, masters": {**VECTORS, "model": {"name": "normed"}, "precision": "bfloat16"},
}


@pytest.mark.parametrize("case", CASES)
def test_the_last_checkpoint_gives_the_weights_of_its_step(tmp_path, monkeypatch, case):
    exported = stopped(recipe(run__save_every=2, **CASES[case]), tmp_path / "run", monkeypatch, 5)
    with pytest.warns(Notice, match=r"run: this training is not finished; .* its last checkpoint, that of step 5 of 8"):
        bundle = load(tmp_path / "run", device="cpu")
    same_bits(weights(bundle), exported[5])
    shutil.rmtree(tmp_path / "run" / "checkpoints" / "step-00000005")
    same_bits(weights(load(tmp_path / "run", device="cpu")), exported[4])


@pytest.mark.parametrize("table", [GAN, STUDENT], ids=["gan", "student and teacher"])
def test_of_several_players_it_is_the_one_that_is_the_result(tmp_path, monkeypatch, table):
    exported = stopped(table, tmp_path / "run", monkeypatch, 5)
    same_bits(weights(load(tmp_path / "run", device="cpu")), exported[5])
    whole = go(table, tmp_path / "run")
    assert not (tmp_path / "run" / "unfinished").exists()
    same_bits(weights(load(tmp_path / "run", device="cpu")), weights(whole.model))


def test_the_best_checkpoint_is_taken_where_it_is_kept(tmp_path, monkeypatch):
    values = iter([3.0, 1.0, 2.0, 4.0])
    monkeypatch.setattr(loop.Trainer, "measure", lambda self, parts: {"valid_loss": next(values)})
    table = recipe(run__valid_every=1, run__best="valid_loss", run__keep=1)
    exported = stopped(table, tmp_path / "run", monkeypatch, 4)
    with pytest.warns(Notice, match="the best checkpoint by valid_loss, that of step 2 of 8"):
        bundle = load(tmp_path / "run", device="cpu")
    same_bits(weights(bundle), exported[2])
    assert bundle.note == "step 2 of 8 of a training that is not finished"
    shutil.rmtree(tmp_path / "run" / "checkpoints" / "step-00000002")
    with pytest.warns(Notice, match="step 2, is lost"):
        same_bits(weights(load(tmp_path / "run", device="cpu")), exported[4])


def test_before_the_first_validation_it_is_the_last_checkpoint(tmp_path, monkeypatch):
    exported = stopped(recipe(run__valid_every=4, run__patience=2), tmp_path / "run", monkeypatch, 2)
    with pytest.warns(Notice, match="its last checkpoint, that of step 2 of 8"):
        same_bits(weights(load(tmp_path / "run", device="cpu")), exported[2])


def test_settings_and_dtypes_are_those_of_a_saved_model(tmp_path, monkeypatch):
    (tmp_path / "text.txt").write_text("one two three\n" * 60)
    data = {"name": "text", "path": str(tmp_path / "text.txt"), "context": 8, "rows": 3}
    exported = stopped(recipe(data=data, model__tied=True), tmp_path / "run", monkeypatch, 3)
    assert read_config(tmp_path / "run")[1]["width"] == 12
    bundle = load(tmp_path / "run", device="cpu", dtype="float64")
    assert bundle.dtype == torch.float64
    same_bits({name: x.float() for name, x in weights(bundle).items()}, exported[3])
    assert bundle.tokens.decode(bundle.tokens.encode("three")) == "three"
    finished = go(recipe(data=data, model__tied=True), tmp_path / "run").model
    assert (finished.tokens, finished.special, finished.config) == (bundle.tokens, bundle.special, bundle.config)


def test_a_run_without_any_checkpoint_or_with_damaged_ones_says_so(tmp_path, monkeypatch):
    stopped(recipe(), tmp_path / "run", monkeypatch, 3)
    file = next((tmp_path / "run" / "checkpoints").rglob("*.safetensors"))
    file.write_bytes(bytes([file.read_bytes()[0] ^ 1]) + file.read_bytes()[1:])
    with pytest.warns(Notice, match="checksum differs"), pytest.raises(WeightsError, match="no checkpoint is intact"):
        load(tmp_path / "run", device="cpu")
    shutil.rmtree(tmp_path / "run" / "unfinished")
    with pytest.raises(WeightsError, match="it began with a version of clearhead"):
        find(tmp_path / "run")
    shutil.rmtree(tmp_path / "run" / "checkpoints")
    with pytest.raises(WeightsError, match="this run has no model/ yet, and no checkpoint"):
        find(tmp_path / "run")


def test_it_is_opened_while_the_training_writes_and_removes_checkpoints(tmp_path, monkeypatch):
    """At each save the files that a reader has chosen are gone before it reads them, as if it were slow."""
    opened, real = [], {"save": loop.Loop._save, "weights": unfinished._weights}

    def save(self):
        real["save"](self)
        self.writer.wait()
        if self.step % 2:
            opened.append(load(self.folder.path, device="cpu").note)

    def removed(checkpoint, training):
        if len(removed.steps) < 4:
            removed.steps.append(checkpoint.step)
            shutil.move(checkpoint.path, checkpoint.path.with_name("aside"))
            try:
                return real["weights"](checkpoint, training)
            finally:
                shutil.move(checkpoint.path.with_name("aside"), checkpoint.path)
        return real["weights"](checkpoint, training)

    removed.steps = []
    monkeypatch.setattr(loop.Loop, "_save", save)
    monkeypatch.setattr(unfinished, "_weights", removed)
    go(recipe(run__save_every=1, run__keep=1), tmp_path / "run")
    assert removed.steps == [1, 1, 1, 1]
    assert opened == [f"step {step} of 8 of a training that is not finished" for step in (1, 3, 5, 7)]


@pytest.mark.parametrize("merge", [True, False], ids=["merged", "apart"])
def test_adapters_are_put_on_their_base(tmp_path, monkeypatch, merge):
    base = go(recipe(steps=1), tmp_path / "base").folder / "model"
    monkeypatch.chdir(tmp_path)
    table = recipe(pretrained="base/model", lora={"rank": 2, "merge": merge}, optim__ema=0.8, freeze=["blocks.0"])
    del table["model"]
    exported = stopped(table, tmp_path / "run", monkeypatch, 5)
    monkeypatch.chdir("/")
    bundle = load(tmp_path / "run", device="cpu", merge=False)
    same_bits(weights(bundle), exported[5])
    assert bundle.base == (None if merge else str(base.resolve()))
    whole = weights(load(tmp_path / "run", device="cpu"))
    assert whole.keys() == weights(load(base, device="cpu")).keys()
    other = load(base, device="cpu")
    other.model.embed.table.data[0, 0] += 1e-6
    save(other, base)
    with pytest.raises(CheckpointError, match="pretrained weights of the model have changed"):
        load(tmp_path / "run", device="cpu")


def test_adapters_with_a_new_head(tmp_path, monkeypatch):
    (tmp_path / "texts.csv").write_text(
        "text,label\n" + "".join(f"the film {i} was {'good' if i % 3 else 'bad'},{i % 3 > 0}\n" for i in range(40))
    )
    tokens = Subwords.of(["the film was good", "bad 0 1 2 3 4 5 6 7 8 9"], size=300)
    encoder = build("bert", vocab=len(tokens), context=16, width=12, depth=1, heads=3)
    save(Bundle(encoder, tokens), tmp_path / "encoder")
    overrides = ("data.text=text", "data.label=label", "steps=6", "data.longest=16")
    table = finetune_recipe(
        tmp_path / "encoder", tmp_path / "texts.csv", *overrides, method="lora", out=tmp_path / "run"
    )
    exported = stopped(table, tmp_path / "run", monkeypatch, 3)
    bundle = load(tmp_path / "run", device="cpu")
    assert bundle.labels == ("False", "True")
    assert trained_columns(bundle) == {"text": "text", "label": "label"}
    step = int(bundle.note.split()[1])  # the best one
    same_bits(weights(bundle), exported[step])
