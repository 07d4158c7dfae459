"""Texts in a folder per class: pos/1.txt, pos/2.txt, neg/1.txt ..., as a table of texts and labels."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

from .files import DataError
from .streams import Source, bare_suffix

SUFFIXES = (".txt", ".text", ".md")


def class_folders(path: Path) -> dict[str, list[Path]]:
    """Return the text files of each folder in a folder, by its name; {} unless two or more have some with text."""
    found: dict[str, list[Path]] = {}
    for folder in sorted(path.iterdir()):
        if folder.is_dir() and not folder.name.startswith("."):
            files = sorted(file for file in folder.iterdir() if file.is_file() and bare_suffix(file) in SUFFIXES)
            files = [file for file in files if file.stat().st_size]
            found |= {folder.name: files} if files else {}
    return found if len(found) > 1 else {}


def labelled_texts(path: Path) -> Iterator[tuple[Path, dict[str, str]]]:
    """Yield the text of each file and the name of its folder as its label; raises if there are no such folders."""
    found = class_folders(path)
    if not found:
        raise DataError(f"{path} is a folder: expected a file, or folders inside with the texts of one class each")
    for label, files in found.items():
        for file in files:
            yield file, {"text": "".join(text for text, _ in Source(file).text()), "label": label}
