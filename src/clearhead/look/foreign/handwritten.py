"""Attention that a module computes by itself: a softmax over the keys, and the product of its weights with the values.

So do eager models of transformers, window attention of timm and torchvision, and many that are written by hand. A
softmax is followed from where it is computed, through dropout, casts and views, to the product with the values
(`Softmaxes`). Other softmaxes and products must not be mistaken for attention; the rule is in `refusal`.
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
from ..capture.tap import WatchTap, kept
from ..maps.call import DenseCall
from .module_stack import CallSite, Frame, position_of

# Which axes of a product of attention weights and values are rows, heads, queries, keys and features.


@dataclass(frozen=True)
class ProductAxes:
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
        # (rows x heads, ...) -> (rows, heads, ...)
        return x.unflatten(0, (x.shape[0] // self.heads, self.heads))

    def back(self, x: Tensor, axes: tuple[int, ...]) -> Tensor:
        """A tensor with four axes in the form that it had before."""
        # (rows, heads, ...) -> (rows x heads, ...)
        if self.heads is not None:
            x = x.flatten(0, 1)
        if axes == tuple(range(x.ndim)):
            return x
        # The inverse permutation: axis i of the result is where `axes` put it.
        return x.permute(tuple(axes.index(i) for i in range(x.ndim)))


def matmul_axes(axes: int, dim: int) -> ProductAxes | None:
    """The axes of torch.matmul or torch.bmm for weights with so many axes that sum to 1 over axis `dim`."""
    order = tuple(range(axes))
    # weights @ values sums over the last axis of the weights, which must be the softmax's.
    if dim == axes - 1:
        return ProductAxes(order, order, order)
    return None


def einsum_axes(equation: Any, axes: int, dim: int) -> ProductAxes | None:
    """The axes of torch.einsum for such weights; None if its equation is not a weighted sum of values.

    Examples:
        >>> einsum_axes("bhqk,bkhd->bqhd", 4, 3)
        ProductAxes(weights=(0, 1, 2, 3), values=(0, 2, 1, 3), out=(0, 2, 1, 3), heads=None)
    """
    # "..." stands for the one or two leading axes
    written = str(equation).replace(" ", "").replace("...", "*+"[: axes - 2])
    inputs, _, out = written.partition("->")
    weights, _, values = inputs.partition(",")
    # A repeated letter is a diagonal, which no attention takes.
    distinct = len(set(weights)) == len(weights) and len(set(values)) == len(values)
    if not distinct or not len(weights) == len(values) == axes:
        return None
    # weights (lead, queries, key), values (lead, key, features), product (lead, queries, features)
    key = weights[dim]
    lead = [axis for axis in weights if axis in values and axis != key]
    queries = [axis for axis in weights if axis not in values]
    features = [axis for axis in values if axis not in weights]
    # The key is summed over, so that both factors have it and the product does not.
    if key not in values or len(queries) != 1:
        return None
    if sorted(out) != sorted([*lead, *queries, *features]):
        return None
    return ProductAxes(
        weights=tuple(map(weights.index, [*lead, *queries, key])),
        values=tuple(map(values.index, [*lead, key, *features])),
        out=tuple(map(out.index, [*lead, *queries, *features])),
    )


# Which products of a softmax with a tensor are attention over tokens, by the tokens that their module was called with.
#
# A softmax over channels, features or classes has the same form. The length of its axis tells them apart, and where
# that is not enough (as many keys as channels), where its scores come from and how the values lie in memory.


_ATTENDED: weakref.WeakSet[nn.Module] = weakref.WeakSet()  # modules that were seen to attend


@dataclass(frozen=True, eq=False)
class Product:
    """The sizes of a product of weights and values, both with four axes, and how these were made."""

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
    """The readings of a module's inputs; if it was given q, k and v, of the inputs of the module around it.

    Tokens are (b, n, d), (n, b, d), images (b, y, x, c) or (b, c, y, x), and ids (b, n); alone also (n, d).

    Args:
        frame: The module.
        v: The values.
        around: The modules around it, outermost first.
    """
    # An attention that was given q, k and v: the module around it was given the tokens.
    if _is_core(frame, v):
        for outer in reversed(around):
            readings = sources(outer, v, ())
            if readings:
                return readings
        return []
    readings = [reading for x in frame.inputs for reading in _readings(x)]
    if readings:
        return readings
    # Two axes (n, d) without rows, if nothing else can be read as tokens.
    rows = [x for x in frame.inputs if x.ndim == 2 and x.is_floating_point()]
    return [Source(1, *x.shape) for x in rows]


def _readings(x: Tensor) -> list[Source]:
    """The readings of one tensor."""
    if not x.is_floating_point():
        ids = x.ndim == 2 and not x.dtype.is_complex and x.dtype.itemsize > 1  # a mask has one byte
        return [Source(x.shape[0], x.shape[1], None)] if ids else []
    # (b, n, d), or (n, b, d) as nn.MultiheadAttention has it by default.
    if x.ndim == 3:
        first, second, features = x.shape
        return [Source(first, second, features), Source(second, first, features, other=second)]
    return _images(x) if x.ndim == 4 else []


def _images(x: Tensor) -> list[Source]:
    """The readings of (b, y, x, c) or (b, c, y, x)."""
    # The shape alone does not tell which axis has the channels: both readings are kept.
    b, n, m, last = x.shape
    return [Source(b, n * m, last), Source(b, m * last, n, channels_first=True)]


def _batch_first(frame: Frame) -> list[Source]:
    """The inputs of a module, read as tokens (b, n, d) or images."""
    readings = []
    for x in frame.inputs:
        # Rows first: (n, b, d) is not among these readings.
        if x.is_floating_point() and x.ndim == 3:
            readings.append(Source(*x.shape))
        elif x.is_floating_point() and x.ndim == 4:
            readings += _images(x)
    return readings


def _is_core(frame: Frame, v: Tensor) -> bool:
    """Whether a module was called with queries, keys and these values."""
    # q, k and v together: the values, and two more tensors of as many axes.
    return any(x is v for x in frame.inputs) and sum(x.ndim == v.ndim for x in frame.inputs) >= 3


_NOT_TOKENS = "the axis that sums to 1 is not, or not for certain, that of the tokens that its module was called with"


def refusal(frame: Frame, readings: Sequence[Source], v: Tensor, p: Product) -> str:
    """Why a product in a running module is not attention; empty if it is.

    Its keys must be tokens that the module was called with; or every such token is a query once, among as many keys, as
    in windows. Where a module was given a cache, or has attended before, the tokens may be the queries alone: the keys
    are then those of the cache. With three axes, or with more keys than tokens, as where a class token is put before
    them, the scores must be a product, too. A shape that may be one of channels is refused, unless the values lie in
    memory as those of tokens do.

    A softmax of queries over features is not attention even if there are as many features as tokens: its module also
    takes one of keys over tokens.

    Args:
        frame: The module.
        readings: What it was called with: see `sources`.
        v: The values.
        p: The product.
    """
    # Other uses are excluded first, because they may have fitting sizes as well.
    reason = _other_use(frame, v, p)
    if not reason and not _over_tokens(frame, readings, v, p):
        reason = _NOT_TOKENS
        if not p.scored:
            reason += ", and its scores are no product of queries and keys in the same module"
    if not reason:
        _ATTENDED.add(frame.module)
    return reason


def _other_use(frame: Frame, v: Tensor, p: Product) -> str:
    """Why a product is something else than attention, whatever its sizes; empty if nothing says so."""
    # A fused call is the module's attention, so that its softmax is something else.
    if frame.fused:
        return "its module also calls a fused attention"
    if p.axes in frame.features:
        return "its module also takes a softmax over another axis, as linear attention does"
    if _is_parameter(v, frame.module):
        return "its values are parameters, which are no tokens"
    return ""


def _over_tokens(frame: Frame, readings: Sequence[Source], v: Tensor, p: Product) -> bool:
    """Whether the keys of a product are tokens of its module."""
    has_cache = frame.cache is not None or frame.module in _ATTENDED
    # With a cache the queries are the new tokens, and the keys are more than these.
    cached = has_cache and p.queries <= p.keys
    plain = p.axes == 4 and p.last  # weights (b, h, q, k)
    # The common form needs no evidence from the scores if the sizes fit only tokens.
    if plain:
        fitting = [s for s in _batch_first(frame) if _fits(s.rows, s.tokens, p, cached)]
        if any(not _may_be_channels(source, p) for source in fitting):
            return True
    # Everything else must be the softmax of a product of the same module.
    if not p.scored:
        return False
    if not readings and _is_core(frame, v):
        return True
    if any(_is_source(source, p, cached) for source in readings):
        return True
    return plain and not p.apart and _joins_heads(frame, p)


def _joins_heads(frame: Frame, p: Product) -> bool:
    """Whether a module has these heads, and a matrix that reads their values: its keys are then tokens that it pooled.

    A matrix that is as wide as heads * keys would make the keys channels.
    """
    # Heads times features is what the output projection reads.
    widths = {part.in_features for part in frame.module.children() if isinstance(part, nn.Linear)}
    return (
        p.heads in frame.heads and p.heads * p.features in widths and p.heads * p.keys not in widths
    )


def _is_parameter(v: Tensor, module: nn.Module) -> bool:
    """Whether values are a parameter of their module, or a view of one."""
    if v.is_meta:
        return False
    parameters = [p for p in module._parameters.values() if p is not None]
    # Views share the memory of their parameter.
    memory = {parameter.untyped_storage().data_ptr() for parameter in parameters}
    return bool(memory) and v.untyped_storage().data_ptr() in memory


def _may_be_channels(source: Source, p: Product) -> bool:
    """Whether four axes that fit the tokens of a module would fit its channels or features as well.

    The weights of features are no product. The values of attention between channels have a number per token, and those
    of one token do not lie side by side: unless the module was called with channels first.
    """
    # Without a product before it, weights over features have heads x keys equal to the width.
    if not p.scored:
        return p.heads * p.keys == source.features
    return p.features == source.tokens and not _lie_as_tokens(source, p)


def _lie_as_tokens(source: Source, p: Product) -> bool:
    """Whether values have the memory layout of values that are projected from this source's tokens."""
    return p.wide or p.apart == source.channels_first


def _fits(rows: int, tokens: int, p: Product, cached: bool) -> bool:
    """Whether tokens are the keys, the queries of a module with a cache, or the queries of windows."""
    if tokens == p.keys or (cached and tokens == p.queries):
        return True
    # Windows: all rows together have each token once.
    return p.queries == p.keys and p.rows * p.queries == rows * tokens


def _is_source(source: Source, p: Product, cached: bool) -> bool:
    """Whether a tensor has the tokens of a product whose scores are one."""
    # With three axes, the first has b * h rows: which of them are heads, only the rows of the source tell.
    several = p.rows * p.heads
    heads = several // source.rows if p.axes == 3 and source.rows else p.heads
    windows = p.queries == p.keys and p.rows * p.queries == source.rows * source.tokens
    same_rows = p.rows == source.rows
    # A number of rows that is a multiple of the source's may have heads in it.
    if p.axes == 3:
        same_rows = several % max(1, source.rows) == 0
    if not windows and not same_rows:
        return False

    # Attention between channels has as many keys, heads together, as the source has channels.
    channels = heads * p.keys == source.features
    if p.apart and (source.features or 1) % p.keys == 0:
        channels = True
    if source.other is not None:  # (n, b, d)
        swapped = channels and p.features == source.other
        return source.tokens == p.keys and (p.wide or not swapped)
    # The sizes fit tokens; the memory layout excludes attention between channels.
    if _fits(source.rows, source.tokens, p, cached):
        return _lie_as_tokens(source, p) or not (channels and p.features == source.tokens)
    # A class token was put before the tokens.
    more = source.features is not None and source.tokens < p.keys == p.queries
    return more and (p.wide or not (channels or p.features == source.tokens))


def fits_tokens(frame: Frame, weights: Tensor) -> bool:
    """Whether the queries of weights (b, h, q, k) that a module returns are the tokens that it was called with.

    Where they might as well be the heads, the keys must be tokens, too, or those of a cache.
    """
    b, h, q, k = weights.shape
    readings = sources(frame, weights, ())
    if q == k and any(source.rows * source.tokens == b * q for source in readings):  # windows
        return True
    # the module was called with queries or keys (b, h, n, e)
    split = [x for x in frame.inputs if x.ndim == 4 and x.is_floating_point()]
    split = [x for x in split if x.shape[0] == b]
    # (b, h, q, k) with q tokens of the source, or with the queries of (b, h, n, e).
    from_tokens = any(source.rows == b and source.tokens == q for source in readings)
    from_queries = any(x.shape[:3] == (b, h, q) for x in split)
    if not from_tokens and not from_queries:
        return False
    cached = frame.cache is not None or any(x.shape[2] in (k, k - q) for x in split)
    # q == h: the axes might be exchanged, so that the keys must fit, too.
    return q != h or q == k or cached or frame.was_given(b, q, k)


# what lies behind when attention is recognised, and can be neither edited nor recorded
LATE = ("q", "k", "scores")
FLAT = 8  # tensors that are remembered after their rows and heads were put into one axis
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
    scored: bool  # it was one of a product
    before: Tensor | None = None  # its output before dropout or a cast

    @property
    def likely(self) -> bool:
        """Whether it is probably one of attention, if not one that can be seen."""
        return self.scored or self.axes == 4


class Softmaxes:
    """The softmaxes of a thread that may belong to attention, and the evidence for it."""

    def __init__(self) -> None:
        self._open: list[Softmax] = []
        # tensors whose first axis holds rows and heads, with the number of both
        self._flat: deque[tuple[weakref.ref[Tensor], int, int]] = deque(maxlen=FLAT)
        # the last (b, h, 1, e) whose heads were put on two axes
        self._packed: weakref.ref[Tensor] | None = None
        # the last product of two tensors of as many axes
        self._product: weakref.ref[Tensor] | None = None
        self.reason = ""  # why the last product with weights was not attention

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
        # Softmaxes whose weights are gone can meet no values any more.
        alive = [softmax for softmax in self._open if softmax.weights() is not None]
        self._open = alive[1 - OPEN :]  # with the new one, OPEN at most
        if weights.ndim < 3 or dim is None or not frames:
            return False
        dim, last = dim % weights.ndim, weights.ndim - 1
        scored = not wide(scores) and all(
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
        """Take what dropout or a cast has made of the weights; `weights` is a copy if that was done in place."""
        # A cast to the same dtype returns the tensor itself: nothing has changed.
        if new is not weights:
            if softmax.before is None:
                softmax.before = weights
            softmax.weights = weakref.ref(new)

    def reshaped(self, x: Any, new: Tensor) -> None:
        """Take a view: of (b, h, ...) with rows and heads in one axis, of one query, or of the weights."""
        if isinstance(x, Tensor) and x.ndim == 4:
            if new.ndim == 3 and new.shape[1:] == x.shape[2:]:  # (b, h, n, e) -> (b * h, n, e)
                self._flat.append((weakref.ref(new), x.shape[0], x.shape[1]))
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
        """Take a slice of the weights without one key: a sink, which takes weight and has no value (GPT-OSS)."""
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
        """Take a product that is not attention: perhaps one of queries and keys.

        As values, one of two tensors makes linear attention.
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
                layout = replace(product_axes, heads=self._heads(weights, v, keys, readings))
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
                wide=wide(values),
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
        # A softmax that leaves its module (a router, a gate) is not attention.
        if [ref() for ref in softmax.frames] != [stack[-1] for stack in stacks]:
            return "its weights were multiplied with values in another module"
        if self._product is not None and self._product() is v:
            return "the values are a product of two tensors, as in linear attention"
        return ""

    def _heads(self, weights: Tensor, v: Tensor, keys: int, readings: Sequence[Source]) -> int:
        """How many heads the first of three axes has for each row; 1 if that is not known: they then count as rows.

        It is known where (b, h, ...) was put into one axis, and of values (n, b * h, e) that were transposed. Where
        (h, b, ...) was put into one axis, what the module was called with has h instead of b.
        """
        of_keys = [source.rows for source in readings if source.tokens == keys]
        # Known from the view that joined them, if it was seen.
        for x in (weights, v):
            for flat, rows, heads in self._flat:
                if flat() is x:
                    swapped = x is v and heads in of_keys and rows not in of_keys
                    return 1 if swapped else heads
        first = weights.shape[0]  # b * h
        # Rows of the source divide the first axis into heads.
        fitting = [rows for rows in of_keys if rows and first % rows == 0]
        if not fitting:
            return 1
        # values (n, b * h, e) in memory, read as (b * h, n, e)
        transposed = keys > 1 and v.stride(0) == v.shape[2] and v.stride(1) >= first * v.shape[2]
        alone = all(source.rows == 1 for source in readings)
        return first // fitting[0] if transposed or alone else 1

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


def wide(x: Tensor) -> bool:
    """Whether the last axis lies side by side within a longer row, as the features of a head do and products do not."""
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
