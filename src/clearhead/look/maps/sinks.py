"""attention_view: an attention map as it is, without its sinks, or weighted by the norms of the values.

The weights of a head must sum to 1 even where it has nothing to say, and many heads put them on one token, a sink (Xiao
et al. 2023), whose value vector is small: the map shows a lot of attention that moves little.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Literal

import torch
from jaxtyping import Bool, Float
from torch import Tensor

from ... import draw
from ...checks import one_of
from ...errors import InputError, InputIndexError
from .attention_map import AttentionMap

if TYPE_CHECKING:
    from matplotlib.figure import Figure

View = Literal["raw", "without-sink", "value-norm"]
# a key is a sink of a head if it gets more of an average query's weight (Gu et al. 2025, section 3)
SINK = 0.3


@dataclass(frozen=True, kw_only=True, eq=False)
class AttentionView(draw.Result):
    """An attention map under one view, with its sinks and the weight that is on them.

    Examples:
        >>> result = attention(clearhead.load("everyday"), "A man is standing in the street.")
        >>> found = attention_view(result.maps["self"][3], "without-sink")
        >>> found.weights.shape, found.removed.shape
        (torch.Size([1, 5, 8, 8]), torch.Size([1, 5, 8]))
        >>> figure = found.figure(head=1, tokens=result.pieces)
    """

    view: str  # raw, without-sink or value-norm
    # Raw; without sinks, rows scaled to sum to 1 again; or times value norms
    weights: Float[Tensor, "b h q k"]
    sinks: Bool[Tensor, "b h k"]  # the keys that are sinks, per head
    # the weight that each query puts on sinks; removed in the view without-sink
    removed: Float[Tensor, "b h q"]

    def __repr__(self) -> str:
        b, h, q, k = self.weights.shape
        share = float(self.removed.mean())
        return f"AttentionView({self.view!r}, batch={b}, heads={h}, queries={q}, keys={k}, on sinks={share:.2f})"

    def figure(self, head: int | None = None, *, tokens: Sequence[str] | None = None) -> Figure:
        """Draw one head of the first row, or the mean over heads, as a heat map whose title has the weight on sinks.

        Args:
            head: The head, counted from 0; None: the mean over all heads.
            tokens: The names of queries and keys, which must be the same tokens.
        """
        heads = self.weights.shape[1]
        if head is not None and not 0 <= head < heads:
            raise InputIndexError(f"head {head}: there are {heads}, counted from 0")
        chosen, name = slice(None), "mean over heads"
        if head is not None:
            chosen, name = slice(head, head + 1), f"head {head}"
        share = float(self.removed[0, chosen].mean())
        return draw.heatmap(
            self.weights[0, chosen].mean(0).float().cpu().numpy(),
            rows=tokens,
            columns=tokens,
            title=f"{self.view}, {name}, {share:.0%} on sinks",
        )

    def table(self, tokens: Sequence[str] | None = None) -> draw.Table:
        """The keys that are sinks in each head of the first row, and the mean weight on them.

        Args:
            tokens: The name of each key; None: its number.
        """
        rows = []
        for head, (is_sink, removed) in enumerate(zip(self.sinks[0], self.removed[0], strict=True)):
            keys = is_sink.nonzero().flatten().tolist()
            names = [str(key) if tokens is None else repr(tokens[key]) for key in keys]
            rows.append((f"head {head}", ", ".join(names[:8]) or "none", float(removed.mean())))
        return draw.Table(
            columns=("head", "sinks", "weight on them"), rows=rows, title="tokens that are sinks"
        )


def attention_view(
    weights: AttentionMap,
    view: View = "without-sink",
    *,
    sinks: Sequence[int] | None = None,
    values: Float[Tensor, "b g k e"] | None = None,
) -> AttentionView:
    """Return an attention map under a view that takes attention sinks into account.

    Args:
        weights: The map, of a tape ("blocks.0.attn.weights") or of `attention`.
        view: "raw"; "without-sink", no weight on sinks and each row scaled to sum to 1 (a row with all its weight on
            sinks is 0); or "value-norm", the weight times the norm of the key's value vector (Kobayashi et al. 2020,
            without the output projection): how much of the key reaches the output of the head.
        sinks: The numbers of the keys that are sinks. None: of each head those that get more than 0.3 of the weight of
            an average query (the threshold of Gu et al. 2025).
        values: The values of the attention ("blocks.0.attn.v"), for the view "value-norm".

    Examples:
        >>> model = clearhead.build("gpt", vocab=5, context=8, width=8, depth=1, heads=2).eval()
        >>> with torch.no_grad(), watch(model, "blocks.0.attn.weights", "blocks.0.attn.v") as tape:
        ...     logits = model(torch.tensor([[1, 2, 3, 4]]))
        >>> weights, values = tape["blocks.0.attn.weights"], tape["blocks.0.attn.v"]
        >>> attention_view(weights, "value-norm", values=values).weights.shape
        torch.Size([1, 2, 4, 4])
        >>> attention_view(weights, "without-sink", sinks=[0]).removed[0, 0, 0]  # the first token sees itself only
        tensor(1.)
    """
    one_of("view", view, VIEWS)
    dense = weights.dense()
    if sinks is None:
        at = dense.mean(2) > SINK  # (b, h, k): what an average query puts on each key
    else:
        if any(not 0 <= key < dense.shape[3] for key in sinks):
            raise InputIndexError(
                f"sinks {list(sinks)}: there are {dense.shape[3]} keys, counted from 0"
            )
        # Given keys are sinks of every row and head.
        at = torch.zeros_like(dense[:, :, 0], dtype=torch.bool)
        at[..., list(sinks)] = True
    # (b, h, q): what the view without sinks takes away from each query.
    removed = (dense * at[:, :, None]).sum(-1)
    return AttentionView(
        view=view, weights=VIEWS[view](dense, at, values), sinks=at, removed=removed
    )


def _raw(weights: Tensor, sinks: Tensor, values: Tensor | None) -> Tensor:
    return weights


def _without_sink(weights: Tensor, sinks: Tensor, values: Tensor | None) -> Tensor:
    left = weights.masked_fill(sinks[:, :, None], 0.0)
    # A query whose weight is all on sinks keeps zeros instead of a division by 0.
    total = left.sum(-1, keepdim=True)
    return torch.where(total > 0, left / total.clamp(min=torch.finfo(left.dtype).tiny), 0.0)


def _value_norm(weights: Tensor, sinks: Tensor, values: Tensor | None) -> Tensor:
    if values is None or values.shape[2] != weights.shape[3] or weights.shape[1] % values.shape[1]:
        got = "none" if values is None else f"values of shape {tuple(values.shape)}"
        raise InputError(
            f"view='value-norm' got {got} for {weights.shape[1]} heads and {weights.shape[3]} keys: expected the "
            "values of this attention, watched at '...attn.v'"
        )
    # Kobayashi et al. 2020: the output is sum_j p_ij v_j, whose terms have the norm |p_ij| |v_j|.
    norms = values.to(weights.dtype).norm(dim=-1)  # (b, g, k)
    norms = norms.repeat_interleave(weights.shape[1] // norms.shape[1], dim=1)  # (b, h, k)
    return weights.abs() * norms[:, :, None]  # |p_ij| |v_j|


VIEWS: dict[str, Callable[[Tensor, Tensor, Tensor | None], Tensor]] = {
    "raw": _raw,
    "without-sink": _without_sink,
    "value-norm": _value_norm,
}
