"""Which products of a softmax with a tensor are attention over tokens, by the tokens that their module was called with.

A softmax over channels, features or classes has the same form. The length of its axis tells them apart, and where that
is not enough, where its scores come from and how the values lie in memory.
"""

from __future__ import annotations

import weakref
from collections.abc import Sequence
from dataclasses import dataclass

from torch import Tensor, nn

from .running import Frame

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
    wide: bool  # the features of a value lie side by side in memory, within the longer row of a token
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
                [Source(size[0], size[1], None)] if n == 2 and not x.dtype.is_complex and x.dtype.itemsize > 1 else []
            )
        elif n == 3:
            found += [Source(size[0], size[1], size[2]), Source(size[1], size[0], size[2], other=size[1])]
        elif n == 4:
            found += _images(x)
    return found or [Source(1, x.shape[0], x.shape[1]) for x in frame.inputs if x.ndim == 2 and x.is_floating_point()]


def _images(x: Tensor) -> list[Source]:
    """The readings of (b, y, x, c) or (b, c, y, x)."""
    b, n, m, last = x.shape
    return [Source(b, n * m, last), Source(b, m * last, n, channels_first=True)]


def _own(frame: Frame) -> list[Source]:
    """What a module was called with, read as tokens (b, n, d) or images."""
    floats = [x for x in frame.inputs if x.is_floating_point()]
    return [
        source for x in floats if x.ndim in (3, 4) for source in (_images(x) if x.ndim == 4 else [Source(*x.shape)])
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
        return f"{_NOT_TOKENS}, and its scores are no product of queries and keys in the same module"
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
    return p.heads in frame.heads and p.heads * p.features in widths and p.heads * p.keys not in widths


def _is_parameter(v: Tensor, module: nn.Module) -> bool:
    """Whether values are a parameter of their module, or a view of one."""
    if v.is_meta:
        return False
    own = {parameter.untyped_storage().data_ptr() for parameter in module._parameters.values() if parameter is not None}
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
    channels = heads * p.keys == source.features or (p.apart and (source.features or 1) % p.keys == 0)
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
    heads = [x for x in frame.inputs if x.ndim == 4 and x.is_floating_point() and x.shape[:1] == (b,)]
    split = [x for x in heads if x.shape[:3] == (b, h, q)]  # queries of heads
    found = [s for s in sources(frame, weights, ()) if s.rows == b and s.tokens == q]
    windows = q == k and any(s.rows * s.tokens == b * q for s in sources(frame, weights, ()))
    cached = frame.cache is not None or any(x.shape[2] in (k, k - q) for x in heads)
    return windows or bool((found or split) and (q != h or q == k or cached or frame.was_given(b, q, k)))
