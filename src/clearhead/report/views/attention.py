"""Views of attention: maps of a text, a translation, an image or a caption; the class token; rollout; sinks."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any

import numpy as np
import torch
from jaxtyping import Float

from ... import draw
from ...data.images.files import open_image
from ...errors import InputError, InputIndexError
from ...inputs import read_input
from ...look import (
    AttentionMap,
    AttentionView,
    ClsMaps,
    Saliency,
    TextAttention,
    attention,
    attention_view,
    cls_maps,
    saliency,
    watch,
)
from ...look.maps.sinks import View as HowShown
from ...look.saliency_methods.float_input import float_input
from ...look.saliency_methods.saliency import seen
from ...look.structure import layer_stack, record_layout
from ...tasks.caption import caption
from ...weights import Bundle
from ..conditions import attends, class_token, layered, reads
from ..example_inputs import own_translation
from ..registry import view_of

if TYPE_CHECKING:
    from matplotlib.figure import Figure

Done = Callable[[int, int], None]


# The view `attention`: a result for each kind of input.


@dataclass(frozen=True, kw_only=True, eq=False)
class TextMaps(draw.Result):
    """The attention maps of a text with the layer, the head and the kind that are drawn."""

    maps: TextAttention
    layer: int = -1
    head: int | None = None  # None: all heads
    kind: str | None = None  # None: cross of a translator, otherwise self

    def figure(self) -> Figure:
        """Draw one head, or all heads of the layer as small multiples."""
        kind = self.maps.main if self.kind is None else self.kind
        # Small multiples, because the mean over heads hides what each does.
        if self.head is None:
            return self.maps.heads_figure(self.layer, kind=kind)
        return self.maps.figure(self.layer, self.head, kind=kind)

    def table(self) -> draw.Table:
        """The key with the largest weight of each query."""
        return self.maps.table(self.layer, self.head, kind=self.kind)

    def to_dict(self) -> dict[str, Any]:
        """Plain values, for JSON."""
        return self.maps.to_dict()


@dataclass(frozen=True, kw_only=True, eq=False)
class ImageAttention(draw.Result):
    """The weights that each patch receives in one layer, per head, from the class token or from all patches."""

    in_json = "layer queries heads special maps"

    maps: Float[np.ndarray, "h y x"]  # weights over the grid of patches
    heads: list[int]  # the number of each head
    layer: str  # the address of the attention
    queries: str  # whose weights these are: "class token", or "mean of all patches"
    special: Float[np.ndarray, "h"]  # weight on tokens before the grid
    picture: np.ndarray | None  # (height, width, 3) uint8, the image as the model saw it

    def figure(self) -> Figure:
        """Draw the image under the map of each head: lit where the weight is large."""
        # Without a picture, the maps are drawn over white cells.
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

    def table(self) -> draw.Table:
        """The patch with the largest weight, for each head."""
        rows = []
        for head, weights, special in zip(self.heads, self.maps, self.special, strict=True):
            # The row and column of the largest weight, as text.
            patch = draw.largest_cell(weights)
            rows.append((head, f"{float(weights.max()):.3f}", patch, f"{float(special):.3f}"))
        return draw.Table(
            columns=("head", "largest weight", "patch", "on tokens before the grid"),
            rows=rows,
            title=f"{self.queries}, {self.layer}",
        )

    def only(self, head: int) -> ImageAttention:
        """A copy with the map of one head only."""
        if not 0 <= head < len(self.maps):
            raise InputIndexError(f"head {head}: there are {len(self.maps)}, counted from 0")
        # A slice keeps the axis of heads.
        some = slice(head, head + 1)
        return replace(
            self, maps=self.maps[some], heads=self.heads[some], special=self.special[some]
        )


@torch.no_grad()
def image_attention(bundle: Bundle, image: Any, *, layer: int = -1) -> ImageAttention:
    """Return the attention that each patch receives in one layer: from the class token, or the mean over patches."""
    about = float_input(bundle, image)
    # The layout records which tokens are special and which grid the rest forms.
    with record_layout(about.model) as layout, watch(about.model, "**.weights") as tape:
        about.logits(about.x)
    # Attention within windows has one row per window, (windows, h, q, k), and is left out.
    places = {name: layout.places(tape[name].shape[3]) for name in tape if tape[name].shape[0] == 1}
    found = {name: axes for name, axes in places.items() if axes is not None}
    if not found:
        raise InputError(
            f"this {bundle.name} has no attention over patches: views of features and saliency fit"
        )
    # Negative numbers count from the end.
    if not -len(found) <= layer < len(found):
        raise InputIndexError(f"layer {layer}: there are {len(found)}, counted from 0")
    name, axes = list(found.items())[layer]
    own: AttentionMap = tape[name]
    assert axes.grid is not None
    # Queries and keys are the same tokens, and the first of them is a special one: the class token.
    first = bool(axes.special) and own.shape[2] == own.shape[3]
    # (h, k): the class token's weights, or the mean over queries of the weight on each key.
    weights = (own.row(0) if first else own.received() / own.shape[2])[0].float().cpu()
    return ImageAttention(
        # (h, special + y * x) -> (h, y, x)
        maps=weights[:, axes.special :].unflatten(1, axes.grid).numpy(),
        heads=list(range(len(weights))),
        layer=name.removesuffix(".weights"),
        queries="class token" if first else "mean of all patches",
        special=weights[:, : axes.special].sum(1).numpy(),
        picture=seen(about),
    )


@dataclass(frozen=True, kw_only=True, eq=False)
class CaptionMaps(draw.Result):
    """A caption, and the map of attention over the image for each of its words."""

    in_json = "text words maps"

    text: str  # the caption
    words: list[str]
    maps: Float[np.ndarray, "w y x"]
    picture: np.ndarray  # (height, width, 3) uint8

    def figure(self) -> Figure:
        """Draw the image, and one panel per word."""
        return draw.strip(self.picture, self.maps, self.words, title=self.text)

    def table(self) -> draw.Table:
        """The place with the largest weight, for each word."""
        places = [draw.largest_cell(weights) for weights in self.maps]
        return draw.Table(
            columns=("word", "largest weight"),
            rows=list(zip(self.words, places, strict=True)),
            title=self.text,
        )


def caption_attention(bundle: Bundle, image: Any, *, text: str | None = None) -> CaptionMaps:
    """Return the maps of the words of a caption: the model's own, or a given text."""
    options: dict[str, Any] = {} if text is None else {"text": text}
    # A given text is scored and mapped as it is, without a search.
    found: Any = caption(bundle, image, **options)
    picture = np.asarray(open_image(image).convert("RGB"))
    return CaptionMaps(
        text=found.text, words=list(found.words), maps=np.asarray(found.maps), picture=picture
    )


def _text(bundle: Bundle, given: Any, target: str | None, **options: Any) -> TextMaps:
    return TextMaps(maps=attention(bundle, given, target=target), **options)


def _pair(bundle: Bundle, given: Any, target: str | None, **options: Any) -> TextMaps:
    # Without a target the maps show the model's own translation.
    written = own_translation(bundle, given) if target is None else target
    return TextMaps(maps=attention(bundle, given, target=written), **options)


def _image(
    bundle: Bundle, given: Any, target: str | None, *, layer: int, head: int | None, **_: Any
) -> Any:
    # Images have no kinds of attention, so that option is ignored.
    found = image_attention(bundle, given, layer=layer)
    return found if head is None else found.only(head)


def _caption(bundle: Bundle, given: Any, target: str | None, **_: Any) -> Any:
    return caption_attention(bundle, given, text=target)


ATTENTION: dict[str, Callable[..., Any]] = {
    "tokens": _text,
    "pairs": _pair,
    "images": _image,
    "captions": _caption,
}


@view_of("attention", reads(*ATTENTION), attends, dense=True)
def attention_maps(
    bundle: Bundle,
    given: Any,
    *,
    layer: int = -1,
    head: int | None = None,
    kind: str | None = None,
    target: str | None = None,
    done: Done | None = None,
) -> Any:
    """Attention maps of a text, a translation, an image or a caption.

    Args:
        layer: The layer, counted from 0, or from the end if negative.
        head: The head; all of them if not given.
        kind: For a translator: encoder, decoder or cross; cross if not given.
        target: The translation or caption; the model's own if not given.
    """
    result = ATTENTION[bundle.reads](bundle, given, target, layer=layer, head=head, kind=kind)
    if isinstance(result, TextMaps):  # what is out of range raises here, and not when it is drawn
        # Each of these lines raises for an unknown kind, layer or head, or for maps too large to
        # hold.
        shown = result.maps
        name = shown.main if kind is None else kind
        shown.labels(name)
        one = shown.maps[name][shown.layer_number(name, layer)]
        (one if head is None else one.only(head)).dense()
    return result


@view_of("cls", reads("images"), attends, class_token)
def cls(bundle: Bundle, given: Any, *, layer: int | str = -1, done: Done | None = None) -> ClsMaps:
    """What the class token attends to in one layer, one colour per head.

    One layer is no explanation of an answer; the views rollout, gradient-rollout and saliency follow all of them.

    Args:
        layer: The number of the layer, from the end if negative, or the address of its attention; the last if not
            given.
    """
    return cls_maps(bundle, given, layer=layer)


@view_of("rollout", reads("tokens", "images"), attends, dense=True)
def rollout(
    bundle: Bundle,
    given: Any,
    *,
    residual: float = 0.5,
    fusion: str = "mean",
    at: int | None = None,
    done: Done | None = None,
) -> Saliency:
    """Attention through all layers (Abnar and Zuidema 2020).

    Args:
        residual: Share of the identity in each layer, which stands for the residual stream.
        fusion: How the maps of all heads become one: mean, max or min.
        at: The token whose prediction is explained; the last, or the mask, if not given.
    """
    return saliency(bundle, given, method="rollout", residual=residual, fusion=fusion, at=at)  # type: ignore[arg-type]


@view_of("gradient-rollout", reads("tokens", "images"), attends, dense=True)
def gradient_rollout(
    bundle: Bundle,
    given: Any,
    *,
    target: str | int | None = None,
    at: int | None = None,
    done: Done | None = None,
) -> Saliency:
    """Attention weighted by its gradients, through all layers (Chefer et al. 2021).

    Args:
        target: The class or word that is explained; the likeliest if not given.
        at: The token whose prediction is explained; the last, or the mask, if not given.
    """
    return saliency(bundle, given, method="gradient-rollout", target=target, at=at)


@dataclass(frozen=True, kw_only=True, eq=False)
class Sinks(draw.Result):
    """The attention of one layer under a view, and the tokens that are sinks in each head."""

    shown: AttentionView
    tokens: list[str]
    layer: str  # the address of the attention
    head: int | None = None  # None: the mean over heads is drawn

    def figure(self) -> Figure:
        """Draw one head, or the mean over heads, with the weight on sinks in the title."""
        return self.shown.figure(self.head, tokens=self.tokens)

    def table(self) -> draw.Table:
        """The tokens that are sinks in each head, and the weight on them."""
        return replace(self.shown.table(self.tokens), title=f"{self.layer}: tokens that are sinks")

    def to_dict(self) -> dict[str, Any]:
        """Plain values, for JSON."""
        return {"layer": self.layer, "tokens": self.tokens, **self.shown.to_dict()}


@view_of("sinks", reads("tokens"), layered, dense=True)
def sinks(
    bundle: Bundle,
    given: Any,
    *,
    layer: int = -1,
    head: int | None = None,
    show: HowShown = "without-sink",
    done: Done | None = None,
) -> Sinks:
    """Attention sinks of a layer: tokens that get weight because it has nowhere else to go (Xiao et al. 2023).

    Args:
        layer: The layer, counted from 0, or from the end if negative.
        head: The head that is drawn; the mean over all heads if not given.
        show: raw; without-sink, rows scaled to sum to 1 again; or value-norm, weights times the norms of the values.
    """
    one = read_input(bundle, given)
    # The layers of the stack that answers, for a model with several.
    layers = layer_stack(one).layers
    if not -len(layers) <= layer < len(layers):
        raise InputIndexError(
            f"layer {layer}: there are {len(layers)}, counted from 0, or from the end if negative"
        )
    # The address of the layer's attention; weights and values are recorded in one pass.
    at = layers[layer].attends
    with torch.no_grad(), watch(one.model, f"{at}.weights", f"{at}.v") as tape:
        one.run(one.model)
    # "value-norm" needs the values: a sink with large weight and small values adds little.
    found = attention_view(tape[f"{at}.weights"], show, values=tape[f"{at}.v"])
    result = Sinks(shown=found, tokens=one.names(found.weights.shape[3]), layer=str(at), head=head)
    heads = found.weights.shape[1]
    if head is not None and not 0 <= head < heads:  # raises here, and not when it is drawn
        raise InputIndexError(f"head {head}: there are {heads}, counted from 0")
    return result
