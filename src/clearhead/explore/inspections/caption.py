"""Captions of an image: the words of the user, the inspection of what each word looked at, and captions as JSON."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from ...errors import InputError
from ...tasks import Caption
from ...tasks.caption import given_caption, read_caption
from ...tasks.translate import CROSS, NoAttentionError
from ...weights import Bundle
from .. import answers
from ..examples import Outline
from .attention_groups import Group, text_axis
from .image import ImageInspection, grid_axis, model_input

ABOUT = "each word attends to the places of the image"
MOST_CHARACTERS = 2000  # of a caption of the user's own


@dataclass(eq=False, kw_only=True)
class CaptionInspection(ImageInspection):
    """The attention of a caption's words over the image, and the evidence for each word."""

    caption: Caption

    def to_dict(self) -> dict[str, Any]:
        """Plain values, for JSON."""
        return {**super().to_dict(), "words": self.caption.words}

    def evidence(self) -> np.ndarray:
        """The probability of each word where the decoder sees one place alone, (words, y, x); each map sums to 1."""
        return self.caption.evidence()


def captions_images(bundle: Bundle | Outline) -> bool:
    """Whether a model writes captions and comes with the preprocessing for images."""
    return (
        "caption" in bundle.can and bundle.preprocessing is not None and bundle.tokens is not None
    )


def inspect_caption(caption: Caption, seen: np.ndarray) -> CaptionInspection:
    """Inspect the attention of a caption over its image; no groups for a captioner without attention."""
    forced = caption.forced
    assert forced is not None
    groups = {}
    try:
        tape, grid = forced.watch(CROSS)
    except NoAttentionError:
        # A captioner that reads the image once, as its first state, has no cross-attention.
        pass
    else:
        layers = tape.match(CROSS)
        rows = text_axis(forced.bundle.tokenizer(), forced.ids, caption.word_groups)
        # Keys beyond the grid's places are special tokens in front of them.
        columns = grid_axis(
            grid, special_names(next(iter(layers.values())).shape[-1] - math.prod(grid))
        )
        groups["cross"] = Group("cross", rows, columns, layers, ABOUT)
    return CaptionInspection(groups, forced.bundle, seen=seen, features=[], caption=caption)


def special_names(count: int) -> list[str]:
    """The names of a vision transformer's tokens before the grid of patches."""
    return ["class token", *(f"register {i}" for i in range(count - 1))][:count]


def checked_image(bundle: Bundle, file: bytes) -> np.ndarray:
    """An image as a captioner reads it, (height, width, 3) in uint8; raises for a model that writes no captions."""
    if not captions_images(bundle):
        raise InputError(
            f"this {bundle.name} writes no captions: expected a captioner with its preprocessing"
        )
    return model_input(bundle, file)[1]


def own_caption(bundle: Bundle, file: bytes, text: str) -> tuple[Caption, list[str]]:
    """A caption by the user for an image, and the words of it that the model does not know."""
    if len(text) > MOST_CHARACTERS:
        raise InputError(
            f"the caption has {len(text):,} characters: expected at most {MOST_CHARACTERS:,}"
        )
    ids, unknown = read_caption(bundle, text)
    return given_caption(bundle, file, ids), unknown


def caption_dict(
    caption: Caption, *, given: bool = False, unknown: Sequence[str] = ()
) -> answers.CaptionShape:
    """A caption as plain values, for JSON; its maps are requested by layer and head."""
    assert caption.forced is not None
    ids = caption.forced.ids
    return {
        "text": caption.text,
        "score": caption.score,
        "logprob": caption.logprob,
        "words": caption.words,
        # A finished caption ends with the end token, which is no part of its words.
        "ids": ids if caption.cut else ids[:-1],
        "cut": caption.cut,
        "given": given,
        "unknown": list(unknown),
    }
