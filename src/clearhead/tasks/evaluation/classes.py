"""The evaluation of classifiers of texts or images: accuracy and macro F1."""

from __future__ import annotations

import time
import warnings
from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal

import torch
from rich.table import Table

from ...data import make_data
from ...data.files import DataError, locate
from ...data.images.files import LabelledImages, find_images, image_root, labelled_files
from ...data.images.folders import CropConfig, ImageConfig, Images, divided, readable
from ...data.images.in_memory import Pixels
from ...data.text.labelled import labels_of, read_sst2
from ...errors import InputError, Notice, nearest
from ...inputs.images import IMAGES
from ...metrics import linear_probe, nearest_neighbours
from ...weights import Bundle
from ..classify import class_names, classify
from ..text import embed
from .columns import (
    ALL,
    EvaluatedRows,
    evaluated_part,
    labelled_columns,
    trained_on_all,
    trained_on_file,
)
from .text import Done, Place, file_or_set, one_file, table

TEXTS = 256  # texts that are classified between two reports of progress
MOST = 20  # classes that a message lists
IMAGE_SETS = {  # data of images that has a name, and the name of its held-out part
    "cifar10": "test",
    "fashion-mnist": "test",
    "imagenette": "valid",
    "mnist": "test",
}


@dataclass(frozen=True, kw_only=True, slots=True)
class ClassOptions:
    """The options for classifiers."""

    # part of a named set, a folder of images or the model's data; None: the held-out part
    split: str | None = None
    # column of the texts in a file; None: the one of the model's training, or a usual name
    text: str | None = None
    label: str | None = None  # column of the labels
    # images: the model's output layer, or its frozen features
    by: Literal["head", "knn", "linear"] | None = None
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
    # rows without a text or a label, or image files that cannot be read, which are not counted
    left_out: int = 0
    remark: str = ""  # which part of the data it is, if that is not all

    @property
    def accuracy(self) -> float:
        """The share of texts or images whose class was predicted correctly."""
        right = sum(a == b for a, b in zip(self.hypotheses, self.references, strict=True))
        return right / len(self.references)

    @property
    def f1(self) -> float:
        """The macro F1: the mean over classes of 2 hits / (predicted + true), of classes that occur in either."""
        # F1 of a class = 2 hits / (predicted + true), the harmonic mean of precision and recall
        true, predicted = Counter(self.references), Counter(self.hypotheses)
        hits = Counter(a for a, b in zip(self.references, self.hypotheses, strict=True) if a == b)
        scores = [
            2 * hits[name] / (true[name] + predicted[name]) for name in true.keys() | predicted
        ]
        return sum(scores) / len(scores)

    @property
    def confusion(self) -> dict[str, dict[str, int]]:
        """The number of inputs of each true class (first key) by their predicted class (second key)."""
        pairs = Counter(zip(self.references, self.hypotheses, strict=True))
        names = sorted({*self.references, *self.hypotheses})
        return {
            true: {predicted: pairs[true, predicted] for predicted in names}
            for true in sorted(set(self.references))
        }

    def to_dict(self) -> dict[str, Any]:
        """Plain values, for JSON."""
        values = {
            "data": self.data,
            "accuracy": self.accuracy,
            "f1": self.f1,
            self.unit: len(self.references),
            "confusion": self.confusion,
            "seconds": self.seconds,
            "hypotheses": self.hypotheses,
            "references": self.references,
            "left_out": self.left_out,
        }
        if self.files:
            values["files"] = list(self.files)
        return values

    def __rich__(self) -> Table:
        rows = [("data", self.data, self.remark)]
        if self.left_out:
            what = "image files that cannot be read"
            if self.unit == "texts":
                what = "rows without a text or a label"
            rows.append(("left out", f"{self.left_out:,}", what))
        count = f"of {len(self.references):,} {self.unit}, {self.seconds:.1f} s"
        rows.append(("accuracy", f"{self.accuracy:.2%}", count))
        rows.append(("macro F1", f"{self.f1:.4f}", "mean of the classes"))
        for label, predicted in self.confusion.items():
            # the recall of each class
            total = sum(predicted.values())
            recognised = f"of {total:,} {self.unit} recognised"
            rows.append((label, f"{predicted[label] / total:.2%}", recognised))
        return table(*rows)


def class_scores(
    bundle: Bundle,
    data: Place | Sequence[Place],
    chosen: ClassOptions,
    root: Path | None,
    done: Done | None,
) -> ClassScores:
    """Classify labelled texts or images, whichever the model reads, and compare the classes with the labels."""
    data = one_file(bundle, data)
    # a backbone without an output layer is measured by its features
    if chosen.by in ("knn", "linear") or (chosen.by is None and "classify" not in bundle.can):
        return _feature_scores(bundle, data, chosen, root, done)
    bundle.require("classify", "a classifier, or by='knn' or by='linear'")
    # a reranker or a regression
    if bundle.config.classes == 1 or bundle.scores == "value":
        raise InputError(
            f"this {bundle.name} gives scores, not classes: expected a classifier of two classes or more"
        )
    read = _images if bundle.reads == "images" else _texts
    read_data = read(bundle, data, chosen, root)
    labels = read_data.labels
    start = time.perf_counter()
    predicted: list[str] = []
    for some in read_data.inputs:
        results: Any = classify(bundle, some, top=1)
        # the label of the likeliest class
        predicted += [classes[0][0] for classes in results]
        if done is not None:
            done(len(some), len(labels))
    return ClassScores(
        data=read_data.name,
        hypotheses=predicted,
        references=labels,
        seconds=time.perf_counter() - start,
        unit=read_data.unit,
        files=read_data.files,
        left_out=read_data.left_out,
        remark=read_data.remark,
    )


def _feature_scores(
    bundle: Bundle, data: Place, chosen: ClassOptions, root: Path | None, done: Done | None
) -> ClassScores:
    """Classify validation images by the frozen features of training images: nearest neighbours, or a linear probe."""
    if bundle.reads != "images":
        raise InputError(
            f"by={chosen.by!r}: this {bundle.name} reads {bundle.reads}, expected a model of images"
        )
    if chosen.split is not None:
        raise InputError(
            f"split={chosen.split!r}: features of train are fitted, and those of the held-out part classified"
        )
    # undivided files are divided by the share that training would hold out
    images = _image_parts(bundle, data, chosen, root, share=CropConfig().share)
    parts = images.parts
    if len(parts) < 2:
        raise InputError(
            f"{data} has too few images to divide them into train and val, which by={chosen.by!r} needs"
        )
    start, count = time.perf_counter(), sum(len(part.labels) for part in parts.values())
    classes = sorted(set(parts["train"].labels))
    # "test" of some named sets, "valid" of others and of files
    held_out = list(parts)[-1]
    for label in parts[held_out].labels:
        if label not in classes:
            # its images could never be classified correctly
            raise DataError(f"{data}: the class {label!r} of {held_out} has no training image")
    # one tensor (n, d) per part, train first; unscaled, because the linear probe standardises
    features = []
    for part in parts.values():
        rows = []
        for some in part.batches(IMAGES):
            # knn normalises by itself
            rows.append(torch.from_numpy(embed(bundle, some, normalise=False)))
            if done is not None:
                done(len(some), count)
        # (images of the part, d)
        features.append(torch.cat(rows))
    # classes are numbered in sorted order, as in `hypotheses` below
    labels = torch.tensor([classes.index(label) for label in parts["train"].labels])
    if chosen.by == "linear":
        found = linear_probe(features[0], labels, features[1])
    else:
        # also the default of a model without a head, since it fits nothing
        found = nearest_neighbours(features[0], labels, features[1], neighbours=chosen.neighbours)
    return ClassScores(
        data=f"{data} {held_out}, {chosen.by or 'knn'}",
        hypotheses=[classes[i] for i in found.tolist()],
        references=list(parts[held_out].labels),
        seconds=time.perf_counter() - start,
        unit="images",
        files=parts[held_out].names,
        left_out=images.left_out,
    )


@dataclass(frozen=True, kw_only=True, slots=True)
class LabelledInputs:
    """What is classified, and the true classes."""

    name: str  # of the data
    unit: str  # what it consists of: texts or images
    inputs: Iterator[Sequence[Any]]  # some at a time
    labels: list[str]  # of each input
    files: Sequence[str] = ()  # of each image
    left_out: int = 0  # rows or files that are not among the inputs
    remark: str = ""  # which part of the data it is


def _texts(bundle: Bundle, data: Place, chosen: ClassOptions, root: Path | None) -> LabelledInputs:
    """The texts and labels of a file of text TAB label, or of a part of sst2."""
    empty = 0
    if data == "sst2":
        split = chosen.split or "test"
        part = EvaluatedRows(f"sst2 {split}", read_sst2(split, root))
    else:
        path = file_or_set(data, root, "sst2")
        columns = labelled_columns(bundle, path, chosen.text, chosen.label)
        rows = labels_of(columns, skip_empty=True)
        part = evaluated_part(bundle, data, path, rows, chosen.split, root)
        # rows that were skipped, known once all have been read
        empty = columns.empty
    known = class_names(bundle)
    for line in part.rows:
        # a misspelt label would count as an error of the model
        if line.label not in known:
            raise DataError(
                f"{line.where}: the label {line.label!r} is none of the model's: {', '.join(known)}"
            )
    texts = [line.text for line in part.rows]
    some = (texts[first : first + TEXTS] for first in range(0, len(texts), TEXTS))
    labels = [line.label for line in part.rows]
    return LabelledInputs(
        name=part.name, unit="texts", inputs=some, labels=labels, left_out=empty, remark=part.remark
    )


def _images(bundle: Bundle, data: Place, chosen: ClassOptions, root: Path | None) -> LabelledInputs:
    """A named set of images, or a folder or zip file of them: all, or a part if it has train/ and val/."""
    found = _image_parts(bundle, data, chosen, root)
    name, images = _chosen_part(data, found, chosen.split)
    _check_labels(bundle, data, images.labels)
    remark = ""
    # the model was trained on this folder: say which part was held out
    if found.own and chosen.split is None:
        remark = ALL
        if len(found.parts) == 1:
            # nothing was held out
            remark = ""
            warnings.warn(Notice(trained_on_all(data)), stacklevel=4)
    return LabelledInputs(
        name=name,
        unit="images",
        inputs=images.batches(IMAGES),
        labels=list(images.labels),
        files=images.names,
        left_out=found.left_out,
        remark=remark,
    )


def held_out_images(
    bundle: Bundle, data: Place, chosen: ClassOptions, root: Path | None
) -> LabelledImages:
    """The held-out images of a named set, a folder or a zip file, with their labels; all of it if it is undivided."""
    return _chosen_part(data, _image_parts(bundle, data, chosen, root), chosen.split)[1]


@dataclass(frozen=True, slots=True)
class ImageParts:
    """The training and held-out parts of a set of images."""

    parts: dict[str, LabelledImages]  # train and a held-out one, or train alone
    whole: LabelledImages | None = None  # all of them, of files
    own: bool = False  # whether the model was trained on it
    left_out: int = 0  # files that cannot be read


def _chosen_part(data: Place, found: ImageParts, split: str | None) -> tuple[str, LabelledImages]:
    """The name and the images of the part that is evaluated."""
    parts = found.parts
    if split == "all" and found.whole is not None:
        return str(data), found.whole
    # undivided data is taken as a whole, under the name train
    if len(parts) == 1 and split is None:
        return str(data), parts["train"]
    if split is not None and (len(parts) == 1 or split not in parts):
        expected = "no split, because it is not divided into train and val"
        if len(parts) > 1:
            # "all" is of files alone: a named set keeps its parts apart
            known = list(parts) if found.whole is None else [*parts, "all"]
            expected = f"one of {', '.join(known)}"
        raise InputError(f"split={split!r}: {data} has no such part; expected {expected}")
    part = split or list(parts)[-1]
    return f"{data} {part}", parts[part]


def _image_parts(
    bundle: Bundle, data: Place, chosen: ClassOptions, root: Path | None, share: float = 0.0
) -> ImageParts:
    """The parts of a named set, or of a folder, zip file or CSV of images.

    Undivided files are divided as training divides them, if the model was trained on them, or by `share`.
    """
    if data in IMAGE_SETS:
        # the options of batches do not matter: only the original images are read
        opened = make_data(str(data), {"rows": 1}, seed=0, root=root)
        assert isinstance(opened, Images | Pixels)
        return ImageParts(
            {"train": opened.originals("train"), IMAGE_SETS[str(data)]: opened.originals("valid")}
        )
    try:
        path = locate(data, root)
    except FileNotFoundError as cause:
        expected = f"expected a folder or zip file with a folder per class, or one of {', '.join(IMAGE_SETS)}"
        raise DataError(f"{cause}: this {bundle.name} reads images, {expected}") from cause
    # train/ and val/ give both parts; with one folder per class alone, valid is empty
    train, valid = find_images(path)
    trained = trained_on_file(bundle, path, root)
    own = isinstance(trained, ImageConfig)
    skip_bad = chosen.skip_bad or (own and trained.skip_bad)
    # before dividing: training, too, divided only what it could read
    bad, (train, valid) = readable(
        image_root(path), train, valid, skip_bad=skip_bad, option="skip_bad"
    )
    # the division depends on the list of files alone, so that it equals the training's
    if not valid:
        train, valid = divided(train, trained.share if own else share)
    opened_parts = {"train": labelled_files(image_root(path), train)}
    if valid:
        opened_parts["valid"] = labelled_files(image_root(path), valid)
    # in the order of the folder, whatever the division
    whole = labelled_files(image_root(path), sorted([*train, *valid], key=lambda image: image.name))
    return ImageParts(opened_parts, whole=whole, own=own, left_out=len(bad))


def _check_labels(bundle: Bundle, data: Place, labels: Sequence[str]) -> None:
    """Raise if a class of the data is none of the model's classes."""
    known = class_names(bundle)
    listed = ", ".join(known[:MOST])
    if len(known) > MOST:
        # a set may have a thousand classes
        listed += f" ... ({len(known)} in all)"
    for label in dict.fromkeys(labels):
        if label not in known:
            raise DataError(
                f"{data}: the class {label!r} is none of the model's: {listed}{nearest(label, known)}"
            )
