"""Shared by all tests: shapes are checked while they run, and odd sizes catch swapped axes."""

import os

from beartype.roar import BeartypeDecorHintPep585DeprecationWarning  # noqa: F401  (fails early without the extra)
from hypothesis import settings
from jaxtyping import install_import_hook

# Every annotated signature of the house is checked, shapes included, in every test.
install_import_hook("clearhead", "beartype.beartype")

settings.register_profile("quick", max_examples=40, deadline=None)
settings.register_profile("thorough", max_examples=1000, deadline=None)
settings.load_profile(os.environ.get("HYPOTHESIS_PROFILE", "quick"))
