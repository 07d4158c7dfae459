"""classify: the classes of texts or images, with their probabilities."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from typing import Any

import numpy as np
import torch
from jaxtyping import Float
from torch import Tensor

from ..data.image_files import ImageLike
from ..errors import InputError
from ..fast import hooked
from ..weights import Bundle
from .text import encode_text, text_batches

IMAGES = 64  # images per batch

Classes = list[tuple[str, float]]  # label and probability, the likeliest first


@torch.no_grad()
def classify(
    bundle: Bundle, inputs: str | Sequence[str] | ImageLike | Sequence[ImageLike], *, top: int | None = None
) -> Classes | list[Classes]:
    """Return the classes of a text or an image, or of each of several, with their probabilities, the likeliest first.

    Args:
        bundle: A classifier of texts (a BERT with answer="class") or of images.
        inputs: One text, or several. If the model reads images: one image, or several, each a path, a PIL image, or a
            uint8 array (height, width, 3).
        top: Classes to return; all if not given.

    Returns:
        Pairs of label and probability; for several inputs, a list of such lists.

    Examples:
        >>> words = clearhead.tokens.Words(["good", "bad", "film"])
        >>> options = {"width": 8, "depth": 1, "heads": 2, "answer": "class", "classes": 2}
        >>> bert = clearhead.build("bert", vocab=len(words), context=8, **options)
        >>> len(classify(clearhead.Bundle(bert, words, labels=("negative", "positive")), "good film"))
        2
    """
    bundle.require("classify", "a classifier, such as a BERT with answer='class'")
    if bundle.reads == "images":
        items, single = _images(inputs)
        outputs = _image_logits(bundle, items)
    else:
        items, single = _texts(bundle, inputs)
        outputs = _text_logits(bundle, items)
    names = class_names(bundle)
    results: list[Classes] = [[] for _ in items]
    for batch, logits in outputs:
        p, order = logits.float().softmax(-1).sort(dim=-1, descending=True)
        for i, shares, classes in zip(batch, p.tolist(), order.tolist(), strict=True):
            results[i] = [(names[c], share) for c, share in zip(classes, shares, strict=True)][:top]
    return results[0] if single else results


def class_names(bundle: Bundle) -> tuple[str, ...]:
    """The labels of a classifier, or else the numbers of its classes."""
    return bundle.labels or tuple(str(i) for i in range(bundle.config.classes))


def _texts(bundle: Bundle, inputs: Any) -> tuple[list[str], bool]:
    """The texts, and whether it was one alone; raises for anything else."""
    single = isinstance(inputs, str | bytes) or not isinstance(inputs, Iterable)
    items = [inputs] if single else list(inputs)
    for item in items:
        if not isinstance(item, str):
            raise InputError(f"this {bundle.name} reads text: expected a string, got {type(item).__name__}")
    return items, single


def _images(inputs: Any) -> tuple[list[ImageLike], bool]:
    """The images, and whether it was one alone: an array is one image, a list is several."""
    several = isinstance(inputs, Iterable) and not isinstance(inputs, str | bytes | np.ndarray)
    return (list(inputs), False) if several else ([inputs], True)


def _text_logits(bundle: Bundle, texts: Sequence[str]) -> Iterator[tuple[list[int], Float[Tensor, "b classes"]]]:
    """Yield the numbers of some texts, and their logits."""
    pad = bundle.tokenizer().pad
    rows = [encode_text(bundle, text) for text in texts]
    for batch, ids, lengths in text_batches(bundle, pad, rows):
        yield batch, bundle.model(ids, lengths=lengths)


def _image_logits(
    bundle: Bundle, images: Sequence[ImageLike]
) -> Iterator[tuple[list[int], Float[Tensor, "b classes"]]]:
    """Yield the numbers of some images, and their logits: batches of neighbours whose inputs have the same size.

    A model with hooks or taps gets one image at a time, so that a tape holds each by itself.
    """
    most, numbers, batch = 1 if hooked(bundle.model) else IMAGES, list[int](), list[Tensor]()
    for i, image in enumerate(images):
        pixels = bundle.pixels(image)
        if batch and (len(batch) == most or pixels.shape != batch[0].shape):
            yield numbers, _run(bundle, batch)
            numbers, batch = [], []
        numbers.append(i)
        batch.append(pixels)
    if batch:
        yield numbers, _run(bundle, batch)


def _run(bundle: Bundle, pixels: list[Tensor]) -> Float[Tensor, "b classes"]:
    logits: Tensor = bundle.model(torch.stack(pixels).to(bundle.device, bundle.dtype))
    return logits
