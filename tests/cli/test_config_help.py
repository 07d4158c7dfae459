"""Every option of data sets, models, objectives and recipes is listed with its default and its meaning."""

import json
import re
from dataclasses import dataclass, field
from typing import Literal

import pytest

from clearhead.cli.config_help import ConfigField, config_fields
from clearhead.data import data_config, names
from clearhead.models import families, family
from clearhead.training.augmentation import AUGMENTATIONS
from clearhead.training.objectives import objective_class, objectives
from clearhead.training.optim.optimisers import OptimConfig
from clearhead.training.optim.schedule import ScheduleConfig
from clearhead.training.recipe import PlayerConfig, Pretrained, RunConfig
from support.command_line import call

KINDS = [
    *map(data_config, names()), *(family(name)[1] for name in families()),
    *(objective_class(name).Config for name in objectives()), *(one.Config for one in AUGMENTATIONS.values()),
    OptimConfig, ScheduleConfig, RunConfig, PlayerConfig, Pretrained,
]  # fmt: skip


@dataclass(frozen=True, kw_only=True)
class Inner:
    width: int = 3  # of the inside


@dataclass(frozen=True, kw_only=True)
class Base:
    needed: int  # no default
    shape: Literal["flat", "round"] | None = None  # of the outside


@dataclass(frozen=True, kw_only=True)
class Example(Base):
    inner: Inner = field(default_factory=Inner)
    rates: tuple[float, ...] = (0.5,)  # one per layer


def test_fields_have_defaults_choices_and_meanings():
    assert config_fields(Example) == [
        ConfigField(name="needed", required=True, default=None, choices=(), meaning="no default"),
        ConfigField(name="shape", required=False, default=None, choices=("flat", "round"), meaning="of the outside"),
        ConfigField(name="inner", required=False, default={"width": 3}, choices=(), meaning=""),
        ConfigField(name="rates", required=False, default=(0.5,), choices=(), meaning="one per layer"),
    ]
    assert [one.row() for one in config_fields(Example)] == [
        ("needed", "needed", "no default"),
        ("shape", "", "of the outside (flat round)"),
        ("inner", "{...}", ""),
        ("rates", "[0.5]", "one per layer"),
    ]


@pytest.mark.parametrize("kind", dict.fromkeys(KINDS), ids=lambda kind: kind.__module__)
def test_every_field_has_a_meaning_beside_it(kind):
    for one in config_fields(kind):
        assert re.search(r"[a-z]", one.meaning), one.name
        assert json.dumps(one.to_dict())


def test_a_family_is_listed_with_its_options():
    options = json.loads(call("models", "gpt", "--json").stdout)
    assert "default" not in options["vocab"]
    assert options["heads"]["default"] == 12
    assert options["heads"].keys() == {"default", "meaning"}
    assert (options["positions"]["default"], options["positions"]["choices"][:2]) == ("learned", ["none", "sinusoid"])
    assert re.search(r"^vocab +needed +\w", call("models", "gpt").stdout, re.MULTILINE)


def test_a_shipped_model_is_described_by_its_card():
    found = call("models", "everyday").stdout
    assert re.search(r"^does +\w", found, re.MULTILINE)
    assert re.search(r"^scores +[\d.]+ +everyday valid perplexity *$", found, re.MULTILINE)
    assert json.loads(call("models", "everyday", "--json").stdout)["scores"]["everyday valid perplexity"] > 1


def test_inherited_options_are_listed():
    found = call("data", "recall").stdout
    assert re.search(r"^symbols +10 +\w", found, re.MULTILINE)  # of the base class
    assert re.search(r"^age +\w", found, re.MULTILINE)


@pytest.mark.parametrize(
    ("words", "near"),
    [
        (("models", "gtp"), "gpt"),
        (("data", "revers"), "reverse"),
        (("recipe", "optimm"), "optim"),
        (("recipe", "objective", "next-tokn"), "next-token"),
        (("recipe", "augment", "flipp"), "flip"),
    ],
)
def test_an_unknown_name_names_the_nearest(words, near):
    found = call(*words)
    assert found.exit_code == 1
    (sentence,) = found.stderr.splitlines()
    assert repr(words[-1]) in sentence
    assert re.search(rf"nearest (is|are) .*\b{near}\b", sentence)


# The keys of recipes


def test_recipe_lists_its_keys_and_refers_to_its_sections():
    found = call("recipe").stdout
    assert re.search(r"^steps +needed +\w", found, re.MULTILINE)
    assert re.search(r"^seed +0 +\w", found, re.MULTILINE)
    assert re.search(r"^optim +\{\.\.\.\} .*see clearhead recipe optim *$", found, re.MULTILINE)
    assert json.loads(call("recipe", "--json").stdout)["optim"]["default"]["lr"] > 0


@pytest.mark.parametrize("section", ["optim", "schedule", "run", "players", "pretrained"])
def test_every_section_of_a_recipe_is_listed(section):
    assert json.loads(call("recipe", section, "--json").stdout)
    assert all(" " in line.strip() for line in call("recipe", section).stdout.splitlines())


def test_objectives_and_augmentations_are_listed_and_have_options():
    assert json.loads(call("recipe", "objective", "--json").stdout) == objectives()
    assert set(json.loads(call("recipe", "augment", "--json").stdout)) == set(AUGMENTATIONS)
    assert "temperature" in json.loads(call("recipe", "objective", "self-distillation", "--json").stdout)
    for name in AUGMENTATIONS:
        assert call("recipe", "augment", name, "--json").exit_code == 0


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (("data",), "see clearhead data NAME"),
        (("model",), "see clearhead models NAME"),
        (("optim", "adamw"), "the section optim has no 'adamw'"),
    ],
)
def test_recipe_says_where_other_keys_are_listed(words, message):
    found = call("recipe", *words)
    assert (found.exit_code, found.stdout) == (1, "")
    assert message in found.stderr
