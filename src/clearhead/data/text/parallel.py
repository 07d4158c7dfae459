"""Texts in two languages: Multi30k and Tatoeba, split so that no sentence is in two parts."""

from __future__ import annotations

import hashlib
from dataclasses import dataclass
from pathlib import Path

from ...errors import InputError, nearest
from ..files import DataError, find
from ..tables.reading import PARALLEL, TwoColumns, open_columns
from ..text_files import read_lines

MULTI30K = {
    "train": "train",
    "valid": "val",
    "test_2016_flickr": "test_2016_flickr",
    "test_2017_flickr": "test_2017_flickr",
}
TATOEBA = {"fr": "fra", "de": "deu", "it": "ita"}  # names of the files
SPLITS = {"multi30k": tuple(MULTI30K), "tatoeba": ("train", "valid", "test")}


@dataclass(frozen=True, kw_only=True, slots=True)
class Line:
    """A pair of texts."""

    source: str
    target: str
    where: str  # file:line


def load_split(
    name: str,
    split: str,
    *,
    source: str = "en",
    target: str = "de",
    root: Path | None = None,
    join: int = 1,
    valid_share: float = 0.01,
    test_share: float = 0.01,
) -> tuple[list[str], list[str]]:
    """Return the source and target texts of a part of a named set of translations, for evaluation.

    Args:
        name: multi30k or tatoeba.
        split: The part: train, valid, test_2016_flickr or test_2017_flickr of multi30k; train, valid or test of
            tatoeba.
        source: The language of the sources: en, de or fr.
        target: The language of the targets: en, de or fr.
        root: A data folder to search first.
        join: The number of neighbouring texts that are joined into one; the last one may consist of fewer.
        valid_share: tatoeba: the share of the English sentences in valid; it must be the same as in training.
        test_share: tatoeba: the share of the English sentences in test; it must be the same as in training.

    Returns:
        The sources and the targets, as two lists of equal length.

    Examples:
        >>> (tmp / "multi30k").mkdir()
        >>> for language, text in ("en", "A dog."), ("de", "Ein Hund."):
        ...     _ = (tmp / "multi30k" / f"val.{language}").write_text(text)
        >>> load_split("multi30k", "valid", root=tmp)
        (['A dog.'], ['Ein Hund.'])
    """
    if name not in SPLITS:
        raise DataError(f"no set of translations is named {name!r}: expected {' or '.join(SPLITS)}")
    if split not in SPLITS[name]:
        hint = nearest(split, SPLITS[name])
        raise DataError(
            f"{name} has no part {split!r}: expected one of {', '.join(SPLITS[name])}{hint}"
        )
    if join < 1:
        raise InputError(f"join={join}: expected 1 or more")
    if name == "multi30k":
        # each part is a file of its own
        lines = read_multi30k(split, source, target, root)
    else:
        lines = read_tatoeba(source, target, root, valid_share=valid_share, test_share=test_share)[
            split
        ]
    # neighbours in the file: joining them only makes texts longer, they need not belong together
    blocks = [lines[i : i + join] for i in range(0, len(lines), join)]
    sources = [" ".join(line.source for line in block) for block in blocks]
    return sources, [" ".join(line.target for line in block) for block in blocks]


def read_multi30k(split: str, source: str, target: str, root: Path | None = None) -> list[Line]:
    """Read Multi30k (Elliott et al. 2016), task 1: line i of one file is the translation of line i of the other."""
    _languages("multi30k", source, target, ("en", "de", "fr"))
    first, second = (
        find(f"multi30k/{MULTI30K[split]}.{language}", root) for language in (source, target)
    )
    return read_two(first, second)


def read_tatoeba(
    source: str, target: str, root: Path | None = None, *, valid_share: float, test_share: float
) -> dict[str, list[Line]]:
    """Read everyday sentences of tatoeba.org, split into train, valid and test.

    All translations of an English sentence are in the same part: a hash of its letters and digits decides which, so
    that neither another translation nor another full stop brings a sentence of one part into another.
    """
    _languages("tatoeba", source, target, ("en", *TATOEBA))
    other = target if source == "en" else source
    if "en" not in (source, target):
        raise DataError(
            f"tatoeba has translations between English and another language, not {source} and {target}"
        )
    parts: dict[str, list[Line]] = {"train": [], "valid": [], "test": []}
    # others name the authors
    # tatoeba files have English first, then the other language
    for line in read_pairs(find(f"tatoeba/{TATOEBA[other]}", root), "1", "2", header=False):
        # decided by the English side alone, whichever direction is trained
        at = place(line.source)
        # test comes first, so that another valid_share does not move its sentences
        if at < test_share:
            part = "test"
        elif at < test_share + valid_share:
            part = "valid"
        else:
            part = "train"
        if source != "en":
            # the other direction: both texts change places
            line = Line(source=line.target, target=line.source, where=line.where)
        parts[part].append(line)
    return parts


def place(sentence: str) -> float:
    """Return a number from 0 to below 1 that depends on the letters and digits of a sentence only."""
    # casefold and alphanumeric characters only: variants of a sentence fall together
    key = "".join(c for c in sentence.casefold() if c.isalnum())
    return int.from_bytes(hashlib.blake2b(key.encode(), digest_size=8).digest(), "big") / 2**64


def read_two(first: Path, second: Path) -> list[Line]:
    """Return the pairs of two files with the same number of lines; an empty line is an error."""
    sources, targets = list(read_lines(first)), list(read_lines(second))
    if len(sources) != len(targets):
        raise DataError(
            f"{first} has {len(sources)} lines and {second} has {len(targets)}: expected the same number, "
            "each line the translation of the other"
        )
    for where, line in sources + targets:
        if not line.strip():
            raise DataError(f"{where}: this line is empty: expected a sentence")
    return [
        Line(source=source, target=target, where=where)
        for (where, source), (_, target) in zip(sources, targets, strict=True)
    ]


def read_pairs(
    path: Path, source: str | None = None, target: str | None = None, *, header: bool | None = None
) -> list[Line]:
    """Return the pairs of a table; a file that has no suffix of a table has source TAB target per line.

    Args:
        path: The file.
        source: The column of the sources; None: it is found by its name, or the first of two.
        target: The column of the targets; None: likewise, or the second of two.
        header: Whether the first row of a CSV or TSV file has the names of the columns; None: it is recognised.
    """
    return lines_of(open_columns(path, PARALLEL, (source, target), header=header))


def lines_of(columns: TwoColumns, *, skip_empty: bool = False) -> list[Line]:
    """Return the pairs of two columns; a row without one of them raises, or is left out and counted."""
    one, other = columns.first, columns.second
    return [
        Line(source=row.text(one), target=row.text(other), where=row.where)
        for row in columns.rows(skip_empty=skip_empty)
    ]


def _languages(name: str, source: str, target: str, known: tuple[str, ...]) -> None:
    for language in (source, target):
        if language not in known:
            raise DataError(f"{name} has no {language!r}: expected one of {', '.join(known)}")
    if source == target:
        raise DataError(f"source and target are both {source!r}: expected two languages")
