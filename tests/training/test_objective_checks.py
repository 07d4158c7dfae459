"""Mistakes in an objective of one's own are sentences that name the class, what was given and what is expected."""

import dataclasses
import re
from types import SimpleNamespace
from typing import Any, ClassVar

import pytest
import torch
from torch import nn

from clearhead import train
from clearhead.errors import UserError
from clearhead.training import objectives
from clearhead.training.objectives import (
    Measurement,
    Objective,
    Role,
    Scalar,
    Scheduled,
    Update,
    check_data,
    check_objective,
    checked_sizes,
    objective_class,
    register,
    weighted_sum,
)

pytestmark = pytest.mark.usefixtures("unchecked", "registry")


@dataclasses.dataclass(frozen=True, kw_only=True)
class Options:
    penalty: Scalar = 0.1  # weight of the size of the codes
    code: int = 2  # width of a code


class Autoencoder(Objective):
    """An encoder compresses vectors, and a decoder restores them."""

    Config: ClassVar[Any] = Options
    roles: ClassVar[Any] = {"encoder": Role(can="map"), "decoder": Role(can="map")}
    updates: ClassVar[Any] = (Update("encoder", "encoder_loss"), Update("decoder", "decoder_loss"))
    reads: ClassVar[Any] = ("x",)
    may_read: ClassVar[Any] = ("y",)
    measurements: ClassVar[Any] = {"error": Measurement("mean square/row")}
    result: ClassVar[Any] = "encoder"

    @classmethod
    def sizes(cls, config, data):
        width = data.sizes["width"]
        return {
            "encoder": {"inputs": width, "outputs": config.code}, "decoder": {"inputs": config.code, "outputs": width},
        }  # fmt: skip

    def error(self, batch):
        code = self.outputs("encoder", batch["x"])
        each = (self.outputs("decoder", code) - batch["x"]).square().mean(-1)
        return weighted_sum(each, batch), weighted_sum(code.square().mean(-1), batch)

    def encoder_loss(self, batch):
        error, size = self.error(batch)
        return {"restored": error, "size": self.scalar("penalty") * size}

    def decoder_loss(self, batch):
        return self.error(batch)[0]

    @torch.no_grad()
    def measure(self, batch):
        return {"error": self.error(batch)[0]}


def changed(**attributes):
    """An Autoencoder with other attributes."""
    return type("Changed", (Autoencoder,), attributes)


def go(kind, folder, *overrides):
    """Train an objective for two steps."""
    register("autoencoder", kind)
    model = {"model": {"name": "mlp", "hidden": 4, "depth": 1}}
    recipe = {
        "steps": 2, "data": {"name": "identity", "width": 3, "rows": 4, "valid_rows": 4, "valid_batches": 1},
        "objective": {"name": "autoencoder"}, "players": dict.fromkeys(trained(kind), model),
        "run": {"log_every": 1, "valid_every": 1},
    }  # fmt: skip
    return train(recipe, *overrides, out=folder, device="cpu", quiet=True)


def trained(kind):
    return [name for name, role in kind.roles.items() if role.average_of is None]


def refuses(message):
    return pytest.raises(UserError, match=re.escape(message))


def test_the_objective_that_the_mistakes_are_made_in_is_right(tmp_path):
    run = go(Autoencoder, tmp_path, "run.best=valid_error", "objective.penalty={start=0.5,final=0.1}")
    first = run.metrics[0]
    assert first["encoder_loss"] == pytest.approx(first["restored"] + first["size"])
    assert first["penalty"] == 0.5
    assert {"decoder_loss", "norm_encoder", "lr_decoder"} < first.keys()


# The class

TEACHER = {"encoder": Role(can="map"), "decoder": Role(can="map"), "teacher": Role(average_of="encoder")}
WRONG = {
    "unknown loss": (
        {"updates": (Update("encoder", "encoder_los"), Update("decoder", "decoder_loss"))},
        "Changed.updates: loss='encoder_los': expected a method of the class: decoder_loss, encoder_loss, error; the "
        "nearest are encoder_loss, decoder_loss",
    ),
    "loss of the base class": (
        {"updates": (Update("encoder", "measure"),)}, "Changed.updates: loss='measure': expected a method of the class",
    ),
    "unknown player in updates": (
        {"updates": (Update("encodr", "encoder_loss"),)},
        "Changed.updates: player='encodr': expected one of encoder, decoder; the nearest is encoder",
    ),
    "unknown result": (
        {"result": "decodr"}, "Changed.result='decodr': expected one of encoder, decoder; the nearest is decoder",
    ),
    "unknown average_of": (
        {"roles": {**TEACHER, "teacher": Role(average_of="encodr")}},
        "Changed.roles: teacher: average_of='encodr': expected one of encoder, decoder; the nearest is encoder",
    ),
    "average of an average": (
        {"roles": {**TEACHER, "other": Role(average_of="teacher")}},
        "Changed.roles: other: average_of='teacher': expected one of encoder, decoder",
    ),
    "update of an average": (
        {"roles": TEACHER, "updates": (Update("encoder", "encoder_loss"), Update("teacher", "decoder_loss"))},
        "Changed.updates: player='teacher': it is a moving average of the encoder, which has no gradients: expected "
        "one of encoder, decoder",
    ),
    "unknown capability": (
        {"roles": {"encoder": Role(can="mapp"), "decoder": Role(can="map")}},
        "Changed.roles: encoder: can='mapp': expected one of predict, generate, translate, caption, fill, classify, "
        "encode, embed, project, map; the nearest is map",
    ),
    "every": (
        {"updates": (Update("encoder", "encoder_loss", every=0),)},
        "Changed.updates: every=0: expected 1 step or more",
    ),
    "no updates": ({"updates": ()}, "Changed.updates is empty: expected a tuple of Update, like (Update("),
    "name of a player": (
        {"roles": {"keys": Role()}, "result": "keys"},
        "Changed.roles: 'keys' cannot name a player: expected another word",
    ),
    "text as a tuple": ({"reads": ("x")}, "Changed.reads = 'x': expected a tuple of batch keys, like (\"x\",)"),
    "text as a role": ({"roles": {"encoder": "map"}}, "Changed.roles = {'encoder': 'map'}: expected a dict of Role by"),
    "one update": ({"updates": Update("encoder", "error")}, "expected a tuple of Update, like (Update("),
    "text as a measurement": ({"measurements": {"error": "share"}}, "expected a dict of Measurement by name, like"),
    "options": ({"Config": dict}, "Changed.Config = <class 'dict'>: expected a dataclass of the options"),
    "measurements without measure": (
        {"measure": Objective.measure},
        "Changed declares measurements: expected a method measure(batch) that returns them",
    ),
    "equal losses": (
        {"updates": (Update("encoder", "error"), Update("decoder", "error"))},
        "Changed: the loss of the decoder is named 'error', and so is the loss of the encoder: expected different",
    ),
    "reserved name of a loss": (
        {"updates": (Update("encoder", "rate"),), "rate": Autoencoder.encoder_loss},
        "Changed: the loss of the encoder is named 'rate': expected another name, because the logs use step, seconds, "
        "rate, share, inside, samples and names that begin with norm, lr, valid_ for other numbers",
    ),
    "reserved name of an option": (
        {"Config": dataclasses.make_dataclass("Config", [("share", Scalar, 0.5)])},
        "Changed: an option of the type Scalar is named 'share': expected another name",
    ),
    "an option with the name of a loss": (
        {"Config": dataclasses.make_dataclass("Config", [("decoder_loss", Scalar, 0.5)])},
        "Changed: an option of the type Scalar is named 'decoder_loss', and so is the loss of the decoder",
    ),
}  # fmt: skip


@pytest.mark.parametrize("mistake", WRONG)
def test_a_mistake_in_a_class_is_refused_when_it_is_registered(mistake):
    attributes, message = WRONG[mistake]
    with refuses(message):
        register("wrong", changed(**attributes))
    assert "wrong" not in objectives.OBJECTIVES


@pytest.mark.parametrize("kind", [dict, nn.Linear, "autoencoder", None], ids=str)
def test_something_else_than_an_objective_cannot_be_registered(kind):
    with refuses("is not an objective: expected a subclass of clearhead.training.objectives.Objective"):
        register("wrong", kind)
    assert "wrong" not in objectives.OBJECTIVES


@pytest.mark.parametrize("name", objectives.OBJECTIVES)
def test_every_objective_of_the_library_passes_the_checks(name):
    check_objective(objective_class(name))


def test_a_mistake_in_a_class_that_is_not_registered_is_refused_when_it_is_chosen(monkeypatch):
    monkeypatch.setattr(objective_class("regression"), "result", "modl")
    data = SimpleNamespace(keys=("x", "y"), hint="")
    message = "Regression.result='modl': expected one of model; the nearest is model"
    with refuses(message):
        check_data("regression", data, {})
    with refuses(message):
        objectives.choose("mlp", {"map"}, data)


def test_an_objective_of_ones_own_can_be_replaced():
    register("autoencoder", Autoencoder, "first")
    other = changed()
    register("autoencoder", other, "second")
    assert objective_class("autoencoder") is other
    assert objectives.objectives()["autoencoder"] == "second"


def test_an_unknown_objective_may_be_registered_in_another_process():
    with refuses(
        "An objective of your own must be registered in this process, with clearhead.training.objectives.register"
    ):
        objective_class("autoencoder")


def test_a_measurement_is_better_lower_or_higher():
    with refuses("better='hihger': expected one of lower, higher; the nearest is higher"):
        Measurement("share", "hihger")


# Sizes


def sized(sizes):
    return changed(sizes=classmethod(lambda cls, config, data: sizes))


def test_misspelt_players_and_options_in_sizes_are_refused(tmp_path):
    data = SimpleNamespace(sizes={"width": 3, "modes": 8})
    right = {"encoder": {"inputs": 3, "modes": 8}}  # a size of the data is ignored by a model without this option
    assert checked_sizes(sized(right), Options(), data) == right
    with refuses("Changed.sizes: player='encodr': expected one of encoder, decoder; the nearest is encoder"):
        checked_sizes(sized({"encodr": {"inputs": 3}}), Options(), data)
    with refuses("Changed.sizes: encoder: no model has an option 'imputs'; the nearest is inputs"):
        checked_sizes(sized({"encoder": {"imputs": 3}}), Options(), data)
    wrong = sized({"encoder": {"inputs": 3, "outputs": 2}, "decoder": {"inputs": 2, "outputs": 3}, "encodr": {}})
    with refuses("Changed.sizes: player='encodr'"):
        go(wrong, tmp_path)


# Names and values that methods return


def returns(**methods):
    """An Autoencoder with methods that return what `change` makes of the results of the original ones."""

    def replaced(name, change):
        original = getattr(Autoencoder, name)
        return lambda self, batch: change(original(self, batch))

    return changed(**{name: replaced(name, change) for name, change in methods.items()})


RETURNED = {
    "a term with the name of its loss": (
        {"encoder_loss": lambda terms: {"error": terms["size"], "encoder_loss": terms["restored"]}},
        "Changed.encoder_loss returned a term named 'encoder_loss': expected another name, because that is the name of "
        "the sum of all terms",
    ),
    "a term with the name of another loss": (
        {"encoder_loss": lambda terms: {"decoder_loss": terms["restored"]}},
        "Changed: a term of encoder_loss is named 'decoder_loss', and so is the loss of the decoder",
    ),
    "a term with the name of another term": (
        {"decoder_loss": lambda loss: {"restored": loss}},
        "Changed: a term of decoder_loss is named 'restored', and so is a term of encoder_loss",
    ),
    "a term with the name of an option": (
        {"encoder_loss": lambda terms: {"penalty": terms["size"]}},
        "Changed: a term of encoder_loss is named 'penalty', and so is an option of the type Scalar",
    ),
    **{
        f"a term named {name}": (
            {"encoder_loss": lambda terms, name=name: {name: terms["size"]}},
            f"Changed: a term of encoder_loss is named {name!r}: expected another name",
        )
        for name in ("step", "seconds", "rate", "share", "inside", "norm", "norm_all", "lr", "lr_new", "valid_a")
    },
    "no terms": ({"encoder_loss": lambda terms: {}}, "Changed.encoder_loss returned an empty dict"),
    "a vector": (
        {"decoder_loss": lambda loss: loss.expand(4)},
        "Changed.decoder_loss returned a tensor of shape (4,): expected a tensor without dimensions, the sum over "
        "rows, like weighted_sum(each, batch)",
    ),
    "a vector as a term": (
        {"encoder_loss": lambda terms: {"restored": terms["restored"].expand(4)}},
        "Changed.encoder_loss returned a tensor of shape (4,) as the term 'restored': expected a tensor without",
    ),
    "a float": (
        {"decoder_loss": lambda loss: float(loss.detach())},
        "Changed.decoder_loss returned a float: expected a tensor without dimensions",
    ),
    "nothing": ({"decoder_loss": lambda loss: None}, "Changed.decoder_loss returned a NoneType: expected a tensor"),
    "a constant": (
        {"decoder_loss": torch.Tensor.detach},
        "Changed.decoder_loss does not depend on the weights of the decoder: expected a loss that is computed from "
        "self.outputs('decoder', ...) with gradients",
    ),
    "a float as a measurement": (
        {"measure": lambda sums: {"error": float(sums["error"])}},
        "Changed.measure returned a float as 'error': expected a tensor without dimensions, the sum over rows",
    ),
    "a vector as a measurement": (
        {"measure": lambda sums: {"error": sums["error"].expand(4)}},
        "Changed.measure returned a tensor of shape (4,) as 'error': expected a tensor without dimensions",
    ),
    "a tensor for measurements": (
        {"measure": lambda sums: sums["error"]},
        "Changed.measure returned a tensor of shape (): expected a dict of sums",
    ),
    "an undeclared measurement": (
        {"measure": lambda sums: {**sums, "eror": sums["error"]}},
        "Changed.measure returned 'eror', which measurements does not declare: expected error; the nearest is error",
    ),
    "a missing measurement": (
        {"measure": lambda sums: {}}, "Changed.measure did not return error: expected all that measurements declares",
    ),
}  # fmt: skip


@pytest.mark.parametrize("mistake", RETURNED)
def test_a_method_that_returns_something_wrong_is_refused_in_the_first_step_or_validation(mistake, tmp_path):
    methods, message = RETURNED[mistake]
    with refuses(message):
        go(returns(**methods), tmp_path, "run.best=valid_error")


SUMMARISED = {
    "undeclared": (
        lambda self, means: {**means, "bits": 1.0},
        "Changed.summarise returned 'bits', which measurements does not declare: expected error",
    ),
    "missing": (lambda self, means: {}, "Changed.summarise did not return error"),
    "tensor": (
        lambda self, means: {"error": torch.tensor(1.0)},
        "Changed.summarise returned a tensor of shape () as 'error': expected a number",
    ),
    "nothing": (lambda self, means: None, "Changed.summarise returned a NoneType: expected a dict of numbers by name"),
}


@pytest.mark.parametrize("mistake", SUMMARISED)
def test_what_summarise_returns_is_checked(mistake, tmp_path):
    method, message = SUMMARISED[mistake]
    with refuses(message):
        go(changed(summarise=method), tmp_path)


def test_measure_may_return_sums_that_summarise_turns_into_the_declared_measurements(tmp_path):
    kind = changed(
        measure=lambda self, batch: {"half": self.error(batch)[0] / 2},
        summarise=lambda self, means: {"error": 2 * means["half"]},
    )
    assert (
        go(kind, tmp_path / "a").metrics[-1]["valid_error"]
        == go(Autoencoder, tmp_path / "b").metrics[-1]["valid_error"]
    )


def test_validation_data_needs_a_method_that_measures(tmp_path):
    kind = changed(measurements={}, measure=Objective.measure)
    with refuses("Changed has no method measure, and the data has validation rows: expected measure(batch)"):
        go(kind, tmp_path)
    assert not tmp_path.joinpath("recipe.toml").exists()
    assert go(kind, tmp_path, "data.valid_batches=0").finished


@pytest.mark.parametrize(
    ("override", "words"), [("run.best=valid_loss", "best = 'valid_loss'"), ("run.patience=2", "patience = 2")]
)
def test_the_best_checkpoint_needs_measurements(override, words, tmp_path):
    with refuses(f"run.{words}: this objective declares no measurements: leave it out, or declare"):
        go(changed(measurements={}, measure=lambda self, batch: {}), tmp_path, override)


# Methods that objectives call


@pytest.fixture
def objective():
    networks = {"encoder": nn.Linear(3, 2), "decoder": nn.Linear(2, 3)}
    return Autoencoder(Options(penalty=Scheduled(start=0.5, final=0.1)), networks, SimpleNamespace(sizes={"width": 3}))


def test_an_unknown_option_names_those_that_can_be_scheduled(objective):
    assert objective.scalar("penalty") == 0.5
    with refuses(
        "Autoencoder.scalar('penlty'): expected an option of Options with the type Scalar: penalty; the nearest is"
    ):
        objective.scalar("penlty")
    with refuses("Autoencoder.scalar('code'): expected an option of Options with the type Scalar: penalty"):
        objective.scalar("code")


def test_an_unknown_player_names_those_that_exist(objective):
    message = "Autoencoder has no player 'enc': expected one of encoder, decoder; the nearest is"
    with refuses(message):
        objective.outputs("enc", torch.zeros(1, 3))
    with refuses(message):
        objective.player("enc")


@pytest.mark.parametrize("hint", [Scalar, "Scalar", "objectives.Scalar", "float | Scheduled"], ids=str)
def test_an_option_can_be_scheduled_however_its_type_is_written(hint):
    kind = dataclasses.make_dataclass("Config", [("weight", hint, 1.0)])
    kind.__module__ = __name__
    networks = {"encoder": nn.Linear(3, 2), "decoder": nn.Linear(2, 3)}
    assert changed(Config=kind)(kind(weight=0.25), networks, SimpleNamespace(sizes={})).scalar("weight") == 0.25


# Data


def giving(*keys):
    return SimpleNamespace(keys=keys)


def test_a_message_about_data_says_what_to_change():
    register("autoencoder", changed(reads=("x", "more.x"), may_read=()))
    more = {"more": giving("x")}
    check_data("autoencoder", giving("x"), more)
    gives = "objective autoencoder reads x, more.x, and the data gives"
    with refuses(f"{gives} x: expected [feeds.more] in the recipe"):
        check_data("autoencoder", giving("x"), {})
    with refuses(f"{gives} y, more.x: expected data that gives x; it does not use all of this data: add to "
                 "Changed.may_read what may be ignored of y"):  # fmt: skip
        check_data("autoencoder", giving("y"), more)
    with refuses(f"{gives} x, more.y: expected data that gives more.x; it does not use all of this data: add to "
                 "Changed.may_read what may be ignored of more.y"):  # fmt: skip
        check_data("autoencoder", giving("x"), {"more": giving("y")})
    with refuses(f"{gives} x, more.x, other.x, other.y: it does not read [feeds.other]: leave it out"):
        check_data("autoencoder", giving("x"), {**more, "other": giving("x", "y")})
    with refuses("gan reads x (and labels), and the data gives x, y: it does not use all of this data: expected data "
                 "without y"):  # fmt: skip
        check_data("gan", giving("x", "y"), {})
