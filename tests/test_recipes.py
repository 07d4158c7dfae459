"""Every recipe reads without a mistake and says what it costs and gives; what is tiny is trained here, and does."""

from __future__ import annotations

import os
import re
from pathlib import Path

import pytest

from clearhead.data import make_data
from clearhead.training import read_recipe, train
from clearhead.training.setup import resolve

CONFIGS = Path(__file__).parents[1] / "configs"
RECIPES = sorted(CONFIGS.glob("*.toml"))
QUICK, BEARABLE = 0.2, 4.0  # minutes up to which a recipe is trained in the tests, and in the slow ones
VARIANTS = {"identity-dense", "identity-plain", "identity-residual"}  # of identity-residual-norm
GENERATED = {"copy", "gaussians", "identity", "most", "recall", "reverse", "scenes"}
HEAD = re.compile(
    r"# command: clearhead (?:train|sweep) configs/(?P<file>[\w-]+\.toml)(?: .+)?\n"
    r"# machine: (?P<machine>.+)\n"
    r"# minutes: (?P<minutes>\d+(?:\.\d+)?)\n"
    r"# expected: (?P<metric>valid_\w+) (?P<sign><=|>=) (?P<number>\d+(?:\.\d+)?(?:e-\d+)?)\n"
)


def head(path: Path) -> re.Match[str]:
    found = HEAD.match(path.read_text(encoding="utf-8"))
    assert found, f"{path.name} must open with command, machine, minutes and expected"
    return found


def trained(least: float, most: float) -> list[Path]:
    """Recipes for CPUs whose minutes lie in a range."""
    return [p for p in RECIPES if "CPU" in head(p)["machine"] and least < float(head(p)["minutes"]) <= most]


def reach(path: Path, out: Path) -> None:
    words = head(path)
    run = train(path, out=out, quiet=True)
    found = run.metrics[-1][words["metric"]]
    assert found <= float(words["number"]) if words["sign"] == "<=" else found >= float(words["number"])


@pytest.mark.parametrize("path", RECIPES, ids=lambda path: path.stem)
def test_a_recipe_reads_and_says_what_it_costs_and_gives(path):
    words = head(path)
    assert words["file"] == path.name
    read_recipe(path)


@pytest.mark.parametrize(
    "path", [p for p in RECIPES if read_recipe(p).data["name"] in GENERATED], ids=lambda path: path.stem
)
def test_the_model_of_a_recipe_fits_its_generated_data(path):
    recipe = read_recipe(path)
    options = {name: value for name, value in recipe.data.items() if name != "name"}
    resolve(recipe, make_data(recipe.data["name"], options, seed=recipe.seed), {})


@pytest.mark.parametrize(
    "path",
    [pytest.param(path, marks=pytest.mark.slow) if path.stem in VARIANTS else path for path in trained(0, QUICK)],
    ids=lambda path: path.stem,
)
def test_a_quick_recipe_reaches_its_number(path, tmp_path):
    reach(path, tmp_path / "run")


def test_a_few_steps_of_the_small_cifar10_recipe_learn(tmp_path):
    """About a fortieth of the recipe, validated on a thousand training images: 0.1 is chance, and it reaches 0.26."""
    if not os.environ.get("CLEARHEAD_DATA"):
        pytest.skip("needs CLEARHEAD_DATA")
    short = ("steps=40", "schedule.warmup=8", "data.rows=64", "data.held_out=1000")
    run = train(CONFIGS / "cifar10-resnet-cpu.toml", *short, out=tmp_path / "run", device="cpu", quiet=True)
    assert run.metrics[-1]["valid_accuracy"] > 0.2


@pytest.mark.slow
@pytest.mark.parametrize("path", trained(QUICK, BEARABLE), ids=lambda path: path.stem)
def test_a_longer_recipe_reaches_its_number(path, tmp_path):
    if read_recipe(path).data["name"] in ("cifar10", "shakespeare", "sst2") and not os.environ.get("CLEARHEAD_DATA"):
        pytest.skip("needs CLEARHEAD_DATA")
    reach(path, tmp_path / "run")
