"""Extra datasets with images, updates that skip steps, and buffers that a loss updates."""

from typing import ClassVar

import pytest
import torch
from trainings import go, metrics, pictures, recipe, state

from clearhead.training import objectives
from clearhead.training.objectives import Measurement, Objective, Role, Update

pytestmark = pytest.mark.usefixtures("own_models", "registry")


class WithImages(Objective):
    """Regression of vectors; the images of another dataset are recorded."""

    roles: ClassVar = {"model": Role(can="map")}
    reads: ClassVar = ("x", "y", "more.images", "more.labels")
    measurements: ClassVar = {"loss": Measurement("nats/row")}
    seen: ClassVar = []

    def loss(self, batch):
        if self.training:
            type(self).seen.append(batch["more.images"])
        return (self.outputs("model", batch["x"]) - batch["y"]).square().sum()

    def measure(self, batch):
        return {"loss": (self.outputs("model", batch["x"]) - batch["y"]).square().sum()}


def test_images_of_an_extra_dataset_have_its_own_preprocessing_and_augmentation(tmp_path):
    objectives.register("with-images", WithImages)
    images = pictures(tmp_path / "images") | {"rows": 7, "flip": False, "crop": "middle"}
    table = {
        "steps": 2, "seed": 1, "data": {"name": "identity", "width": 4, "rows": 3},
        "model": {"name": "deep", "depth": 1},
        "objective": {"name": "with-images"}, "augment": [{"name": "flip"}, {"name": "shift", "pixels": 1}],
    }  # fmt: skip
    for mean, deviation in ((0.0, 1.0), (0.5, 0.5)):
        WithImages.seen.clear()
        feed = images | {"mean": [mean] * 3, "deviation": [deviation] * 3}
        go(table | {"feeds": {"more": feed}}, tmp_path / f"run {mean}")
        assert [x.shape[0] for x in WithImages.seen[:2]] == [7, 7]
        pixels = torch.cat(WithImages.seen[:2]) * deviation + mean
        assert 0 <= pixels.min() < 0.2
        assert 0.7 < pixels.max() <= 1  # the same pixels, whatever they are normalised by


class Seldom(Objective):
    """Regression with an update every third step, and a buffer that the loss updates."""

    roles: ClassVar = {"model": Role(can="map")}
    updates: ClassVar = (Update("model", every=3),)
    reads: ClassVar = ("x", "y")
    measurements: ClassVar = {"loss": Measurement("nats/row")}
    steps: ClassVar = []

    def __init__(self, *args):
        super().__init__(*args)
        self.register_buffer("mean", torch.zeros(4))

    def loss(self, batch):
        out = self.outputs("model", batch["x"])
        with torch.no_grad():
            self.mean.lerp_(out.mean(0), 0.1)
        return (out - batch["y"]).square().sum()

    def after_step(self, moment):
        type(self).steps.append(moment.step)

    def measure(self, batch):
        return {"loss": (self.outputs("model", batch["x"]) - batch["y"]).square().sum()}


def test_steps_without_an_update_and_counting_flops_change_nothing_else(tmp_path):
    objectives.register("seldom", Seldom)
    table = {
        "steps": 7, "seed": 1, "data": {"name": "identity", "width": 4, "rows": 3},
        "model": {"name": "deep", "depth": 1},
        "objective": {"name": "seldom"},
    }  # fmt: skip
    runs = {every: go(table, tmp_path / str(every), f"run.log_every={every}") for every in (1, 2, 100)}
    assert Seldom.steps[:7] == list(range(7))
    first = state(runs[1].folder)
    for every in (2, 100):
        other = state(runs[every].folder)
        assert all(torch.equal(torch.as_tensor(x), torch.as_tensor(other[name])) for name, x in first.items())
    assert [record["step"] for record in metrics(runs[1].folder) if "loss" in record] == [3, 6]


def test_another_best_measurement_forgets_the_best_of_the_first(tmp_path):
    table = recipe(steps=6, run__valid_every=2, run__save_every=2, run__keep=9)
    first = go(table, tmp_path, "run.best=valid_accuracy", "steps=4")
    assert first.best is not None
    second = go(table, tmp_path, "run.best=valid_loss")
    losses = {x["step"]: x["valid_loss"] for x in second.metrics if "valid_loss" in x and x["step"] > 4}
    assert second.best == min(losses, key=losses.get)
