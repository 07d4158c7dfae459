"""Attention that a module computes by itself: a softmax over the keys, and the product of its weights with the values.

So do eager models of transformers, window attention of timm and torchvision, and many that are written by hand. A
softmax is followed from where it is computed, through dropout, casts and views, to the product with the values
(`Softmaxes`). Other softmaxes and products must not be mistaken for attention; the rule is in products.py.
"""

from __future__ import annotations

import math
import weakref
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from typing import Any

import torch
from torch import Tensor

from ...errors import InputError
from ..capture.tap import WatchTap, kept
from ..maps.call import DenseCall
from .heads import MergedHeads
from .module_stack import CallSite, Frame
from .products import Product, ProductAxes, einsum_axes, matmul_axes, refusal, sources
from .steps import position_of

# computed before attention is recognised, so that they can be neither edited nor recorded
LATE = ("q", "k", "scores")
OPEN = 8  # softmaxes that are remembered until their weights meet their values
UNMET = "no product of its weights with values was seen in the same module, as weights @ values"
WRONG_AXES = "it has neither the axes (b, h, q, k) nor (b, q, k)"


@dataclass(eq=False)
class Softmax:
    """A softmax that may be one of attention, until its weights meet their values.

    It holds no tensor but the weights before dropout or a cast.
    """

    frames: list[weakref.ref[Frame]]  # the modules that were running, one per watch or edit
    weights: weakref.ref[Tensor]  # its output, or what dropout, a cast or a view has made of it
    axes: int  # of its output
    dim: int  # the axis over which the weights sum to 1
    scored: bool  # its input is a product that the same module computed
    before: Tensor | None = None  # its output before dropout or a cast

    @property
    def likely(self) -> bool:
        """Whether it is probably one of attention, if not one that can be seen."""
        return self.scored or self.axes == 4


class Softmaxes:
    """The softmaxes of a thread that may belong to attention, and the evidence for it."""

    def __init__(self) -> None:
        self._open: list[Softmax] = []
        self._merged_heads = MergedHeads()
        # the last (b, h, 1, e) whose heads were put on two axes
        self._packed: weakref.ref[Tensor] | None = None
        # the last product of two tensors of as many axes
        self._product: weakref.ref[Tensor] | None = None
        self.reason = ""  # why the last product with weights was not attention

    def begin(
        self, frames: Sequence[Frame], scores: Tensor, weights: Tensor, dim: int | None
    ) -> bool:
        """Remember a softmax if it may be one of attention; returns whether it probably is.

        An attention softmax has axes (b, h, q, k) or (b, q, k), and usually normalises the last. Over another axis its
        input must be a product; otherwise it is a softmax over features, as in linear attention.

        Args:
            frames: The running modules, one per watch or edit.
            scores: What the softmax is of.
            weights: Its output.
            dim: Its axis.
        """
        # Softmaxes whose weights are gone can meet no values any more.
        alive = [softmax for softmax in self._open if softmax.weights() is not None]
        self._open = alive[1 - OPEN :]  # with the new one, OPEN at most
        if weights.ndim < 3 or dim is None or not frames:
            return False
        dim, last = dim % weights.ndim, weights.ndim - 1
        scored = not is_part_of_longer_row(scores) and all(
            _is_product(frame, weights.shape, dim) for frame in frames
        )
        # More than four axes cannot be read as rows, heads, queries and keys.
        if weights.ndim > 4:
            return scored
        # Over the last axis, or over another one if the scores are a product.
        if dim == last or (scored and dim):
            refs = [weakref.ref(frame) for frame in frames]
            self._open.append(Softmax(refs, weakref.ref(weights), weights.ndim, dim, scored))
            return self._open[-1].likely
        # Over the last axis but one, as linear attention normalises its keys.
        if dim == last - 1 and weights.shape[last] > 1:
            for frame in frames:
                frame.features |= {weights.ndim}
        return scored

    def of_weights(self, x: Any) -> Softmax | None:
        """The softmax whose weights a tensor is."""
        if self._open:
            return next((softmax for softmax in self._open if softmax.weights() is x), None)
        return None

    def passed(self, softmax: Softmax, weights: Tensor, new: Tensor) -> None:
        """Follow the weights through dropout or a cast; `weights` is a copy if that was done in place."""
        # A cast to the same dtype returns the tensor itself: nothing has changed.
        if new is not weights:
            if softmax.before is None:
                softmax.before = weights
            softmax.weights = weakref.ref(new)

    def reshaped(self, x: Any, new: Tensor) -> None:
        """Follow a view: of (b, h, ...) with rows and heads in one axis, of one query, or of the weights."""
        if isinstance(x, Tensor) and x.ndim == 4:
            self._merged_heads.reshaped(x, new)
            one_query = new.ndim == 4 and x.shape[2] == 1 < new.shape[2]
            if one_query and x.shape[0] == new.shape[0] and x.shape[3] == new.shape[3]:
                self._packed = weakref.ref(new)  # (b, g * n, 1, e) -> (b, g, n, e)
        softmax = self.of_weights(x)
        # The last axis must stay that of the keys.
        if softmax is not None and new.shape[-2:] == x.shape[-2:] and softmax.dim == x.ndim - 1:
            softmax.weights, softmax.dim = weakref.ref(new), new.ndim - 1

    def one_query(self, q: Tensor) -> bool:
        """Whether queries (b, g, n, e) are one query of g * n heads."""
        return self._packed is not None and self._packed() is q

    def sliced(self, x: Any, new: Any) -> None:
        """Follow a slice of the weights without one key: a sink, which takes weight and has no value (GPT-OSS)."""
        softmax = self.of_weights(x)
        if softmax is None or not isinstance(new, Tensor) or softmax.dim != x.ndim - 1:
            return
        # Exactly one key less, and no dropout before: otherwise it is some other slice.
        if new.shape != (*x.shape[:-1], x.shape[-1] - 1) or softmax.before is not None:
            return
        softmax.weights = weakref.ref(new)
        # The scores were a product before the sink was put beside them.
        frames = [ref() for ref in softmax.frames]
        softmax.scored = all(new.shape in frame.products for frame in frames if frame is not None)

    def multiplied(self, frames: Sequence[Frame], x: Any, y: Any, out: Tensor) -> None:
        """Remember a product that is not weights @ values.

        It may be the scores; or keys @ values, whose use as values means linear attention.
        """
        # Any of them may be the scores of a softmax that follows.
        if isinstance(x, Tensor) and isinstance(y, Tensor) and x.ndim == y.ndim > 2:
            self._product = weakref.ref(out)
            for frame in frames:
                frame.products.add(out.shape)

    def layout(
        self,
        softmax: Softmax,
        stacks: Sequence[Sequence[Frame]],
        weights: Tensor,
        v: Any,
        equation: Any,
    ) -> ProductAxes | None:
        """The axes of a product of the weights with `v` if it is attention in one of the modules that are running.

        Args:
            softmax: The softmax of the weights.
            stacks: The modules that are running, outermost first, for each watch or edit.
            weights: The weights.
            v: What they are multiplied with.
            equation: That of torch.einsum; None: a matrix product.
        """
        self.reason = self._refusal(softmax, stacks, weights, v)
        if self.reason:
            return None
        # The axes follow from the kind of product; what they mean follows from the sizes.
        axes, dim = weights.ndim, softmax.dim
        if equation is None:
            product_axes = matmul_axes(axes, dim)
        else:
            product_axes = einsum_axes(equation, axes, dim)
        if product_axes is None:
            self.reason = UNMET
            return None
        keys = weights.shape[dim]
        for stack in stacks:  # the same call, as each watched model sees it
            readings = sources(stack[-1], v, stack[:-1])
            layout = product_axes
            # Three axes hold rows and heads in one, which the module's inputs tell apart.
            if axes != 4:
                rows_of_keys = [source.rows for source in readings if source.tokens == keys]
                alone = all(source.rows == 1 for source in readings)
                merged = self._merged_heads.count(weights, v, keys, rows_of_keys, alone)
                layout = replace(product_axes, heads=merged)
            four, values = layout.four(weights, layout.weights), layout.four(v, layout.values)
            # Values must have as many keys, and a head per head of the weights or one for all.
            if values.shape[2] != keys or values.shape[1] not in (1, four.shape[1]):
                self.reason = f"its weights were multiplied with a tensor of shape {tuple(v.shape)}"
                return None
            rows, heads, queries, _ = four.shape
            product = Product(
                rows=rows,
                heads=heads,
                queries=queries,
                keys=keys,
                features=values.shape[3],
                axes=softmax.axes,
                last=dim == axes - 1,
                scored=softmax.scored,
                wide=is_part_of_longer_row(values),
                apart=values.stride(3) > 1,
            )
            self.reason = refusal(stack[-1], readings, v, product)
            # The first watch whose module accepts the product is enough: all see the same call.
            if not self.reason:
                return layout
        return None

    def _refusal(
        self, softmax: Softmax, stacks: Sequence[Sequence[Frame]], weights: Tensor, v: Any
    ) -> str:
        """Why a product of the weights cannot be attention, whatever its module was called with."""
        # Values without as many axes are no values per key: a bias, or a plain matrix.
        if not isinstance(v, Tensor) or v.ndim != weights.ndim:
            if hasattr(v, "shape"):
                return f"its weights were multiplied with a tensor of shape {tuple(v.shape)}"
            return UNMET
        # A softmax that leaves its module (a router, a gate) is not attention. Some watch that saw it may have ended.
        frames = [ref() for ref in softmax.frames]
        if not stacks or any(stack[-1] not in frames for stack in stacks):
            return "its weights were multiplied with values in another module"
        if self._product is not None and self._product() is v:
            return "the values are a product of two tensors, as in linear attention"
        return ""

    def product(
        self,
        softmax: Softmax,
        tap: WatchTap,
        sites: Sequence[CallSite],
        func: Callable[[Tensor, Tensor], Tensor],
        weights: Tensor,
        v: Tensor,
        layout: ProductAxes,
    ) -> Tensor:
        """The output of the heads: `func` of weights and values, both perhaps edited.

        Args:
            softmax: The softmax of the weights.
            tap: The tap of the call.
            sites: Where the call happens.
            func: Multiplies weights and values.
            weights: The weights.
            v: The values.
            layout: Which axes these have.
        """
        # Queries, keys and scores came before the product, and are gone by now.
        late = [leaf for leaf, _, _ in tap.edits if leaf in LATE]
        if late:
            raise InputError(
                f"{late[0]} cannot be edited in a module that computes its softmax itself: expected heads, weights or "
                "v; a model of transformers calls scaled_dot_product_attention with attn_implementation='sdpa', unless "
                "it refuses that"
            )
        whole = layout.four(weights, layout.weights)
        for site in sites:
            site.check_heads(whole.shape[1])
        tap.leave_out(
            LATE,
            "its module computes its softmax itself, so that only weights, v and heads are seen",
        )
        before = softmax.before
        # Weights meet values once: another product with the same weights is something else.
        self._open.remove(softmax)
        if not self._open:  # no softmax is left that these products may be the scores of
            for site in sites:
                site.frame.products.clear()
        for listener in tap.listeners:
            listener.begin()
        # v is edited before the product, weights as they are multiplied.
        v, edited = tap.passed("v", layout.four(v, layout.values)), tap.edited("weights", whole)

        def view(x: Tensor) -> Tensor:
            if x.shape != weights.shape:
                x = x.reshape(weights.shape)
            return layout.four(x, layout.weights)

        # The weights are those before dropout, unless an edit has replaced what is multiplied.
        shown = edited
        if edited is whole and before is not None:
            shown = view(before)
        if tap.listeners:
            rows, _, queries, keys = shown.shape
            at = position_of(sites, rows, queries, keys, lambda: shown.detach() > 0)
        for listener in tap.listeners:
            grad = listener.grad and listener.explicit
            # Weights are shown before dropout: a view of them collects their gradient.
            if grad and before is not None and shown is not before and shown is not edited:
                copy = _with_gradient(before, view)
            else:
                copy = kept(shown, grad)
            listener.record_call(DenseCall(weights=copy, offset=at.offset, first_key=at.first_key))
        # The same kernel on the edited factors, in their own axes.
        out = func(layout.back(edited, layout.weights), layout.back(v, layout.values))
        return layout.back(tap.heads(layout.four(out, layout.out)), layout.out)


def _with_gradient(x: Tensor, view: Callable[[Tensor], Tensor]) -> Tensor:
    """A view of a tensor that gets the gradient of the tensor itself: a plain view that nothing uses has none."""
    seen = view(x.detach())

    def keep(grad: Tensor) -> None:
        # Gradients of several backward passes add up, as in torch.
        if seen.grad is None:
            seen.grad = view(grad).clone()
        else:
            seen.grad = seen.grad + view(grad)

    if x.requires_grad:
        x.register_hook(keep)
    return seen


def is_part_of_longer_row(x: Tensor) -> bool:
    """Whether each last-axis vector is a contiguous slice of a longer row, as the features of a head are."""
    return x.stride(-1) == 1 and x.stride(-2) > x.shape[-1]


def _is_product(frame: Frame, shape: torch.Size, dim: int) -> bool:
    """Whether a module has computed a product of this shape, perhaps transposed."""
    for size in frame.products:
        # Queries and keys may be exchanged, as in k @ q.mT.
        transposed = (*size[:-2], size[-1], size[-2])
        if _same(size, shape, dim) or _same(transposed, shape, dim):
            return True
    return False


def _same(scores: Sequence[int], weights: Sequence[int], dim: int) -> bool:
    """Whether weights may be those of scores: with the same axes, or rows and heads in one axis in one of them."""
    scores, weights = tuple(scores), tuple(weights)
    if scores == weights:
        return True
    same_pairs = dim == len(weights) - 1 and scores[-2:] == weights[-2:]
    return same_pairs and math.prod(scores) == math.prod(weights)
