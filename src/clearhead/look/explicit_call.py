"""Attention that a module computes by itself: a softmax over the keys, and the product of its weights with the values.

So do eager models of transformers, window attention of timm and torchvision, and many that are written by hand. Other
softmaxes and products must not be mistaken for attention; the rule is in `explicit_tokens.refusal`.
"""

from __future__ import annotations

import weakref
from collections import deque
from collections.abc import Callable, Sequence
from dataclasses import replace
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
UNMET = "its weights were not multiplied with values in the same module"


class Explicit:
    """The last softmax of a thread that may be one of attention, until its weights meet their values.

    It holds no tensor but the weights before dropout or a cast, until these meet their values or another softmax comes.
    """

    def __init__(self) -> None:
        self._frames: list[weakref.ref[Frame]] = []  # the modules that were running, one per watch or edit
        self._weights: weakref.ref[Tensor] | None = None  # its output, or what dropout or a cast has made of it
        self._before: Tensor | None = None  # its output before them
        self._axes = 0  # of its output
        self._dim = 0  # the axis over which they sum to 1
        self._scored = False  # the softmax was one of a product
        self._flat: deque[tuple[weakref.ref[Tensor], int, int]] = deque(maxlen=FLAT)  # with their rows and heads
        self._product: weakref.ref[Tensor] | None = None  # the last product of two tensors of as many axes
        self._scores: tuple[torch.Size, list[weakref.ref[Frame]]] | None = None  # its shape, and the running modules
        self.reason = ""  # why the last product with weights was no attention

    def begin(self, frames: Sequence[Frame], weights: Tensor, dim: int | None) -> None:
        """Take a softmax: of attention it has the axes (b, h, q, k) or (b, q, k), and mostly sums to 1 over the last.

        Over another axis it must be one of a product; else it is one over features, as linear attention takes it.
        """
        scores, self._scores = self._scores, None
        self._weights = self._before = None
        if weights.ndim not in (3, 4) or dim is None or not frames:
            return
        dim, last = dim % weights.ndim, weights.ndim - 1
        self._scored = scores is not None and _running(scores[1], frames) and _same(scores[0], weights.shape, dim)
        if dim == last or (self._scored and dim):
            self._frames, self._dim = [weakref.ref(frame) for frame in frames], dim
            self._weights, self._axes = weakref.ref(weights), weights.ndim
        elif dim == last - 1 and weights.shape[last] > 1:
            for frame in frames:
                frame.features |= {weights.ndim}

    def follows(self, x: Any) -> bool:
        """Whether a tensor is these weights."""
        return self._weights is not None and isinstance(x, Tensor) and self._weights() is x

    def passed(self, weights: Tensor, new: Tensor) -> None:
        """Take what dropout or a cast has made of the weights; `weights` is a copy if that was done in place."""
        if new is not weights:
            self._before = weights if self._before is None else self._before
            self._weights = weakref.ref(new)

    def reshaped(self, x: Any, new: Tensor) -> None:
        """Take a view: of (b, h, ...) with rows and heads in one axis, or of the weights in either form."""
        merged = new.ndim == 3 and isinstance(x, Tensor) and x.ndim == 4 and new.size(2) == x.size(3)  # (b, h, n, e)
        if merged and new.size(1) == x.size(2):
            self._flat.append((weakref.ref(new), x.shape[0], x.shape[1]))
        if self._weights is not None and self.follows(x) and new.shape[-2:] == x.shape[-2:] and self._dim == x.ndim - 1:
            self._weights, self._dim = weakref.ref(new), new.ndim - 1

    def multiplied(self, frames: Sequence[Frame], x: Any, y: Any, out: Tensor) -> None:
        """Take a product that is not attention: perhaps one of queries and keys.

        As values, one of two tensors makes linear attention.
        """
        if isinstance(x, Tensor) and isinstance(y, Tensor) and x.ndim == y.ndim and x.ndim in (3, 4):
            self._product = weakref.ref(out)
            self._scores = (out.shape, [weakref.ref(frame) for frame in frames])

    def layout(self, stacks: Sequence[Sequence[Frame]], weights: Tensor, v: Any, equation: Any) -> Layout | None:
        """The layout of a product of the weights with `v` if it is attention in one of the modules that are running.

        Args:
            stacks: The modules that are running, outermost first, for each watch or edit.
            weights: The weights.
            v: What they are multiplied with.
            equation: That of torch.einsum; None: a matrix product.
        """
        self.reason = self._refusal(stacks, weights, v)
        axes = weights.ndim
        found = matmul_layout(axes, self._dim) if equation is None else einsum_layout(equation, axes, self._dim)
        if self.reason or found is None:
            self.reason = self.reason or UNMET
            return None
        keys = weights.shape[self._dim]
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
                axes=self._axes, last=self._dim == axes - 1, scored=self._scored,
                wide=two.stride(3) == 1 and two.stride(2) > two.shape[3], apart=two.stride(3) > 1,
            )  # fmt: skip
            self.reason = refusal(frame, given, v, product)
            if not self.reason:
                return layout
        return None

    def _refusal(self, stacks: Sequence[Sequence[Frame]], weights: Tensor, v: Any) -> str:
        """Why a product of the weights cannot be attention, whatever its module was called with."""
        if not isinstance(v, Tensor) or v.ndim != weights.ndim:
            return (
                f"its weights were multiplied with a tensor of shape {tuple(v.shape)}" if hasattr(v, "shape") else UNMET
            )
        if not _running(self._frames, [stack[-1] for stack in stacks]):
            return "its weights were multiplied with values in another module"
        if self._product is not None and self._product() is v:
            return "the values are a product of two tensors, as in linear attention"
        return ""

    def _heads(self, weights: Tensor, v: Tensor, keys: int, given: Sequence[Source]) -> int:
        """How many heads the first of three axes has for each row; 1 if that is not known: they then count as rows.

        It is known where (b, h, ...) was put into one axis, and of values (n, b * h, e) that were transposed.
        """
        first = weights.shape[0]
        for x in (weights, v):
            for flat, rows, heads in self._flat:
                if flat() is x:
                    other = any(source.rows == heads != rows for source in given)  # (h, b, ...)
                    return 1 if other and x is v else heads
        fitting = [s.rows for s in given if s.tokens == keys and s.rows and first % s.rows == 0]
        if not fitting:
            return 1
        transposed = keys > 1 and v.stride(0) == v.shape[2] and v.stride(1) >= first * v.shape[2]
        alone = all(source.rows == 1 for source in given)
        return first // fitting[0] if transposed or alone else 1

    def product(
        self,
        tap: WatchTap,
        places: Sequence[Place],
        func: Callable[[Tensor, Tensor], Tensor],
        weights: Tensor,
        v: Tensor,
        layout: Layout,
    ) -> Tensor:
        """The output of the heads: `func` of weights and values, both perhaps edited.

        Args:
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
        tap.withhold(LATE, "its module computes its softmax itself, so that only weights, v and heads are seen")
        before = self._before
        self._weights = self._before = None
        for listener in tap.listeners:
            listener.begin()
        whole = layout.four(weights, layout.weights)
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


def _running(refs: Sequence[weakref.ref[Frame]], frames: Sequence[Frame]) -> bool:
    """Whether the modules that were running are those that run now."""
    return [ref() for ref in refs] == [*frames]


def _same(scores: torch.Size, weights: torch.Size, dim: int) -> bool:
    """Whether weights may be those of scores: with the same axes, or rows and heads in one axis in one of them."""
    return scores == weights or (
        dim == len(weights) - 1 and scores[-2:] == weights[-2:] and scores.numel() == weights.numel()
    )
