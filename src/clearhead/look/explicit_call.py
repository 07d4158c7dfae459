"""Attention that a module computes by itself: a softmax over the keys, and the product of its weights with the values.

So do eager models of transformers, window attention of timm and torchvision, and many that are written by hand. Other
softmaxes and products must not be mistaken for attention; the rule is in `explicit_tokens.refusal`.
"""

from __future__ import annotations

import math
import weakref
from collections import deque
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from typing import Any

import torch
from torch import Tensor

from ..errors import InputError
from .call import DenseCall
from .explicit_layout import Layout, einsum_layout, matmul_layout
from .explicit_tokens import Product, Source, refusal, sources
from .foreign_steps import position_of
from .running import Frame, Place
from .tap import WatchTap, own

LATE = ("q", "k", "scores")  # what lies behind when attention is recognised, and can be neither edited nor recorded
FLAT = 8  # tensors that are remembered after their rows and heads were put into one axis
OPEN = 8  # softmaxes that are remembered until their weights meet their values
UNMET = "no product of its weights with values was seen in the same module, as weights @ values"
AXES = "it has neither the axes (b, h, q, k) nor (b, q, k)"


@dataclass(eq=False)
class Softmax:
    """A softmax that may be one of attention, until its weights meet their values.

    It holds no tensor but the weights before dropout or a cast.
    """

    frames: list[weakref.ref[Frame]]  # the modules that were running, one per watch or edit
    weights: weakref.ref[Tensor]  # its output, or what dropout, a cast or a view has made of it
    axes: int  # of its output
    dim: int  # the axis over which the weights sum to 1
    scored: bool  # it was one of a product
    before: Tensor | None = None  # its output before dropout or a cast

    @property
    def likely(self) -> bool:
        """Whether it is probably one of attention, if not one that can be seen."""
        return self.scored or self.axes == 4


class Explicit:
    """The softmaxes of a thread that may be those of attention, and what tells whether they are."""

    def __init__(self) -> None:
        self._open: list[Softmax] = []
        self._flat: deque[tuple[weakref.ref[Tensor], int, int]] = deque(maxlen=FLAT)  # with their rows and heads
        self._packed: weakref.ref[Tensor] | None = None  # the last (b, h, 1, e) whose heads were put on two axes
        self._product: weakref.ref[Tensor] | None = None  # the last product of two tensors of as many axes
        self.reason = ""  # why the last product with weights was no attention

    def begin(self, frames: Sequence[Frame], scores: Tensor, weights: Tensor, dim: int | None) -> bool:
        """Take a softmax; returns whether it is probably one of attention.

        Of attention it has the axes (b, h, q, k) or (b, q, k), and mostly sums to 1 over the last. Over another axis it
        must be one of a product; else it is one over features, as linear attention takes it.

        Args:
            frames: The running modules, one per watch or edit.
            scores: What the softmax is of.
            weights: Its output.
            dim: Its axis.
        """
        self._open = [softmax for softmax in self._open if softmax.weights() is not None][1 - OPEN :]
        if weights.ndim < 3 or dim is None or not frames:
            return False
        dim, last = dim % weights.ndim, weights.ndim - 1
        scored = not wide(scores) and all(_is_product(frame, weights.shape, dim) for frame in frames)
        if weights.ndim <= 4 and (dim == last or (scored and dim)):
            refs = [weakref.ref(frame) for frame in frames]
            self._open.append(Softmax(refs, weakref.ref(weights), weights.ndim, dim, scored))
            return self._open[-1].likely
        if weights.ndim <= 4 and dim == last - 1 and weights.shape[last] > 1:
            for frame in frames:
                frame.features |= {weights.ndim}
        return scored

    def follow(self, x: Any) -> Softmax | None:
        """The softmax whose weights a tensor is."""
        return next((softmax for softmax in self._open if softmax.weights() is x), None) if self._open else None

    def passed(self, softmax: Softmax, weights: Tensor, new: Tensor) -> None:
        """Take what dropout or a cast has made of the weights; `weights` is a copy if that was done in place."""
        if new is not weights:
            softmax.before = weights if softmax.before is None else softmax.before
            softmax.weights = weakref.ref(new)

    def reshaped(self, x: Any, new: Tensor) -> None:
        """Take a view: of (b, h, ...) with rows and heads in one axis, of one query, or of the weights."""
        merged = new.ndim == 3 and isinstance(x, Tensor) and x.ndim == 4 and new.size(2) == x.size(3)  # (b, h, n, e)
        if merged and new.size(1) == x.size(2):
            self._flat.append((weakref.ref(new), x.shape[0], x.shape[1]))
        one_query = isinstance(x, Tensor) and x.ndim == new.ndim == 4 and x.shape[2] == 1 < new.shape[2]
        if one_query and x.shape[0] == new.shape[0] and x.shape[3] == new.shape[3]:
            self._packed = weakref.ref(new)
        softmax = self.follow(x)
        if softmax is not None and new.shape[-2:] == x.shape[-2:] and softmax.dim == x.ndim - 1:
            softmax.weights, softmax.dim = weakref.ref(new), new.ndim - 1

    def one_query(self, q: Tensor) -> bool:
        """Whether queries (b, g, n, e) are one query of g * n heads."""
        return self._packed is not None and self._packed() is q

    def sliced(self, x: Any, new: Any) -> None:
        """Take a slice of the weights without one key: a sink, which takes weight and has no value (GPT-OSS)."""
        softmax = self.follow(x)
        if softmax is None or not isinstance(new, Tensor) or softmax.dim != x.ndim - 1:
            return
        if new.shape != (*x.shape[:-1], x.shape[-1] - 1) or softmax.before is not None:
            return
        softmax.weights = weakref.ref(new)
        softmax.scored = all(new.shape in frame.products for ref in softmax.frames if (frame := ref()) is not None)

    def multiplied(self, frames: Sequence[Frame], x: Any, y: Any, out: Tensor) -> None:
        """Take a product that is not attention: perhaps one of queries and keys.

        As values, one of two tensors makes linear attention.
        """
        if isinstance(x, Tensor) and isinstance(y, Tensor) and x.ndim == y.ndim > 2:
            self._product = weakref.ref(out)
            for frame in frames:
                frame.products.add(out.shape)

    def layout(
        self, softmax: Softmax, stacks: Sequence[Sequence[Frame]], weights: Tensor, v: Any, equation: Any
    ) -> Layout | None:
        """The layout of a product of the weights with `v` if it is attention in one of the modules that are running.

        Args:
            softmax: The softmax of the weights.
            stacks: The modules that are running, outermost first, for each watch or edit.
            weights: The weights.
            v: What they are multiplied with.
            equation: That of torch.einsum; None: a matrix product.
        """
        self.reason = self._refusal(softmax, stacks, weights, v)
        axes, dim = weights.ndim, softmax.dim
        found = matmul_layout(axes, dim) if equation is None else einsum_layout(equation, axes, dim)
        if self.reason or found is None:
            self.reason = self.reason or UNMET
            return None
        keys = weights.shape[dim]
        for stack in stacks:
            frame = stack[-1]
            given = sources(frame, v, stack[:-1])
            layout = found if axes == 4 else replace(found, heads=self._heads(weights, v, keys, given))
            one, two = layout.four(weights, layout.weights), layout.four(v, layout.values)
            if two.shape[2] != keys or two.shape[1] not in (1, one.shape[1]):
                self.reason = f"its weights were multiplied with a tensor of shape {tuple(v.shape)}"
                return None
            rows, heads, queries, _ = one.shape
            product = Product(
                rows=rows, heads=heads, queries=queries, keys=keys, features=two.shape[3],
                axes=softmax.axes, last=dim == axes - 1, scored=softmax.scored,
                wide=wide(two), apart=two.stride(3) > 1,
            )  # fmt: skip
            self.reason = refusal(frame, given, v, product)
            if not self.reason:
                return layout
        return None

    def _refusal(self, softmax: Softmax, stacks: Sequence[Sequence[Frame]], weights: Tensor, v: Any) -> str:
        """Why a product of the weights cannot be attention, whatever its module was called with."""
        if not isinstance(v, Tensor) or v.ndim != weights.ndim:
            return (
                f"its weights were multiplied with a tensor of shape {tuple(v.shape)}" if hasattr(v, "shape") else UNMET
            )
        if not _running(softmax.frames, [stack[-1] for stack in stacks]):
            return "its weights were multiplied with values in another module"
        if self._product is not None and self._product() is v:
            return "the values are a product of two tensors, as in linear attention"
        return ""

    def _heads(self, weights: Tensor, v: Tensor, keys: int, given: Sequence[Source]) -> int:
        """How many heads the first of three axes has for each row; 1 if that is not known: they then count as rows.

        It is known where (b, h, ...) was put into one axis, and of values (n, b * h, e) that were transposed. Where
        (h, b, ...) was put into one axis, what the module was called with has h instead of b.
        """
        first = weights.shape[0]
        rows_given = {source.rows for source in given if source.tokens == keys}
        for x in (weights, v):
            for flat, rows, heads in self._flat:
                if flat() is x:
                    swapped = x is v and heads in rows_given and rows not in rows_given
                    return 1 if swapped else heads
        fitting = [s.rows for s in given if s.tokens == keys and s.rows and first % s.rows == 0]
        if not fitting:
            return 1
        transposed = keys > 1 and v.stride(0) == v.shape[2] and v.stride(1) >= first * v.shape[2]
        alone = all(source.rows == 1 for source in given)
        return first // fitting[0] if transposed or alone else 1

    def product(
        self,
        softmax: Softmax,
        tap: WatchTap,
        places: Sequence[Place],
        func: Callable[[Tensor, Tensor], Tensor],
        weights: Tensor,
        v: Tensor,
        layout: Layout,
    ) -> Tensor:
        """The output of the heads: `func` of weights and values, both perhaps edited.

        Args:
            softmax: The softmax of the weights.
            tap: The tap of the call.
            places: Where the call happens.
            func: Multiplies weights and values.
            weights: The weights.
            v: The values.
            layout: Which axes these have.
        """
        late = [leaf for leaf, _, _ in tap.edits if leaf in LATE]
        if late:
            raise InputError(
                f"{late[0]} cannot be edited in a module that computes its softmax itself: expected heads, weights or "
                "v; a model of transformers calls scaled_dot_product_attention with attn_implementation='sdpa', unless "
                "it refuses that"
            )
        whole = layout.four(weights, layout.weights)
        for place in places:
            place.check_heads(whole.shape[1])
        tap.withhold(LATE, "its module computes its softmax itself, so that only weights, v and heads are seen")
        before = softmax.before
        self._open.remove(softmax)
        if not self._open:
            for place in places:
                place.frame.products.clear()
        for listener in tap.listeners:
            listener.begin()
        v, edited = tap.passed("v", layout.four(v, layout.values)), tap.edited("weights", whole)

        def view(x: Tensor) -> Tensor:
            return layout.four(x if x.shape == weights.shape else x.reshape(weights.shape), layout.weights)

        shown = edited if edited is not whole or before is None else view(before)
        if tap.listeners:
            rows, _, queries, keys = shown.shape
            at = position_of(places, rows, queries, keys, lambda: shown.detach() > 0)
        for listener in tap.listeners:
            grad = listener.grad and listener.explicit
            if grad and before is not None and shown is not before and shown is not edited:
                kept = _with_gradient(before, view)
            else:
                kept = own(shown, grad)
            listener.record_call(DenseCall(weights=kept, offset=at.offset, first_key=at.first_key))
        out = func(layout.back(edited, layout.weights), layout.back(v, layout.values))
        return layout.back(tap.heads(layout.four(out, layout.out)), layout.out)


def _with_gradient(x: Tensor, view: Callable[[Tensor], Tensor]) -> Tensor:
    """A view of a tensor that gets the gradient of the tensor itself: a plain view that nothing uses has none."""
    seen = view(x.detach())

    def keep(grad: Tensor) -> None:
        seen.grad = view(grad).clone() if seen.grad is None else seen.grad + view(grad)

    if x.requires_grad:
        x.register_hook(keep)
    return seen


def wide(x: Tensor) -> bool:
    """Whether the last axis lies side by side within a longer row, as the features of a head do and products do not."""
    return x.stride(-1) == 1 and x.stride(-2) > x.shape[-1]


def _running(refs: Sequence[weakref.ref[Frame]], frames: Sequence[Frame]) -> bool:
    """Whether the modules that were running are those that run now."""
    return [ref() for ref in refs] == [*frames]


def _is_product(frame: Frame, shape: torch.Size, dim: int) -> bool:
    """Whether a module has computed a product of this shape, perhaps transposed."""
    return any(
        _same(size, shape, dim) or _same((*size[:-2], size[-1], size[-2]), shape, dim) for size in frame.products
    )


def _same(scores: Sequence[int], weights: Sequence[int], dim: int) -> bool:
    """Whether weights may be those of scores: with the same axes, or rows and heads in one axis in one of them."""
    scores, weights = tuple(scores), tuple(weights)
    return scores == weights or (
        dim == len(weights) - 1 and scores[-2:] == weights[-2:] and math.prod(scores) == math.prod(weights)
    )
