"""The runs of the API: their states, objectives and players, and the example that ships."""

import json
import os
import socket
import subprocess
import sys
from pathlib import Path

import pytest
from starlette.testclient import TestClient

import clearhead as ch
from clearhead.explore import runs as run_state
from clearhead.explore.app import make_app
from clearhead.explore.runs import EXAMPLE, EXAMPLE_RECIPE, Runs
from clearhead.tokens import Characters
from clearhead.training.run_folder import Folder
from support.api_shapes import schemas

OLD = (1e9, 1e9)  # a time of access and of modification, long ago


def listed(root):
    client = TestClient(make_app(runs=root, device="cpu"), base_url="http://127.0.0.1:8000")
    return {one["id"]: schemas.RunLine(**one) for one in client.get("/api/runs").json()}


def write(folder, *records, old=True, **holder):
    folder.mkdir()
    (folder / "recipe.toml").write_text("steps = 9\n")
    (folder / "metrics.jsonl").write_text("".join(json.dumps(record) + "\n" for record in records))
    if holder:
        (folder / "lock").touch()
        (folder / "holder.json").write_text(json.dumps(holder))
    if old:
        os.utime(folder / "metrics.jsonl", OLD)


def test_the_state_of_a_run_is_that_of_its_lock(tmp_path):
    here = socket.gethostname()
    dead = subprocess.Popen([sys.executable, "-c", ""])
    dead.wait()
    write(tmp_path / "crashed", {"step": 1}, old=False, pid=dead.pid, host=here)
    write(tmp_path / "interrupted", {"step": 1}, old=False, pid=os.getpid(), host=here)  # its process does other work
    write(tmp_path / "slow", {"step": 1})
    write(tmp_path / "complete", {"step": 9})
    with Folder(tmp_path / "slow"):
        states = {name: run.state for name, run in listed(tmp_path).items()}
    assert states == {"crashed": "stopped", "interrupted": "stopped", "slow": "running", "complete": "finished"}
    with Folder(tmp_path / "slow"):
        pass  # the test of the lock has released it
    assert listed(tmp_path)["slow"].state == "stopped"


def test_a_resumed_run_with_a_model_is_running(tmp_path):
    write(tmp_path / "run", {"step": 9})
    (tmp_path / "run" / "model").mkdir()
    assert (listed(tmp_path)["run"].state, listed(tmp_path)["run"].finished) == ("finished", True)
    with Folder(tmp_path / "run"):
        assert (listed(tmp_path)["run"].state, listed(tmp_path)["run"].finished) == ("running", True)


@pytest.mark.parametrize(
    ("record", "age", "state"),
    [
        ({"step": 1}, 30, "running"),
        ({"step": 1}, 90, "stopped"),
        ({"step": 1, "seconds": 60.0}, 90, "running"),  # a record a minute
        ({"step": 1, "seconds": 60.0}, 900, "stopped"),
        ({"step": 9}, 30, "finished"),
    ],
)
@pytest.mark.parametrize("holder", [{}, {"pid": 1, "host": "another machine"}], ids=["no lock", "elsewhere"])
def test_without_a_lock_the_state_is_that_of_the_last_record(tmp_path, monkeypatch, record, age, state, holder):
    write(tmp_path / "run", record, **holder)
    monkeypatch.setattr(run_state.time, "time", lambda: OLD[1] + age)
    assert listed(tmp_path)["run"].state == state


def test_a_run_says_why_it_failed_which_step_its_model_is_of_and_what_its_tokens_are(tmp_path):
    for name, vocabulary in (("one", "ab"), ("same", "ab"), ("other", "abc")):
        write(tmp_path / name, {"step": 9})
        ch.save(ch.build("gpt", vocab=len(vocabulary), width=8, depth=1, heads=2), tmp_path / name / "model",
                tokens=Characters(vocabulary))  # fmt: skip
        (tmp_path / name / "setup.json").write_text(
            json.dumps({"players": {"model": {"model": "gpt", "options": {"vocab": len(vocabulary)}}}})
        )
    write(tmp_path / "failed", {"step": 3})
    facts = {
        "one": {"attempts": [{"problem": "old"}, {}], "model": {"step": 9, "best": 4}},
        "failed": {"attempts": [{"problem": "old"}, {"problem": "the loss became nan in step 3"}]},
    }
    for name, content in facts.items():
        (tmp_path / name / "facts.json").write_text(json.dumps(content))
    (tmp_path / "other" / "facts.json").write_text("[]")
    runs = listed(tmp_path)
    assert (runs["failed"].state, runs["failed"].problem) == ("failed", "the loss became nan in step 3")
    assert (runs["one"].state, runs["one"].problem, runs["one"].model_step) == ("finished", None, 4)
    assert (runs["other"].problem, runs["other"].model_step) == (None, None)
    assert runs["one"].tokens == runs["same"].tokens
    assert runs["one"].tokens.files != runs["other"].tokens.files
    assert (runs["one"].tokens.vocab, runs["other"].tokens.vocab) == (2, 3)
    assert runs["failed"].tokens == schemas.TokensOfRun(files=None, vocab=None, kind=None)


def test_a_damaged_holder_is_ignored(tmp_path):
    write(tmp_path / "run", {"step": 1})
    for text in ("", "[]", '{"pid": "x", "host": 3}', "\x00"):
        (tmp_path / "run" / "holder.json").write_text(text)
        assert listed(tmp_path)["run"].state == "stopped"


def test_a_real_run_has_its_objective_and_players(tmp_path):
    small = {"model": {"name": "mlp", "hidden": 4, "depth": 1}}
    points = {"name": "gaussians", "rows": 4, "valid_rows": 4, "valid_batches": 1}
    recipes = {
        "gan": {"data": points, "objective": {"name": "gan", "latent": 2},
                "players": {"generator": small, "discriminator": small}},
        "plain": {"data": {"name": "reverse", "symbols": 5, "length": 4, "rows": 4},
                  "model": {"name": "gpt", "context": 8, "width": 8, "depth": 1, "heads": 2}},
    }  # fmt: skip
    for name, recipe in recipes.items():
        ch.train({"steps": 2, **recipe}, out=tmp_path / name, device="cpu", quiet=True)
    runs = listed(tmp_path)
    assert {name: (run.state, run.objective, run.model, run.players) for name, run in runs.items()} == {
        "gan": ("finished", "gan", None, {"generator": "mlp", "discriminator": "mlp"}),
        "plain": ("finished", "next-token", "gpt", {}),  # chosen by the library
    }


def test_the_example_is_a_run_with_statistics_and_samples():
    runs = Runs(None)
    (line,) = (schemas.RunLine(**one) for one in runs.listed())
    assert (line.id, line.state, line.example, line.error) == ("shakespeare-cpu", "finished", EXAMPLE_RECIPE, None)
    assert (line.step, line.finished, line.objective) == (line.steps, False, "next-token")
    records = runs.records(line.id)["records"]
    assert records[-1].keys() & {"samples", "valid_loss", "inside"}
    assert {"loss", "valid_loss", "valid_accuracy", "inside", "samples"} <= set().union(*records)
    assert runs.trained() == {}
    assert sum(path.stat().st_size for path in EXAMPLE.iterdir()) < 150_000


def test_the_example_is_of_the_recipe_that_it_names():
    from clearhead.training.recipe import read_recipe

    own = read_recipe(EXAMPLE / "recipe.toml")
    named = read_recipe(Path(__file__).parents[2] / EXAMPLE_RECIPE)
    assert (own.steps, own.data, own.model, own.optim, own.schedule) == (
        named.steps, named.data, named.model, named.optim, named.schedule,
    )  # fmt: skip


def test_a_folder_without_runs_has_none(tmp_path):
    assert listed(tmp_path) == {}
