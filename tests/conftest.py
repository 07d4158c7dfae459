"""Shared by all tests: shapes are checked while they run, and odd sizes catch swapped axes."""

import os

import jaxtyping
import pytest
from beartype.roar import BeartypeDecorHintPep585DeprecationWarning  # noqa: F401  (fails early without the extra)
from hypothesis import settings
from jaxtyping import install_import_hook

# Every annotated signature is checked, shapes included, in every test: but for Triton kernels, which must stay plain
# functions to be compiled.
hook = install_import_hook("clearhead", "beartype.beartype").hook
checked = hook.should_instrument
hook.should_instrument = lambda name: checked(name) and not name.endswith(("_kernel", "_kernels"))


@pytest.fixture
def unchecked():
    """Without these checks: a word that a signature does not list reaches the code, as it does for users."""
    before = jaxtyping.config.jaxtyping_disable
    jaxtyping.config.update("jaxtyping_disable", True)
    yield
    jaxtyping.config.update("jaxtyping_disable", before)


settings.register_profile("quick", max_examples=40, deadline=None)
settings.register_profile("thorough", max_examples=1000, deadline=None)
settings.load_profile(os.environ.get("HYPOTHESIS_PROFILE", "quick"))
