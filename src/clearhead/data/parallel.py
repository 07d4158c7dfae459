"""Texts in two languages: Multi30k and Tatoeba, read line by line and split so that no sentence leaks."""

from __future__ import annotations

import hashlib
from dataclasses import dataclass
from pathlib import Path

from ..errors import InputError, nearest
from .fetch import find
from .files import DataError, as_lines, read_text

MULTI30K = {
    "train": "train",
    "valid": "val",
    "test_2016_flickr": "test_2016_flickr",
    "test_2017_flickr": "test_2017_flickr",
}
TATOEBA = {"fr": "fra", "de": "deu"}  # their files
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
    """A part of a named set as plain text, for evaluation: its sources and its targets.

    multi30k has train, valid, test_2016_flickr and test_2017_flickr; tatoeba has train, valid and test, by the same
    shares as in training. `join` makes one text out of so many neighbouring ones; what is left at the end is shorter.
    """
    if name not in SPLITS:
        raise DataError(f"no set of translations is named {name!r}: expected {' or '.join(SPLITS)}")
    if split not in SPLITS[name]:
        hint = nearest(split, SPLITS[name])
        raise DataError(f"{name} has no part {split!r}: expected one of {', '.join(SPLITS[name])}{hint}")
    if join < 1:
        raise InputError(f"join={join}: expected 1 or more")
    if name == "multi30k":
        lines = read_multi30k(split, source, target, root)
    else:
        lines = read_tatoeba(source, target, root, valid_share=valid_share, test_share=test_share)[split]
    blocks = [lines[i : i + join] for i in range(0, len(lines), join)]
    sources = [" ".join(line.source for line in block) for block in blocks]
    return sources, [" ".join(line.target for line in block) for block in blocks]


def read_multi30k(split: str, source: str, target: str, root: Path | None = None) -> list[Line]:
    """Multi30k (Elliott et al. 2016), task 1: line i of one file is the translation of line i of the other."""
    _languages("multi30k", source, target, ("en", "de", "fr"))
    first, second = (find(f"multi30k/{MULTI30K[split]}.{language}", root) for language in (source, target))
    return read_two(first, second)


def read_tatoeba(
    source: str, target: str, root: Path | None = None, *, valid_share: float, test_share: float
) -> dict[str, list[Line]]:
    """Everyday sentences of tatoeba.org: train, valid and test.

    One English sentence has many translations, which all go the same way: a hash of its letters and digits decides,
    so that neither another translation nor another full stop brings a sentence of one part into another.
    """
    _languages("tatoeba", source, target, ("en", *TATOEBA))
    other = target if source == "en" else source
    if "en" not in (source, target):
        raise DataError(f"tatoeba is here between English and another language, not {source} and {target}")
    parts: dict[str, list[Line]] = {"train": [], "valid": [], "test": []}
    for line in read_pairs(find(f"tatoeba/{TATOEBA[other]}", root), columns=(2, 3)):  # newer files name the authors
        at = place(line.source)
        part = "test" if at < test_share else "valid" if at < test_share + valid_share else "train"
        if source != "en":
            line = Line(source=line.target, target=line.source, where=line.where)
        parts[part].append(line)
    return parts


def place(sentence: str) -> float:
    """Where a sentence falls between 0 and 1: by its letters and digits only, and the same for ever."""
    key = "".join(c for c in sentence.casefold() if c.isalnum())
    return int.from_bytes(hashlib.blake2b(key.encode(), digest_size=8).digest(), "big") / 2**64


def read_two(first: Path, second: Path) -> list[Line]:
    """The pairs of two files with as many lines; an empty line raises, with its number."""
    texts = [as_lines(read_text(path)) for path in (first, second)]
    if len(texts[0]) != len(texts[1]):
        raise DataError(
            f"{first} has {len(texts[0])} lines and {second} has {len(texts[1])}: expected as many, each the "
            "translation of the other's"
        )
    for path, lines in zip((first, second), texts, strict=True):
        for number, line in enumerate(lines, start=1):
            if not line.strip():
                raise DataError(f"{path}:{number}: this line is empty: expected a sentence")
    pairs = enumerate(zip(*texts, strict=True), start=1)
    return [Line(source=one, target=other, where=f"{first}:{number}") for number, (one, other) in pairs]


def read_pairs(path: Path, columns: tuple[int, ...] = (2,)) -> list[Line]:
    """The pairs of a file, source TAB target a line; any line that is not a pair raises, with its number."""
    pairs = []
    for number, line in enumerate(as_lines(read_text(path)), start=1):
        found = line.split("\t")
        if len(found) not in columns or not all(found[:2]):
            what = f"{len(found)} columns" if len(found) not in columns else "an empty one"
            raise DataError(f"{path}:{number}: expected two columns, source TAB target, found {what}: {line[:60]!r}")
        pairs.append(Line(source=found[0], target=found[1], where=f"{path}:{number}"))
    return pairs


def _languages(name: str, source: str, target: str, known: tuple[str, ...]) -> None:
    for language in (source, target):
        if language not in known:
            raise DataError(f"{name} has no {language!r}: expected one of {', '.join(known)}")
    if source == target:
        raise DataError(f"source and target are both {source!r}: expected two languages")
