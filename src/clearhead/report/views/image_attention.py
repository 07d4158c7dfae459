"""The attention of an image's patches per head, and of the words of a caption, as results of the view `attention`."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any

import numpy as np
import torch
from jaxtyping import Float

from ... import draw
from ...data.images.files import open_image
from ...errors import InputError, InputIndexError
from ...look import AttentionMap, watch
from ...look.saliency_methods.embedded import subject
from ...look.saliency_methods.saliency import seen
from ...look.structure import record_layout
from ...tasks.caption import caption
from ...weights import Bundle

if TYPE_CHECKING:
    from matplotlib.figure import Figure


@dataclass(frozen=True, kw_only=True, eq=False)
class ImageAttention(draw.Drawn):
    """The weights that each patch receives in one layer, per head, from the class token or from all patches."""

    maps: Float[np.ndarray, "h y x"]  # weights over the grid of patches
    heads: list[int]  # the number of each head
    layer: str  # the address of the attention
    queries: str  # whose weights these are: "class token", or "mean of all patches"
    special: Float[np.ndarray, "h"]  # weight on tokens before the grid
    picture: np.ndarray | None  # (height, width, 3) uint8, the image as the model saw it

    def figure(self) -> Figure:
        """Draw the image under the map of each head: lit where the weight is large."""
        if self.picture is not None:
            base = self.picture
        else:
            base = np.full((*self.maps.shape[1:], 3), 255, np.uint8)
        named = {f"head {head}": x for head, x in zip(self.heads, self.maps, strict=True)}
        pictures = {"image": base, **dict.fromkeys(named, base)}
        return draw.images(
            pictures,
            maps=named,
            title=f"{self.queries}, {self.layer}: lit where the weight is large",
        )

    def only(self, head: int) -> ImageAttention:
        """The same of one head."""
        if not 0 <= head < len(self.maps):
            raise InputIndexError(f"head {head}: there are {len(self.maps)}, counted from 0")
        some = slice(head, head + 1)
        return replace(
            self, maps=self.maps[some], heads=self.heads[some], special=self.special[some]
        )

    def to_dict(self) -> dict[str, Any]:
        """Plain values, for JSON."""
        return {
            "layer": self.layer,
            "queries": self.queries,
            "heads": self.heads,
            "special": self.special.tolist(),
            "maps": self.maps.tolist(),
        }


@torch.no_grad()
def image_attention(bundle: Bundle, image: Any, *, layer: int = -1) -> ImageAttention:
    """Return what the patches of an image receive in one layer: of the class token's weight, or of all patches'."""
    about = subject(bundle, image)
    with record_layout(about.model) as layout, watch(about.model, "**.weights") as tape:
        about.logits(about.x)
    places = {name: layout.places(tape[name].shape[3]) for name in tape if tape[name].shape[0] == 1}
    found = {name: axes for name, axes in places.items() if axes is not None}
    if not found:
        raise InputError(
            f"this {bundle.name} has no attention over patches: views of features and saliency fit"
        )
    if not -len(found) <= layer < len(found):
        raise InputIndexError(f"layer {layer}: there are {len(found)}, counted from 0")
    name, axes = list(found.items())[layer]
    own: AttentionMap = tape[name]
    assert axes.grid is not None
    first = bool(axes.special) and own.shape[2] == own.shape[3]
    weights = (own.row(0) if first else own.received() / own.shape[2])[0].float().cpu()
    return ImageAttention(
        maps=weights[:, axes.special :].unflatten(1, axes.grid).numpy(),
        heads=list(range(len(weights))),
        layer=name.removesuffix(".weights"),
        queries="class token" if first else "mean of all patches",
        special=weights[:, : axes.special].sum(1).numpy(),
        picture=seen(about),
    )


@dataclass(frozen=True, kw_only=True, eq=False)
class CaptionMaps(draw.Drawn):
    """A caption, and the map of attention over the image for each of its words."""

    text: str  # the caption
    words: list[str]
    maps: Float[np.ndarray, "w y x"]
    picture: np.ndarray  # (height, width, 3) uint8

    def figure(self) -> Figure:
        """Draw the image, and one panel per word."""
        return draw.strip(self.picture, self.maps, self.words, title=self.text)

    def to_dict(self) -> dict[str, Any]:
        """Plain values, for JSON."""
        return {"text": self.text, "words": self.words, "maps": self.maps.tolist()}


def caption_attention(bundle: Bundle, image: Any, *, text: str | None = None) -> CaptionMaps:
    """Return the maps of the words of a caption: the model's own, or a given text."""
    options: dict[str, Any] = {} if text is None else {"text": text}
    found: Any = caption(bundle, image, **options)
    picture = np.asarray(open_image(image).convert("RGB"))
    return CaptionMaps(
        text=found.text, words=list(found.words), maps=np.asarray(found.maps), picture=picture
    )
