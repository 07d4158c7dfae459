"""How rows are divided into training and validation, and the sentences that say so."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sized
from typing import Any, NamedTuple, TypeVar

import numpy as np

from .. import counter_rng
from .files import given_files

Row = TypeVar("Row")
Files = TypeVar("Files", str, str | tuple[str, ...])  # one file, or several
SPLIT = 2  # stream of random numbers, beside those of Bucketed


class RowsOfFile(NamedTuple):
    """The rows of a file or several, the number of those without a value, and the columns that were read."""

    rows: list[Any]
    empty: int = 0
    columns: Mapping[str, str] = {}


class Split(NamedTuple):
    """The rows of training and validation, the columns that were read, and how they were divided, in a sentence."""

    train: list[Any]
    valid: list[Any]
    columns: Mapping[str, str]
    description: str


def held_out(keys: Iterable[str], share: float, stream: int = SPLIT) -> set[str]:
    """Return about a share of the different keys: always the same ones, and keys that are added at the end move none.

    Rows are divided by a key, such as their text, so that rows with the same one are never in both parts.
    """
    different = list(dict.fromkeys(keys))
    # with a fixed seed: every run has the same split
    chance = counter_rng.uniform(0, 0, np.arange(len(different)), 1, stream)[:, 0]
    return {key for key, u in zip(different, chance, strict=True) if u < share}


def split_files(
    path: Files,
    valid_path: Files | None,
    read: Callable[[Files], RowsOfFile],
    key: Callable[[Row], str],
    divide: Callable[[list[Row]], tuple[list[Row], list[Row]]],
    how: str,
    *,
    noun: str,
    kind: str,
) -> Split:
    """Read rows for training, and for validation from files of their own, or a part of the first.

    Args:
        path: The files.
        valid_path: The files for validation; None: a part of the first.
        read: Reads files.
        key: What makes two rows the same one, which is counted if it is in both parts.
        divide: Divides the rows of `path` into training and validation.
        how: The sentence about that.
        noun: What a row is.
        kind: The kind of the data, a key of NEEDED.
    """
    train, empty, columns = read(path)
    both = 0
    if valid_path is None:
        train, valid = divide(train)
    else:
        # all rows of the first files train
        valid, more, _ = read(valid_path)
        empty += more
        # the same row on both sides would flatter the validation: it is counted and reported
        known = {key(row) for row in train}
        both = sum(key(row) in known for row in valid)
        how = f"from {', '.join(given_files(valid_path))}"
    description = told(train, valid, noun, how, both)
    if empty:
        description = f"{description}; {left_out_told(empty, kind)}"
    return Split(train, valid, columns, description)


NEEDED = {  # by kind of data: the values without which a row is left out
    "labelled": "a text or a label",
    "pairs": "a source or a target",
    "chats": "a question or an answer",
    "text": "text",
}


def told(train: Sized, valid: Sized, noun: str, how: str, both: int = 0) -> str:
    """Return a sentence that says how many rows train and validate.

    Args:
        train: The rows to train on.
        valid: The rows for validation.
        noun: What a row is.
        how: Where the validation rows come from.
        both: The number of validation rows that are also in training.

    Examples:
        >>> told(range(1800), range(200), "text", "share = 0.1 of the different texts")
        '1,800 texts to train on, 200 for validation (share = 0.1 of the different texts)'
    """
    again = ""
    if both:
        verb = "is" if both == 1 else "are"
        again = f"; {counted(both, noun)} of validation {verb} in training too"
    return f"{counted(len(train), noun)} to train on, {len(valid):,} for validation ({how}){again}"


def counted(number: int, noun: str) -> str:
    """Return a number with its noun: 1 text, 2,000 texts."""
    return f"{number:,} {noun}{'' if number == 1 else 's'}"


def left_out_told(number: int, kind: str) -> str:
    """Return how many rows without a value were left out, or "" if none was.

    Args:
        number: The number of rows.
        kind: The kind of the data, a key of NEEDED.

    Examples:
        >>> left_out_told(3, "labelled")
        '3 rows without a text or a label left out'
    """
    if number:
        return f"{counted(number, 'row')} without {NEEDED[kind]} left out"
    return ""


def unreadable_told(number: int, files: int) -> str:
    """Return how many of the files of images were left out."""
    return f"{number:,} of {counted(files, 'image file')} left out, which cannot be read"


def columns_told(columns: Mapping[str, str]) -> str:
    """Return which columns are read, by what they are for."""
    return ", ".join(f"{option} = {name}" for option, name in columns.items())


def cut_told(number: int, longest: int) -> str:
    """Return how many texts were cut, or "" if none was."""
    if number:
        verb = "is" if number == 1 else "are"
        return f"{counted(number, 'text')} {verb} cut to longest = {longest} tokens"
    return ""
