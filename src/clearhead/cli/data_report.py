"""What `clearhead data FILE` prints: what was understood, the first rows, lengths, and the [data] section to write."""

from __future__ import annotations

from typing import Any

from ..data import Understood
from ..data.images.folders import SKIPS
from ..data.splits import counted, left_out_told, unreadable_told
from ..data.tables.formats import DELIMITERS
from ..data.tables.understand import UnderstoodImages
from .output import rows, show

WIDTH = 100  # characters of a value that are shown
LABELS = 12  # labels that are listed
SIZES = 4  # sizes of images that are listed


def show_data(found: Understood) -> None:
    """Print what is in a file."""
    show(rows(*_facts(found)), False)
    show("\nFirst rows", False)
    show(rows(*(row for i, values in enumerate(found.first, 1) for row in _row(i, values))), False)
    show("\nLengths: median, 95 % are no longer, largest", False)
    lengths = [
        (column, unit, f"{one.median:,}", f"{one.most:,}", f"{one.largest:,}")
        for column, units in found.lengths.items()
        for unit, one in units.items()
    ]
    show(rows(*lengths), False)
    show("\n" + section(found), False)


def show_images(found: UnderstoodImages) -> None:
    """Print what is in a folder of images."""
    classes = "the folders inside are classes" if found.labels else "without classes"
    facts = {
        "folder": found.path,
        "kind": f"images: {classes}",
        "images": f"{found.images:,}",
        "classes": _labels(found.labels),
        "sizes": _sizes(found.sizes),
        "left out": _unreadable(found),
        "split": found.split,
    }
    show(rows(*((name, value) for name, value in facts.items() if value)), False)
    show("\n" + section(found), False)


def _unreadable(found: UnderstoodImages) -> str:
    """How many files cannot be read, and what a training does about them."""
    # Most folders are clean, and then the line is left out of the report.
    if not found.bad:
        return ""
    files = found.images + len(found.bad)
    told = f"{unreadable_told(len(found.bad), files)}, the first {found.bad[0]}"
    # The recipe below skips the files already.
    if found.options.get("skip_bad"):
        return told
    return f"{told}: a training stops at them; data.skip_bad=true {SKIPS}"


def _sizes(sizes: dict[str, int]) -> str:
    return _first(list(sizes), SIZES)


def _first(texts: list[str], most: int) -> str:
    """The first texts of a list, and how many more there are."""
    shown = texts[:most]
    if len(texts) > most:
        shown.append(f"and {len(texts) - most:,} more")
    return ", ".join(shown)


def section(found: Understood | UnderstoodImages) -> str:
    """The [data] section of a recipe for a file, as TOML."""
    import tomli_w

    text = tomli_w.dumps({"data": found.options}).rstrip()
    # A conversation cannot be tokenized without a template, so the recipe has to name one.
    if found.options["name"] == "chats" and "tokens" not in found.options:
        text += '\ntokens = "FOLDER"  # a checkpoint with a chat template'
    return text


def _facts(found: Understood) -> list[tuple[str, str]]:
    noun = "row" if found.columns else "line"
    # Counting all rows of a large file would mean reading all of it.
    if found.sampled:
        total = f"about {found.rows:,}, estimated from the first {found.read:,}"
    else:
        total = f"{found.rows:,}"
    left_out = ""
    if found.columns:
        left_out = left_out_told(found.empty, found.kind).removesuffix(" left out")
    facts = {
        "file": "\n".join(found.files),
        "format": ", ".join(
            part for part in (found.format, found.encoding, _delimiter(found)) if part
        ),
        # None: a format without a header, such as JSON Lines.
        "header": {True: "yes", False: "no: the columns are called by their numbers", None: ""}[
            found.header
        ],
        "columns": ", ".join(found.columns),
        "kind": f"{found.kind}: {found.why}",
        "read": found.chosen,
        "candidates": found.other_columns,
        f"{noun}s": total,
        "labels": _labels(found.labels),
        "left out": left_out,
        "duplicates": f"{counted(found.duplicates, noun)} with the texts of an earlier one"
        * bool(found.duplicates),
        "split": found.split,
        "cut": found.cut,
    }
    # A fact without a value is no line of the report.
    return [(name, value) for name, value in facts.items() if value]


def _delimiter(found: Understood) -> str:
    if found.delimiter:
        return f"{DELIMITERS[found.delimiter]}-separated"
    return ""


def _labels(labels: dict[str, int]) -> str:
    return _first([f"{label}: {number:,}" for label, number in labels.items()], LABELS)


def _row(number: int, values: dict[str, Any]) -> list[tuple[str, str, str]]:
    lines, first = [], str(number)
    for name, value in values.items():
        text = value if isinstance(value, str) else repr(value)
        if len(text) > WIDTH:
            text = text[: WIDTH - 3] + "..."
        # A line break would tear the table apart.
        lines.append((first, name, text.replace("\n", " / ")))
        first = ""  # the number stands once, before the first column
    return lines
