"""Which validation rows are decoded for measurements of text, such as BLEU."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, TypeVar

from ..errors import InputError
from .recipe import RunConfig

ROWS = 1000  # validation rows that are decoded, unless run.decode says otherwise
T = TypeVar("T")


def decoded_rows(run: RunConfig, measurements: Mapping[str, Any], texts: int) -> int:
    """The number of validation rows to decode: run.decode, or ROWS if run.best is a measurement of decoded text.

    Args:
        run: The options of the run.
        measurements: The objective's measurements of decoded text, by name.
        texts: The number of validation rows whose text is known.
    """
    best = bool(run.best) and str(run.best).removeprefix("valid_") in measurements
    if run.decode == 0 and best:
        raise InputError(f"run.best = {run.best!r} is measured on decoded rows: expected run.decode of 1 or more")
    wanted = run.decode if run.decode is not None else ROWS if best else 0
    if wanted and not measurements:
        raise InputError(f"run.decode = {wanted}: this objective has no measurements of decoded text: leave it out")
    if wanted and not texts:
        word = f"best = {run.best!r}" if best else f"decode = {wanted}"
        raise InputError(f"run.{word} needs the text of validation rows, and this dataset has none: leave it out")
    return min(wanted, texts)


def evenly(rows: Sequence[T], most: int) -> list[T]:
    """At most so many rows, at equal distances: files are often sorted by length."""
    return [rows[i * len(rows) // most] for i in range(most)]
