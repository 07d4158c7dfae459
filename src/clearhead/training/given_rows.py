"""Rows of data that are in memory, not in a file: a data frame, dictionaries, or texts."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, Protocol, runtime_checkable

import numpy as np

from ..atomic_files import atomic_write
from ..errors import InputError, InputTypeError


@runtime_checkable
class Frame(Protocol):
    """A data frame, such as that of pandas."""

    def to_dict(self, orient: str) -> Any: ...


DataLike = str | Path | Frame | Sequence[Any]  # a path, or rows


def as_file(data: DataLike, path: Path) -> str | Path:
    """Return the path of data; rows are written to `path`, as JSON Lines, with null for a missing value.

    Args:
        data: A path; or a data frame, a list of dictionaries, or a list of texts.
        path: Where rows are written.

    Examples:
        >>> as_file([{"text": "Good.", "label": 1}], tmp / "data.jsonl").read_text()
        '{"text": "Good.", "label": 1}\\n'
        >>> as_file("reviews.csv", tmp / "data.jsonl")
        'reviews.csv'
    """
    if isinstance(data, str | Path):
        return data
    rows = data.to_dict("records") if isinstance(data, Frame) else data
    if not isinstance(rows, Sequence) or not rows:
        raise InputError("no rows are given: expected the path of a file, a data frame, dictionaries or texts")
    lines = []
    for number, row in enumerate(rows):
        value = {"text": row} if isinstance(row, str) or _is_missing(row) else row
        if not isinstance(value, Mapping):
            raise InputTypeError(f"row {number} is a {type(row).__name__}: expected a dictionary, or a text")
        try:
            given = {name: None if _is_missing(one) else one for name, one in value.items()}
            lines.append(json.dumps(given, ensure_ascii=False, default=_plain))
        except (TypeError, ValueError) as problem:
            raise InputTypeError(f"row {number}: {problem}: expected texts and numbers") from problem
    path.parent.mkdir(parents=True, exist_ok=True)
    atomic_write(path, "".join(f"{line}\n" for line in lines).encode())
    return path


def _is_missing(value: Any) -> bool:
    """Whether a value is None, NaN of any type, or pandas' NaT or NA."""
    if value is None:
        return True
    unequal = value != value  # of NaN and NaT alone it is true, of NA it is NA, of an array an array
    return unequal is value or (isinstance(unequal, bool | np.bool_) and bool(unequal))


def _plain(value: Any) -> Any:
    """A number of numpy as one of Python."""
    if hasattr(value, "item"):
        return value.item()
    raise TypeError(f"a {type(value).__name__} cannot be written as JSON")
