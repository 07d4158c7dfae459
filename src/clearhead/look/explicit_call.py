"""Attention that a module computes by itself: a softmax over the keys, and the product of its weights with the values.

So do eager models of transformers, window attention of timm and torchvision, and many that are written by hand. Other
softmaxes and products must not be mistaken for attention; the rule is in `Explicit.joins`.
"""

from __future__ import annotations

import weakref
from collections.abc import Callable, Sequence
from typing import Any

from torch import Tensor, nn

from ..errors import InputError
from .call import DenseCall
from .running import Frame
from .tap import WatchTap, own

_ATTENDED: weakref.WeakSet[nn.Module] = weakref.WeakSet()  # modules that were seen to attend
LATE = ("q", "k", "scores")  # what lies behind when attention is recognised, and can be neither edited nor recorded


class Explicit:
    """The last softmax of a thread that may be one of attention, until its weights meet their values.

    It holds no tensor but the weights before dropout or a cast, until these meet their values or another softmax comes.
    """

    def __init__(self) -> None:
        self._frames: list[weakref.ref[Frame]] = []  # the modules that were running, one per watch or edit
        self._weights: weakref.ref[Tensor] | None = None  # its output, or what dropout or a cast has made of it
        self._before: Tensor | None = None  # its output before them

    def begin(self, frames: Sequence[Frame], weights: Tensor, dim: int | None) -> None:
        """Take a softmax: of attention it has the axes (b, h, q, k), and sums to 1 over the last."""
        self._weights = self._before = None
        if weights.ndim == 4 and dim in (-1, 3) and frames:
            self._frames = [weakref.ref(frame) for frame in frames]
            self._weights = weakref.ref(weights)

    def follows(self, x: Any) -> bool:
        """Whether a tensor is these weights."""
        return self._weights is not None and isinstance(x, Tensor) and self._weights() is x

    def passed(self, weights: Tensor, new: Tensor) -> None:
        """Take what dropout or a cast has made of the weights."""
        if new is not weights:
            self._before = weights if self._before is None else self._before
            self._weights = weakref.ref(new)

    def joins(self, frames: Sequence[Frame], weights: Tensor, v: Any) -> bool:
        """Whether a product of the weights with `v` is attention in one of these modules.

        It must be in the module of the softmax, which has not called a fused attention. Its keys must be tokens that
        the module was called with; or every such token is a query once, among as many keys, as in windows. So a softmax
        over channels or classes does not count. Of a module that has attended, the tokens may be the queries alone: the
        keys are then those of a cache.
        """
        rows, _, queries, keys = weights.shape
        if not isinstance(v, Tensor) or v.ndim != 4 or v.shape[2] != keys or [f() for f in self._frames] != [*frames]:
            return False
        for frame in frames:
            cached = queries <= keys and frame.module in _ATTENDED
            if not frame.fused and any(
                n == keys or (cached and n == queries) or (queries == keys and rows * queries == b * n)
                for b, n in frame.tokens()
            ):
                _ATTENDED.add(frame.module)
                return True
        return False

    def product(self, tap: WatchTap, func: Callable[[Tensor, Tensor], Tensor], weights: Tensor, v: Tensor) -> Tensor:
        """The output of the heads: `func` of weights and values, both perhaps edited."""
        late = [leaf for leaf, _, _ in tap.edits if leaf in LATE]
        if late:
            raise InputError(
                f"{late[0]} cannot be edited in a module that computes its softmax itself: expected heads, weights or "
                "v; a model of transformers calls scaled_dot_product_attention with attn_implementation='sdpa', unless "
                "it refuses that"
            )
        before = weights if self._before is None else self._before
        self._weights = self._before = None
        for listener in tap.listeners:
            listener.begin()
        v, edited = tap.passed("v", v), tap.edited("weights", weights)
        shown = before if edited is weights else edited  # without dropout
        for listener in [one for one in tap.listeners if one.wanted]:
            listener.record_call(DenseCall(weights=own(shown, listener.grad and listener.explicit)))
        return tap.heads(func(edited, v))


def is_weighted_sum(equation: Any) -> bool:
    """Whether an equation of torch.einsum multiplies weights (b, h, q, k) with values (b, h, k, e), as matmul does."""
    inputs, _, out = str(equation).replace(" ", "").partition("->")
    weights, _, values = inputs.partition(",")
    if len(weights) != 4 or len(values) != 4 or len({*weights, *values}) != 5:
        return False
    b, h, q, k = list(weights)
    return values == f"{b}{h}{k}{values[3]}" and out == f"{b}{h}{q}{values[3]}"
