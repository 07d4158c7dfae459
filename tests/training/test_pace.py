"""Checkpoints by time and the forecast of a long training, with clocks of their own: nothing here waits."""

import re

import pytest
from trainings import go, metrics, recipe, same_bits, state, weights

from clearhead.errors import Notice
from clearhead.training import loop
from clearhead.training.logs import Pace
from clearhead.training.own_data import new_recipe as data_recipe
from clearhead.training.own_data.new_recipe import CPU_STEPS, new_recipe, propose_shorter
from clearhead.training.recipe import RunConfig, read_recipe
from clearhead.training.train import train


class Clock:
    """A clock that advances by some seconds whenever it is read."""

    def __init__(self, seconds):
        self.now, self.seconds = 0.0, seconds

    def __call__(self):
        self.now += self.seconds
        return self.now


@pytest.fixture
def clock(monkeypatch):
    """Give the runs of a test a clock that advances by so many seconds per reading."""

    def set_clock(seconds):
        monkeypatch.setattr(loop, "Pace", lambda *a, **options: Pace(*a, **options, clock=Clock(seconds)))

    return set_clock


def saved(monkeypatch):
    """The steps of all checkpoints that are written from now on."""
    steps, real = [], loop.CheckpointWriter.save
    monkeypatch.setattr(
        loop.CheckpointWriter, "save", lambda self, step, *a, **k: steps.append(step) or real(self, step, *a, **k)
    )
    return steps


def test_checkpoints_by_time_change_no_bit(tmp_path, monkeypatch, clock):
    """A run that saves by time, one that was stopped after such a checkpoint, and one that saves by steps are equal."""
    table = recipe(
        steps=9, run__save_every=4, run__valid_every=4, run__best="valid_loss", run__inside_every=3, optim__ema=0.8
    )
    steps = saved(monkeypatch)
    plain = go(table, tmp_path / "plain")
    by_steps, steps[:] = list(steps), []
    clock(250)
    timed = go(table, tmp_path / "timed")
    assert set(steps) > set(by_steps)
    real = loop.Loop._step

    def killed(self, parts):
        if self.step == min(set(steps) - set(by_steps)) + 1:
            raise KeyError("killed")
        return real(self, parts)

    with monkeypatch.context() as patch:
        patch.setattr(loop.Loop, "_step", killed)
        with pytest.raises(KeyError, match="killed"):
            go(table, tmp_path / "parts")
    parts = go(table, tmp_path / "parts")
    for other in (timed, parts):
        same_bits(state(plain.folder), state(other.folder))
        same_bits(weights(plain.model), weights(other.model))
        assert metrics(plain.folder) == metrics(other.folder)
        assert other.best == plain.best


def test_a_checkpoint_is_due_by_the_time_since_the_last_one():
    now = [0.0]
    pace = Pace(RunConfig(save_minutes=2.0), validates=False, steps=9, clock=lambda: now[0])
    due = []
    for now[0] in (60.0, 119.0, 120.0, 500.0):
        due.append(pace.is_save_due)
    pace.saved()
    for now[0] in (600.0, 621.0):
        due.append(pace.is_save_due)
    assert due == [False, False, True, True, False, True]
    assert not Pace(RunConfig(save_minutes=0.0), validates=False, steps=9, clock=Clock(1e9)).is_save_due
    with pytest.raises(ValueError, match=r"save_minutes=-1\.0"):
        RunConfig(save_minutes=-1.0)


def test_a_short_training_saves_in_the_end_alone(tmp_path, monkeypatch):
    steps = saved(monkeypatch)
    go(recipe(), tmp_path / "run")
    assert steps == [8]


def forecasts(run, seconds, steps=100_000, validates=True, upto=60):
    """What is said after the first steps, each of which takes so many seconds."""
    now = [0.0]
    pace = Pace(run, validates=validates, steps=steps, clock=lambda: now[0])
    said = []
    for step in range(1, upto):
        now[0] = 30.0 + step * seconds  # the first step takes half a minute longer
        said.append(pace.forecast(step))
    return [one for one in said if one is not None]


def test_the_forecast_is_said_once_and_without_the_first_step():
    (found,) = forecasts(RunConfig(valid_every=1000, save_every=9000), 3.4)
    assert (found.left, found.rate) == (99_996, pytest.approx(1 / 3.4))
    assert str(found) == (
        "about 94 h for 99,996 steps at 0.29 steps/s; the next validation in 56 min, the next checkpoint in 9 min"
    )
    (found,) = forecasts(RunConfig(valid_every=1000, save_every=100, save_minutes=0.0), 3.4, validates=False)
    assert (found.validation, found.checkpoint) == (None, pytest.approx(96 * 3.4))
    assert forecasts(RunConfig(), 0.4, steps=150) == []  # a minute


def test_a_long_training_of_a_file_names_a_setting_that_takes_an_hour(tmp_path, capsys, clock):
    """The options that are proposed are taken by the same command, in the same folder."""
    (tmp_path / "text.txt").write_text("one two three\n" * 400)
    words = (
        "model.width=8",
        "model.depth=2",
        "model.heads=2",
        "data.context=8",
        "data.rows=1",
        "data.tokens=characters",
    )
    clock(400)
    options = {"out": tmp_path / "run", "device": "cpu"}
    train(tmp_path / "text.txt", *words, "steps=12", **options)
    (found,) = re.findall(r"for about an hour add (steps=\d+) to the same command", capsys.readouterr().err)
    assert found != "steps=12"
    assert train(tmp_path / "text.txt", *words, "steps=13", **options).step == 13


def test_what_is_proposed_for_an_hour(tmp_path):
    (tmp_path / "text.txt").write_text("one two three\n" * 400)
    words = ("model.width=8", "model.depth=2", "model.heads=2", "data.tokens=characters")
    said = propose_shorter(read_recipe(new_recipe(tmp_path / "text.txt", *words)), new=True, step=5, rate=0.29)
    assert said == (
        "for about an hour add steps=1049 to the same command, also after Ctrl-C; steps of a smaller model are faster, "
        "in another folder (--out): model.width=4 model.depth=1"
    )


def test_a_large_text_on_a_cpu_is_not_read_ten_times_unless_that_is_said(tmp_path, monkeypatch):
    (tmp_path / "text.txt").write_text("one two three\n" * 400)
    words = ("data.tokens=characters", "data.context=8", "data.rows=1")
    whole = new_recipe(tmp_path / "text.txt", *words, device="cpu")
    assert whole["steps"] < CPU_STEPS
    assert "valid_most" not in whole["data"]
    monkeypatch.setattr(data_recipe, "CPU_STEPS", 300)
    monkeypatch.setattr(data_recipe, "LONGEST_INTERVAL", 40)
    every = whole["steps"]
    with pytest.warns(Notice, match=rf"300 steps, which use each example .*; epochs=10 would be {every:,} steps"):
        short = new_recipe(tmp_path / "text.txt", *words, "data.valid_rows=1", device="cpu")
    assert (short["steps"], short["run"]["valid_every"], short["data"]["valid_most"]) == (300, 30, 10)
    for word, steps in (("epochs=10", every), ("steps=700", 700)):
        given = new_recipe(tmp_path / "text.txt", *words, word, device="cpu")
        assert (given["steps"], given["run"]["valid_every"]) == (steps, 40)
