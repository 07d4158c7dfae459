"""Sentences that say how rows were divided into training and validation, and how many were cut or left out."""

from __future__ import annotations

from collections.abc import Mapping, Sized

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
    again = f"; {counted(both, noun)} of validation {'is' if both == 1 else 'are'} in training too" if both else ""
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
    return f"{counted(number, 'row')} without {NEEDED[kind]} left out" if number else ""


def empty_told(number: int, kind: str) -> str:
    """Return the same as the end of a sentence."""
    return f"; {left_out_told(number, kind)}" if number else ""


def unreadable_told(number: int, files: int) -> str:
    """Return how many of the files of images were left out."""
    return f"{number:,} of {counted(files, 'image file')} left out, which cannot be read"


def columns_told(columns: Mapping[str, str]) -> str:
    """Return which columns are read, by what they are for."""
    return ", ".join(f"{option} = {name}" for option, name in columns.items())


def cut_told(number: int, longest: int) -> str:
    """Return how many texts were cut, or "" if none was."""
    verb = "is" if number == 1 else "are"
    return f"{counted(number, 'text')} {verb} cut to longest = {longest} tokens" if number else ""
