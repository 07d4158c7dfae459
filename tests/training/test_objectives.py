"""The losses of every objective equal torch's, and models and data that do not fit are refused."""

from types import SimpleNamespace

import numpy as np
import pytest
import torch
import torch.nn.functional as F
from torch import nn
from trainings import Config, Normed, Pixels

from clearhead import build, config
from clearhead.data import make_data
from clearhead.training.distributed import narrow
from clearhead.training.objectives import (
    OBJECTIVES,
    Moment,
    Objective,
    check_data,
    check_players,
    choose,
    objective_class,
    objectives,
    register,
)
from clearhead.training.optim.schedule import Scheduled

pytestmark = pytest.mark.usefixtures("own_models")


def make(name, model, data=None, **options):
    """An objective of one model."""
    kind = objective_class(name)
    return kind(config.read(kind.Config, options), {"model": model}, data or SimpleNamespace(sizes={}))


def gpt(**options):
    torch.manual_seed(0)
    return build("gpt", **{"vocab": 6, "context": 9, "width": 12, "depth": 1, "heads": 3, **options})


def reversed_rows(part=0, parts=1):
    data = make_data("reverse", {"symbols": 5, "length": (1, 4), "rows": 5}, seed=1)
    return data.batch(0, part, parts)


def tensors(arrays):
    return {name: torch.from_numpy(x) for name, x in arrays.items()}


def assert_same_gradients(model, loss, expected):
    torch.testing.assert_close(loss, expected)
    mine = torch.autograd.grad(loss, list(model.parameters()))
    torch.testing.assert_close(mine, torch.autograd.grad(expected, list(model.parameters())))


@pytest.mark.parametrize("smoothing", [0.0, 0.3])
def test_next_token_is_the_cross_entropy_of_the_targets_that_count(smoothing):
    model, batch = gpt(), tensors(reversed_rows())
    expected = F.cross_entropy(
        model(batch["ids"]).flatten(0, 1), batch["targets"].flatten(), reduction="sum", label_smoothing=smoothing
    )
    assert_same_gradients(model, make("next-token", model, smoothing=smoothing).loss(batch), expected)


def test_measuring_ignores_smoothing_and_counts_right_answers():
    model, batch = gpt(), tensors(reversed_rows())
    measured = make("next-token", model, smoothing=0.3).measure(batch)
    logits = model(batch["ids"])
    plain = F.cross_entropy(logits.flatten(0, 1), batch["targets"].flatten(), reduction="sum")
    torch.testing.assert_close(measured["loss"], plain.detach())
    assert measured["accuracy"] == (logits.argmax(-1) == batch["targets"]).sum()
    assert not measured["loss"].requires_grad


@pytest.mark.parametrize("parts", [2, 3, 5, 7])
def test_the_losses_of_a_batch_in_parts_sum_to_that_of_the_whole(parts):
    objective, whole = make("next-token", gpt(), smoothing=0.1), reversed_rows()
    pieces = [reversed_rows(part, parts) for part in range(parts)]
    assert sum(map(objective.count, pieces)) == objective.count(whole)
    torch.testing.assert_close(
        sum(objective.loss(tensors(piece)) for piece in pieces), objective.loss(tensors(whole))
    )  # fmt: skip
    for name, x in objective.measure(tensors(whole)).items():
        torch.testing.assert_close(sum(objective.measure(tensors(piece))[name] for piece in pieces), x)


def test_packed_documents_have_the_loss_that_they_have_alone():
    torch.manual_seed(0)
    objective = make("next-token", gpt(depth=2, positions="rotary"))
    ids, targets = torch.randint(6, (1, 7)), torch.randint(6, (1, 7))
    documents = torch.tensor([[0, 0, 0, 1, 1, 1, 1]])
    at = torch.tensor([[0, 1, 2, 0, 1, 2, 3]])
    packed = objective.loss({"ids": ids, "targets": targets, "documents": documents, "at": at})
    alone = sum(objective.loss({"ids": ids[:, cut], "targets": targets[:, cut]}) for cut in (slice(0, 3), slice(3, 7)))
    torch.testing.assert_close(packed, alone)


@pytest.mark.parametrize("readout_bias", [False, True])
def test_translation_is_the_cross_entropy_of_the_target(readout_bias):
    torch.manual_seed(0)
    model = build(
        "transformer", vocab=7, target_vocab=9, width=6, depth=1, heads=2, dropout=0.0, readout_bias=readout_bias
    )
    for weight in model.parameters():  # a bias of 0 would test nothing
        nn.init.normal_(weight, std=0.3)
    batch = {
        "source": torch.tensor([[4, 5, 2], [6, 2, 0]]),
        "lengths": torch.tensor([3, 2]),
        "ids": torch.tensor([[1, 8, 4, 0], [1, 5, 7, 6]]),
        "targets": torch.tensor([[8, 4, 2, -100], [5, 7, 6, 2]]),
    }
    objective = make("translation", model, smoothing=0.1)
    logits = model(batch["ids"], source=batch["source"], lengths=batch["lengths"])
    expected = F.cross_entropy(logits.flatten(0, 1), batch["targets"].flatten(), reduction="sum", label_smoothing=0.1)
    assert_same_gradients(model, objective.loss(batch), expected)
    assert objective.measure(batch)["accuracy"] == (logits.argmax(-1) == batch["targets"]).sum()


def test_regression_is_the_mean_square_per_row():
    torch.manual_seed(0)
    model = nn.Linear(4, 4)
    x, y = torch.randn(2, 5, 4).unbind()
    each = F.mse_loss(model(x), y, reduction="none").mean(-1)
    objective, weight = make("regression", model), torch.tensor([1.0, 1, 0, 1, 0])
    torch.testing.assert_close(objective.loss({"x": x, "y": y}), each.sum())
    batch = {"x": x, "y": y, "weight": weight}
    torch.testing.assert_close(objective.loss(batch), (each * weight).sum())
    torch.testing.assert_close(objective.measure(batch)["loss"], (each * weight).sum().detach())


@pytest.mark.parametrize("smoothing", [0.0, 0.2])
def test_classification_of_images_is_the_cross_entropy_per_row(smoothing):
    torch.manual_seed(0)
    model = Pixels(Config(classes=3)).eval()
    images, labels, weight = torch.randn(5, 3, 6, 7), torch.randint(3, (5,)), torch.tensor([1.0, 1, 1, 1, 0])
    objective = make("classification", model, smoothing=smoothing)
    each = F.cross_entropy(model(images), labels, reduction="none", label_smoothing=smoothing)
    batch = {"images": images, "labels": labels}
    torch.testing.assert_close(objective.loss(batch), each.sum())
    torch.testing.assert_close(objective.loss({**batch, "weight": weight}), each[:4].sum())
    hits = model(images).argmax(-1) == labels
    assert objective.measure(batch)["accuracy"] == hits.sum()
    assert objective.measure({**batch, "weight": weight})["accuracy"] == hits[:4].sum()


def players(**options):
    torch.manual_seed(0)
    generator = build("mlp", inputs=3, outputs=2, hidden=8, depth=1)
    discriminator = build("mlp", inputs=2, outputs=1, hidden=8, depth=1)
    kind = objective_class("gan")
    data = make_data("gaussians", {"rows": 6, "valid_rows": 6}, seed=0)
    return kind(kind.Config(latent=3, **options), {"generator": generator, "discriminator": discriminator}, data)


@pytest.mark.parametrize("loss", ["logistic", "hinge"])
def test_gan_losses_are_those_of_the_papers(loss):
    objective = players(loss=loss)
    generator, discriminator = (objective.player(name) for name in ("generator", "discriminator"))
    batch = {"x": torch.randn(6, 2), "noise": torch.randn(6, 3)}
    real, fake = discriminator(batch["x"])[:, 0], discriminator(generator(batch["noise"]))[:, 0]
    if loss == "hinge":  # Zhang et al. 2019, Eq. 4
        expected = -torch.clamp(-1 + real, max=0).sum() - torch.clamp(-1 - fake, max=0).sum(), -fake.sum()
    else:  # Goodfellow et al. 2014, algorithm 1, with -log D(G(z)) for the generator
        expected = -(real.sigmoid().log() + (1 - fake.sigmoid()).log()).sum(), -fake.sigmoid().log().sum()
    torch.testing.assert_close(objective.discriminator_loss(batch), expected[0])
    torch.testing.assert_close(objective.generator_loss(batch), expected[1])
    objective.discriminator_loss(batch).backward()
    assert all(
        p.grad is None for p in generator.parameters()
    )  # the discriminator's loss has no gradient for the generator


def test_instance_noise_blurs_real_and_generated_rows_by_its_scheduled_deviation():
    objective = players(blur=Scheduled(start=0.5, final=0.1, shape="linear"))
    generator, discriminator = (objective.player(name) for name in ("generator", "discriminator"))
    moment = Moment(seed=1, step=2, steps=5, rows=torch.arange(6))
    objective.set_scalars(moment.step, moment.steps)
    batch = objective.prepare({"x": torch.randn(6, 2)}, moment)
    assert (batch["blur_real"] - batch["blur_fake"]).abs().min() > 0
    real = discriminator(batch["x"] + 0.3 * batch["blur_real"])[:, 0]
    fake = discriminator(generator(batch["noise"]) + 0.3 * batch["blur_fake"])[:, 0]
    torch.testing.assert_close(objective.discriminator_loss(batch), (F.softplus(-real) + F.softplus(fake)).sum())
    torch.testing.assert_close(objective.generator_loss(batch), F.softplus(-fake).sum())
    assert "blur_real" not in players().prepare({"x": torch.randn(6, 2)}, moment)
    with pytest.raises(ValueError, match=r"blur=-1\.0: expected standard deviations of 0 or more"):
        players(blur=-1.0)


def test_a_bfloat16_model_gets_bfloat16_inputs_and_a_float32_loss():
    torch.manual_seed(0)
    for model, name, batch in (
        (Normed(Config()), "regression", {"x": torch.randn(5, 4), "y": torch.randn(5, 4)}),
        (gpt(), "next-token", tensors(reversed_rows())),
    ):
        wide = make(name, model).loss(batch)
        narrow(model)
        close = make(name, model).loss(batch)
        assert close.dtype == torch.float32
        torch.testing.assert_close(close, wide, rtol=0.05, atol=0.05)
        close.backward()
        dtypes = {p.dtype for n, p in model.named_parameters() if not n.startswith("norm") or name == "next-token"}
        assert dtypes == {torch.bfloat16}
        assert {b.dtype for b in model.buffers()} <= {torch.float32, torch.int64}


def test_losses_are_divided_by_counted_tokens_or_rows():
    tokens, rows = make("next-token", gpt()), make("regression", nn.Linear(2, 2))
    assert tokens.count({"ids": np.zeros((2, 3)), "targets": np.array([[1, -100, 2], [-100, -100, 0]])}) == 3
    assert rows.count({"x": np.zeros((4, 2)), "y": np.zeros((4, 2))}) == 4
    assert rows.count({"x": np.zeros((4, 2)), "weight": np.array([1.0, 1, 1, 0])}) == 3


# Which objective fits


TRANSLATION = ("ids", "targets", "source", "lengths")


def giving(*keys, hint=""):
    return SimpleNamespace(keys=keys, hint=hint)


@pytest.mark.parametrize(
    ("can", "keys", "name"),
    [
        ({"predict", "generate"}, ("ids", "targets"), "next-token"),
        ({"predict"}, ("ids", "targets", "documents", "at"), "next-token"),
        ({"translate"}, TRANSLATION, "translation"),
        ({"fill", "encode"}, ("ids", "targets", "lengths"), "masked-tokens"),
        ({"classify"}, ("ids", "lengths", "labels"), "classification"),
        ({"classify"}, ("images", "labels"), "classification"),
        ({"map"}, ("x", "y"), "regression"),
    ],
)  # fmt: skip
def test_the_objective_follows_from_the_model_and_the_data(can, keys, name):
    assert choose("model", can, giving(*keys)) == name


@pytest.mark.parametrize(
    ("can", "keys", "message"),
    [
        ({"predict"}, TRANSLATION, "next-token reads ids, targets"),  # the source would be ignored
        ({"predict"}, ("images", "labels"), "next-token reads ids, targets"),
        ({"translate"}, ("ids", "targets"), "translation reads ids, targets, source, lengths"),
        ({"fill"}, ("ids", "lengths", "labels"), "masked-tokens reads ids, targets, lengths"),
        ({"embed"}, ("ids", "targets"), "it fits no objective"),
        ({"map"}, ("ids", "targets"), "regression reads x, y"),
    ],
)
def test_a_model_and_data_that_do_not_fit_are_refused(can, keys, message):
    with pytest.raises(ValueError, match=f"a gpt cannot learn from data that gives {', '.join(keys)}: {message}"):
        choose("gpt", can, giving(*keys))


def test_the_hint_of_the_data_is_part_of_the_refusal():
    with pytest.raises(ValueError, match=r"fit together. Try join=false"):
        choose("transformer", {"translate"}, giving("ids", "targets", hint="Try join=false"))


def test_a_named_objective_checks_its_players_and_keys():
    check_players("gan", {"generator": {"map"}, "discriminator": {"map"}})
    with pytest.raises(ValueError, match="the discriminator must be able to map, and can classify"):
        check_players("gan", {"generator": {"map"}, "discriminator": {"classify"}})
    check_data("gan", giving("x", "labels"), {})
    with pytest.raises(ValueError, match=r"gan reads x .and labels., and the data gives x, y"):
        check_data("gan", giving("x", "y"), {})
    with pytest.raises(ValueError, match=r"the data gives x, more.x"):
        check_data("gan", giving("x"), {"more": giving("x")})


def test_an_objective_can_be_registered_but_not_over_a_shipped_one():
    with pytest.raises(ValueError, match="clearhead already has an objective 'gan': expected another name"):
        register("gan", Objective)
    assert objective_class("gan") is not Objective


def test_every_objective_is_listed_and_an_unknown_one_names_the_nearest():
    assert set(objectives()) == set(OBJECTIVES)
    with pytest.raises(ValueError, match=r"no objective 'next-tokens'.*the nearest is next-token|are next-token"):
        objective_class("next-tokens")
