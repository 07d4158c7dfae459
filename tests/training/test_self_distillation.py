"""Self-distillation of vectors and of images, against plain torch code."""

import math

import numpy as np
import pytest
import torch
import torch.nn.functional as F
from PIL import Image

import clearhead as ch
from clearhead import build, evaluate
from clearhead.data import make_data
from clearhead.data.images.in_memory import Pictures, PixelConfig, Pixels
from clearhead.data.images.preprocessing import Preprocessing
from clearhead.errors import InputError, UserError
from clearhead.layers import ProjectionHead
from clearhead.training import verify_resume
from clearhead.training.augmentation import random_part
from clearhead.training.checkpoints import latest
from clearhead.training.moment import Moment
from clearhead.training.objectives import objective_class
from clearhead.training.objectives.views import DRAWS, blurred, distort, turn_hue
from training.trainings import go, metrics, pictures

KIND = objective_class("self-distillation")
VIT = {
    "name": "vit", "classes": 0, "projection": 7, "size": 16, "patch": 4, "width": 8, "depth": 1, "heads": 2,
}  # fmt: skip


def images(n=12, side=16, channels=3):
    rng = np.random.default_rng(0)
    part = Pictures(images=rng.integers(0, 256, (n, channels, side, side), dtype=np.uint8), labels=np.arange(n) % 2)
    words = {"mean": (0.4,) * channels, "deviation": (0.3,) * channels}
    if channels == 1:
        words["channels"] = "grey"
    preprocessing = Preprocessing(resize=(side, side), **words)
    return Pixels(PixelConfig(rows=4), part, part, classes=("no", "yes"), preprocessing=preprocessing, seed=0)


def players(**options):
    """A student and a teacher with other weights."""
    options = {key: value for key, value in (VIT | options).items() if key != "name"}
    return {name: build("vit", **options).eval() for name in ("student", "teacher")}


def moment(rows, seed=1, step=3):
    return Moment(seed=seed, step=step, steps=10, rows=torch.as_tensor(rows))


def pixels(data, rows):
    return {
        "images": torch.from_numpy(data.tables["images"][list(rows)]),
        "labels": torch.tensor([r % 2 for r in rows]),
    }


def test_vectors_give_dinos_loss():
    torch.manual_seed(0)
    student, teacher = (build("mlp", inputs=2, outputs=5, hidden=8, depth=1) for _ in range(2))
    data = make_data("gaussians", {"modes": 3}, seed=0)
    config = KIND.Config(temperature=0.2, teacher_temperature=0.05, noise=0.3)
    objective = KIND(config, {"student": student, "teacher": teacher}, data)
    objective.centre.normal_()
    x = torch.randn(6, 2)
    objective.train()
    batch = objective.prepare({"x": x}, moment(range(6)))
    first, second = batch["global_views"].unbind(1)
    # two views with independent noise of this deviation
    many = objective.prepare({"x": torch.zeros(4000, 2)}, moment(range(4000)))["global_views"]
    assert many.std().item() == pytest.approx(0.3, rel=0.05)
    assert abs(np.corrcoef(many[:, 0, 0], many[:, 1, 0])[0, 1]) < 0.05
    targets = [((teacher(x) - objective.centre) / 0.05).softmax(-1).detach() for x in (first, second)]
    scores = [(student(x) / 0.2).log_softmax(-1) for x in (first, second)]
    expected = -(targets[0] * scores[1] + targets[1] * scores[0]).sum() / 2
    torch.testing.assert_close(objective.loss(batch), expected)
    outputs = torch.stack([teacher(first), teacher(second)]).mean(0).sum(0)
    torch.testing.assert_close(objective.total, torch.cat([outputs, torch.tensor([6.0])]))
    objective.eval()
    objective.loss(batch)
    assert objective.total[-1] == 6  # measuring does not change the centre


@pytest.mark.parametrize("crops", [0, 3])
def test_images_give_dinos_loss_over_all_pairs_of_different_views(crops):
    torch.manual_seed(0)
    data, both = images(), players()
    objective = KIND(KIND.Config(local_crops=crops, local_size=8, temperature=0.2), both, data).train()
    objective.centre.normal_()
    batch = objective.prepare(pixels(data, range(4)), moment(range(4)))
    views = [*batch["global_views"].unbind(1)]
    if crops:
        assert batch["local_views"].shape == (4, crops, 3, 8, 8)
        views += batch["local_views"].unbind(1)
    total, pairs = 0.0, 0
    for i, taught in enumerate(views[:2]):
        target = ((both["teacher"].project(taught) - objective.centre) / 0.04).softmax(-1).detach()
        for j, seen in enumerate(views):
            if i != j:
                total = total - (target * (both["student"].project(seen) / 0.2).log_softmax(-1)).sum()
                pairs += 1
    loss = objective.loss(batch)
    torch.testing.assert_close(loss, total / pairs)
    loss.backward()
    # the gradient is the student's alone
    assert all(p.grad is None for p in both["teacher"].parameters())
    assert all(p.grad is not None for p in both["student"].parameters())
    outputs = torch.stack([both["teacher"].project(x) for x in views[:2]]).mean(0).sum(0)
    torch.testing.assert_close(objective.total, torch.cat([outputs, torch.tensor([4.0])]))


def test_rows_that_fill_up_a_batch_do_not_count():
    data, both = images(), players()
    objective = KIND(KIND.Config(local_crops=1, local_size=8), both, data).train()
    whole = objective.prepare(pixels(data, range(3)), moment(range(3)))
    filled = objective.prepare(pixels(data, [0, 1, 2, 0]), moment([0, 1, 2, 0]))
    filled["weight"] = torch.tensor([1.0, 1, 1, 0])
    torch.testing.assert_close(objective.loss(whole), objective.loss(filled))
    torch.testing.assert_close(objective.total[-1], torch.tensor(6.0))


def test_one_step_of_a_training_is_a_step_of_plain_torch(tmp_path):
    """The student's update by SGD, then the teacher's and the centre's, from the weights before it."""
    folder = pictures(tmp_path / "data")
    table = {
        "seed": 5, "data": {**folder, "memory": True, "size": 16, "rows": 6, "crop": "middle", "flip": False},
        "objective": {
            "name": "self-distillation", "momentum": 0.9, "local_crops": 2, "local_size": 8, "centre_momentum": 0.8,
        },
        "players": {"student": {"model": {key: value for key, value in VIT.items() if key != "classes"}}},
        "optim": {"name": "sgd", "lr": 0.5, "momentum": 0.0, "decay": 0.0, "clip": 0.0},
        "schedule": {"shape": "constant", "warmup": 0}, "run": {"save_every": 1, "keep": 3},
    }  # fmt: skip
    go(table, tmp_path / "one", "steps=1")
    go(table, tmp_path / "two", "steps=2")
    before, after = (latest(tmp_path / name / "checkpoints") for name in ("one", "two"))
    start = {name: before.read(name) for name in before.names}
    end = {name: after.read(name) for name in after.names}

    def network(prefix):
        model = build("vit", **{key: value for key, value in VIT.items() if key != "name"})
        found = {name.removeprefix(prefix): x for name, x in start.items() if name.startswith(prefix)}
        model.load_state_dict(found)
        return model

    ours, theirs = "student/weight/", "teacher/average/"
    student, teacher = network(ours), network(theirs)
    data = make_data("images", {key: value for key, value in table["data"].items() if key != "name"}, seed=5)
    config = KIND.Config(local_crops=2, local_size=8)
    maker = KIND(config, {"student": student, "teacher": teacher}, data)
    batch = {key: torch.from_numpy(x) for key, x in data.batch(1).items()}
    rows = Moment(seed=5, step=1, steps=2, rows=torch.arange(6))
    batch = maker.prepare(batch, rows)
    views = [*batch["global_views"].unbind(1), *batch["local_views"].unbind(1)]
    centre = start["objective/buffer/centre"]
    taught = [teacher.project(x).detach() for x in views[:2]]
    total = 0.0
    for i, target in enumerate(taught):
        for j, seen in enumerate(views):
            if i != j:
                log = (student.project(seen) / 0.1).log_softmax(-1)
                total = total - (((target - centre) / 0.04).softmax(-1) * log).sum(-1).mean()
    (total / 6).backward()
    for name, p in student.named_parameters():
        near = p.detach() - 0.5 * p.grad
        torch.testing.assert_close(end[ours + name], near, rtol=1e-4, atol=1e-6)
        mean = 0.9 * start[theirs + name] + 0.1 * near
        torch.testing.assert_close(end[theirs + name], mean, rtol=1e-4, atol=1e-6)
    mean = torch.stack(taught).mean((0, 1))
    torch.testing.assert_close(end["objective/buffer/centre"], 0.8 * centre + 0.2 * mean, rtol=1e-4, atol=1e-6)


def test_crops_depend_on_seed_step_and_row_alone():
    data = images()
    objective = KIND(KIND.Config(local_crops=2, local_size=8), players(), data).train()

    def views(rows, **words):
        batch = objective.prepare(pixels(data, rows), moment(rows, **words))
        return torch.cat([batch["global_views"].flatten(1), batch["local_views"].flatten(1)], dim=1)

    whole = views(range(6))
    assert torch.equal(whole[1::2], views(range(1, 6, 2)))  # the rows of one of two workers
    for other in (views(range(6), step=4), views(range(6), seed=2)):
        assert not torch.isclose(whole, other).all(1).any()
    # no two views of an image are alike
    first, second = objective.prepare(pixels(data, range(6)), moment(range(6)))["global_views"].unbind(1)
    assert (first - second).abs().amax((1, 2, 3)).min() > 0.1


def test_a_small_crop_shows_a_small_part():
    """In an image whose pixels are their own places, a crop's values tell what it has cut out."""
    side = 64
    place = torch.arange(side).float()
    grid = torch.stack([place.expand(side, side), place[:, None].expand(side, side)])[None].expand(500, -1, -1, -1)
    for least, most in ((0.25, 1.0), (0.05, 0.25)):
        part = random_part(grid, torch.rand(500, 4), least=least, most=most, size=(16, 16))
        assert part.shape == (500, 2, 16, 16)
        # from the first to the last middle of a pixel there are 15 of 16 widths
        wide, high = ((part[:, i].amax((1, 2)) - part[:, i].amin((1, 2))) * 16 / 15 / side for i in range(2))
        area = wide * high
        assert area.min() > least * 0.9
        assert area.max() < min(most * 1.1, 1.0 + 1e-3)
        assert area.quantile(0.5) == pytest.approx((least + most) / 2, rel=0.1)
        assert (wide / high).max() < 4 / 3 * 1.05


def test_colours_are_distorted_by_chance_and_stay_pixels():
    torch.manual_seed(0)
    x = 255 * torch.rand(1, 3, 12, 12).expand(4000, -1, -1, -1)
    out = distort(x, torch.rand(4000, DRAWS), blur=0.0, solar=0.2)
    assert out.min() >= 0
    assert out.max() <= 255
    grey = (out[:, 0] - out[:, 1]).abs().amax((1, 2)) < 1e-3
    assert grey.float().mean().item() == pytest.approx(0.2, abs=0.03)
    # neither jitter, grey nor solarisation: mirrored or not, the pixels are the same
    still = torch.isclose(out, x).flatten(1).all(1) | torch.isclose(out, x.flip(-1)).flatten(1).all(1)
    assert still.float().mean().item() == pytest.approx(0.2 * 0.8 * 0.8, abs=0.02)
    none = torch.ones(4000, DRAWS)
    torch.testing.assert_close(distort(x, none, blur=0.5, solar=0.2), x, rtol=1e-5, atol=1e-3)


def test_a_blur_is_the_gaussians_and_keeps_the_mean():
    x = torch.zeros(2, 1, 31, 31)
    x[:, :, 15, 15] = 1.0
    out = blurred(x, torch.tensor([0.8, 1.5]), most=1.6)
    at = torch.arange(31) - 15.0
    for i, deviation in enumerate((0.8, 1.5)):
        line = torch.where(at.abs() <= 5, (-(at**2) / (2 * deviation**2)).exp(), 0.0)
        line = line / line.sum()
        torch.testing.assert_close(out[i, 0], line[:, None] * line)
    flat = torch.full((1, 3, 5, 5), 9.0)
    torch.testing.assert_close(blurred(flat, torch.tensor([1.0]), most=1.0), flat)


def test_a_hue_turns_around_grey():
    x = 60 + 100 * torch.rand(3, 3, 4, 4)
    angle = torch.tensor([0.3, -0.6, 2 * math.pi])
    out = turn_hue(x, angle)
    luma = torch.tensor([0.299, 0.587, 0.114])[:, None, None]
    torch.testing.assert_close((luma * out[:1]).sum(1), (luma * x[:1]).sum(1), rtol=1e-3, atol=0.1)
    torch.testing.assert_close(out[2], x[2], rtol=1e-3, atol=0.1)  # a whole turn
    assert (out[0] - x[0]).abs().max() > 5
    grey = torch.rand(3, 1, 4, 4).expand(-1, 3, -1, -1) * 255
    torch.testing.assert_close(turn_hue(grey, angle), grey, rtol=1e-3, atol=0.2)
    assert torch.equal(turn_hue(x[:, :1], angle), x[:, :1])


def test_grey_images_are_cropped_too():
    data = images(channels=1)
    objective = KIND(KIND.Config(local_crops=1), players(channels=1), data).train()
    batch = objective.prepare(pixels(data, range(3)), moment(range(3)))
    # 3/7 of 16 pixels, in patches of 4
    assert batch["local_views"].shape == (3, 1, 1, 8, 8)
    assert objective.loss(batch).isfinite()


def test_outputs_of_a_projection_head_are_cosines():
    torch.manual_seed(0)
    head = ProjectionHead(6, 5).double()
    x = torch.randn(3, 6, dtype=torch.double)
    hidden = head.third(F.gelu(head.second(F.gelu(head.first(x)))))
    expected = F.cosine_similarity(hidden[:, None], head.last.weight[None], dim=-1)
    torch.testing.assert_close(head(x), expected, rtol=1e-6, atol=1e-6)
    with torch.no_grad():
        head.last.weight *= 100.0
    torch.testing.assert_close(head(x), expected, rtol=1e-6, atol=1e-6)


@pytest.mark.parametrize("precision", ["float32", "bfloat16"])
def test_the_last_layer_rests_in_the_first_steps(tmp_path, precision):
    last = {}
    for steps in (2, 3):
        out = tmp_path / str(steps)
        go(small(tmp_path), out, f"steps={steps}", "objective.frozen=2", f"precision={precision}")
        weight = ch.load(out).model.projection.last.weight
        last[steps] = F.normalize(weight.float(), dim=-1)
    start = build_of(tmp_path, precision)
    torch.testing.assert_close(last[2], start, rtol=1e-2, atol=1e-3)
    assert (last[3] - start).abs().max() > 1e-3


def build_of(tmp_path, precision):
    """The directions of the last layer before the first step: those of a teacher that never moves."""
    out = tmp_path / "still"
    go(small(tmp_path), out, "steps=1", "objective.momentum=1.0", f"precision={precision}")
    return F.normalize(ch.load(out).model.projection.last.weight.float(), dim=-1)


def small(tmp_path, **model):
    """A training that takes a second; the teacher follows the student at once."""
    folder = tmp_path / "data"
    data = {"name": "images", "path": str(folder), "size": 16, "rows": 5, "share": 0.25, "valid_rows": 3}
    if not folder.exists():
        pictures(folder)
    return {
        "steps": 6, "seed": 3, "data": {**data, "memory": True},
        "objective": {"name": "self-distillation", "momentum": 0.0, "local_crops": 2, "local_size": 8},
        "players": {"student": {"model": {key: x for key, x in (VIT | model).items() if key != "classes"}}},
        "optim": {"lr": 1e-2}, "run": {"log_every": 1, "valid_every": 3, "save_every": 2},
    }  # fmt: skip


def test_nearest_neighbours_and_a_linear_probe_are_measured_as_evaluate_does(tmp_path):
    rng = np.random.default_rng(0)
    for part, count in (("train", 12), ("val", 8)):
        for i, name in enumerate(("left", "right")):
            (tmp_path / "data" / part / name).mkdir(parents=True)
            for j in range(count):
                picture = rng.integers(0, 120, (16, 16, 3), dtype=np.uint8)
                picture[:, 8 * i : 8 * i + 8] += 60  # a brighter half, in noise
                Image.fromarray(picture).save(tmp_path / "data" / part / name / f"{j}.png")
    out = tmp_path / "run"
    go(small(tmp_path), out, "data.valid_rows=5")
    record = [line for line in metrics(out) if "valid_knn" in line][-1]
    bundle = ch.load(out)
    assert sorted(bundle.can) == ["embed", "project"]
    for name, by in (("valid_knn", "knn"), ("valid_linear", "linear")):
        score = evaluate(bundle, str(tmp_path / "data"), by=by)
        assert len(score.references) == 16
        assert record[name] == pytest.approx(score.accuracy, abs=1e-9), name


def test_without_a_table_in_memory_the_loss_alone_is_measured(tmp_path):
    go(small(tmp_path), tmp_path / "run", "data.memory=false", "steps=3")
    record = [line for line in metrics(tmp_path / "run") if "valid_loss" in line][-1]
    assert "valid_knn" not in record


@pytest.mark.parametrize(
    ("change", "words"),
    [
        (["objective.local_size=32"], r"local_size=32: the images have 16 pixels"),
        (["objective.global_size=24"], r"global_size=24: the images have 16 pixels"),
        (["objective.local_size=6"], r"local_size=6: expected a multiple of the student's patch, 4"),
        (["objective.global_least=0.01"], r"local_least=0\.05, global_least=0\.01: expected shares"),
        (["objective.local_crops=-1"], r"local_crops=-1"),
        (["players.student.model.projection=0"], r"must be able to project.*can embed: expected projection=4096"),
        (["players.student.model.classes=3"], r"classes = 3"),
    ],
)  # fmt: skip
def test_what_does_not_fit_is_said_before_the_first_step(tmp_path, change, words):
    with pytest.raises(UserError, match=words):
        go(small(tmp_path), tmp_path / "run", *change)
    assert not (tmp_path / "run" / "metrics.jsonl").exists()


def test_data_without_vectors_or_images_is_refused():
    data = make_data("copy", {"symbols": 5, "length": 3}, seed=0)
    with pytest.raises(InputError, match="reads x or images, and the data gives ids, targets"):
        KIND(KIND.Config(), players(), data)


@pytest.mark.slow
def test_a_killed_training_resumes_to_the_bit_and_two_workers_give_the_losses_of_one(tmp_path):
    table = small(tmp_path, skip=0.0)
    del table["data"]
    data = {"name": "images", "path": str(tmp_path / "data"), "size": 16, "rows": 6, "share": 0.25, "memory": True}
    verdict = verify_resume(
        table | {"data": data, "steps": 12}, out=tmp_path / "v", kills=2, world=2, device="cpu", quiet=True
    )
    assert verdict.passed, verdict
    assert verdict.workers == 2
