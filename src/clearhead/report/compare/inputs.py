"""The inputs on which two models are compared: images, texts or pairs of texts, with labels where there are some."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from ...data.files import as_lines, locate, read_text
from ...errors import InputError
from ...tasks.evaluate_classes import ClassOptions, held_out_images
from ...tasks.translate import translate
from ...weights import Bundle
from ..example_inputs import TEXTS, example_crops

Place = str | Path


@dataclass(frozen=True, kw_only=True, eq=False)
class Inputs:
    """Inputs of two models."""

    name: str  # where they are from, in words
    items: Sequence[Any]  # images, texts, or pairs of texts
    labels: list[str] | None = None  # the class of each


def read_inputs(a: Bundle, b: Bundle, data: Place | None, most: int, root: Path | None) -> Inputs:
    """Inputs that both models read; raises if they read different kinds.

    Args:
        a: A model.
        b: Another one.
        data: A named set, a folder of images or a file of texts; None: what ships.
        most: Number of inputs, chosen evenly from all.
        root: Folder in which data files are looked for first.
    """
    if a.reads != b.reads:
        raise InputError(f"{title_of(a)} reads {a.reads} and {title_of(b)} {b.reads}: expected the same kind of input")
    if a.reads not in READERS:
        raise InputError(f"models that read {a.reads} are not compared: expected models of images or texts")
    found = READERS[a.reads](a, data, root)
    chosen = np.unique(np.linspace(0, len(found.items) - 1, min(most, len(found.items))).round().astype(int))
    labels = None if found.labels is None else [found.labels[i] for i in chosen]
    items = [found.items[i] for i in chosen]
    if len(items) < 4:
        raise InputError(f"{found.name} has {len(items)} inputs: expected 4 or more")
    return Inputs(name=found.name, items=items, labels=labels)


def _images(bundle: Bundle, data: Place | None, root: Path | None) -> Inputs:
    if data is None:
        return Inputs(name="images that ship, with crops of each", items=example_crops())
    images = held_out_images(bundle, data, ClassOptions(), root)
    return Inputs(name=str(data), items=_Lazy(images.opened, len(images.labels)), labels=list(images.labels))


class _Lazy(Sequence[Any]):
    """Images that are opened when they are read."""

    def __init__(self, opened: Callable[[int], Any], count: int) -> None:
        self.opened, self.length = opened, count

    def __len__(self) -> int:
        return self.length

    def __getitem__(self, index: Any) -> Any:
        return self.opened(int(index))


def _texts(bundle: Bundle, data: Place | None, root: Path | None) -> Inputs:
    if data is None:
        return Inputs(name="sentences that ship", items=list(TEXTS))
    lines = [line for line in as_lines(read_text(locate(data, root))) if line.strip()]
    return Inputs(name=str(data), items=[line.split("\t")[0] for line in lines])


def _pairs(bundle: Bundle, data: Place | None, root: Path | None) -> Inputs:
    if data is not None:
        lines = [line.split("\t") for line in as_lines(read_text(locate(data, root))) if line.strip()]
        items: list[Any] = [(line[0], line[1]) if len(line) > 1 else line[0] for line in lines]
        return Inputs(name=str(data), items=items)
    found: Any = translate(bundle, list(TEXTS))
    return Inputs(
        name="sentences that ship, with translations of the first model",
        items=[(text, one.text) for text, one in zip(TEXTS, found, strict=True)],
    )  # fmt: skip


READERS: dict[str, Callable[[Bundle, Place | None, Path | None], Inputs]] = {
    "images": _images, "tokens": _texts, "pairs": _pairs,
}  # fmt: skip


def title_of(bundle: Bundle) -> str:
    """The name of a model in a report: that of its folder, or its class."""
    return bundle.folder.name if bundle.folder is not None else bundle.name
