"""What the view Compare shows of models of images: similarity of layers, attention distance, receptive fields.

All of it is measured on the photographs that ship. CKA compares layers by which inputs are alike, so each photograph
is read five times: whole, and each of its quarters.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace
from functools import cache
from typing import Any

import numpy as np
from PIL import Image

from ..data.images.files import open_image
from ..errors import InputError
from ..look import Fields, cka_of_features, receptive_fields
from ..look.representation.features import LayerReader
from ..weights import Bundle
from . import answers
from .candidates import significant
from .examples import NAMES, example_file
from .inspections.attention_groups import rounded
from .inspections.image import inspect_image, model_input, reads_images

PER_PHOTO = 5  # views of each photograph: the whole of it and its quarters
CELLS = 48  # most cells per side of a receptive field that is sent to the page
SELF = "self"  # the group of attentions between patches
MASS = 0.9  # share of the gradient that the side of a receptive field holds


@dataclass(frozen=True, kw_only=True, eq=False)
class Study:
    """What was measured of one model; kept with it."""

    # by layer: (views, width), the views of a photograph one after another
    features: dict[str, np.ndarray]
    # by layer and head: mean distance as a share of the width; None: no attention
    distances: list[list[float]] | None
    fields: Fields
    width: int  # of the image that the model reads, in pixels

    def to_dict(self) -> answers.StudyShape:
        """Plain values, for JSON."""
        fields = self.fields
        return {
            "layers": fields.names,
            "distances": self.distances,
            "width": self.width,
            "sides": [significant(float(side)) for side in fields.sides(MASS)],
            "theoretical": [None if size is None else max(size) for size in fields.theoretical],
            "fields": [
                [[significant(float(x)) for x in row] for row in pooled(field)]
                for field in fields.maps
            ],
        }


@cache
def photographs() -> tuple[Image.Image, ...]:
    """The photographs that ship, each cropped to the square in its middle, so that a model reads them in one size."""
    return tuple(_square(open_image(example_file(name))) for name in NAMES)


@cache
def photograph_views() -> tuple[Image.Image, ...]:
    """Each photograph and its four quarters, one after another."""
    return tuple(view for photo in photographs() for view in (photo, *_quarters(photo)))


def _square(image: Image.Image) -> Image.Image:
    side = min(image.size)
    left, top = (image.width - side) // 2, (image.height - side) // 2
    return image.crop((left, top, left + side, top + side))


def _quarters(image: Image.Image) -> list[Image.Image]:
    half = image.width // 2
    return [image.crop((x, y, x + half, y + half)) for y in (0, half) for x in (0, half)]


def study(bundle: Bundle, done: Callable[[int, int], None]) -> Study:
    """Measure a model of images on the photographs that ship.

    Args:
        bundle: The model.
        done: Called with (passes done, all passes); may raise to stop.
    """
    if not reads_images(bundle):
        raise InputError(
            f"this {bundle.name} reads no images: expected a vision model with its preprocessing"
        )
    photos, passed = photographs(), 0

    def step() -> None:
        nonlocal passed
        passed += 1
        done(passed, 3 * len(photos))

    width = model_input(bundle, example_file(NAMES[0]))[1].shape[1]  # raises if it is too large
    features = _features(bundle, step)
    distances = _distances(bundle, step)
    return Study(features=features, distances=distances, fields=_fields(bundle, step), width=width)


def _features(bundle: Bundle, step: Callable[[], None]) -> dict[str, np.ndarray]:
    """The features of each layer for all views, mean over places."""
    reader = LayerReader(bundle, list(photograph_views()), None, "mean")
    parts: list[list[np.ndarray]] = []
    # Each photograph and its quarters are one batch, so that progress counts photographs.
    with reader.reading():
        for first in range(0, len(reader), PER_PHOTO):
            parts.append([x.float().cpu().numpy() for x in reader.read(first, first + PER_PHOTO)])
            step()
    # parts: a list of layers for each batch; zip turns it into a list of batches for each layer.
    return {
        name: np.concatenate(rows)
        for name, rows in zip(reader.names, zip(*parts, strict=True), strict=True)
    }


def _distances(bundle: Bundle, step: Callable[[], None]) -> list[list[float]] | None:
    """The mean attention distance of each head over the photographs, as a share of the image's width."""
    distances = []
    for name in NAMES:
        # Convolutional networks, and transformers without a grid of patches, have no such distances.
        group = inspect_image(bundle, example_file(name))[0].groups.get(SELF)
        if group is not None and group.columns.grid is not None:
            # Distances are in patches: dividing by the number of columns makes models of other grids comparable.
            across = group.columns.grid[1]
            layers = range(len(group.maps))
            distances.append(
                np.array([group.statistics(layer)["distance"] for layer in layers]) / across
            )
        step()
    if not distances:
        return None
    return rounded(np.mean(distances, axis=0))


def _fields(bundle: Bundle, step: Callable[[], None]) -> Fields:
    """The receptive fields of the unit in the middle, mean over the photographs: one at a time, to save memory."""
    total: Fields | None = None
    # The theoretical size depends on the architecture alone, so one photograph is enough for it.
    for seed, photo in enumerate(photographs()):
        fields = receptive_fields(bundle, [photo], theoretical=total is None, seed=seed)
        if total is None:
            total = fields
        else:
            total = replace(total, maps=total.maps + fields.maps)
        step()
    assert total is not None
    return replace(total, maps=total.maps / len(photographs()))


def pooled(x: np.ndarray, cells: int = CELLS) -> np.ndarray:
    """A map as sums over at most `cells` equal cells per side."""
    # The first index of each cell; the last edge is the size itself.
    rows, columns = (
        np.linspace(0, size, min(size, cells) + 1).round().astype(int)[:-1] for size in x.shape
    )
    # Sums, not means, so that the field still sums to 1.
    return np.asarray(np.add.reduceat(np.add.reduceat(x, rows, 0), columns, 1))


def similarity(a: Study, b: Study) -> dict[str, Any]:
    """CKA of the layers of two models, within each and between them, and its standard error over photographs."""
    values = _cka(a, b, slice(None))
    # The jackknife leaves out one photograph with all its quarters at a time: its views are not independent.
    views = len(photograph_views())
    left_out = [
        _cka(a, b, np.r_[:first, first + PER_PHOTO : views]) for first in range(0, views, PER_PHOTO)
    ]
    count = len(left_out)
    error = np.sqrt((count - 1) * np.stack(left_out).var(0))  # the jackknife
    # The matrix is of all layers of both models; its blocks are the comparisons within and between.
    edge = len(a.features)
    blocks = {
        "first": (slice(edge), slice(edge)),
        "between": (slice(edge), slice(edge, None)),
        "second": (slice(edge, None), slice(edge, None)),
    }
    return {
        "rows": list(a.features),
        "columns": list(b.features),
        "photographs": count,
        "views": views,
        **{
            name: {"cka": rounded(values[place]), "error": rounded(error[place])}
            for name, place in blocks.items()
        },
    }


def _cka(a: Study, b: Study, which: Any) -> np.ndarray:
    """CKA of all layers of both models with one another, for some of the views: the debiased estimate, all at once."""
    both = [{name: x[which] for name, x in study.features.items()} for study in (a, b)]
    # With all views in one batch, the minibatch estimator (Nguyen et al. 2021, Eq. 3) is the
    # debiased estimate, for features of any width.
    similarity = cka_of_features(
        both[0], both[1], estimator="minibatch", rows=len(photograph_views())
    )
    return np.block(
        [[similarity.within[0], similarity.matrix], [similarity.matrix.T, similarity.within[1]]]
    )
