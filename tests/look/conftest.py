"""The fixture that the tests of watch and edit share."""

import pytest

from support.two_blocks import TwoBlocks


@pytest.fixture
def model() -> TwoBlocks:
    return TwoBlocks()
