"""The inputs on which two models are compared: images, texts or pairs of texts, with labels where there are some."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from ...data.files import locate
from ...data.images.files import example_images, loose_images, read_image
from ...data.text_files import read_lines
from ...errors import InputError
from ...tasks.evaluation.classes import IMAGE_SETS, ClassOptions, held_out_images
from ...tasks.evaluation.columns import trained_languages
from ...tasks.translate import translate
from ...weights import Bundle, shipped
from ..example_inputs import CROPS, TEXTS, example_crops

Place = str | Path
LEAST = 4  # inputs, for an estimate of CKA


@dataclass(frozen=True, kw_only=True, eq=False)
class SharedInputs:
    """Inputs of two models."""

    name: str  # where they are from, in words
    items: Sequence[Any]  # images, texts, or pairs of texts
    labels: list[str] | None = None  # the class of each
    # what each image shows, in a word, "" if unknown; empty if nothing is known
    subjects: Sequence[str] = ()


def read_inputs(
    a: Bundle, b: Bundle, data: Place | None, most: int, root: Path | None
) -> SharedInputs:
    """Inputs that both models read; raises if they read different kinds.

    Args:
        a: A model.
        b: Another one.
        data: A named set, a folder of images or a file of texts; None: what ships.
        most: Number of inputs, chosen evenly from all.
        root: Folder in which data files are looked for first.
    """
    # Activations of an image and a text cannot be compared input by input.
    if a.reads != b.reads:
        raise InputError(
            f"{title_of(a)} reads {a.reads} and {title_of(b)} {b.reads}: expected the same kind of input"
        )
    if a.reads not in READERS:
        raise InputError(
            f"models that read {a.reads}, such as captioners, are not compared: expected two models of images, two of "
            "texts, or two translators"
        )
    found = READERS[a.reads](a, b, data, root)
    # Evenly over all, because data are often sorted by class; unique() drops repetitions after
    # rounding.
    chosen = np.unique(
        np.linspace(0, len(found.items) - 1, min(most, len(found.items))).round().astype(int)
    )
    if found.labels is None:
        labels = None
    else:
        labels = [found.labels[i] for i in chosen]
    items = [found.items[i] for i in chosen]
    # The debiased estimate of CKA divides by n - 3.
    if len(items) < LEAST:
        raise InputError(f"{found.name} has {len(items)} inputs: expected {LEAST} or more")
    subjects = [found.subjects[i] for i in chosen] if found.subjects else ()
    return SharedInputs(name=found.name, items=items, labels=labels, subjects=subjects)


def _images(bundle: Bundle, other: Bundle, data: Place | None, root: Path | None) -> SharedInputs:
    if data is None:
        # In the order of example_crops(): each image, and then its crops.
        names = [name.replace("-", " ") for name in example_images()]
        return SharedInputs(
            name="images that ship, with crops of each",
            items=example_crops(),
            # A crop may not show the whole subject, so its subject is unknown.
            subjects=[name if i == 0 else "" for name in names for i in range(CROPS)],
        )
    # A named set is never a path, even if a folder of that name exists.
    if data not in IMAGE_SETS:
        path = locate(data, root)
        loose = loose_images(path)
        # Images directly in the folder have no classes; folders inside are read as classes below.
        if loose:
            return SharedInputs(
                name=str(data), items=_Lazy(lambda i: read_image(str(path), loose[i]), len(loose))
            )
    images = held_out_images(bundle, data, ClassOptions(), root)
    labels = list(images.labels)
    return SharedInputs(
        name=str(data), items=_Lazy(images.opened, len(labels)), labels=labels, subjects=labels
    )


class _Lazy(Sequence[Any]):
    """Images that are opened when they are read."""

    def __init__(self, opened: Callable[[int], Any], count: int) -> None:
        self.opened, self.length = opened, count

    def __len__(self) -> int:
        return self.length

    def __getitem__(self, index: Any) -> Any:
        return self.opened(int(index))


def _texts(bundle: Bundle, other: Bundle, data: Place | None, root: Path | None) -> SharedInputs:
    if data is None:
        return SharedInputs(name="English sentences that ship", items=list(TEXTS))
    # In a file of pairs, only the first text of each line is read.
    lines = [line for _, line in read_lines(locate(data, root)) if line.strip()]
    return SharedInputs(name=str(data), items=[line.split("\t")[0] for line in lines])


def _pairs(bundle: Bundle, other: Bundle, data: Place | None, root: Path | None) -> SharedInputs:
    first, second = _languages(bundle), _languages(other)
    # Unknown languages cannot be checked, and are taken to be the same.
    if first is not None and second is not None and first != second:
        raise InputError(
            f"{title_of(bundle)} translates {' to '.join(first)} and {title_of(other)} {' to '.join(second)}: no text "
            "is an input of both; expected two translators between the same languages"
        )
    if data is not None:
        lines = [line.split("\t") for _, line in read_lines(locate(data, root)) if line.strip()]
        # A line without a tab is a source without translation.
        items: list[Any] = [(line[0], line[1]) if len(line) > 1 else line[0] for line in lines]
        return SharedInputs(name=str(data), items=items)
    # Sentences that ship have no translations: the first model's own become the targets of both.
    name, texts = _sources(bundle, first or second)
    found: Any = translate(bundle, texts)
    return SharedInputs(
        name=f"{name}, with translations by {title_of(bundle)}",
        items=[(text, one.text) for text, one in zip(texts, found, strict=True)],
    )


def _languages(bundle: Bundle) -> tuple[str, str] | None:
    """The codes of the languages that a translator reads and writes; None if no recipe names them."""
    languages = trained_languages(bundle)
    if len(languages) == 2:
        return (languages["source"], languages["target"])
    return None


def _sources(bundle: Bundle, languages: tuple[str, str] | None) -> tuple[str, list[str]]:
    """Sentences that ship in the language that a translator reads, and what they are called."""
    # A translator of unknown languages is given English.
    if languages is None or languages[0] == "en":
        return "English sentences that ship", list(TEXTS)
    if bundle.folder is not None:
        # Only a shipped model has a card with examples.
        card = shipped().get(bundle.folder.name)
    else:
        card = None
    # Its own examples are in its language, if there are enough of them for CKA.
    if card is None or len(card.examples) < LEAST:
        raise InputError(
            f"{title_of(bundle)} reads {languages[0]}, and the sentences that ship are English: expected data, a file "
            "with a text, or two with a tab between them, per line"
        )
    return f"example sentences of {title_of(bundle)}", list(card.examples)


READERS: dict[str, Callable[[Bundle, Bundle, Place | None, Path | None], SharedInputs]] = {
    "images": _images,
    "tokens": _texts,
    "pairs": _pairs,
}


def title_of(bundle: Bundle) -> str:
    """The name of a model in a report: the name of its folder or run, or else of its class."""
    folder = bundle.folder
    if folder is None:
        return bundle.name
    # Every run saves its model in a folder "model", so the name of the run is shown.
    in_run = folder.name == "model" and (folder.parent / "recipe.toml").is_file()
    if in_run:
        return folder.resolve().parent.name
    return folder.name
