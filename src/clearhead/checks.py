"""Checks of a dataclass's fields, for its __post_init__: each raises a sentence that names the field and its value."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

from .errors import InputError, nearest


def at_least(config: Any, least: int, *names: str) -> None:
    """Raise unless each of these fields is None or at least so large."""
    for name in names:
        value = getattr(config, name)
        if value is not None and value < least:
            raise InputError(f"{name}={value}: expected {least} or more")


def fraction(config: Any, *names: str) -> None:
    """Raise unless each of these fields is a share from 0 to below 1."""
    for name in names:
        if not 0.0 <= getattr(config, name) < 1.0:
            raise InputError(f"{name}={getattr(config, name)}: expected a share, at least 0 and below 1")


def one_of(name: str, value: object, known: Iterable[str]) -> None:
    """Raise unless a value is one of the known words."""
    words = list(known)
    if value not in words:
        raise InputError(f"{name}={value!r}: expected one of {', '.join(words)}{nearest(value, words)}")
