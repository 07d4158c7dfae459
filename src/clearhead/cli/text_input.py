"""Texts from the command line: as given, the lines of files, or stdin."""

from __future__ import annotations

import os
import sys
from pathlib import Path

FILES = (".txt", ".tsv", ".csv", ".md", ".gz")  # a single word with such an ending is taken for a file name


def lines_of(*texts: str) -> list[str]:
    """Texts as given, the lines of text files, and the lines of stdin for "-".

    A single word that names a folder, or has the ending of a text file that does not exist, raises.
    """
    return [line for text in texts for line in _lines(text)]


def text_or_stdin(text: str) -> str:
    """A text as given, or everything from stdin for "-"."""
    from ..data.files import as_text

    return as_text(sys.stdin.buffer.read(), "stdin") if text == "-" else text


def _lines(text: str) -> list[str]:
    from ..data.files import DataError, as_lines, as_text, read_text

    if text == "-":
        return as_lines(as_text(sys.stdin.buffer.read(), "stdin"))
    if os.path.isfile(text):  # not Path.is_file, which raises for long texts
        return as_lines(read_text(Path(text), may_be_empty=True))
    if len(text.split()) == 1 and (text.endswith(FILES) or os.path.isdir(text)):
        problem = "this is a folder" if os.path.isdir(text) else "there is no such file"
        raise DataError(f"{text}: {problem}; expected a text, a file with one text per line, or - for stdin")
    return [text]
