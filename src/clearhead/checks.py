"""Checks of dataclass fields, for use in __post_init__: each raises an InputError with the field and its value."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

from .errors import InputError, nearest


def at_least(config: Any, least: int, *names: str) -> None:
    """Raise unless each of the named fields is None or at least `least`.

    Args:
        config: The object whose fields are checked.
        least: The smallest allowed value.
        names: The names of the fields.

    Examples:
        >>> from types import SimpleNamespace
        >>> at_least(SimpleNamespace(width=0, depth=2), 1, "depth", "width")
        Traceback (most recent call last):
        ...
        clearhead.errors.InputError: width=0: expected 1 or more
    """
    for name in names:
        value = getattr(config, name)
        if value is not None and value < least:
            raise InputError(f"{name}={value}: expected {least} or more")


def above_zero(config: Any, *names: str) -> None:
    """Raise unless each of the named fields is None or above 0.

    Args:
        config: The object whose fields are checked.
        names: The names of the fields.

    Examples:
        >>> from types import SimpleNamespace
        >>> above_zero(SimpleNamespace(cap=-1.0), "cap")
        Traceback (most recent call last):
        ...
        clearhead.errors.InputError: cap=-1.0: expected a number above 0
    """
    for name in names:
        value = getattr(config, name)
        if value is not None and not value > 0:
            raise InputError(f"{name}={value}: expected a number above 0")


def fraction(config: Any, *names: str) -> None:
    """Raise unless each of the named fields is a share from 0 to below 1.

    Args:
        config: The object whose fields are checked.
        names: The names of the fields.

    Examples:
        >>> from types import SimpleNamespace
        >>> fraction(SimpleNamespace(dropout=1.0), "dropout")
        Traceback (most recent call last):
        ...
        clearhead.errors.InputError: dropout=1.0: expected a share, at least 0 and below 1
    """
    for name in names:
        if not 0.0 <= getattr(config, name) < 1.0:
            raise InputError(
                f"{name}={getattr(config, name)}: expected a share, at least 0 and below 1"
            )


def one_of(name: str, value: object, known: Iterable[str]) -> None:
    """Raise unless a value is one of the known words.

    Args:
        name: The name of the option, for the message.
        value: The value to check.
        known: The allowed words.

    Examples:
        >>> one_of("positions", "rotry", ["none", "rotary"])
        Traceback (most recent call last):
        ...
        clearhead.errors.InputError: positions='rotry': expected one of none, rotary; the nearest is rotary
    """
    words = list(known)
    if value not in words:
        raise InputError(
            f"{name}={value!r}: expected one of {', '.join(words)}{nearest(value, words)}"
        )
