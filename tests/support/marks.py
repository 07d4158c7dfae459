"""Marks of tests with many cases."""

from collections.abc import Iterable
from typing import Any

import pytest


def one_in(n: int, cases: Iterable[Any]) -> list[Any]:
    """Parameters of which all but every n-th are slow: they vary what those test."""
    return [case if i % n == 0 else pytest.param(case, marks=pytest.mark.slow) for i, case in enumerate(cases)]
