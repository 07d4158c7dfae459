"""Views of attention: maps of a text, a translation, an image or a caption; the class token; rollout."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from ...draw import Drawn
from ...look import ClsMaps, Saliency, TextAttention, attention, cls_maps, saliency
from ...weights import Bundle
from ..example_inputs import own_translation
from .image_attention import caption_attention, image_attention
from .registry import attends, class_token, reads, view_of

if TYPE_CHECKING:
    from matplotlib.figure import Figure

Done = Callable[[int, int], None]


@dataclass(frozen=True, kw_only=True, eq=False)
class TextMaps(Drawn):
    """The attention maps of a text with the layer, the head and the kind that are drawn."""

    maps: TextAttention
    layer: int = -1
    head: int | None = None  # None: all heads
    kind: str | None = None  # None: cross of a translator, otherwise self

    def figure(self) -> Figure:
        """Draw one head, or all heads of the layer as small multiples."""
        kind = self.maps.main if self.kind is None else self.kind
        if self.head is None:
            return self.maps.heads_figure(self.layer, kind=kind)
        return self.maps.figure(self.layer, self.head, kind=kind)

    def to_dict(self) -> dict[str, Any]:
        """Plain values, for JSON."""
        return self.maps.to_dict()


def _text(bundle: Bundle, given: Any, target: str | None, **options: Any) -> TextMaps:
    return TextMaps(maps=attention(bundle, given, target=target), **options)


def _pair(bundle: Bundle, given: Any, target: str | None, **options: Any) -> TextMaps:
    written = own_translation(bundle, given) if target is None else target
    return TextMaps(maps=attention(bundle, given, target=written), **options)


def _image(
    bundle: Bundle, given: Any, target: str | None, *, layer: int, head: int | None, **_: Any
) -> Any:
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
