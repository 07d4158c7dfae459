"""What an encoder computes of texts: predictions of masked tokens, classes, and similarities."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch

from ..errors import InputError
from ..inputs.batching import cut
from ..inputs.texts import read_ids
from ..tasks import embed
from ..tasks.classify import class_names
from ..weights import Bundle
from . import answers
from .candidates import TOP, likeliest, significant
from .examples import Outline
from .inspections.attention_groups import rounded
from .inspections.text import Inspection, Off, inspect_output

# a model that can do one of these reads a whole text at once
ENCODERS = frozenset({"fill", "classify", "embed"})


@dataclass(frozen=True, kw_only=True, eq=False)
class Reading:
    """The tokens of a text that an encoder reads."""

    ids: list[int]
    masks: list[int]  # indices of masked tokens
    of: int  # number of the text's tokens, if all of them fitted


def is_encoder(bundle: Bundle | Outline) -> bool:
    """Whether a model reads a whole text at once, instead of continuing or translating it."""
    return bundle.reads == "tokens" and bool(ENCODERS & bundle.can) and "generate" not in bundle.can


def tokens_to_read(bundle: Bundle, text: str) -> Reading:
    """The tokens of a text with the special tokens around it, cut at the model's context; raises for other models."""
    if not is_encoder(bundle):
        raise InputError(f"this {bundle.name} is no encoder of texts: expected a BERT")
    row, masks = read_ids(bundle, text)
    if not len(row):
        raise InputError("the text is empty: expected a token or more")
    ids = cut(row, bundle.max_tokens).tolist()
    if len(ids) < len(row):
        # The last token of a text that was cut is its end token, not a mask.
        masks = [at for at in masks if at < len(ids) - 1]
    return Reading(ids=ids, masks=masks, of=len(row))


@torch.no_grad()
def read_text(
    bundle: Bundle, reading: Reading, off: Off | None, done: Callable[[int, int], None]
) -> tuple[Inspection, dict[str, Any]]:
    """The inspection of a text, and the likeliest tokens for each mask and the classes, if the model predicts them."""
    inspection, x = inspect_output(bundle, reading.ids, off, done)
    model: Any = bundle.model
    fill = classes = None
    if "fill" in bundle.can:
        # (t, d) -> (masks, d) -> (masks, v): the head runs on the masked tokens only.
        fill = likeliest(bundle.tokenizer(), model.head(x[reading.masks]), TOP)
    if "classify" in bundle.can:
        p, order = model.head(x).float().softmax(-1).sort(descending=True)
        names = class_names(bundle)
        classes = [
            [names[i], significant(share)]
            for i, share in zip(order.tolist(), p.tolist(), strict=True)
        ]
    return inspection, {"fill": fill, "classes": classes, "masks": reading.masks}


def neighbours(bundle: Bundle, texts: Sequence[str]) -> answers.NeighboursShape:
    """The cosine similarities of the embeddings of texts, and their places in two dimensions."""
    # Embeddings have unit length, so dot products are cosines.
    vectors = np.asarray(embed(bundle, list(texts)), np.float64)
    return {
        "texts": list(texts),
        "similarity": rounded(vectors @ vectors.T),
        "places": rounded(principal_plane(vectors)),
    }


def principal_plane(x: np.ndarray) -> np.ndarray:
    """The rows of x (n, d) in the plane of their first two principal components, (n, 2).

    The sign of a component is arbitrary: the coordinate of largest magnitude is made positive.
    """
    u, s, _ = np.linalg.svd(x - x.mean(0), full_matrices=False)
    places = np.zeros((len(x), 2))
    # Fewer than two texts or dimensions have fewer components: the other coordinates stay 0.
    places[:, : min(2, len(s))] = (u * s)[:, :2]
    # Rounding errors of equal texts would otherwise spread over the whole plot.
    places[np.abs(places) < 1e-12] = 0.0
    peak = places[np.abs(places).argmax(0), [0, 1]]
    return places * np.where(peak < 0, -1.0, 1.0)
