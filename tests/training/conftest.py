"""Shared by the tests of trainings."""

import pytest


@pytest.fixture(scope="module")
def own_models():
    """The models of trainings.py stand in the house while a module's tests run, and for no other tests."""
    import trainings

    with trainings.own_models():
        yield
