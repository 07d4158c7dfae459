"""The view of attention sinks: the maps of one layer as they are, without sinks, or weighted by value norms."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import torch

from ...draw import Drawn
from ...errors import InputIndexError
from ...look import AttentionView, attention_view, watch
from ...look.maps.sinks import View as How
from ...look.measured_input import model_input
from ...look.structure import layer_stack
from ...weights import Bundle
from .registry import layered, reads, view_of

if TYPE_CHECKING:
    from matplotlib.figure import Figure

Done = Callable[[int, int], None]


@dataclass(frozen=True, kw_only=True, eq=False)
class Sinks(Drawn):
    """The attention of one layer under a view, and the tokens that are sinks in each head."""

    shown: AttentionView
    tokens: list[str]
    layer: str  # the address of the attention
    head: int | None = None  # None: the mean over heads is drawn

    def figure(self) -> Figure:
        """Draw one head, or the mean over heads, with the weight on sinks in the title."""
        return self.shown.figure(self.head, tokens=self.tokens)

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
    show: How = "without-sink",
    done: Done | None = None,
) -> Sinks:
    """Attention sinks of a layer: tokens that get weight because it has nowhere else to go (Xiao et al. 2023).

    Args:
        layer: The layer, counted from 0, or from the end if negative.
        head: The head that is drawn; the mean over all heads if not given.
        show: raw; without-sink, rows scaled to sum to 1 again; or value-norm, weights times the norms of the values.
    """
    one = model_input(bundle, given)
    layers = layer_stack(one).layers
    if not -len(layers) <= layer < len(layers):
        raise InputIndexError(
            f"layer {layer}: there are {len(layers)}, counted from 0, or from the end if negative"
        )
    at = layers[layer].attends
    with torch.no_grad(), watch(one.model, f"{at}.weights", f"{at}.v") as tape:
        one.model(*one.args, **one.row)
    found = attention_view(tape[f"{at}.weights"], show, values=tape[f"{at}.v"])
    result = Sinks(shown=found, tokens=one.names(found.weights.shape[3]), layer=str(at), head=head)
    heads = found.weights.shape[1]
    if head is not None and not 0 <= head < heads:  # raises here, and not when it is drawn
        raise InputIndexError(f"head {head}: there are {heads}, counted from 0")
    return result
