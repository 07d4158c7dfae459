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
from torch import Tensor, nn

from ...errors import InputError
from ..capture.tap import WatchTap, own
from ..maps.call import DenseCall
from .module_stack import Frame, Place, position_of

# Which axes of a product of attention weights and values are rows, heads, queries, keys and features.


@dataclass(frozen=True)
class Layout:
    """How weights, values and their product become (b, h, q, k), (b, h, k, e) and (b, h, q, e), and back.

    Each field says which axes of a tensor these are, in order. With three axes, the first has the rows and the heads.
    """

    weights: tuple[int, ...]
    values: tuple[int, ...]
    out: tuple[int, ...]
    # of tensors with three axes: how many heads the first axis has for each row
    heads: int | None = None

    def four(self, x: Tensor, axes: tuple[int, ...]) -> Tensor:
        """A tensor with four axes, the rows and heads first."""
        if axes != tuple(range(x.ndim)):
            x = x.permute(axes)
        if self.heads is None:
            return x
        return x.unflatten(0, (x.shape[0] // self.heads, self.heads))

    def back(self, x: Tensor, axes: tuple[int, ...]) -> Tensor:
        """A tensor with four axes in the form that it had before."""
        if self.heads is not None:
            x = x.flatten(0, 1)
        if axes == tuple(range(x.ndim)):
            return x
        return x.permute(tuple(axes.index(i) for i in range(x.ndim)))


def matmul_layout(axes: int, dim: int) -> Layout | None:
    """The layout of torch.matmul or torch.bmm for weights with so many axes that sum to 1 over axis `dim`."""
    order = tuple(range(axes))
    if dim == axes - 1:
        return Layout(order, order, order)
    return None


def einsum_layout(equation: Any, axes: int, dim: int) -> Layout | None:
    """The same of torch.einsum; None if its equation is no weighted sum of values.

    Examples:
        >>> einsum_layout("bhqk,bkhd->bqhd", 4, 3)
        Layout(weights=(0, 1, 2, 3), values=(0, 2, 1, 3), out=(0, 2, 1, 3), heads=None)
    """
    inputs, _, out = str(equation).replace(" ", "").replace("...", "*+"[: axes - 2]).partition("->")
    weights, _, values = inputs.partition(",")
    if not axes == len(weights) == len(set(weights)) == len(values) == len(set(values)):
        return None
    key, shared = weights[dim], [axis for axis in weights if axis in values]
    lead = [axis for axis in shared if axis != key]
    queries = [axis for axis in weights if axis not in values]
    features = [axis for axis in values if axis not in weights]
    if (
        key not in shared
        or len(queries) != 1
        or sorted(out) != sorted([*lead, *queries, *features])
    ):
        return None
    return Layout(
        weights=tuple(map(weights.index, [*lead, *queries, key])),
        values=tuple(map(values.index, [*lead, key, *features])),
        out=tuple(map(out.index, [*lead, *queries, *features])),
    )


# Which products of a softmax with a tensor are attention over tokens, by the tokens that their module was called with.
#
# A softmax over channels, features or classes has the same form. The length of its axis tells them apart, and where
# that is not enough, where its scores come from and how the values lie in memory.


_ATTENDED: weakref.WeakSet[nn.Module] = weakref.WeakSet()  # modules that were seen to attend


@dataclass(frozen=True, eq=False)
class Product:
    """A product of weights and values, both with four axes."""

    rows: int
    heads: int
    queries: int
    keys: int
    features: int  # of each value
    axes: int  # of the softmax
    last: bool  # the softmax is over its last axis
    scored: bool  # its input has the shape of a product that the same module has computed before
    # the features of a value lie side by side in memory, within the longer row of a token
    wide: bool
    apart: bool  # they do not lie side by side, as if they were tokens


@dataclass(frozen=True)
class Source:
    """A reading of a tensor that a module was called with: rows, tokens, features (None: not known)."""

    rows: int
    tokens: int
    features: int | None
    other: int | None = None  # of (n, b, d): the tokens, if its rows come first
    channels_first: bool = False  # of an image (b, c, y, x)


def sources(frame: Frame, v: Tensor, around: Sequence[Frame]) -> list[Source]:
    """The readings of what a module was called with; of what the module around it was, if it was given q, k and v.

    Tokens are (b, n, d), (n, b, d), images (b, y, x, c) or (b, c, y, x), and ids (b, n); alone also (n, d).
    """
    if _is_core(frame, v):
        return next((found for outer in reversed(around) if (found := sources(outer, v, ()))), [])
    found = []
    for x in frame.inputs:
        n, size = x.ndim, x.shape
        if not x.is_floating_point():
            found += (
                [Source(size[0], size[1], None)]
                if n == 2 and not x.dtype.is_complex and x.dtype.itemsize > 1
                else []
            )
        elif n == 3:
            found += [
                Source(size[0], size[1], size[2]),
                Source(size[1], size[0], size[2], other=size[1]),
            ]
        elif n == 4:
            found += _images(x)
    return found or [
        Source(1, x.shape[0], x.shape[1])
        for x in frame.inputs
        if x.ndim == 2 and x.is_floating_point()
    ]


def _images(x: Tensor) -> list[Source]:
    """The readings of (b, y, x, c) or (b, c, y, x)."""
    b, n, m, last = x.shape
    return [Source(b, n * m, last), Source(b, m * last, n, channels_first=True)]


def _own(frame: Frame) -> list[Source]:
    """What a module was called with, read as tokens (b, n, d) or images."""
    floats = [x for x in frame.inputs if x.is_floating_point()]
    return [
        source
        for x in floats
        if x.ndim in (3, 4)
        for source in (_images(x) if x.ndim == 4 else [Source(*x.shape)])
    ]


def _is_core(frame: Frame, v: Tensor) -> bool:
    """Whether a module was called with queries, keys and these values."""
    return any(x is v for x in frame.inputs) and sum(x.ndim == v.ndim for x in frame.inputs) >= 3


def refusal(frame: Frame, found: Sequence[Source], v: Tensor, product: Product) -> str:
    """Why a product in a running module is no attention; empty if it is.

    Its keys must be tokens that the module was called with; or every such token is a query once, among as many keys, as
    in windows. Where a module was given a cache, or has attended before, the tokens may be the queries alone: the keys
    are then those of the cache. With three axes, or with more keys than tokens, as where a class token is put before
    them, the scores must be a product, too. A shape that may be one of channels is refused, unless the values lie in
    memory as those of tokens do.

    A softmax of queries over features is no attention even if there are as many features as tokens: its module also
    takes one of keys over tokens.

    Args:
        frame: The module.
        found: What it was called with: see `sources`.
        v: The values.
        product: The product.
    """
    if frame.fused:
        return "its module also calls a fused attention"
    if product.axes in frame.features:
        return "its module also takes a softmax over another axis, as linear attention does"
    if _is_parameter(v, frame.module):
        return "its values are parameters, which are no tokens"
    p, has_cache = product, frame.cache is not None or frame.module in _ATTENDED
    cached = has_cache and p.queries <= p.keys
    if p.axes == 4 and p.last:
        fitting = [source for source in _own(frame) if _fits(source.rows, source.tokens, p, cached)]
        if any(not _may_be_channels(source, p) for source in fitting):
            return _accept(frame)
    if not p.scored:
        return (
            f"{_NOT_TOKENS}, and its scores are no product of queries and keys in the same module"
        )
    if (not found and _is_core(frame, v)) or any(_is_source(source, p, cached) for source in found):
        return _accept(frame)
    if p.axes == 4 and p.last and not p.apart and _joins_heads(frame, p):
        return _accept(frame)
    return _NOT_TOKENS


_NOT_TOKENS = "the axis that sums to 1 is not, or not for certain, that of the tokens that its module was called with"


def _joins_heads(frame: Frame, p: Product) -> bool:
    """Whether a module has these heads, and a matrix that reads their values: its keys are then tokens that it pooled.

    A matrix that is as wide as heads * keys would make the keys channels.
    """
    widths = {part.in_features for part in frame.module.children() if isinstance(part, nn.Linear)}
    return (
        p.heads in frame.heads and p.heads * p.features in widths and p.heads * p.keys not in widths
    )


def _is_parameter(v: Tensor, module: nn.Module) -> bool:
    """Whether values are a parameter of their module, or a view of one."""
    if v.is_meta:
        return False
    own = {
        parameter.untyped_storage().data_ptr()
        for parameter in module._parameters.values()
        if parameter is not None
    }
    return bool(own) and v.untyped_storage().data_ptr() in own


def _may_be_channels(source: Source, p: Product) -> bool:
    """Whether four axes that fit the tokens of a module would fit its channels or features as well.

    The weights of features are no product. The values of attention between channels have a number per token, and those
    of one token do not lie side by side: unless the module was called with channels first.
    """
    if not p.scored:
        return p.heads * p.keys == source.features
    return p.features == source.tokens and not _lie_as_tokens(source, p)


def _lie_as_tokens(source: Source, p: Product) -> bool:
    """Whether values lie in memory as those of tokens do that are made of this source."""
    return p.wide or (p.apart if source.channels_first else not p.apart)


def _accept(frame: Frame) -> str:
    _ATTENDED.add(frame.module)
    return ""


def _fits(rows: int, tokens: int, p: Product, cached: bool) -> bool:
    """Whether tokens are the keys, the queries of a module with a cache, or the queries of windows."""
    return (
        tokens == p.keys
        or (cached and tokens == p.queries)
        or (p.queries == p.keys and p.rows * p.queries == rows * tokens)
    )


def _is_source(source: Source, p: Product, cached: bool) -> bool:
    """Whether a tensor has the tokens of a product whose scores are one."""
    several = p.rows * p.heads
    heads = several // source.rows if p.axes == 3 and source.rows else p.heads
    windows = p.queries == p.keys and p.rows * p.queries == source.rows * source.tokens
    if not windows and (several % max(1, source.rows) if p.axes == 3 else p.rows != source.rows):
        return False
    # As many keys as attention between channels has.
    channels = heads * p.keys == source.features or (
        p.apart and (source.features or 1) % p.keys == 0
    )
    if source.other is not None:
        return source.tokens == p.keys and (p.wide or not (channels and p.features == source.other))
    if _fits(source.rows, source.tokens, p, cached):
        return _lie_as_tokens(source, p) or not (channels and p.features == source.tokens)
    more = source.features is not None and source.tokens < p.keys == p.queries
    return more and (p.wide or not (channels or p.features == source.tokens))


def fits_tokens(frame: Frame, weights: Tensor) -> bool:
    """Whether the queries of weights (b, h, q, k) that a module returns are the tokens that it was called with.

    Where they might as well be the heads, the keys must be tokens, too, or those of a cache.
    """
    b, h, q, k = weights.shape
    heads = [
        x for x in frame.inputs if x.ndim == 4 and x.is_floating_point() and x.shape[:1] == (b,)
    ]
    split = [x for x in heads if x.shape[:3] == (b, h, q)]  # queries of heads
    found = [s for s in sources(frame, weights, ()) if s.rows == b and s.tokens == q]
    windows = q == k and any(s.rows * s.tokens == b * q for s in sources(frame, weights, ()))
    cached = frame.cache is not None or any(x.shape[2] in (k, k - q) for x in heads)
    return windows or bool(
        (found or split) and (q != h or q == k or cached or frame.was_given(b, q, k))
    )


# what lies behind when attention is recognised, and can be neither edited nor recorded
LATE = ("q", "k", "scores")
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
        # with their rows and heads
        self._flat: deque[tuple[weakref.ref[Tensor], int, int]] = deque(maxlen=FLAT)
        # the last (b, h, 1, e) whose heads were put on two axes
        self._packed: weakref.ref[Tensor] | None = None
        # the last product of two tensors of as many axes
        self._product: weakref.ref[Tensor] | None = None
        self.reason = ""  # why the last product with weights was no attention

    def begin(
        self, frames: Sequence[Frame], scores: Tensor, weights: Tensor, dim: int | None
    ) -> bool:
        """Take a softmax; returns whether it is probably one of attention.

        Of attention it has the axes (b, h, q, k) or (b, q, k), and mostly sums to 1 over the last. Over another axis it
        must be one of a product; else it is one over features, as linear attention takes it.

        Args:
            frames: The running modules, one per watch or edit.
            scores: What the softmax is of.
            weights: Its output.
            dim: Its axis.
        """
        self._open = [softmax for softmax in self._open if softmax.weights() is not None][
            1 - OPEN :
        ]
        if weights.ndim < 3 or dim is None or not frames:
            return False
        dim, last = dim % weights.ndim, weights.ndim - 1
        scored = not wide(scores) and all(
            _is_product(frame, weights.shape, dim) for frame in frames
        )
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
        if self._open:
            return next((softmax for softmax in self._open if softmax.weights() is x), None)
        return None

    def passed(self, softmax: Softmax, weights: Tensor, new: Tensor) -> None:
        """Take what dropout or a cast has made of the weights; `weights` is a copy if that was done in place."""
        if new is not weights:
            if softmax.before is None:
                softmax.before = weights
            softmax.weights = weakref.ref(new)

    def reshaped(self, x: Any, new: Tensor) -> None:
        """Take a view: of (b, h, ...) with rows and heads in one axis, of one query, or of the weights."""
        # (b, h, n, e)
        merged = (
            new.ndim == 3 and isinstance(x, Tensor) and x.ndim == 4 and new.size(2) == x.size(3)
        )
        if merged and new.size(1) == x.size(2):
            self._flat.append((weakref.ref(new), x.shape[0], x.shape[1]))
        one_query = (
            isinstance(x, Tensor) and x.ndim == new.ndim == 4 and x.shape[2] == 1 < new.shape[2]
        )
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
        softmax.scored = all(
            new.shape in frame.products for ref in softmax.frames if (frame := ref()) is not None
        )

    def multiplied(self, frames: Sequence[Frame], x: Any, y: Any, out: Tensor) -> None:
        """Take a product that is not attention: perhaps one of queries and keys.

        As values, one of two tensors makes linear attention.
        """
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
        if equation is None:
            found = matmul_layout(axes, dim)
        else:
            found = einsum_layout(equation, axes, dim)
        if self.reason or found is None:
            self.reason = self.reason or UNMET
            return None
        keys = weights.shape[dim]
        for stack in stacks:
            frame = stack[-1]
            given = sources(frame, v, stack[:-1])
            if axes == 4:
                layout = found
            else:
                layout = replace(found, heads=self._heads(weights, v, keys, given))
            one, two = layout.four(weights, layout.weights), layout.four(v, layout.values)
            if two.shape[2] != keys or two.shape[1] not in (1, one.shape[1]):
                self.reason = f"its weights were multiplied with a tensor of shape {tuple(v.shape)}"
                return None
            rows, heads, queries, _ = one.shape
            product = Product(
                rows=rows,
                heads=heads,
                queries=queries,
                keys=keys,
                features=two.shape[3],
                axes=softmax.axes,
                last=dim == axes - 1,
                scored=softmax.scored,
                wide=wide(two),
                apart=two.stride(3) > 1,
            )
            self.reason = refusal(frame, given, v, product)
            if not self.reason:
                return layout
        return None

    def _refusal(
        self, softmax: Softmax, stacks: Sequence[Sequence[Frame]], weights: Tensor, v: Any
    ) -> str:
        """Why a product of the weights cannot be attention, whatever its module was called with."""
        if not isinstance(v, Tensor) or v.ndim != weights.ndim:
            if hasattr(v, "shape"):
                return f"its weights were multiplied with a tensor of shape {tuple(v.shape)}"
            return UNMET
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
        tap.withhold(
            LATE,
            "its module computes its softmax itself, so that only weights, v and heads are seen",
        )
        before = softmax.before
        self._open.remove(softmax)
        if not self._open:
            for place in places:
                place.frame.products.clear()
        for listener in tap.listeners:
            listener.begin()
        v, edited = tap.passed("v", layout.four(v, layout.values)), tap.edited("weights", whole)

        def view(x: Tensor) -> Tensor:
            return layout.four(
                x if x.shape == weights.shape else x.reshape(weights.shape), layout.weights
            )

        if edited is not whole or before is None:
            shown = edited
        else:
            shown = view(before)
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
        if seen.grad is None:
            seen.grad = view(grad).clone()
        else:
            seen.grad = seen.grad + view(grad)

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
        _same(size, shape, dim) or _same((*size[:-2], size[-1], size[-2]), shape, dim)
        for size in frame.products
    )


def _same(scores: Sequence[int], weights: Sequence[int], dim: int) -> bool:
    """Whether weights may be those of scores: with the same axes, or rows and heads in one axis in one of them."""
    scores, weights = tuple(scores), tuple(weights)
    return scores == weights or (
        dim == len(weights) - 1
        and scores[-2:] == weights[-2:]
        and math.prod(scores) == math.prod(weights)
    )
