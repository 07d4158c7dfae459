"""The result of run.average: the mean of the weights of the last checkpoints."""

import pytest
import torch
from test_loop import go_broken
from trainings import STUDENT, VECTORS, go, metrics, recipe, same_bits, weights

from clearhead.errors import InputError
from clearhead.training.checkpoints import Checkpoint, step_name
from clearhead.training.loop import TrainingError
from clearhead.training.recipe import read_recipe
from clearhead.training.train import train

pytestmark = pytest.mark.usefixtures("own_models")
EVERY = {"steps": 9, "run__save_every": 2, "run__valid_every": 3}


def by_hand(run, steps, prefix, name):
    """The mean of a tensor over checkpoints, in float64, rounded once."""
    found = [Checkpoint(run.folder / "checkpoints" / step_name(step)).read(f"{prefix}/{name}") for step in steps]
    return torch.stack(found).double().mean(0).to(found[0].dtype)


CASES = {
    "adamw": {},
    "masters": {"precision": "bfloat16"},
    "ema": {"optim__ema": 0.8},
    "one kept": {"run__keep": 1},
}


@pytest.mark.parametrize("case", CASES)
def test_the_model_is_the_mean_of_the_last_checkpoints(tmp_path, case):
    table = recipe(**EVERY, **CASES[case])
    last, mean = go(table, tmp_path / "last"), go(table, tmp_path / "mean", "run.average=3")
    kind = "average" if case == "ema" else "weight"
    wanted = {n: by_hand(mean, [6, 8, 9], f"model/{kind}", n) for n, _ in mean.model.model.named_parameters()}
    same_bits(wanted, {n: x.detach() for n, x in mean.model.model.named_parameters()})
    assert any(not torch.equal(a, b) for a, b in zip(weights(last.model).values(), wanted.values(), strict=True))
    assert metrics(last.folder) == metrics(mean.folder)  # the training itself is the same
    assert mean.best is None


def test_running_statistics_are_averaged_and_counts_are_those_of_the_last_step(tmp_path):
    run = go(recipe(**EVERY, **VECTORS | {"model": {"name": "normed"}}), tmp_path, "run.average=2")
    norm = run.model.model.norm
    for name in ("running_mean", "running_var"):
        assert torch.equal(getattr(norm, name), by_hand(run, [8, 9], "model/buffer", f"norm.{name}"))
    assert norm.num_batches_tracked == 9


def test_all_players_are_averaged(tmp_path):
    """The teacher of self-distillation is the result: an average itself, it is averaged over its checkpoints."""
    run = go(STUDENT, tmp_path, "run.average=3")
    for name, x in run.model.model.named_parameters():
        assert torch.equal(x, by_hand(run, [6, 8, 9], "teacher/average", name))


def test_an_interrupted_run_has_the_same_average(tmp_path, monkeypatch):
    """The checkpoint that a stop writes does not count, and removes none that does."""
    table = recipe(**EVERY, run__keep=1, run__average=4)
    whole, parts = go(table, tmp_path / "whole"), go_broken(table, tmp_path / "parts", monkeypatch)
    same_bits(weights(whole.model), weights(parts.model))
    again = go(table, tmp_path / "parts")  # a finished run
    same_bits(weights(whole.model), weights(again.model))
    assert metrics(tmp_path / "parts") == metrics(tmp_path / "whole")


def test_a_finished_run_can_be_averaged_later(tmp_path):
    table = recipe(**EVERY, run__keep=3)
    go(table, tmp_path / "later")
    later, now = go(table, tmp_path / "later", "run.average=3"), go(table, tmp_path / "now", "run.average=3")
    same_bits(weights(now.model), weights(later.model))
    with pytest.raises(TrainingError, match=r"run.average = 4 needs .*step-00000004, which was not kept"):
        go(table, tmp_path / "later", "run.average=4")
    again, plain = go(table, tmp_path / "later"), go(table, tmp_path / "plain")
    same_bits(weights(plain.model), weights(again.model))  # and the average can be undone


def test_the_mean_is_validated(tmp_path, capfd):
    run = train(recipe(**EVERY), "run.average=2", out=tmp_path / "mean", device="cpu")
    said = capfd.readouterr()
    assert f"mean of the weights of steps 8, 9: valid loss {run.mean['valid_loss']:.4f}" in said.err + said.out
    start = {"pretrained": str(run.folder), "optim__lr": 1e-30, "steps": 1}
    again = go(recipe(**{**EVERY, **start}), tmp_path / "again")  # the validation of the model that was saved
    assert run.mean["valid_loss"] == pytest.approx(again.metrics[-1]["valid_loss"], rel=1e-6)
    assert go(recipe(**EVERY), tmp_path / "last").mean == {}


@pytest.mark.parametrize(
    ("steps", "every", "average", "wanted"),
    [(9, 2, 3, [6, 8, 9]), (8, 2, 3, [4, 6, 8]), (3, 5, 1, [3]), (9, 2, 0, []), (9, 0, 1, [9])],
)
def test_the_steps_that_are_averaged(steps, every, average, wanted):
    assert read_recipe(recipe(steps=steps, run__save_every=every, run__average=average)).averaged_steps == wanted


@pytest.mark.parametrize(
    ("changes", "words"),
    [
        ({"run__average": 2}, "average=2 is of checkpoints: expected save_every"),
        ({"run__average": 6, **EVERY}, "9 steps with save_every=2 give 5 checkpoints"),
        ({"run__average": 2, "run__best": "valid_loss", **EVERY}, "average=2 and best choose different weights"),
        ({"run__average": 2, "run__patience": 3, **EVERY}, "average=2 and patience choose different weights"),
        ({"run__average": -1}, "average=-1: expected 0 or more"),
    ],
)
def test_an_average_that_cannot_be_is_refused(changes, words):
    with pytest.raises(InputError, match=words):
        read_recipe(recipe(**changes))
