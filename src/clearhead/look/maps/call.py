"""One recorded call of attention: enough to compute any of its weights later, a band of queries at a time.

    s_ij = scale q_i . k_j + bias_ij          the score of query i and key j, -inf where the mask forbids
    p_ij = exp(s_ij) / sum_j' exp(s_ij')      the weight: the softmax of the scores

LazyCall keeps q, k, mask and bias, from which bands of scores are computed again; DenseCall keeps the weights.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass, replace
from functools import cached_property, lru_cache
from typing import Any

import torch
from jaxtyping import Bool, Float
from torch import Tensor

from ...layers import Bias, Mask

# the most scores of a band whose mask is kept for the other layers, where making it takes longest
SMALL = 1 << 14


@dataclass(frozen=True, eq=False)
class Pattern:
    """Which keys some queries may attend to."""

    allowed: Bool[Tensor, "#b #h #r #c"]
    # by all rows or heads, so that it pays to look for keys that are open to all queries
    shared: bool = True

    @cached_property
    def forbidden(self) -> Bool[Tensor, "#b #h #r #c"]:
        """The opposite of `allowed`."""
        return ~self.allowed

    @cached_property
    def first(self) -> int:
        """The number of keys, from the first on, that all queries may attend to: most of a band's in a causal mask."""
        # A mask per row and head rarely opens a key to all queries, and looking for one costs time.
        if not self.shared:
            return 0
        closed = (~self.allowed.flatten(0, -2).all(0)).nonzero()  # keys closed to some query
        if len(closed):
            return int(closed[0])
        return self.allowed.shape[-1]

    @cached_property
    def full(self) -> bool:
        """Whether every query may attend to a key."""
        return bool(self.allowed.any(-1).all())


@lru_cache(maxsize=64)
def _pattern_of_numbers(numbers: tuple[Any, ...], size: tuple[int, int], *where: Any) -> Pattern:
    """The pattern of a mask that has no tensors: its fields, and the arguments of `Mask.dense`."""
    causal, window, lengths, offset = numbers
    rows, keys, device = where
    with torch.inference_mode(False):  # it is kept, and may be used outside of inference mode
        mask = Mask(causal=causal, window=window, lengths=lengths, offset=offset)
        return Pattern(mask.dense(*size, rows=rows, keys=keys, device=device))


@dataclass(frozen=True, kw_only=True, eq=False)
class LazyCall:
    """The inputs of a fused attention kernel, from which the weights can be computed.

    Queries and keys are those after positions and score, so that the score of a pair is scale * q . k + bias.
    """

    q: Float[Tensor, "b h q e"]
    k: Float[Tensor, "b g k e"]
    mask: Mask
    bias: Bias | None
    scale: float
    # Log-sum-exp of each query's scores, if the kernel returned it
    given: Float[Tensor, "b h q"] | None = None
    copied: bool = False  # mask and bias are copies already
    # position of key 0 in the text, where a sliding window has forgotten the keys before it
    first_key: int = 0

    @property
    def shape(self) -> tuple[int, int, int, int]:
        """(batch, heads, queries, keys)."""
        return self.q.shape[0], self.q.shape[1], self.q.shape[2], self.k.shape[2]

    @property
    def offset(self) -> int | Tensor:
        """The position of query 0 among the keys, for all rows or per row."""
        offset = self.mask.offset
        assert offset is None or isinstance(offset, int | Tensor)
        if offset is None:
            return 0
        return offset

    @property
    def device(self) -> torch.device:
        """The device of the queries and keys."""
        return self.q.device

    def wide(self) -> LazyCall:
        """The same call with queries and keys in float32 or better, for one pass over it."""
        dtype = _wide(self.k.dtype)
        if self.q.dtype == self.k.dtype == dtype:
            return self
        return replace(self, q=self.q.to(dtype), k=self.k.to(dtype))

    def owned(self) -> LazyCall:
        """A copy whose tensors nothing later writes to: a KV cache, for example, reuses its storage."""
        # A mask or bias that is a copy already need not be copied again.
        lse = None if self.given is None else self.given.clone()
        mask = self.mask if self.copied else self.mask.each(Tensor.clone)
        return replace(self, q=self.q.clone(), k=self.k.clone(), mask=mask, given=lse)

    def repeat_rows(self, n: int) -> LazyCall:
        """The same call with its only row n times; the mask and the bias broadcast."""
        lse = None if self.given is None else self.given.expand(n, -1, -1)
        return replace(
            self, q=self.q.expand(n, -1, -1, -1), k=self.k.expand(n, -1, -1, -1), given=lse
        )

    def zeros(self, *shape: int) -> Tensor:
        """Zeros on the device of the call, in float32 or better."""
        return torch.zeros(shape, dtype=_wide(self.k.dtype), device=self.device)

    def reach(self, start: int, stop: int) -> tuple[int, int]:
        """The range of keys outside which queries start..stop-1 have weight 0."""
        return self.mask.reach(start, stop, self.k.shape[2])

    def scores(
        self, rows: tuple[int, int], keys: tuple[int, int]
    ) -> tuple[Float[Tensor, "b h r c"], Pattern | None]:
        """Scores in float32 or better, and which of them the mask allows (None: all)."""
        dtype, groups, (_, h, n, m) = _wide(self.k.dtype), self.k.shape[1], self.shape
        q = self.q if rows == (0, n) else self.q[:, :, slice(*rows)]
        k = self.k if keys == (0, m) else self.k[:, :, slice(*keys)]
        # The scale is applied to the queries, which are fewer numbers than the scores.
        q, k = q.to(dtype) * self.scale, k.to(dtype)
        with full_precision(self.device):
            if groups == h:
                scores = q @ k.mT
            else:
                # The query heads of a group become further queries of its key head, so that keys need not be repeated:
                # (b, h, r, e) -> (b, g, h/g * r, e)
                grouped = q.unflatten(1, (groups, -1)).flatten(2, 3)
                scores = (grouped @ k.mT).reshape(*q.shape[:3], k.shape[2])
        pattern = self._pattern(rows, keys)
        if self.bias is not None:
            scores += self.bias.tile(rows, keys)
            if self.bias.dense is not None:  # it may mask by -inf
                allowed = ~scores.isneginf()
                if pattern is not None:
                    allowed = pattern.allowed & allowed
                pattern = Pattern(allowed, shared=False)
        return scores, pattern

    def _pattern(self, rows: tuple[int, int], keys: tuple[int, int]) -> Pattern | None:
        """Which scores the mask allows; None: all."""
        mask, size = self.mask, (self.shape[2], self.shape[3])
        # Without a mask, or with one that forbids nothing in this call.
        if mask.free:
            return None
        small = (rows[1] - rows[0]) * (keys[1] - keys[0]) <= SMALL
        # All layers of a model have the same pattern. It is kept on a CPU only: on a GPU another stream might read it
        # before it is written.
        if small and mask.numbers and self.device.type == "cpu":
            numbers = (mask.causal, mask.window, mask.lengths, mask.offset)
            return _pattern_of_numbers(numbers, size, rows, keys, self.device)
        computed = mask.causal or not mask.window is mask.lengths is mask.documents is None
        # A dense mask alone need not be combined with anything that is computed.
        if mask.allow is not None and not computed:
            allowed = _part(mask.allow.to(self.device), rows, keys)
        else:
            allowed = mask.dense(*size, rows=rows, keys=keys, device=self.device)
        heads = allowed.shape[0] * allowed.shape[1]
        return Pattern(allowed, shared=heads < self.shape[0] * self.shape[1])

    def without(self, keys: int) -> LazyCall:
        """The same call with the first keys masked, so that the weights on the other keys sum to 1."""
        left = torch.arange(self.shape[3], device=self.device) >= keys
        allow = left if self.mask.allow is None else self.mask.allow & left
        # The log-sum-exp of all keys does not hold any more.
        return replace(self, mask=replace(self.mask, allow=allow), given=None)

    def only(self, head: int) -> LazyCall:
        """One query head of the call, with the key head of its group."""
        # Head h reads the keys of group h g / heads.
        group = head * self.k.shape[1] // self.q.shape[1]
        own, key_head = slice(head, head + 1), slice(group, group + 1)

        def of_head(x: Tensor | None) -> Tensor | None:
            """A row of a table with a row per head, or with one for all heads."""
            if x is None or len(x) == 1:
                return x
            return x[own]

        bias, mask = self.bias, self.mask
        if bias is not None:
            slope, table = of_head(bias.slope), of_head(bias.table)
            bias = replace(bias, slope=slope, table=table, dense=_head(bias.dense, own))
        if mask.allow is not None:
            mask = replace(mask, allow=_head(mask.allow, own))
        lse = None if self.given is None else self.given[:, own]
        return replace(
            self, q=self.q[:, own], k=self.k[:, key_head], bias=bias, mask=mask, given=lse
        )

    def cut(self, queries: int) -> LazyCall:
        """The first queries of the call; keys that end with the queries are cut, too."""
        keys = _keys_left(self, queries)
        mask = replace(self.mask, allow=_corner(self.mask.allow, queries, keys))
        bias = self.bias
        if bias is not None:
            bias = replace(bias, dense=_corner(bias.dense, queries, keys))
        lse = None if self.given is None else self.given[:, :, :queries]
        return replace(
            self, q=self.q[:, :, :queries], k=self.k[:, :, :keys], mask=mask, bias=bias, given=lse
        )

    @cached_property
    def _norm(self) -> Float[Tensor, "2 b h q 1"]:
        """The cached result of `norm` for each query; NaN where it is not computed yet."""
        # it is written to later, perhaps outside of inference mode
        with torch.inference_mode(False):
            return self.zeros(2, *self.shape[:3], 1).fill_(float("nan"))

    def norm(self, rows: tuple[int, int]) -> Float[Tensor, "2 b h r 1"]:
        """The largest score m_i of some queries, and ln sum_j exp(s_ij - m_i).

        Their sum is the logarithm of the denominator of the softmax. Apart, they hold it where all scores are very low.
        """
        # The kernel's own log-sum-exp: m + ln(sum) with a sum of 1.
        if self.given is not None:
            lse = self.given[:, :, slice(*rows)].to(_wide(self.k.dtype))[..., None]
            return torch.stack([lse, torch.zeros_like(lse)])
        norm = self._norm[:, :, :, slice(*rows)]
        if norm.isnan().any():  # computed on first use, and kept
            scores, pattern = self.scores(rows, self.reach(*rows))
            if pattern is not None:
                scores.masked_fill_(pattern.forbidden, float("-inf"))
            largest = scores.new_zeros(*scores.shape[:3], 1)  # no key is in reach
            if scores.shape[-1]:
                largest = scores.amax(-1, keepdim=True)
            # -inf of a fully masked query would make exp(s - m) NaN
            norm[0].copy_(largest.masked_fill(largest.isneginf(), 0.0))
            norm[1].copy_((scores - norm[0]).logsumexp(-1, keepdim=True))
        return norm


@dataclass(frozen=True, kw_only=True, eq=False)
class DenseCall:
    """The weights themselves: of a score that no fused kernel can compute, or of a short decoding step."""

    weights: Float[Tensor, "b h q k"]
    offset: int | Tensor = 0  # position of query 0 among the keys, for all rows or per row
    first_key: int = 0  # position of key 0 in the text

    @property
    def shape(self) -> tuple[int, int, int, int]:
        """(batch, heads, queries, keys)."""
        b, h, q, k = self.weights.shape
        return b, h, q, k

    @property
    def device(self) -> torch.device:
        """The device of the weights."""
        return self.weights.device

    def repeat_rows(self, n: int) -> DenseCall:
        """The same call with its only row n times."""
        return replace(self, weights=self.weights.expand(n, -1, -1, -1))

    def reach(self, start: int, stop: int) -> tuple[int, int]:
        """All keys: the mask is not kept."""
        return 0, self.weights.shape[3]

    def zeros(self, *shape: int) -> Tensor:
        """Zeros on the device of the call, in float32 or better."""
        return torch.zeros(shape, dtype=_wide(self.weights.dtype), device=self.device)

    def scores(
        self, rows: tuple[int, int], keys: tuple[int, int]
    ) -> tuple[Float[Tensor, "b h r c"], Pattern | None]:
        """Logarithms of the weights, and which weights are above 0."""
        weights = self.weights[:, :, slice(*rows), slice(*keys)].to(_wide(self.weights.dtype))
        # not weights > 0, which would hide a NaN
        return weights.log(), Pattern(~(weights <= 0), shared=False)

    def without(self, keys: int) -> DenseCall:
        """The same call with no weight on the first keys; those on the other keys are scaled to sum to 1."""
        left = torch.arange(self.shape[3], device=self.device) >= keys
        weights = self.weights * left
        # a query with no weight on the other keys keeps zeros
        total = weights.sum(-1, keepdim=True).clamp_min(torch.finfo(weights.dtype).tiny)
        return replace(self, weights=weights / total)

    def only(self, head: int) -> DenseCall:
        """One head of the call."""
        return replace(self, weights=self.weights[:, head : head + 1])

    def cut(self, queries: int) -> DenseCall:
        """The first queries of the call; keys that end with the queries are cut, too."""
        return replace(self, weights=self.weights[:, :, :queries, : _keys_left(self, queries)])

    def norm(self, rows: tuple[int, int]) -> Float[Tensor, "2 b h r 1"]:
        """Zeros: the scores are already logarithms of weights."""
        return self.zeros(2, *self.shape[:2], rows[1] - rows[0], 1)


Call = LazyCall | DenseCall


def _part(allow: Tensor, rows: tuple[int, int], keys: tuple[int, int]) -> Bool[Tensor, "#b #h r c"]:
    """A tile of a mask that broadcasts to (b, h, q, k)."""
    allow = allow.reshape((1,) * (4 - allow.ndim) + tuple(allow.shape))
    # Axis 2 or 3 of size 1 broadcasts, so that it is not cut.
    if allow.shape[2] > 1:
        allow = allow[:, :, slice(*rows)]
    if allow.shape[3] > 1:
        allow = allow[..., slice(*keys)]
    return allow.expand(-1, -1, rows[1] - rows[0], keys[1] - keys[0])


def _keys_left(call: Call, queries: int) -> int:
    """The number of keys of the first queries of a call, if later keys are those of its other queries."""
    _, _, all_queries, keys = call.shape
    # Where the queries end with the keys, the keys of the queries that are cut go with them.
    if isinstance(call.offset, int) and call.offset + all_queries == keys:
        return keys - (all_queries - queries)
    return keys


def _corner(x: Tensor | None, queries: int, keys: int) -> Tensor | None:
    """The first queries and keys of a tensor that broadcasts to (b, h, q, k)."""
    if x is None or x.ndim == 0:
        return x
    # An axis of size 1 broadcasts.
    if x.shape[-1] > 1:
        x = x[..., :keys]
    if x.ndim < 2 or x.shape[-2] == 1:
        return x
    return x[..., :queries, :]


def _head(x: Tensor | None, own: slice) -> Tensor | None:
    """One head of a tensor that broadcasts to (b, h, q, k)."""
    # Without a head axis, or with one for all heads.
    if x is None or x.ndim < 3 or x.shape[-3] == 1:
        return x
    return x[..., own, :, :]


def full_precision(device: torch.device) -> AbstractContextManager[object]:
    """Without autocast, which would round the numbers that are computed about a model that runs under it."""
    if torch.is_autocast_enabled(device.type):
        return torch.autocast(device.type, enabled=False)
    return nullcontext()


def _wide(dtype: torch.dtype) -> torch.dtype:
    """The dtype that statistics are computed in: float32, or float64 for float64."""
    if dtype == torch.float64:
        return torch.float64
    return torch.float32


# The weights of a recorded call, a band of queries at a time.


# scores computed at a time on a CPU: they stay in its cache, and memory traffic is what takes time
TILE = 1 << 21
TILE_CUDA = 1 << 26  # the same on a GPU


@dataclass(frozen=True, eq=False)
class Band:
    """The weights of a range of queries on all keys that these can reach; outside of them the weights are 0."""

    rows: tuple[int, int]
    keys: tuple[int, int]
    scores: Float[Tensor, "b h r c"]  # where the mask forbids, very low but finite
    weights: Float[Tensor, "b h r c"]
    normal: bool = False  # the scores are the logarithms of the weights

    def log(self) -> Float[Tensor, "b h r c"]:
        """The logarithms of the weights."""
        if self.normal:
            return self.scores
        return torch.log_softmax(self.scores, dim=-1)


def bands(source: Call) -> Iterator[Band]:
    """Yield the whole map in bands of queries whose scores fit into the processor's cache."""
    if isinstance(source, LazyCall):
        source = source.wide()
    for rows in steps(source, (0, source.shape[2])):
        yield band(source, rows, source.reach(*rows))


def steps(source: Call, rows: tuple[int, int]) -> Iterator[tuple[int, int]]:
    """Cut a range of queries into ranges whose scores fit into the processor's cache."""
    b, h, _, k = source.shape
    room = TILE_CUDA if source.device.type == "cuda" else TILE
    # At least 16 queries, so that products stay efficient, and 256 at most.
    step = max(16, min(256, room // max(1, b * h * k)))
    end = max(rows[1], rows[0] + 1)  # an empty range is one empty step
    for start in range(rows[0], end, step):
        yield start, min(start + step, rows[1])


def tile(source: Call, rows: tuple[int, int], keys: tuple[int, int]) -> Float[Tensor, "b h r c"]:
    """The weights of some queries on some keys, normalised over all keys."""
    if isinstance(source, LazyCall):
        first, last = source.reach(*rows)
        # a softmax of the scores themselves, exact however large they are
        if keys[0] <= first and last <= keys[1]:
            return band(source, rows, keys).weights
    scores, pattern = source.scores(rows, keys)
    # Otherwise the denominator comes from all keys, whichever are in the tile.
    largest, rest = source.norm(rows)
    weights = (scores - largest - rest).exp_()  # p = exp(s - lse)
    if pattern is None:
        return weights
    return weights.masked_fill_(pattern.forbidden, 0.0)


def band(source: Call, rows: tuple[int, int], keys: tuple[int, int]) -> Band:
    """The band of some queries; `keys` must contain all keys that these can reach."""
    b, h, _, _ = source.shape
    # These queries reach no key.
    if keys[0] == keys[1]:
        none = source.zeros(b, h, rows[1] - rows[0], 0)
        return Band(rows, keys, none, none)
    scores, pattern = source.scores(rows, keys)
    if pattern is not None:
        # The lowest number instead of -inf, so that 0 log 0 is 0 in the entropy. No query is kept from the first keys
        # under a causal mask, which saves half of the writing.
        first, lowest = pattern.first, torch.finfo(scores.dtype).min
        scores[..., first:].masked_fill_(pattern.forbidden[..., first:], lowest)
    # The weights of a DenseCall need not sum to 1, and are not normalised again.
    normal = not isinstance(source, LazyCall)
    weights = scores.exp() if normal else torch.softmax(scores, dim=-1)
    if pattern is not None and not (pattern.full and weights[..., :1].isfinite().all()):
        # a fully masked row came out uniform, that of a NaN query all NaN
        weights.masked_fill_(pattern.forbidden, 0.0)
    return Band(rows, keys, scores, weights, normal)
