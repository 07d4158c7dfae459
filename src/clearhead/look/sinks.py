"""attention_view: an attention map as it is, without its sinks, or weighted by the norms of the values.

The weights of a head must sum to 1 even where it has nothing to say, and many heads put them on one token, a sink (Xiao
et al. 2023), whose value vector is small: the map shows a lot of attention that moves little.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any, Literal

import torch
from jaxtyping import Bool, Float
from torch import Tensor

from ..checks import one_of
from ..errors import InputError, InputIndexError
from .maps import AttentionMap
from .tape import Tape

View = Literal["raw", "without-sink", "value-norm"]
SINK = 0.3  # a key is a sink of a head if it gets more of an average query's weight (Gu et al. 2025, section 3)


@dataclass(frozen=True, kw_only=True, eq=False)
class AttentionView:
    """An attention map under one view, with its sinks and the weight that was removed.

    Examples:
        >>> model = clearhead.build("gpt", vocab=5, context=8, width=8, depth=1, heads=2).eval()
        >>> with torch.no_grad(), watch(model, "blocks.0.attn.weights", "blocks.0.attn.v") as tape:
        ...     logits = model(torch.tensor([[1, 2, 3, 4]]))
        >>> found = attention_view(tape, "blocks.0.attn", "without-sink", sinks=[0])
        >>> found.weights[0, 0].sum(-1), found.removed[0, 0, 0]
        (tensor([0., 1., 1., 1.]), tensor(1.))
    """

    view: str  # a key of VIEWS
    weights: Float[Tensor, "b h q k"]  # raw; without sinks, rows scaled to sum to 1 again; or times value norms
    sinks: Bool[Tensor, "b h k"]  # the keys that are sinks, per head
    removed: Float[Tensor, "b h q"]  # the weight that each query puts on sinks; removed in the view "without-sink"

    def __repr__(self) -> str:
        b, h, q, k = self.weights.shape
        share = float(self.removed.mean())
        return f"AttentionView({self.view!r}, batch={b}, heads={h}, queries={q}, keys={k}, on sinks={share:.2f})"

    def to_dict(self) -> dict[str, Any]:
        """Plain values, for JSON."""
        return {
            "view": self.view, "weights": self.weights.tolist(), "sinks": self.sinks.tolist(),
            "removed": self.removed.tolist(),
        }  # fmt: skip


def attention_view(
    tape: Tape, address: str, view: View = "without-sink", *, sinks: Sequence[int] | None = None
) -> AttentionView:
    """Return a map of a tape under a view that takes attention sinks into account.

    Args:
        tape: A tape with the map ("blocks.0.attn.weights") and, for "value-norm", the values ("blocks.0.attn.v").
        address: The address of the attention ("blocks.0.attn").
        view: "raw"; "without-sink", no weight on sinks and each row scaled to sum to 1 (a row with all its weight on
            sinks is 0); or "value-norm", the weight times the norm of the key's value vector, which is how much
            reaches the output of the head at most (Kobayashi et al. 2020, without their output projection).
        sinks: The numbers of the keys that are sinks. None: of each head those that get more than 0.3 of the weight of
            an average query (the threshold of Gu et al. 2025).

    Examples:
        >>> model = clearhead.build("gpt", vocab=5, context=8, width=8, depth=1, heads=2).eval()
        >>> with torch.no_grad(), watch(model, "blocks.0.attn.weights", "blocks.0.attn.v") as tape:
        ...     logits = model(torch.tensor([[1, 2, 3, 4]]))
        >>> attention_view(tape, "blocks.0.attn", "value-norm").weights.shape
        torch.Size([1, 2, 4, 4])
    """
    one_of("view", view, VIEWS)
    found = tape[f"{address}.weights"]
    if not isinstance(found, AttentionMap):
        raise InputError(f"{address + '.weights'!r} is no attention map: watch it without keep=a function")
    weights = found.dense()
    if sinks is None:
        at = weights.mean(2) > SINK
    else:
        if any(not 0 <= key < weights.shape[3] for key in sinks):
            raise InputIndexError(f"sinks {list(sinks)}: there are {weights.shape[3]} keys, counted from 0")
        at = torch.zeros_like(weights[:, :, 0], dtype=torch.bool)
        at[..., list(sinks)] = True
    removed = (weights * at[:, :, None]).sum(-1)
    return AttentionView(view=view, weights=VIEWS[view](weights, at, tape, address), sinks=at, removed=removed)


def _raw(weights: Tensor, sinks: Tensor, tape: Tape, address: str) -> Tensor:
    return weights


def _without_sink(weights: Tensor, sinks: Tensor, tape: Tape, address: str) -> Tensor:
    left = weights.masked_fill(sinks[:, :, None], 0.0)
    total = left.sum(-1, keepdim=True)
    return torch.where(total > 0, left / total.clamp(min=torch.finfo(left.dtype).tiny), 0.0)


def _value_norm(weights: Tensor, sinks: Tensor, tape: Tape, address: str) -> Tensor:
    if f"{address}.v" not in tape:
        raise InputError(f"view='value-norm' needs the values: watch {address + '.v'!r} as well")
    norms = tape[f"{address}.v"].to(weights.dtype).norm(dim=-1)  # (b, g, k)
    return weights.abs() * norms.repeat_interleave(weights.shape[1] // norms.shape[1], dim=1)[:, :, None]


VIEWS: dict[str, Callable[[Tensor, Tensor, Tape, str], Tensor]] = {
    "raw": _raw, "without-sink": _without_sink, "value-norm": _value_norm,
}  # fmt: skip
