"""classify: the classes of texts or images, with their probabilities, or the values of a regression."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import overload

import torch
from torch import Tensor

from ..data.images.files import ImageLike
from ..errors import InputError
from ..inputs.images import OneImage
from ..inputs.read import reader_of
from ..weights import Bundle, ModelLike, opened

CLASSIFIERS = "a classifier, such as a BERT with answer='class' or a vision model with classes"
Classes = list[tuple[str, float]]  # label and score, the highest first
# How logits become scores, by Bundle.scores.
SCORES: dict[str, Callable[[Tensor], Tensor]] = {
    "softmax": lambda logits: logits.softmax(-1),
    "sigmoid": torch.sigmoid,
    "value": lambda logits: logits,
}


@overload
def classify(bundle: ModelLike, inputs: OneImage, *, top: int | None = None) -> Classes: ...  # type: ignore[overload-overlap]


@overload
def classify(
    bundle: ModelLike, inputs: Sequence[str] | Sequence[ImageLike], *, top: int | None = None
) -> list[Classes]: ...


@torch.no_grad()
def classify(
    bundle: ModelLike,
    inputs: str | Sequence[str] | ImageLike | Sequence[ImageLike],
    *,
    top: int | None = None,
) -> Classes | list[Classes]:
    """Return the classes of a text or an image, or of each of several, with their probabilities, the likeliest first.

    Classes that do not exclude each other (problem_type "multi_label_classification" of a Hugging Face folder) have a
    probability each, by a sigmoid, and so has a single output, as of a reranker. Of a regression the values themselves
    are returned.

    Args:
        bundle: A classifier of texts (a BERT with answer="class") or of images, or its name or folder.
        inputs: One text, or several. If the model reads images: one image, or several, each a path, an open
            file, a PIL image, a uint8 array (height, width[, channels]) or a uint8 tensor (channels, height, width);
            a folder, for all images in it, sorted by path; or an array or tensor of several, with four axes.
        top: Classes to return; all if not given.

    Returns:
        Pairs of label and probability (or value); for several inputs, a list of such lists.

    Examples:
        >>> words = clearhead.tokens.Words(["good", "bad", "film"])
        >>> options = {"width": 8, "depth": 1, "heads": 2, "answer": "class", "classes": 2}
        >>> bert = clearhead.build("bert", vocab=len(words), context=8, **options)
        >>> len(classify(clearhead.Bundle(bert, words, labels=("negative", "positive")), "good film"))
        2
    """
    bundle = opened(bundle)
    bundle.require("classify", CLASSIFIERS)
    if top is not None and (not isinstance(top, int) or top < 1):
        raise InputError(f"top={top}: expected a whole number, 1 or more")
    reader = reader_of(bundle)
    items, single = reader.items(bundle, inputs)
    names = class_names(bundle)
    # batches are grouped by length or size, so results are put back by number
    results: list[Classes] = [[] for _ in range(len(items))]
    for numbers, batch in reader.grouped(bundle, items):
        # (b, classes); in float32, so that probabilities of a bfloat16 model sum to 1
        logits = batch.run(bundle.model).float()
        scores, order = SCORES[bundle.scores](logits).sort(dim=-1, descending=True)
        for i, values, classes in zip(numbers, scores.tolist(), order.tolist(), strict=True):
            labels = [names[c] for c in classes]
            results[i] = list(zip(labels, values, strict=True))[:top]
    return results[0] if single else results


def class_names(bundle: Bundle) -> tuple[str, ...]:
    """The labels of a classifier, or else the numbers of its classes."""
    return bundle.labels or tuple(str(i) for i in range(bundle.config.classes))
