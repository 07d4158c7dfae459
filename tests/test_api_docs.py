"""The documentation of every public name: a summary, all arguments, and examples that run."""

import contextlib
import dataclasses
import doctest
import io
import random
import re
import sys
import tomllib
from pathlib import Path

import numpy as np
import pytest
import torch

import clearhead
from clearhead.training.objectives import OBJECTIVES

ROOT = Path(__file__).parent.parent
sys.path.insert(0, str(ROOT / "docs"))
try:
    import docstrings
    from public_names import MODULES, Public, members, public, recipe_options
finally:
    sys.path.remove(str(ROOT / "docs"))

LONGEST = 120  # characters of a summary
FLAGS = doctest.ELLIPSIS | doctest.NORMALIZE_WHITESPACE
NAMES = {module: [one for one in public(module) if one.home == module] for module in MODULES}
FOLDERS = {module.split(".")[1] for module in MODULES[1:]}
modules = pytest.mark.parametrize("module", MODULES)


def problems(one):
    """What the documentation of a public name lacks."""
    doc = one.doc
    if one.group == "Constants":
        return [] if doc.summary else ["no comment"]
    found = []
    if not doc.summary.endswith(".") or len(doc.summary) > LONGEST:
        found.append(f"summary {doc.summary!r}: expected a sentence of at most {LONGEST} characters")
    if one.group in ("Functions", "Classes"):
        documented = set(doc.args)
        if isinstance(one.thing, type):
            documented |= {field.name for field in docstrings.attributes(one.thing) if field.comment}
        names = [parameter.name.lstrip("*") for parameter in docstrings.parameters(one.thing)[0]]
        missing = [name for name in names if name and not name.startswith("_") and name not in documented]
        found += [f"undocumented arguments {', '.join(missing)}"] * bool(missing)
        found += ["no example"] * (">>>" not in doc.examples)
    return found


def run(one, folder):
    """Run the examples of a public name; returns the report of those that fail."""
    defined = one.thing.__module__
    folders = [module for module in MODULES if f"{defined}.".startswith(f"{module}.")]
    names = {name: thing for module in (defined, *folders) for name, thing in vars(sys.modules[module]).items()}
    names |= {"clearhead": clearhead, "torch": torch, "np": np, "dataclasses": dataclasses, "tmp": folder}
    test = doctest.DocTestParser().get_doctest(one.doc.examples, names, one.full_name, None, None)
    report = io.StringIO()
    doctest.DocTestRunner(verbose=False, optionflags=FLAGS).run(test, out=report.write)
    return report.getvalue()


@contextlib.contextmanager
def isolated():
    """Begin with the same random numbers, and restore those of the other tests and the objectives that they know."""
    numpy_state, python_state = np.random.get_state(), random.getstate()  # noqa: NPY002
    known = set(OBJECTIVES)
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(0)
        try:
            yield
        finally:
            np.random.set_state(numpy_state)  # noqa: NPY002
            random.setstate(python_state)
            for name in OBJECTIVES.keys() - known:
                del OBJECTIVES[name]


@modules
def test_every_public_name_is_documented(module):
    lacking = [f"{one.full_name}: {'; '.join(found)}" for one in NAMES[module] if (found := problems(one))]
    assert not lacking, "\n" + "\n".join(lacking)


@modules
def test_the_examples_run(module, tmp_path, monkeypatch, unchecked):
    monkeypatch.chdir(tmp_path)  # a file that an example writes elsewhere than into tmp is not left in the repository
    before = global_state()
    failed = []
    for i, one in enumerate(one for one in NAMES[module] if one.group != "Constants" and one.doc.examples):
        folder = tmp_path / str(i)
        folder.mkdir()
        with isolated():
            failed += [report] if (report := run(one, folder)) else []
        assert global_state() == before, f"the examples of {one.full_name} change a global setting"
    assert not failed, "\n" + "\n".join(failed)


def global_state():
    """The settings of the process that an example could leave changed."""
    return {
        "dtype": torch.get_default_dtype(), "threads": torch.get_num_threads(), "gradients": torch.is_grad_enabled(),
        "precision": torch.get_float32_matmul_precision(), "seed": torch.initial_seed(), "folder": Path.cwd(),
        "deterministic": torch.are_deterministic_algorithms_enabled(), "arguments": sys.argv[:],
    }  # fmt: skip


def test_every_module_of_the_package_has_a_page():
    package = ROOT / "src" / "clearhead"
    files = {path.stem for path in package.glob("*.py")} - {"__init__", "__main__"}
    folders = {path.parent.name for path in package.glob("*/__init__.py")}
    assert files | folders == FOLDERS


def test_every_top_level_name_is_described_at_the_top_level_or_is_a_module():
    described = {one.name for one in NAMES["clearhead"]}
    assert described | FOLDERS >= set(clearhead.__all__)
    assert not described & FOLDERS


@modules
def test_directives_for_a_linter_are_no_descriptions(module):
    kinds = [one.thing for one in NAMES[module] if isinstance(one.thing, type)]
    texts = [one.comment for kind in kinds for one in docstrings.attributes(kind)]
    texts += [one.doc.summary for one in NAMES[module] if one.group == "Constants"]
    assert not [text for text in texts if re.search(r"fmt: skip|noqa|type: ignore", text)]


class Described(clearhead.training.objectives.Objective):
    """For the test below."""

    result: str = "other"  # fmt: skip
    writes_text = True
    total: int = 1  # number of rows # fmt: skip

    @property
    def measurements(self):
        return {}


def test_attributes_that_a_class_sets_anew_have_its_values_and_the_comments_of_the_base_class(monkeypatch):
    monkeypatch.setattr(Described, "__module__", "clearhead.test")  # as if it were one of the library
    monkeypatch.setitem(sys.modules, "clearhead.test", sys.modules[__name__])
    found = {one.name: one for one in docstrings.attributes(Described)}
    base = {one.name: one for one in docstrings.attributes(Described.__base__)}
    assert found.keys() == base.keys() | {"total"}
    assert (found["result"].default, found["writes_text"].default) == ('"other"', "True")
    assert (found["measurements"].default, found["total"].comment) == (None, "number of rows")
    for name in ("result", "writes_text", "measurements", "reads"):
        assert (found[name].comment, found[name].type) == (base[name].comment, base[name].type)


@pytest.mark.parametrize("word", OBJECTIVES)
def test_the_reference_lists_the_attributes_of_every_objective(word):
    kind = clearhead.training.objectives.objective_class(word)
    found = {one.name: one for one in docstrings.attributes(kind)}
    assert found.keys() >= {"Config", "roles", "updates", "reads", "may_read", "measurements", "result"}
    assert found["Config"].default == kind.Config.__name__
    assert eval(found["reads"].default) == kind.reads
    assert eval(found["roles"].default, vars(clearhead.training.objectives)) == kind.roles


def test_the_names_for_authors_of_objectives_are_in_the_reference():
    names = {one.name: one for one in NAMES["clearhead.training.objectives"]}
    used = {
        "Scalar": (), "Scheduled": (), "weighted_sum": (), "DeviceRng": ("normal", "uniform"),
        "Optimiser": ("gradients", "weights", "clear", "step", "restore"), "EMA": ("update",),
        "Objective": ("prepare", "measure", "summarise", "step", "after_step", "sizes", "count", "outputs", "scalar"),
    }  # fmt: skip
    for name, methods in used.items():
        assert set(methods) <= members(names[name].thing).keys()


@pytest.mark.parametrize("options", recipe_options(), ids=lambda options: options.anchor)
def test_every_option_of_a_recipe_has_a_meaning(options):
    assert options.summary
    fields = docstrings.attributes(options.config)
    meaningless = [field.name for field in fields if not field.comment and not field.type.endswith("Config")]
    assert not meaningless, f"{options.config.__name__}: no comment beside {', '.join(meaningless)}"


def test_the_version_is_the_same_everywhere():
    import yaml

    citation = yaml.safe_load((ROOT / "CITATION.cff").read_text(encoding="utf-8"))
    headings = re.findall(r"^## (\S+) - (\d{4}-\d\d-\d\d)$", (ROOT / "CHANGELOG.md").read_text(encoding="utf-8"), re.M)
    assert headings[0] == (citation["version"], str(citation["date-released"]))
    assert headings[0][0] == clearhead.__version__
    assert [version for version, _ in headings] == sorted({version for version, _ in headings}, reverse=True)


def test_the_citation_has_what_its_format_requires_and_agrees_with_the_package():
    import yaml

    citation = yaml.safe_load((ROOT / "CITATION.cff").read_text(encoding="utf-8"))
    project = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))["project"]
    assert citation.keys() >= {"cff-version", "message", "title", "authors"}  # the keys that 1.2.0 requires
    assert citation["cff-version"] == "1.2.0"
    assert citation["authors"] == [{"name": "The clearhead authors"}]
    assert (citation["license"], citation["keywords"]) == (project["license"], project["keywords"])


def test_the_new_names_in_the_changelog_exist():
    text = (ROOT / "CHANGELOG.md").read_text(encoding="utf-8")
    table = re.search(r"^Python names:\n\n(.*?)\n\n", text, re.M | re.S)
    new = " ".join(row.split("|")[2] for row in table[1].splitlines()[2:])
    names = {f"clearhead.{name.removeprefix('clearhead.')}" for name in re.findall(r"`(\w+\.[\w.]+)", new)}
    known = set(MODULES) | {one.full_name for module in MODULES for one in public(module)}
    known |= {f"clearhead.data.Data.{one.name}" for one in docstrings.attributes(clearhead.data.Data)}
    assert len(names) > 12
    assert names <= known, names - known


def test_gaps_in_documentation_are_found():
    """The checks above can fail."""

    def lacking(a, b=1, *, _c=2):
        """Too short"""

    def complete(a, *args):
        """Do nothing.

        Args:
            a: One thing.
            args: Others.

        Examples:
            >>> 1 + 1
            3
        """

    lacks, has = (Public(__name__, one.__name__, one, __name__, "Functions") for one in (lacking, complete))
    summary = "summary 'Too short': expected a sentence of at most 120 characters"
    assert problems(lacks) == [summary, "undocumented arguments a, b", "no example"]
    assert problems(has) == []
    assert run(lacks, None) == ""
    assert "Expected:\n    3\nGot:\n    2" in run(has, None)
