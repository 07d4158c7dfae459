"""Shared by all tests: shapes are checked while they run, and odd sizes catch swapped axes."""

import gc
import os
import shutil
import signal
from contextlib import nullcontext
from importlib.util import find_spec
from pathlib import Path

import pytest
from filelock import FileLock
from hypothesis import settings

from support import signature_checks
from support.signature_checks import without_checks

signature_checks.install()

# A shell starts background jobs with Ctrl-C ignored, and their children inherit it: tests of Ctrl-C would wait in vain.
if signal.getsignal(signal.SIGINT) is signal.SIG_IGN:
    signal.signal(signal.SIGINT, signal.default_int_handler)

# Packages that these tests cannot do without. A machine that lacks one, as those with a GPU may, runs all other tests.
NEEDS = {
    "explore": ("starlette", "httpx"),
    "look/test_saliency.py": ("captum",),
    "oracle/test_lecture.py": ("starlette",),
    "test_api_docs.py": ("starlette",),
}
MISSING = {place: [name for name in packages if find_spec(name) is None] for place, packages in NEEDS.items()}
collect_ignore = [place for place, packages in MISSING.items() if packages]


def pytest_report_header():
    return [f"left out: tests/{place}, which needs {' and '.join(MISSING[place])}" for place in collect_ignore]


# Folders that use functions whose shapes layers, models, laws and look check: a quarter faster without. `make test-all`
# checks them, too.
PROFILE = os.environ.get("HYPOTHESIS_PROFILE", "quick")
LONG = {"cli", "data", "decode", "explore", "fast", "oracle", "report", "tasks", "training", "weights", "test_recipes"}


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
    long = PROFILE == "quick" and LONG & set(Path(request.module.__file__).with_suffix("").parts)
    with without_checks() if long else nullcontext():
        yield


settings.register_profile("quick", max_examples=25, deadline=None)
settings.register_profile("thorough", max_examples=1000, deadline=None)
settings.load_profile(PROFILE)


def pytest_collection_finish():
    """What is imported stays: collections of garbage that look at it again take a tenth of the time."""
    gc.collect()
    gc.freeze()
