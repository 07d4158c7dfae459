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
from .foreign_call import first_position
from .running import Frame, Place
from .tap import WatchTap, own

_ATTENDED: weakref.WeakSet[nn.Module] = weakref.WeakSet()  # modules that were seen to attend
IN_ORDER = (0, 1, 2, 3)
LATE = ("q", "k", "scores")  # what lies behind when attention is recognised, and can be neither edited nor recorded


class Explicit:
    """The last softmax of a thread that may be one of attention, until its weights meet their values.

    It holds no tensor but the weights before dropout or a cast, until these meet their values or another softmax comes.
    """

    def __init__(self) -> None:
        self._frames: list[weakref.ref[Frame]] = []  # the modules that were running, one per watch or edit
        self._weights: weakref.ref[Tensor] | None = None  # its output, or what dropout or a cast has made of it
        self._before: Tensor | None = None  # its output before them
        self._heads = 1  # of weights that are in three axes
        self._product: weakref.ref[Tensor] | None = None  # the last product of two tensors of four axes

    def begin(self, frames: Sequence[Frame], weights: Tensor, dim: int | None) -> None:
        """Take a softmax: of attention it has the axes (b, h, q, k), and sums to 1 over the last."""
        self._weights = self._before = None
        if weights.ndim == 4 and dim in (-2, 2):
            for frame in frames:
                frame.features = True
        if weights.ndim == 4 and dim in (-1, 3) and frames:
            self._frames = [weakref.ref(frame) for frame in frames]
            self._weights = weakref.ref(weights)

    def follows(self, x: Any) -> bool:
        """Whether a tensor is these weights."""
        return self._weights is not None and isinstance(x, Tensor) and self._weights() is x

    def passed(self, weights: Tensor, new: Tensor) -> None:
        """Take what dropout or a cast has made of the weights; `weights` is a copy if that was done in place."""
        if new is not weights:
            self._before = weights if self._before is None else self._before
            self._weights = weakref.ref(new)

    def reshaped(self, weights: Tensor, new: Tensor) -> None:
        """Take a view of the weights with rows and heads in one axis, (b * h, q, k), for a product of three axes."""
        if weights.ndim == 4 and new.shape == (weights.shape[0] * weights.shape[1], *weights.shape[2:]):
            self._heads = weights.shape[1]
            self.passed(weights, new)

    def four(self, x: Any) -> Any:
        """A tensor of such a product with the axes (b, h, ...); anything else as it is."""
        fits = isinstance(x, Tensor) and x.ndim == 3 and x.shape[0] % self._heads == 0
        return x.unflatten(0, (-1, self._heads)) if fits else x

    def multiplied(self, x: Any, y: Any, out: Tensor) -> None:
        """Take a product that is not attention: as values, one of two tensors of four axes makes linear attention."""
        if isinstance(x, Tensor) and isinstance(y, Tensor) and x.ndim == y.ndim == 4:
            self._product = weakref.ref(out)

    def joins(self, frames: Sequence[Frame], weights: Tensor, v: Any) -> bool:
        """Whether a product of the weights with `v` is attention in one of these modules.

        It must be in the module of the softmax, which has not called a fused attention. Its keys must be tokens that
        the module was called with; or every such token is a query once, among as many keys, as in windows. So a softmax
        over channels or classes does not count. Of a module that has attended, the tokens may be the queries alone: the
        keys are then those of a cache.

        A softmax of queries over features is no attention even if there are as many features as tokens: its module
        also takes one of keys over tokens, or the values are a product of keys and values.
        """
        rows, _, queries, keys = weights.shape
        if not isinstance(v, Tensor) or v.ndim != 4 or v.shape[2] != keys or [f() for f in self._frames] != [*frames]:
            return False
        if self._product is not None and self._product() is v:
            return False
        for frame in frames:
            cached = queries <= keys and frame.module in _ATTENDED
            if not (frame.fused or frame.features) and any(
                n == keys or (cached and n == queries) or (queries == keys and rows * queries == b * n)
                for b, n in frame.tokens()
            ):
                _ATTENDED.add(frame.module)
                return True
        return False

    def product(
        self,
        tap: WatchTap,
        places: Sequence[Place],
        func: Callable[[Tensor, Tensor], Tensor],
        weights: Tensor,
        v: Tensor,
        order: tuple[int, ...],
    ) -> Tensor:
        """The output of the heads: `func` of weights and values, both perhaps edited.

        Args:
            tap: The tap of the call.
            places: Where the call happens.
            func: Multiplies weights and values.
            weights: The weights (b, h, q, k).
            v: The values (b, h, k, e).
            order: Which axis of the output each of (b, h, q, e) is.
        """
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
        if tap.listeners:
            rows, _, queries, keys = shown.shape
            given = any(place.frame.was_given(rows, queries, keys) for place in places)
            allowed = None if given or queries == keys else shown.detach() > 0
            offset = first_position(queries, keys, allowed, False, given)
        for listener in tap.listeners:  # one that wants nothing still counts the steps of a text
            kept = own(shown, listener.grad and listener.explicit) if listener.wanted else shown
            listener.record_call(DenseCall(weights=kept, offset=offset))
        out = func(edited, v)
        if order == IN_ORDER:
            return tap.heads(out)
        back = tuple(order.index(i) for i in range(4))
        return tap.heads(out.permute(order)).permute(back)


def weighted_sum(equation: Any) -> tuple[int, ...] | None:
    """Which axis of the output each of (b, h, q, e) is, if torch.einsum multiplies weights (b, h, q, k) with values.

    None if an equation does anything else. The values are (b, h, k, e), as those of matmul are.
    """
    inputs, _, out = str(equation).replace(" ", "").replace("...", "*+").partition("->")
    weights, _, values = inputs.partition(",")
    if len(weights) != 4 or len(values) != 4 or len({*weights, *values}) != 5:
        return None
    b, h, q, k = list(weights)
    axes = f"{b}{h}{q}{values[3]}"
    if values[:3] != f"{b}{h}{k}" or sorted(out) != sorted(axes):
        return None
    return tuple(out.index(axis) for axis in axes)
