"""Trainings of several networks: order and intervals of updates, averages, custom updates, extra feeds, schedules.

Each ability is shown by a small objective of its own, and every one resumes to the bit.
"""

import dataclasses
import os
import subprocess
import sys
from itertools import pairwise
from typing import ClassVar

import pytest
import torch
from trainings import GAN, SMALL, STUDENT, go, metrics, same_bits, state

from clearhead import load
from clearhead.training import loop, objectives
from clearhead.training.objectives import Measurement, Objective, Role, Scalar, Scheduled, Update, weighted_sum
from clearhead.training.optim import optimisers as optim
from clearhead.training.optim.schedule import value_at
from support.marks import one_in

pytestmark = pytest.mark.usefixtures("own_models")


class BrokenError(Exception):
    pass


def broken(table, out, monkeypatch, *overrides, calls=(5, 3), device="cpu"):
    """Train with crashes after the given numbers of updates, and resume to the end."""
    for after in calls:
        real, left = optim.Optimiser.step, [after]

        def interrupted(self, *args, real=real, left=left):
            left[0] -= 1
            if not left[0]:
                raise BrokenError
            return real(self, *args)

        with monkeypatch.context() as patch:
            patch.setattr(optim.Optimiser, "step", interrupted)
            with pytest.raises(BrokenError):
                go(table, out, *overrides, device=device)
    return go(table, out, *overrides, device=device)


def assert_same_run(a, b):
    same_bits(state(a), state(b))
    assert metrics(a) == metrics(b)


CASES = {
    "gan": (GAN, []),
    "gan, micro-batches": (GAN, ["accumulate=3"]),
    "gan, bfloat16": (GAN, ["precision=bfloat16", "accumulate=2"]),
    "gan, recomputed": (GAN, ["recompute=true", "initial=xavier", "objective.loss=hinge"]),
    "gan, instance noise": (GAN, ["objective.blur={start=0.5,final=0.0}", "accumulate=2"]),
    "student": (STUDENT, []),
    "student, micro-batches": (STUDENT, ["accumulate=2"]),
    "student, bfloat16": (STUDENT, ["precision=bfloat16"]),
    "student, best": (STUDENT, ["run.best=valid_information", "run.keep=1"]),
}


@pytest.mark.parametrize("name", one_in(2, CASES))
def test_a_resumed_run_of_two_players_equals_an_uninterrupted_one_to_the_bit(name, tmp_path, monkeypatch):
    table, overrides = CASES[name]
    go(table, tmp_path / "whole", *overrides)
    broken(table, tmp_path / "broken", monkeypatch, *overrides)
    assert_same_run(tmp_path / "whole", tmp_path / "broken")


COMPILED = """
import sys
from pathlib import Path
import torch
from test_players import go
from trainings import GAN, STUDENT, recipe, state
folder, device = Path(sys.argv[1]), sys.argv[2]
overrides = ["steps=3", "run.inside_every=2", *(["deterministic=true"] if device == "cuda" else [])]
one = recipe(steps=3, run__valid_every=2, model__depth=1, model__bias=False)
for name, table in (("one", one), ("gan", GAN), ("student", STUDENT)):
    go(table, folder / name / "plain", *overrides, device=device)
    go(table, folder / name / "quick", *overrides, "compile=true", device=device)
    quick = state(folder / name / "quick")
    torch.testing.assert_close(quick, state(folder / name / "plain"), rtol=1e-3, atol=1e-4)
"""


def compiled(folder, device):
    """Run COMPILED in its own process, without the type checks of the tests."""
    words = [sys.executable, "-c", COMPILED, str(folder), device]
    places = {"PYTHONPATH": os.pathsep.join(sys.path)}  # of the tests' own modules
    done = subprocess.run(words, capture_output=True, text=True, env={**os.environ, **places})
    assert done.returncode == 0, done.stderr


@pytest.mark.slow
def test_compiled_trainings_of_one_and_of_two_players_equal_eager_ones(tmp_path):
    compiled(tmp_path, "cpu")


@pytest.mark.cuda
@pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a CUDA device")
def test_compiled_trainings_of_one_and_of_two_players_equal_eager_ones_on_a_gpu(tmp_path):
    compiled(tmp_path, "cuda")


@pytest.mark.cuda
@pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a CUDA device")
@pytest.mark.parametrize("table", [GAN, STUDENT], ids=["gan", "student"])
@pytest.mark.parametrize("overrides", [[], ["precision=bfloat16"]], ids=str)
def test_two_players_resume_to_the_bit_on_a_gpu(table, overrides, tmp_path, monkeypatch):
    overrides = [*overrides, "deterministic=true"]
    go(table, tmp_path / "whole", *overrides, device="cuda")
    broken(table, tmp_path / "broken", monkeypatch, *overrides, device="cuda")
    assert_same_run(tmp_path / "whole", tmp_path / "broken")


def test_both_players_learn_and_each_has_its_own_optimiser_and_schedule(tmp_path):
    run = go(GAN, tmp_path)
    first, last = run.metrics[0], [r for r in run.metrics if "generator_loss" in r][-1]
    assert {"generator_loss", "discriminator_loss", "norm_generator", "norm_discriminator"} <= first.keys()
    assert first["lr_discriminator"] == last["lr_discriminator"] == 1e-2
    assert last["lr_generator"] < first["lr_generator"] == 3e-3
    names = set(state(tmp_path))
    assert "generator/optim/head.weight/exp_avg" in names  # AdamW
    assert "discriminator/optim/head.weight/momentum_buffer" in names  # SGD
    assert "generator/average/head.weight" in names
    assert not any(name.startswith("discriminator/average") for name in names)
    assert {"generator", "discriminator"} == next(r["inside"] for r in run.metrics if "inside" in r).keys()
    valid = [r for r in run.metrics if "valid_near" in r][-1]
    assert {"valid_generator_loss", "valid_discriminator_loss", "valid_near", "valid_modes"} < valid.keys()


def test_the_result_is_the_averaged_generator_and_the_other_player_is_kept_too(tmp_path):
    run = go(GAN, tmp_path)
    kept, other = state(tmp_path), load(tmp_path / "players" / "discriminator", device="cpu").model
    for name, p in run.model.model.named_parameters():
        assert torch.equal(p, kept[f"generator/average/{name}"])
        assert not torch.equal(p, kept[f"generator/weight/{name}"])
    for name, p in other.named_parameters():
        assert torch.equal(p, kept[f"discriminator/weight/{name}"])


def test_a_teacher_is_the_moving_average_of_its_student(tmp_path, monkeypatch):
    seen = []
    real = loop.Trainer.step

    def watched(self, parts, step, counted):
        found = real(self, parts, step, counted)
        student, teacher = (
            dict(self.players[n].model.named_parameters())["head.weight"] for n in ("student", "teacher")
        )
        seen.append((step, student.detach().clone(), teacher.detach().clone()))
        return found

    monkeypatch.setattr(loop.Trainer, "step", watched)
    go(STUDENT, tmp_path)
    momentum = Scheduled(start=0.5, final=1.0)
    for (_, _, before), (step, student, teacher) in pairwise(seen):
        keep = value_at(momentum, step, 9)
        torch.testing.assert_close(teacher, keep * before + (1 - keep) * student)
    assert torch.equal(seen[-1][2], seen[-2][2])  # momentum 1 in the last step


def test_scheduled_numbers_are_logged_and_applied(tmp_path):
    run = go(STUDENT, tmp_path)
    logged = [r["momentum"] for r in run.metrics if "momentum" in r]
    assert logged[0] == 0.5
    assert logged[-1] == 1.0
    assert logged == sorted(logged)
    strong = go(STUDENT, tmp_path / "b", "optim.decay=0.0")
    a, b = (r.model.model.head.weight for r in (run, strong))
    assert not torch.equal(a, b)  # the decay that rises from 0 acts


@pytest.mark.parametrize(
    ("name", "better"), [("valid_loss", min), ("valid_information", max)]
)  # fmt: skip
def test_the_best_checkpoint_by_any_measurement_becomes_the_model(tmp_path, name, better):
    run = go(STUDENT, tmp_path, f"run.best={name}", "run.valid_every=1", "run.keep=1", "optim.lr=0.3")
    valid = [r for r in run.metrics if name in r]
    best = better(r[name] for r in valid)
    step = min((r for r in valid if r[name] == best), key=lambda r: r["valid_loss"])["step"]  # a tie: by the loss
    kept = loop.Checkpoint(tmp_path / "checkpoints" / f"step-{step:08d}")
    for name, p in run.model.model.named_parameters():
        assert torch.equal(p, kept.read(f"teacher/average/{name}"))


def test_a_measurement_that_does_not_exist_names_those_that_do(tmp_path):
    with pytest.raises(
        ValueError, match=r"run.best = 'valid_infomation': expected one of valid_loss, valid_information"
    ):
        go(STUDENT, tmp_path, "run.best=valid_infomation")
    assert not (tmp_path / "recipe.toml").exists()


def test_a_loss_that_becomes_nan_is_named(tmp_path, monkeypatch):
    kind = objectives.objective_class("gan")
    real, left = kind.generator_loss, [4]

    def sometimes(self, batch):
        left[0] -= torch.is_grad_enabled()
        return real(self, batch) * (float("nan") if not left[0] else 1.0)

    monkeypatch.setattr(kind, "generator_loss", sometimes)
    with pytest.raises(loop.TrainingError, match="the generator loss became nan in step 4"):
        go(GAN, tmp_path)


def test_an_unknown_player_is_refused(tmp_path):
    table = {**GAN, "players": {**GAN["players"], "generater": {"model": SMALL}}}
    with pytest.raises(ValueError, match=r"has generator, discriminator; the nearest (is|are) generator"):
        go(table, tmp_path)
    with pytest.raises(ValueError, match=r"players\.discriminator\.model is missing: expected a name"):
        go({**GAN, "players": {"generator": GAN["players"]["generator"]}}, tmp_path)


# Features that no shipped objective uses yet


@dataclasses.dataclass(frozen=True, kw_only=True, slots=True)
class Options:
    weight: Scalar = 1.0  # weight of the second part of the loss


class Own(Objective):
    """Regression that uses every feature of objectives."""

    Config: ClassVar = Options
    roles: ClassVar = {"model": Role(can="map"), "critic": Role(can="map")}
    updates: ClassVar = (Update("critic", "critic_loss", every=3), Update("model", "loss"))
    reads: ClassVar = ("x", "y", "more.x", "more.y")
    measurements: ClassVar = {"loss": Measurement("square")}
    fisher: torch.Tensor

    def __init__(self, config, players, data):
        super().__init__(config, players, data)
        self.register_buffer("fisher", torch.ones(()))  # a buffer of the objective, which checkpoints keep
        self.steps_of: list[str] = []

    def prepare(self, batch, moment):
        """A batch that depends on (seed, step, row) and on the current weights."""
        hard = self.outputs("model", batch["x"]).sum(-1, keepdim=True).sign()
        return batch | {"x": batch["x"] + 0.1 * hard * moment.rng(1).normal(batch["x"].shape[1])}

    def loss(self, batch):
        error = (self.outputs("model", batch["x"]) - batch["y"]).square().mean(-1)
        extra = (self.outputs("model", batch["more.x"]) - batch["more.y"]).square().mean(-1)
        return {"first": weighted_sum(error, batch), "second": self.scalar("weight") * weighted_sum(extra, batch)}

    def critic_loss(self, batch):
        return weighted_sum(
            (self.outputs("critic", batch["x"]) - self.outputs("model", batch["x"])).square().mean(-1), batch
        )

    def step(self, update, optimiser, moment, lr_scale):
        """The model has a custom natural-gradient update; the critic is updated by its optimiser."""
        self.steps_of.append(update.player)
        if update.player == "critic":
            return super().step(update, optimiser, moment, lr_scale)
        gradients = optimiser.gradients()
        norm = torch.stack([g.float().square().sum() for g in gradients.values()]).sum().sqrt()
        with torch.no_grad():
            self.fisher.lerp_(norm.square(), 0.1)
            for name, gradient in gradients.items():
                optimiser.weights()[name].sub_(0.01 * lr_scale * gradient / (self.fisher + 1e-3))
        optimiser.clear()
        optimiser.restore()
        return norm

    @torch.no_grad()
    def measure(self, batch):
        return {"loss": sum(self.loss(batch).values())}


OWN = {
    "steps": 9, "seed": 3,
    "data": {"name": "identity", "width": 4, "rows": 6, "valid_rows": 5, "valid_batches": 2},
    "feeds": {"more": {"name": "identity", "width": 4, "rows": 6, "valid_rows": 5, "valid_batches": 1}},
    "objective": {"name": "own", "weight": {"start": 0.0, "final": 1.0}},
    "players": {"model": {"model": {"name": "deep", "depth": 2}}, "critic": {"model": {"name": "deep", "depth": 1}}},
    "run": {"log_every": 1, "valid_every": 3, "save_every": 2},
}  # fmt: skip


@pytest.fixture
def own(monkeypatch):
    objectives.register("own", Own, "for these tests")
    monkeypatch.setattr(Own, "sizes", classmethod(lambda cls, config, data: dict.fromkeys(cls.roles, data.sizes)))
    yield
    del objectives.OBJECTIVES["own"]


@pytest.mark.parametrize("overrides", [[], ["accumulate=2"], ["precision=bfloat16", "accumulate=2"]], ids=str)
def test_custom_updates_intervals_feeds_and_prepared_batches_resume_to_the_bit(own, tmp_path, monkeypatch, overrides):
    run = go(OWN, tmp_path / "whole", *overrides)
    first = run.metrics[0]
    assert {"loss", "first", "second", "norm_model"} <= first.keys()
    updated = [r["step"] for r in run.metrics if {"critic_loss", "norm_critic", "lr_critic"} <= r.keys()]
    assert updated == [3, 6, 9]  # the critic is updated in every third step
    assert first["second"] == 0.0  # its weight begins at 0
    assert first["loss"] == pytest.approx(first["first"] + first["second"])
    for after in (2, 1):
        real, left = Own.step, [after * 2]

        def interrupted(self, *args, real=real, left=left):
            left[0] -= 1
            if not left[0]:
                raise BrokenError
            return real(self, *args)

        with monkeypatch.context() as patch:
            patch.setattr(Own, "step", interrupted)
            with pytest.raises(BrokenError):
                go(OWN, tmp_path / "broken", *overrides)
    go(OWN, tmp_path / "broken", *overrides)
    assert_same_run(tmp_path / "whole", tmp_path / "broken")
    assert state(tmp_path / "whole")["objective/buffer/fisher"] != 1.0


def test_an_extra_feed_that_the_objective_does_not_read_is_refused(tmp_path):
    table = {**GAN, "feeds": {"more": {"name": "identity"}}}
    with pytest.raises(ValueError, match=r"gan reads x .*the data gives x, labels, more\.x, more\.y"):
        go(table, tmp_path)


def test_gradients_of_one_players_loss_do_not_reach_the_other(tmp_path, monkeypatch):
    seen, kind = [], objectives.objective_class("gan")

    def watched(self, update, *args):
        others = [name for name in self.players if name != update.player]
        seen.append(all(w.grad is None for name in others for w in self.player(name).parameters()))
        return Objective.step(self, update, *args)

    monkeypatch.setattr(kind, "step", watched)
    go(GAN, tmp_path)
    assert seen
    assert all(seen)
