"""The benchmarks import, and what they use of clearhead exists with the arguments that they give. None is run."""

from __future__ import annotations

import ast
import importlib
import importlib.util
import inspect
import json
import sys
from collections.abc import Iterator
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest
import torch

from clearhead.data import make_data
from clearhead.look import read_sentences
from clearhead.training import train

BENCHMARKS = Path(__file__).parents[1] / "benchmarks"
SCRIPTS = sorted(BENCHMARKS.glob("*.py"))


@pytest.fixture
def load(monkeypatch):
    """Import a script as Python would when it runs it: beside the other scripts, but without its main."""
    before = dict(sys.modules)

    def load(path: Path) -> ModuleType:
        monkeypatch.syspath_prepend(str(path.parent))
        spec = importlib.util.spec_from_file_location(f"benchmark_{path.stem}", path)
        module = importlib.util.module_from_spec(spec)
        spec.loader.exec_module(module)
        return module

    yield load
    for name, module in list(sys.modules.items()):  # a script may have imported another one
        if name not in before and str(getattr(module, "__file__", None) or "").startswith(str(BENCHMARKS)):
            del sys.modules[name]


def is_ours(name: str) -> bool:
    return name.split(".")[0] == "clearhead"


def imported(tree: ast.AST) -> Iterator[tuple[str, Any]]:
    """Each name that a script binds by importing from clearhead, with the object; an exception if there is none."""
    for node in ast.walk(tree):
        if isinstance(node, ast.Import):
            for alias in node.names:
                if is_ours(alias.name):
                    module = importlib.import_module(alias.name)
                    yield (
                        (alias.asname, module) if alias.asname else ("clearhead", importlib.import_module("clearhead"))
                    )
        elif isinstance(node, ast.ImportFrom) and node.module and is_ours(node.module):
            for alias in node.names:
                yield alias.asname or alias.name, member(node.module, alias.name)


def member(module: str, name: str) -> Any:
    try:
        return getattr(importlib.import_module(module), name)
    except AttributeError:
        return importlib.import_module(f"{module}.{name}")


def resolve(node: ast.expr, names: dict[str, Any]) -> Any:
    """The clearhead object that an expression names, as far as modules and classes tell; None for any other."""
    if isinstance(node, ast.Name):
        return names.get(node.id)
    if isinstance(node, ast.Attribute):
        owner = resolve(node.value, names)
        return getattr(owner, node.attr) if isinstance(owner, ModuleType | type) else None
    return None


def problems(source: str) -> list[str]:
    """What a script imports or reads that does not exist, and calls whose arguments do not fit."""
    found, tree = [], ast.parse(source)
    try:
        names = dict(imported(tree))
    except ImportError as error:
        return [str(error)]
    for node in ast.walk(tree):
        try:
            if isinstance(node, ast.Attribute):
                resolve(node, names)
            elif isinstance(node, ast.Call) and callable(target := resolve(node.func, names)):
                bind(target, node)
        except (AttributeError, TypeError) as error:
            found.append(f"line {node.lineno}: {ast.unparse(node)}: {error}")
    return found


def bind(target: Any, call: ast.Call) -> None:
    """Raise a TypeError unless the arguments of a call fit; those of * and ** are not known."""
    starred = any(isinstance(one, ast.Starred) for one in call.args) or any(one.arg is None for one in call.keywords)
    given = [one for one in call.args if not isinstance(one, ast.Starred)]
    keywords = {one.arg: one for one in call.keywords if one.arg is not None}
    signature = inspect.signature(target)
    (signature.bind_partial if starred else signature.bind)(*given, **keywords)


@pytest.mark.parametrize("path", SCRIPTS, ids=lambda path: path.stem)
def test_a_benchmark_imports(path, load):
    module = load(path)
    assert module.__doc__
    assert path.stem == "results" or callable(module.main)


@pytest.mark.parametrize("path", SCRIPTS, ids=lambda path: path.stem)
def test_all_that_a_benchmark_uses_of_clearhead_exists(path):
    assert not problems(path.read_text(encoding="utf-8"))


@pytest.mark.parametrize(
    ("source", "message"),
    [
        ("from clearhead.training import nothing", "clearhead.training.nothing"),
        ("from clearhead.nothing import train", "clearhead.nothing"),
        ("import clearhead.nothing as x", "clearhead.nothing"),
        ("def f():\n    from clearhead.decode import nothing", "clearhead.decode.nothing"),
        ("import clearhead as ch\nch.translat('x')", "line 2: ch.translat"),
        ("import clearhead as ch\nch.data.nothing", "line 2: ch.data.nothing"),
        ("from clearhead.training import trainer\ntrainer.build_model = 1", "line 2: trainer.build_model"),
        ("from clearhead.training.distributed import World\nWorld.enter('cpu')", "line 2: World.enter"),
        ("from clearhead.decode import search\nsearch(1, {}, start=2)", "line 2: search"),
        ("from clearhead.decode import Plan\nPlan(begin=1)", "line 2: Plan"),
        ("from clearhead.training import Objective\nObjective(1, 'sequences')", "line 2: Objective"),
    ],
)
def test_the_check_finds_what_is_missing(source, message):
    assert any(message in problem for problem in problems(source)), problems(source)


def test_the_check_accepts_what_exists():
    source = "import clearhead as ch\nimport json\nch.data.make_data('copy', *x, seed=0).batch(1)\njson.nothing"
    assert problems(source) == []


def test_measure_equals_the_validation_of_training(tmp_path, load):
    options = {"symbols": 5, "length": 3, "rows": 4, "valid_rows": 7}
    recipe = {"steps": 2, "data": {"name": "copy", **options}, "model": {"name": "gpt", "width": 8, "heads": 2}}
    run = train(recipe, "model.depth=1", out=tmp_path / "run", device="cpu", quiet=True)
    measured = load(BENCHMARKS / "results.py").measure(run.model.model, make_data("copy", options, seed=0))
    assert measured == pytest.approx({name: run.metrics[-1][f"valid_{name}"] for name in measured})
    assert {"loss", "accuracy"} <= measured.keys()


def test_a_part_of_results_is_kept_beside_the_others(tmp_path, load, monkeypatch, capsys):
    results = load(BENCHMARKS / "results.py")
    monkeypatch.setattr(results, "RESULTS", tmp_path)
    monkeypatch.setattr(sys, "argv", ["benchmarks/x.py", "b", "a", "--save"])
    for part, value in (("b", 1.0), ("a", 2.0), ("b", 3.0)):
        results.keep_part("x", part, {"share": value})
    kept = json.loads((tmp_path / "x.json").read_text())
    assert {part: numbers["share"] for part, numbers in kept.items()} == {"a": 2.0, "b": 3.0}
    assert list(kept) == ["a", "b"]
    assert kept["b"]["command"] == "python benchmarks/x.py b"


def test_every_fact_is_measured_and_shown(load):
    facts = load(BENCHMARKS / "what_models_learn.py").FACTS
    docs = BENCHMARKS.parent / "docs"
    kept = json.loads((docs / "results" / "what_models_learn.json").read_text(encoding="utf-8"))
    assert kept.keys() == facts.keys()
    page = (docs / "15-what-models-learn.md").read_text(encoding="utf-8")
    assert [name for name in facts if f"python benchmarks/what_models_learn.py {name}" not in page] == []


def test_controls_ask_for_what_the_head_of_a_relation_should_not_do(load):
    sentences = load(BENCHMARKS / "what_models_learn.py").FACTS["sentences"].__globals__
    words = {
        name: [
            (one.text[slice(*one.query)], one.text[slice(*one.answer)]) for one in map(control, read_sentences(name))
        ]
        for name, control in sentences["CONTROLS"].items()
    }
    assert words["names"][0] == ("he", "Thomas")
    assert words["objects"][0] == ("and", "plate")
    assert words["verbs"][0] == ("are", "difficult")
    assert words["adjectives"][0] == ("chat", "Le")
    plain = {
        name: [(s.text[slice(*s.query)], s.text[slice(*s.answer)]) for s in read_sentences(name)] for name in words
    }
    assert all(a != b for name in words for a, b in zip(words[name], plain[name], strict=True))


def test_the_share_inside_a_box_counts_cells_at_its_edge_in_part(load):
    inside = load(BENCHMARKS / "what_models_learn.py").FACTS["maps"].__globals__["inside"]
    even = torch.ones(2, 4, 4)
    assert inside(even, (0.125, 0.0, 0.5, 1.0)).tolist() == pytest.approx([0.375, 0.375])
    corner = torch.zeros(4, 4)
    corner[0, 3] = 1
    assert inside(corner, (0.5, 0.0, 1.0, 0.5)).item() == 1
    assert inside(corner, (0.0, 0.0, 0.5, 1.0)).item() == 0


def test_the_families_of_a_budget_cost_what_their_formulas_say_and_about_the_same(load):
    module = load(BENCHMARKS / "vision_or_cnn.py")
    found = module.sizes([plan for plan in module.plans({}) if plan.budget == "small" or plan.family == "convnext"])
    assert {family for family, _ in found} == set(module.TITLES)
    wider = [plan for plan in module.plans({"resnet-strong": ["model.width=20"]}) if plan.budget == "small"]
    with pytest.raises(AssertionError, match=r"the FLOPs of the small budget differ by more than 10 %"):
        module.sizes(wider)
