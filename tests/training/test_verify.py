"""verify_resume passes for trainings that resume exactly, and finds a difference of a single bit."""

import dataclasses
import fnmatch
import json
import random
import shutil
from pathlib import Path

import pytest
import torch

from clearhead.config import write
from clearhead.errors import InputError
from clearhead.training import Verdict, read_recipe, train, verify_resume
from clearhead.training import logs as progress
from clearhead.training.checkpoints import CheckpointWriter, latest, step_name
from clearhead.training.run_folder import FolderError
from clearhead.training.verify import Kill, PartComparison, _Runs, compare, compare_to_rounding, draw_kills
from support.command_line import call

CONFIGS = Path(__file__).parents[2] / "configs"
RECIPE = {
    "steps": 30, "seed": 1,
    "data": {"name": "reverse", "symbols": 5, "length": 4, "rows": 8, "valid_rows": 8, "valid_batches": 1},
    "model": {"name": "gpt", "context": 8, "width": 16, "depth": 1, "heads": 2},
    "optim": {"ema": 0.9},
    "run": {"valid_every": 10, "inside_every": 15},
}  # fmt: skip


@pytest.fixture(scope="module")
def two(tmp_path_factory):
    """The folders of two equal runs."""
    folder = tmp_path_factory.mktemp("runs")
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(progress, "peak", lambda *_: 1e12)
        train(RECIPE, "run.log_every=1", "steps=12", out=folder / "a", quiet=True, device="cpu")
    shutil.copytree(folder / "a", folder / "b")
    return folder / "a", folder / "b"


@pytest.fixture
def pair(two, tmp_path):
    """Copies of the two folders, which a test may change."""
    return shutil.copytree(two[0], tmp_path / "a"), shutil.copytree(two[1], tmp_path / "b")


def bad(parts):
    return {part.name for part in parts if part.equal < part.count}


@pytest.mark.slow
def test_a_killed_training_equals_an_uninterrupted_one(tmp_path):
    verdict = verify_resume(RECIPE, out=tmp_path / "v", kills=2, device="cpu", quiet=True)
    assert verdict.hits == 2
    assert verdict.passed, verdict
    counts = {part.name: part.count for part in verdict.parts}
    assert counts.keys() == {"weights", "optimiser", "averages", "lines of metrics", "facts"}
    assert counts["averages"] == counts["weights"]
    assert counts["lines of metrics"] == 30 + 3 + 2
    assert all(0 < kill.step < 30 for kill in verdict.kills)
    attempts = json.loads((tmp_path / "v" / "broken" / "facts.json").read_text())["attempts"]
    assert len(attempts) == 3
    assert [attempt["step"] for attempt in attempts] == sorted(attempt["step"] for attempt in attempts)
    assert attempts[-1]["step"] > 0  # it resumed from a checkpoint
    assert json.loads(json.dumps(verdict.to_dict()))["passed"]
    with pytest.raises(FolderError, match="whole is of an earlier verification"):
        verify_resume(RECIPE, out=tmp_path / "v", quiet=True)


@pytest.mark.slow
@pytest.mark.parametrize("name", ["gaussians-gan", "gaussians-self-distillation"])
def test_the_shipped_recipes_of_two_players_resume_to_the_bit(tmp_path, name):
    words = ("steps=30", "run.valid_every=10")
    verdict = verify_resume(CONFIGS / f"{name}.toml", *words, out=tmp_path, kills=1, device="cpu", quiet=True)
    assert verdict.passed, verdict
    counts = {part.name: part.count for part in verdict.parts}
    assert counts["weights"] == (12 if name == "gaussians-gan" else 6)
    assert counts["averages"] == 6
    assert counts["lines of metrics"] == 30 + 3


@pytest.mark.slow
@pytest.mark.parametrize("spread", ["ddp", "fsdp"])
@pytest.mark.parametrize("name", ["gaussians-gan", "gaussians-self-distillation"])
def test_the_shipped_recipes_of_two_players_give_the_same_losses_on_two_workers(tmp_path, name, spread):
    words = ("steps=30", "run.valid_every=10", f"spread={spread}")
    verdict = verify_resume(CONFIGS / f"{name}.toml", *words, out=tmp_path, kills=1, world=2, device="cpu", quiet=True)
    assert verdict.passed, verdict
    assert verdict.workers == 2
    assert all(part.count == 30 for part in verdict.world)


def test_a_resumed_training_that_differs_by_rounding_is_found(tmp_path, monkeypatch):
    """It is resumed with two micro-batches per step, so that gradients are summed in another order."""

    def whole(runs, name, *words):
        often = ("run.log_every=1", "run.save_every=10", "run.keep=9")
        train(RECIPE, *often, *words, out=runs.out / name, quiet=True, device="cpu")

    def broken(runs, name, *_):
        shutil.copytree(runs.out / "whole", runs.out / name)
        for step in (20, 30):
            shutil.rmtree(runs.out / name / "checkpoints" / step_name(step))
        whole(runs, name, "accumulate=2")
        return [Kill(target=10, during="step", step=10, hit=True)]

    monkeypatch.setattr(_Runs, "whole", whole)
    monkeypatch.setattr(_Runs, "broken", broken)
    write(RECIPE, tmp_path / "tiny.toml")
    words = ["verify-resume", str(tmp_path / "tiny.toml"), "--out", str(tmp_path / "v"), "--kills", "1", "--json"]
    result = call(*words)
    assert result.exit_code == 1
    verdict = json.loads(result.stdout)
    assert (verdict["hits"], verdict["equal"], verdict["passed"]) == (1, False, False)
    parts = {part["name"]: part for part in verdict["parts"]}
    for name in ("weights", "optimiser", "averages", "lines of metrics"):
        assert parts[name]["equal"] < parts[name]["count"]
        assert 0 < parts[name]["largest"] < 1e-3
    assert parts["weights"]["first"].startswith("model/")
    shutil.rmtree(tmp_path / "v")
    result = call(*words[:-1])
    assert result.exit_code == 1
    assert "NOT equal" in result.stdout


def test_two_equal_runs_are_equal(two):
    assert bad(compare(*two)) == set()
    assert all(part.largest == 0 and not part.first for part in compare(*two))
    assert bad(compare_to_rounding(*two, within=1e-4)) == set()


@pytest.mark.parametrize(
    ("kind", "part"),
    [
        ("model/weight/*.weight", "weights"),
        ("model/average/*.weight", "averages"),
        ("model/optim/*.weight/exp_avg", "optimiser"),
    ],
)
def test_one_bit_of_one_tensor_is_found(pair, kind, part):
    a, b = pair
    checkpoint = latest(b / "checkpoints")
    tensors = {name: checkpoint.read(name) for name in checkpoint.names}
    name = fnmatch.filter(tensors, kind)[-1]
    tensors[name].reshape(-1)[-1:].view(torch.int32).bitwise_xor_(1)
    writer = CheckpointWriter(b / "checkpoints", attempt="changed")
    writer.save(checkpoint.step, tensors, checkpoint.facts)
    writer.wait()
    parts = {one.name: one for one in compare(a, b)}
    assert bad(parts.values()) == {part}
    assert parts[part].count - parts[part].equal == 1
    assert parts[part].first == name
    assert 0 < parts[part].largest < 1e-6


def test_a_changed_line_of_metrics_is_found(pair):
    a, b = pair
    lines = (b / "metrics.jsonl").read_text().splitlines()
    record = json.loads(lines[3])
    lines[3] = json.dumps(record | {"seconds": 1.0})
    (b / "metrics.jsonl").write_text("\n".join(lines) + "\n")
    assert bad(compare(a, b)) == set()  # times are not compared
    lines[3] = json.dumps(record | {"loss": record["loss"] * (1 + 1e-3)})
    (b / "metrics.jsonl").write_text("\n".join(lines) + "\n")
    part = next(part for part in compare(a, b) if part.name == "lines of metrics")
    assert (part.count - part.equal, part.first) == (1, "line 4")
    assert part.largest == pytest.approx(record["loss"] * 1e-3)
    losses, norms = compare_to_rounding(a, b, within=1e-4)
    assert (losses.count - losses.equal, losses.first) == (1, "step 4")
    assert norms.equal == norms.count
    (b / "metrics.jsonl").write_text("\n".join(lines[:-1]) + "\n")
    assert next(part for part in compare(a, b) if part.name == "lines of metrics").equal == part.count - 2


def test_a_verification_does_not_pass_if_a_kill_missed(tmp_path):
    part = PartComparison(name="weights", count=1, equal=1, largest=0.0)
    kills = [Kill(target=3, during="step", step=3, hit=True), Kill(target=9, during="step", step=9, hit=False)]
    verdict = Verdict(folder=tmp_path, steps=9, kills=kills, parts=[part])
    assert verdict.equal
    assert not verdict.passed
    assert verdict.hits == 1
    worse = dataclasses.replace(verdict, kills=kills[:1], workers=2, world=[dataclasses.replace(part, equal=0)])
    assert not worse.passed
    assert dataclasses.replace(verdict, kills=kills[:1]).passed


@pytest.mark.parametrize("kills", [1, 2, 5])
def test_kills_are_spread_over_the_run_and_come_before_its_end(kills):
    recipe = read_recipe(RECIPE, "steps=200", "run.save_every=10")
    for seed in range(20):
        drawn = draw_kills(recipe, kills, random.Random(seed), 0.8)
        steps = [step for step, _ in drawn]
        assert steps == sorted(steps)
        assert steps[0] >= 1
        assert steps[-1] <= 170
        assert all(step % 10 == 0 for step, during in drawn if during == "checkpoint")
        assert sum(during == "checkpoint" for _, during in drawn) == kills // 2
    assert max(s for seed in range(20) for s, _ in draw_kills(recipe, kills, random.Random(seed), 0.1)) <= 30


def test_what_cannot_be_verified_is_refused_before_any_training(tmp_path):
    for kills in (0, -2):
        with pytest.raises(InputError, match=f"kills={kills}: expected 1 or more"):
            verify_resume(RECIPE, out=tmp_path, kills=kills)
    with pytest.raises(ValueError, match="world=1: expected 2 workers or more"):
        verify_resume(RECIPE, out=tmp_path, world=1)
    with pytest.raises(ValueError, match=r"model.dropout = 0.1: expected 0 where workers are compared"):
        verify_resume(RECIPE, "model.dropout=0.1", out=tmp_path, world=2)
    assert not list(tmp_path.iterdir())
