"""Shared by the tests of trainings."""

from unittest.mock import patch

import pytest

from clearhead.training import objectives


@pytest.fixture(scope="module")
def own_models():
    """Register the models of trainings.py while the tests of a module run."""
    import trainings

    with trainings.own_models():
        yield


@pytest.fixture
def registry():
    """Remove the objectives that a test registers."""
    with patch.dict(objectives.OBJECTIVES), patch.dict(objectives._REGISTERED):
        yield
