"""Which products of a softmax with a tensor are attention, and which of their axes are heads, queries and keys.

A softmax over channels, features or classes has the same form as one over tokens. The tokens that the module was called
with tell them apart; where that is not enough (as many keys as channels), where the scores come from and how the values
lie in memory: see `refusal`.
"""

from __future__ import annotations

import weakref
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from torch import Tensor, nn

from .module_stack import Frame


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
    """The axes of torch.matmul or torch.bmm for weights with `axes` axes that sum to 1 over axis `dim`."""
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
    # the features of a value are contiguous in memory, a slice of the longer row of a token
    wide: bool
    apart: bool  # they are not contiguous, as if they were tokens


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
    of one token are not contiguous, unless the module was called with channels first.
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
