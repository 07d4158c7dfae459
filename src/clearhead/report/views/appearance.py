"""Views of what units see and represent: receptive fields, features, filters, positions, word embeddings."""

from __future__ import annotations

import os
from collections.abc import Callable
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from ... import draw
from ...errors import InputError
from ...inputs.images import image_items
from ...look import (
    Fields,
    PatchColours,
    PictureGrid,
    PositionSimilarity,
    patch_colours,
    position_similarity,
    receptive_fields,
    word_neighbours,
)
from ...look import feature_maps as look_at_features
from ...look import filters as look_at_filters
from ...look.structure import layer_names
from ...weights import Bundle
from ..conditions import colour_filters, position_vectors, reads, tokens
from ..registry import view_of
from .salience import whole_numbers

if TYPE_CHECKING:
    from matplotlib.figure import Figure

Done = Callable[[int, int], None]


@view_of("fields", reads("images"), cheaper="fewer layers=, or fewer images")
def fields(
    bundle: Bundle,
    given: Any,
    *,
    layers: str | None = None,
    unit: str | tuple[int, ...] = "centre",
    done: Done | None = None,
) -> Fields:
    """Receptive field of a unit of each layer: its size by depth; the input may be a folder.

    Args:
        layers: An address or a pattern like blocks.*; the blocks of the model if not given.
        unit: centre, cls (the class token), or row,column of the layer's grid.
    """
    # "centre" and "cls" are names; anything with a comma, or a tuple, is a place in the grid.
    place: Any = (
        unit if isinstance(unit, str) and "," not in unit else tuple(whole_numbers("unit", unit))
    )
    # A folder becomes its images, over which the field is averaged.
    return receptive_fields(bundle, image_items(bundle, given)[0], layers, unit=place, done=done)


@view_of("features", reads("images"))
def feature_maps(
    bundle: Bundle,
    given: Any,
    *,
    layer: str | None = None,
    channels: str | tuple[int, ...] | None = None,
    most: int = 36,
    done: Done | None = None,
) -> PictureGrid:
    """Feature maps of a layer, a picture per channel.

    Args:
        layer: The address of the layer; the first block if not given.
        channels: Numbers of channels with commas between them; those that vary most if not given.
        most: Number of maps.
    """
    # The first block: early maps still show the shape of the image.
    name = layer_names(bundle.model, None)[0] if layer is None else layer
    chosen = None if channels is None else whole_numbers("channels", channels)
    return look_at_features(bundle, given, name, channels=chosen, most=most)


@view_of("filters", colour_filters, needs_input=False)
def filters(
    bundle: Bundle,
    given: Any = None,
    *,
    layer: str | None = None,
    most: int = 64,
    done: Done | None = None,
) -> PictureGrid:
    """Filters of the first convolution, as pictures; no input is needed.

    Args:
        layer: The address of the convolution; the first if not given.
        most: Number of filters.
    """
    return look_at_filters(bundle, layer, most=most)


@view_of("positions", reads("tokens", "pairs", "images"), position_vectors, needs_input=False)
def positions(bundle: Bundle, given: Any = None, *, done: Done | None = None) -> PositionSimilarity:
    """Similarity of each position embedding with every other; no input is needed."""
    return position_similarity(bundle)


@view_of("patch-colours", reads("images"))
def colours(
    bundle: Bundle,
    given: Any,
    *,
    layer: str | None = None,
    foreground: float | None = None,
    done: Done | None = None,
) -> PatchColours:
    """Principal components of patches as red, green and blue; the input may be a folder.

    Args:
        layer: The address of the layer; the last block if not given.
        foreground: Patches whose first component is above this share are the foreground, others are black.
    """
    return patch_colours(bundle, image_items(bundle, given)[0], layer, foreground=foreground)


@dataclass(frozen=True, kw_only=True, eq=False)
class WordNeighbours(draw.Result):
    """The words whose embeddings are nearest to an expression of words."""

    expression: str
    words: list[tuple[str, float]]  # words and cosines, the nearest first

    def figure(self) -> Figure:
        """Draw the cosines as bars."""
        names = [word for word, _ in self.words]
        return draw.bars(
            {"cosine": [cosine for _, cosine in self.words]},
            names=names,
            ylabel="cosine",
            title=self.expression,
        )

    def table(self) -> draw.Table:
        """The words with their cosines."""
        return draw.Table(columns=("word", "cosine"), rows=self.words, title=self.expression)


@view_of("neighbours", tokens)
def neighbours(
    bundle: Bundle, given: Any, *, side: str = "source", top: int = 10, done: Done | None = None
) -> WordNeighbours:
    """Nearest words of a word, or of "man - boy + girl", which is the input.

    Args:
        side: For a translator: source or target.
        top: Number of words.
    """
    # A path that was given by mistake would be read as words with minus signs.
    if os.path.isfile(given):
        raise InputError(f"{given}: expected a word, or words with + and - between them")
    return WordNeighbours(
        expression=given, words=word_neighbours(bundle, given, side=side, top=top)
    )
