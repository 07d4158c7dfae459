"""Texts from the command line: as they are, the lines of files, or stdin."""

from __future__ import annotations

import os
import sys
from pathlib import Path

FILES = (".txt", ".tsv", ".csv", ".md", ".gz")  # endings of text files; a sentence does not end so


def lines_of(*texts: str) -> list[str]:
    """Texts as they are, the lines of files that are named, and the lines of stdin for "-".

    A single word that is a folder, or ends as text files do, is taken for a mistake.
    """
    return [line for text in texts for line in _lines(text)]


def text_or_stdin(text: str) -> str:
    """A text as it is, or everything from stdin for "-"."""
    from ..data.files import as_text

    return as_text(sys.stdin.buffer.read(), "stdin") if text == "-" else text


def _lines(text: str) -> list[str]:
    from ..data.files import DataError, as_lines, as_text, read_text

    if text == "-":
        return as_lines(as_text(sys.stdin.buffer.read(), "stdin"))
    if os.path.isfile(text):  # which takes any text, where Path has limits
        return as_lines(read_text(Path(text), may_be_empty=True))
    if len(text.split()) == 1 and (text.endswith(FILES) or os.path.isdir(text)):
        found = "this is a folder" if os.path.isdir(text) else "there is no such file"
        raise DataError(f"{text}: {found}; expected a text, a file with one text per line, or - for stdin")
    return [text]
