"""The evaluation of classifiers of texts or images: accuracy and macro F1."""

from __future__ import annotations

import time
from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal

import torch
from rich.table import Table

from ..data import make_data
from ..data.files import DataError, locate
from ..data.image_files import find_images, image_root
from ..data.images import CropConfig, ImageConfig, Images, divided, readable
from ..data.labelled import SST2, labels_of, read_sst2
from ..data.labelled_images import LabelledImages, labelled_files
from ..data.pixels import Pixels
from ..errors import InputError, nearest
from ..weights import Bundle
from .classify import class_names, classify
from .evaluate_text import Done, Place, file_or_set, one_file, table
from .evaluated_columns import labelled_columns
from .frozen_features import linear_probe, nearest_neighbours
from .image_batches import IMAGES
from .text import embed
from .training_data import trained_on

TEXTS = 256  # texts that are classified between two reports of progress
MOST = 20  # classes that a message lists
IMAGE_SETS = {  # data of images that has a name, and the name of its held-out part
    "cifar10": "test", "fashion-mnist": "test", "imagenette": "valid", "mnist": "test",
}  # fmt: skip


@dataclass(frozen=True, kw_only=True, slots=True)
class ClassOptions:
    """The options for classifiers."""

    split: str | None = None  # part of a named set or a folder of images; None: its test or validation part
    text: str | None = None  # column of the texts in a file; None: the one of the model's training, or a usual name
    label: str | None = None  # column of the labels
    by: Literal["head", "knn", "linear"] | None = None  # images: the model's output layer, or its frozen features
    neighbours: int = 20  # knn: number of neighbours that vote
    skip_bad: bool = False  # images: leave out files that cannot be read, and count them


@dataclass(frozen=True, kw_only=True)
class ClassScores:
    """The classes that a classifier predicted, and the measures that follow from them."""

    data: str  # the name of the data
    hypotheses: list[str]  # the predicted class of each text or image
    references: list[str]  # the true class of each text or image
    seconds: float  # time that it took
    unit: str = "texts"  # what was classified: texts or images
    files: Sequence[str] = ()  # the file of each image, if they are files

    @property
    def accuracy(self) -> float:
        """The share of texts or images whose class was predicted correctly."""
        right = sum(a == b for a, b in zip(self.hypotheses, self.references, strict=True))
        return right / len(self.references)

    @property
    def f1(self) -> float:
        """The macro F1: the mean over classes of 2 hits / (predicted + true), of classes that occur in either."""
        true, predicted = Counter(self.references), Counter(self.hypotheses)
        hits = Counter(a for a, b in zip(self.references, self.hypotheses, strict=True) if a == b)
        scores = [2 * hits[name] / (true[name] + predicted[name]) for name in true.keys() | predicted]
        return sum(scores) / len(scores)

    @property
    def confusion(self) -> dict[str, dict[str, int]]:
        """The number of inputs of each true class (first key) by their predicted class (second key)."""
        pairs = Counter(zip(self.references, self.hypotheses, strict=True))
        names = sorted({*self.references, *self.hypotheses})
        return {
            true: {predicted: pairs[true, predicted] for predicted in names} for true in sorted(set(self.references))
        }

    def to_dict(self) -> dict[str, Any]:
        """Plain values, for JSON."""
        return {
            "data": self.data, "accuracy": self.accuracy, "f1": self.f1, self.unit: len(self.references),
            "confusion": self.confusion, "seconds": self.seconds, "hypotheses": self.hypotheses,
            "references": self.references,
            **({"files": list(self.files)} if self.files else {}),
        }  # fmt: skip

    def __rich__(self) -> Table:
        rows = [
            (true, f"{counts[true] / sum(counts.values()):.2%}", f"of {sum(counts.values()):,} {self.unit} recognised")
            for true, counts in self.confusion.items()
        ]
        return table(
            ("data", self.data, ""),
            ("accuracy", f"{self.accuracy:.2%}", f"of {len(self.references):,} {self.unit}, {self.seconds:.1f} s"),
            ("macro F1", f"{self.f1:.4f}", "mean of the classes"),
            *rows,
        )


def class_scores(
    bundle: Bundle, data: Place | Sequence[Place], chosen: ClassOptions, root: Path | None, done: Done | None
) -> ClassScores:
    """Classify labelled texts or images, as the model reads, and compare the classes with the labels."""
    data = one_file(bundle, data)
    if chosen.by in ("knn", "linear") or (chosen.by is None and "classify" not in bundle.can):
        return _feature_scores(bundle, data, chosen, root, done)
    bundle.require("classify", "a classifier, or by='knn' or by='linear'")
    if bundle.config.classes == 1 or bundle.scores == "value":
        raise InputError(f"this {bundle.name} gives scores, not classes: expected a classifier of two classes or more")
    read = _images if bundle.reads == "images" else _texts
    name, unit, inputs, labels, files = read(bundle, data, chosen, root)
    start, predicted = time.perf_counter(), list[str]()
    for some in inputs:
        results: Any = classify(bundle, some, top=1)
        predicted += [classes[0][0] for classes in results]
        if done is not None:
            done(len(some), len(labels))
    return ClassScores(
        data=name, hypotheses=predicted, references=labels, seconds=time.perf_counter() - start, unit=unit, files=files,
    )  # fmt: skip


def _feature_scores(
    bundle: Bundle, data: Place, chosen: ClassOptions, root: Path | None, done: Done | None
) -> ClassScores:
    """Classify validation images by the frozen features of training images: nearest neighbours, or a linear probe."""
    if bundle.reads != "images":
        raise InputError(f"by={chosen.by!r}: this {bundle.name} reads {bundle.reads}, expected a model of images")
    if chosen.split is not None:
        raise InputError(
            f"split={chosen.split!r}: features of train are fitted, and those of the held-out part classified"
        )
    parts = _image_parts(bundle, data, chosen, root, share=CropConfig().share)
    if len(parts) < 2:
        raise InputError(f"{data} has too few images to divide them into train and val, which by={chosen.by!r} needs")
    start, count = time.perf_counter(), sum(len(part.labels) for part in parts.values())
    classes = sorted(set(parts["train"].labels))
    held_out = list(parts)[-1]
    for label in parts[held_out].labels:
        if label not in classes:
            raise DataError(f"{data}: the class {label!r} of {held_out} has no training image")
    features = []
    for part in parts.values():
        rows = []
        for some in part.batches(IMAGES):
            rows.append(torch.from_numpy(embed(bundle, some, normalise=False)))
            if done is not None:
                done(len(some), count)
        features.append(torch.cat(rows))
    labels = torch.tensor([classes.index(label) for label in parts["train"].labels])
    found = (
        linear_probe(features[0], labels, features[1]) if chosen.by == "linear"
        else nearest_neighbours(features[0], labels, features[1], neighbours=chosen.neighbours)
    )  # fmt: skip
    return ClassScores(
        data=f"{data} {held_out}, {chosen.by or 'knn'}", hypotheses=[classes[i] for i in found.tolist()],
        references=list(parts[held_out].labels), seconds=time.perf_counter() - start, unit="images",
        files=parts[held_out].names,
    )  # fmt: skip


# The name of the data, what it consists of, the inputs (some at a time), the label of each, and the file of each.
Labelled = tuple[str, str, Iterator[Sequence[Any]], list[str], Sequence[str]]


def _texts(bundle: Bundle, data: Place, chosen: ClassOptions, root: Path | None) -> Labelled:
    """A file of text TAB label, or a part of sst2."""
    split = chosen.split
    if data == "sst2":
        part = split or "test"
        name, lines = f"sst2 {part}", read_sst2(part, root)
    elif split is not None:
        raise InputError(f"split={split!r} is for sst2 ({', '.join(SST2)}): a file is taken as it is")
    else:
        path = file_or_set(data, root, "sst2")
        name, lines = str(data), labels_of(labelled_columns(bundle, path, chosen.text, chosen.label))
    known = class_names(bundle)
    for line in lines:
        if line.label not in known:
            raise DataError(f"{line.where}: the label {line.label!r} is none of the model's: {', '.join(known)}")
    texts = [line.text for line in lines]
    some = (texts[first : first + TEXTS] for first in range(0, len(texts), TEXTS))
    return name, "texts", some, [line.label for line in lines], ()


def _images(bundle: Bundle, data: Place, chosen: ClassOptions, root: Path | None) -> Labelled:
    """A named set of images, or a folder or zip file of them: all, or a part if it has train/ and val/."""
    part, images, parted = _held_out(bundle, data, chosen, root)
    _check_labels(bundle, data, images.labels)
    name = f"{data} {part}" if parted else str(data)
    return name, "images", images.batches(IMAGES), list(images.labels), images.names


def held_out_images(bundle: Bundle, data: Place, chosen: ClassOptions, root: Path | None) -> LabelledImages:
    """The held-out images of a named set, a folder or a zip file, with their labels; all of it if it is undivided."""
    return _held_out(bundle, data, chosen, root)[1]


def _held_out(bundle: Bundle, data: Place, chosen: ClassOptions, root: Path | None) -> tuple[str, LabelledImages, bool]:
    """The name of the part that is evaluated, its images, and whether there are several parts."""
    parts, split = _image_parts(bundle, data, chosen, root), chosen.split
    parted = len(parts) > 1
    if split is not None and not (parted and split in parts):
        expected = f"one of {', '.join(parts)}" if parted else "no split, because it is not divided into train and val"
        raise InputError(f"split={split!r}: {data} has no such part; expected {expected}")
    part = split or list(parts)[-1]
    return part, parts[part], parted


def _image_parts(
    bundle: Bundle, data: Place, chosen: ClassOptions, root: Path | None, share: float = 0.0
) -> dict[str, LabelledImages]:
    """The parts of a named set, or of a folder, zip file or CSV of images: train and a held-out one, or train alone.

    Undivided files are divided as training divides them, if the model was trained on them, or by `share`.
    """
    if data in IMAGE_SETS:
        opened = make_data(str(data), {"rows": 1}, seed=0, root=root)
        assert isinstance(opened, Images | Pixels)
        return {"train": opened.originals("train"), IMAGE_SETS[str(data)]: opened.originals("valid")}
    try:
        path = locate(data, root)
    except FileNotFoundError as cause:
        expected = f"expected a folder or zip file with a folder per class, or one of {', '.join(IMAGE_SETS)}"
        raise DataError(f"{cause}: this {bundle.name} reads images, {expected}") from cause
    train, valid = find_images(path)
    trained = trained_on(bundle)
    own = isinstance(trained, ImageConfig) and _same_place(trained.path, path, root)
    skip_bad = chosen.skip_bad or (own and trained.skip_bad)
    _, (train, valid) = readable(image_root(path), train, valid, skip_bad=skip_bad, option="skip_bad")
    if not valid:
        train, valid = divided(train, trained.share if own else share)
    parts = {"train": train, "valid": valid} if valid else {"train": train}
    return {name: labelled_files(image_root(path), files) for name, files in parts.items()}


def _same_place(name: str, path: Path, root: Path | None) -> bool:
    """Whether the path in a recipe is the file or folder given."""
    try:
        return locate(name, root).resolve() == path.resolve()
    except FileNotFoundError:
        return False


def _check_labels(bundle: Bundle, data: Place, labels: Sequence[str]) -> None:
    """Raise if a class of the data is none of the model's classes."""
    known = class_names(bundle)
    listed = ", ".join(known[:MOST]) + (f" ... ({len(known)} in all)" if len(known) > MOST else "")
    for label in dict.fromkeys(labels):
        if label not in known:
            raise DataError(f"{data}: the class {label!r} is none of the model's: {listed}{nearest(label, known)}")
