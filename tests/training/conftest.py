"""Shared by the tests of trainings."""

import pytest


@pytest.fixture(scope="module")
def own_models():
    """Register the models of trainings.py while the tests of a module run."""
    import trainings

    with trainings.own_models():
        yield
