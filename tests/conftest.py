"""Shared by all tests: shapes are checked while they run, and odd sizes catch swapped axes."""

import ast
import gc
import os
import shutil
from contextlib import contextmanager, nullcontext

import jaxtyping
import pytest
from beartype.roar import BeartypeDecorHintPep585DeprecationWarning  # noqa: F401  (fails early without the extra)
from filelock import FileLock
from hypothesis import settings
from jaxtyping import _import_hook, install_import_hook


# Every annotated signature is checked, shapes included, in every test: but for Triton kernels, which must stay plain
# functions to be compiled.
# Functions inside of functions are not: they would be wrapped again in every call, which takes a millisecond.
class CheckOuter(_import_hook.JaxtypingTransformer):
    def generic_visit(self, node):
        if not isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef | ast.Lambda):
            super().generic_visit(node)


_import_hook.JaxtypingTransformer = CheckOuter
hook = install_import_hook("clearhead", "beartype.beartype").hook
checked = hook.should_instrument
hook.should_instrument = lambda name: checked(name) and not name.endswith(("_kernel", "_kernels"))


# Modules that train or generate for long with functions whose shapes other modules check: a third faster without.
LONG = {
    "test_loop", "test_safety", "test_checkpoint", "test_sizes", "test_tuning", "test_recipe", "test_sweep",
    "test_samples", "test_run_folder", "test_verify", "test_recipes", "test_plot", "test_zoo", "test_cached_decode",
}  # fmt: skip


@contextmanager
def without_checks():
    before = jaxtyping.config.jaxtyping_disable
    jaxtyping.config.update("jaxtyping_disable", True)
    yield
    jaxtyping.config.update("jaxtyping_disable", before)


@pytest.fixture(scope="session")
def once(tmp_path_factory):
    """once(name, make) calls make(folder) in the first process that asks for the name; all processes get the folder."""
    top = tmp_path_factory.getbasetemp()
    top = top.parent if "PYTEST_XDIST_WORKER" in os.environ else top

    def folder(name, make):
        path = top / f"once-{name}"
        with FileLock(f"{path}.lock"):
            if not (path / ".made").exists():
                shutil.rmtree(path, ignore_errors=True)  # of a process that failed
                path.mkdir()
                make(path)
                (path / ".made").touch()
        return path

    return folder


@pytest.fixture
def unchecked():
    """Without these checks: a word that a signature does not list reaches the code, as it does for users."""
    with without_checks():
        yield


@pytest.fixture(scope="module", autouse=True)
def _checks_of_long_modules(request):
    with without_checks() if request.module.__name__.rpartition(".")[2] in LONG else nullcontext():
        yield


settings.register_profile("quick", max_examples=40, deadline=None)
settings.register_profile("thorough", max_examples=1000, deadline=None)
settings.load_profile(os.environ.get("HYPOTHESIS_PROFILE", "quick"))


def pytest_collection_finish():
    """What is imported stays: collections of garbage that look at it again take a tenth of the time."""
    gc.collect()
    gc.freeze()
