"""sweep: every combination is trained once, in its own folder; one that fails does not stop the others."""

import json

import pytest

from clearhead import sweep
from clearhead.config import ConfigError
from clearhead.training import logs as progress
from clearhead.training.sweep import Sweep, Trial, alternatives, folder_names

RECIPE = {
    "steps": 8, "seed": 1,
    "data": {"name": "reverse", "symbols": 5, "length": 4, "rows": 8, "valid_rows": 8, "valid_batches": 1},
    "model": {"name": "gpt", "context": 8, "width": 16, "depth": 1, "heads": 2},
    "run": {"log_every": 2, "valid_every": 4},
}  # fmt: skip


@pytest.fixture(autouse=True)
def _no_measuring(monkeypatch):
    monkeypatch.setattr(progress, "peak", lambda *_: 1e12)


def run(*overrides, out, **options):
    return sweep(RECIPE, *overrides, out=out, quiet=True, device="cpu", **options)


def test_alternatives_are_split_at_commas_outside_of_brackets_and_quotes():
    fixed, choices = alternatives("steps=9", "data.length=[3,4],[5,6]", 'data.path="a,b"', "seed=1, 2,3")
    assert fixed == ["steps=9", 'data.path="a,b"']
    assert choices[0] == {"data.length": "[3,4]", "seed": "1"}
    assert choices[-1] == {"data.length": "[5,6]", "seed": "3"}
    assert len(choices) == 6


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (["seed=1"], "nothing to sweep: .* like seed=1,2,3"),
        (["seed=1,,2"], "seed=1,,2: an alternative is empty"),
        (["seed=1,1"], "seed=1,1: an alternative is given twice"),
        (["seed=1,2", "seed=3,4"], "seed=3,4: an alternative is given twice"),
    ],
)
def test_invalid_alternatives_are_refused(words, message):
    with pytest.raises(ConfigError, match=message):
        alternatives(*words)


def test_folders_are_named_by_choices():
    assert folder_names([{"model.positions": "rotary", "seed": "1"}]) == ["positions=rotary,seed=1"]
    assert folder_names([{"data.rows": "1", "other.rows": "2"}]) == ["data.rows=1,other.rows=2"]
    names = folder_names([{"data.path": "a/b"}, {"data.path": "a b"}, {"data.path": ".."}, {"data.path": "A-b"}])
    assert names == ["path=a-b", "path=a-b~2", "path=-", "path=A-b~3"]


def test_all_alternatives_are_trained_once_and_compared(tmp_path):
    result = run("model.positions=none,rotary", "seed=1,2", out=tmp_path / "s")
    assert [trial.folder.name for trial in result.trials] == [
        f"positions={word},seed={seed}" for word in ("none", "rotary") for seed in (1, 2)
    ]
    assert result.finished
    assert len({trial.measures["loss"] for trial in result.trials}) == 4
    for trial in result.trials:
        assert trial.parameters > 1000
        assert trial.measures["valid_loss"] > 0
        assert 0 <= trial.measures["valid_accuracy"] <= 1
        assert trial.minutes > 0
    none, rotary = result.means
    assert (none.choices, none.seeds) == ({"model.positions": "none"}, 2)
    a, b = (trial.measures["valid_loss"] for trial in result.trials[:2])
    assert none.measures["valid_loss"] == pytest.approx(((a + b) / 2, abs(a - b) / 2**0.5))
    assert rotary.measures["loss"][0] != none.measures["loss"][0]
    assert (tmp_path / "s" / "sweep.png").stat().st_size > 1000
    assert json.loads((tmp_path / "s" / "sweep.json").read_text()) == json.loads(json.dumps(result.to_dict()))
    before = [(trial.folder / "facts.json").read_text() for trial in result.trials]
    assert run("model.positions=none,rotary", "seed=1,2", out=tmp_path / "s") == result
    assert [(trial.folder / "facts.json").read_text() for trial in result.trials] == before


def test_an_alternative_that_fails_is_reported_and_stops_no_other(tmp_path):
    (tmp_path / "s").mkdir()
    (tmp_path / "s" / "mlp=relu").write_text("in the way of a folder")
    result = run("model.mlp=relu,gelo,gelu", out=tmp_path / "s")
    first, second, third = result.trials
    assert "cannot be created" in first.error
    assert "expected one of" in second.error
    assert third.finished
    assert not third.error
    assert not result.finished
    assert result.means == []
    with pytest.raises(ConfigError, match=r"rellu.*the nearest is relu"):
        run("model.mlp=gelo,rellu", out=tmp_path / "t")
    assert not (tmp_path / "t").exists()


def test_more_steps_continue_the_runs(tmp_path):
    run("seed=1,2", out=tmp_path)
    result = run("seed=1,2", "steps=10", out=tmp_path)
    assert result.finished
    attempts = json.loads((tmp_path / "seed=1" / "facts.json").read_text())["attempts"]
    assert [attempt["step"] for attempt in attempts] == [0, 8]


@pytest.mark.slow
def test_parallel_trainings_equal_sequential_ones(tmp_path):
    a = run("seed=1,2", "optim.lr=-1,1e-3", out=tmp_path / "a")
    b = run("seed=1,2", "optim.lr=-1,1e-3", out=tmp_path / "b", jobs=2)
    for one, other in zip(a.trials, b.trials, strict=True):
        assert (one.choices, one.finished, one.error) == (other.choices, other.finished, other.error)
        assert (
            one.measures["loss"] == pytest.approx(other.measures["loss"], rel=1e-4)
            if one.finished
            else "lr" in one.error
        )
    assert [trial.finished for trial in b.trials] == [False, True, False, True]


def test_means_exclude_failed_trainings(tmp_path):
    good = Trial(choices={"seed": "1"}, folder=tmp_path, finished=True, measures={"loss": 1.0})
    result = Sweep(folder=tmp_path, trials=[good, Trial(choices={"seed": "2"}, folder=tmp_path, error="no")])
    (mean,) = result.means
    assert (mean.seeds, mean.measures) == (1, {"loss": (1.0, 0.0)})


def test_more_alternatives_than_colours_can_be_drawn(tmp_path):
    result = run("optim.lr=1e-4,2e-4,3e-4,4e-4,5e-4,6e-4,7e-4,8e-4,9e-4", "steps=2", "run.log_every=1", out=tmp_path)
    assert result.finished
    assert (tmp_path / "sweep.png").stat().st_size > 1000


def test_fewer_than_one_job_is_refused(tmp_path):
    with pytest.raises(ValueError, match="jobs=0: expected 1 or more"):
        run("seed=1,2", out=tmp_path, jobs=0)


def test_a_file_of_data_is_swept(tmp_path):
    (tmp_path / "diary.txt").write_text("the cat sat on the mat, and a dog ran.\n" * 300)
    words = [
        "model.depth=1,2",
        "model.width=16",
        "model.heads=2",
        "steps=1",
        "data.tokens=characters",
    ]
    result = sweep(tmp_path / "diary.txt", *words, out=tmp_path / "runs", quiet=True, device="cpu")
    assert [trial.error for trial in result.trials] == ["", ""]
    assert result.finished
    assert result.trials[0].parameters < result.trials[1].parameters
