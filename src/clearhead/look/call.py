"""What one call of attention saw: enough to compute any of its weights later, a band of queries at a time."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, replace
from functools import cached_property

import torch
from jaxtyping import Bool, Float
from torch import Tensor

from ..layers import Bias, Mask

TILE = 1 << 21  # scores held at a time on a CPU: they stay in its cache, which is where the time goes
TILE_CUDA = 1 << 26


@dataclass(frozen=True, kw_only=True, eq=False)
class LazyCall:
    """Queries and keys after positions and score, as the fused kernel got them: the weights are implied."""

    q: Float[Tensor, "b h q e"]
    k: Float[Tensor, "b g k e"]
    mask: Mask
    bias: Bias | None
    scale: float
    given: Float[Tensor, "b h q"] | None = None  # the log-sum-exp of each query, where the kernel gave it

    @property
    def shape(self) -> tuple[int, int, int, int]:
        return self.q.shape[0], self.q.shape[1], self.q.shape[2], self.k.shape[2]

    @property
    def offset(self) -> int | Tensor:
        """Where query 0 stands among the keys, for all rows or for each."""
        offset = self.mask.offset
        assert offset is None or isinstance(offset, int | Tensor)
        return 0 if offset is None else offset

    @property
    def device(self) -> torch.device:
        return self.q.device

    def wide(self) -> LazyCall:
        """With queries and keys in float32 or better, for the time of a pass."""
        kind = _wide(self.k.dtype)
        return replace(self, q=self.q.to(kind), k=self.k.to(kind))

    def owned(self) -> LazyCall:
        """In memory of its own, where nothing that comes later writes."""
        lse = None if self.given is None else self.given.clone()
        return replace(self, q=self.q.clone(), k=self.k.clone(), mask=self.mask.each(Tensor.clone), given=lse)

    def zeros(self, *shape: int) -> Tensor:
        """Zeros for what is computed of it: on its device, in float32 or better."""
        return torch.zeros(shape, dtype=_wide(self.k.dtype), device=self.device)

    def reach(self, start: int, stop: int) -> tuple[int, int]:
        """The keys outside which these queries cannot look."""
        return self.mask.reach(start, stop, self.k.shape[2])

    def scores(
        self, rows: tuple[int, int], keys: tuple[int, int]
    ) -> tuple[Float[Tensor, "b h r c"], Bool[Tensor, "#b #h #r #c"] | None]:
        """Scores in float32 or better, and which of them are allowed (None: all)."""
        kind, groups = _wide(self.k.dtype), self.k.shape[1]
        q = self.q[:, :, slice(*rows)].to(kind) * self.scale
        k = self.k[:, :, slice(*keys)].to(kind)
        # The query heads of a group stand side by side before its keys, which need not be repeated.
        scores = (q.unflatten(1, (groups, -1)).flatten(2, 3) @ k.mT).reshape(*q.shape[:3], k.shape[2])
        allowed = None
        if not self.mask.free:
            n, m = self.shape[2:]
            allowed = self.mask.dense(n, m, rows=rows, keys=keys, device=self.device)
        if self.bias is not None:
            scores += self.bias.tile(rows, keys)
            if self.bias.dense is not None:
                may = ~scores.isneginf()
                allowed = may if allowed is None else allowed & may
        return scores, allowed

    def without(self, keys: int) -> LazyCall:
        """As if nobody could look at the first few keys: the rest of each query's weight counts as all of it."""
        left = torch.arange(self.shape[3], device=self.device) >= keys
        allow = left if self.mask.allow is None else self.mask.allow & left
        return replace(self, mask=replace(self.mask, allow=allow), given=None)

    def only(self, head: int) -> LazyCall:
        """One head of it, with the key head that serves it."""
        own, group = slice(head, head + 1), head * self.k.shape[1] // self.q.shape[1]
        bias, mask = self.bias, self.mask
        if bias is not None:
            slope, table = (None if x is None else x if len(x) == 1 else x[own] for x in (bias.slope, bias.table))
            bias = replace(bias, slope=slope, table=table, dense=_head(bias.dense, own))
        if mask.allow is not None:
            mask = replace(mask, allow=_head(mask.allow, own))
        lse = None if self.given is None else self.given[:, own]
        return replace(self, q=self.q[:, own], k=self.k[:, group : group + 1], bias=bias, mask=mask, given=lse)

    @cached_property
    def _lse(self) -> Float[Tensor, "b h q 1"]:
        if self.given is not None:
            return self.given.to(_wide(self.k.dtype))[..., None]
        with torch.inference_mode(False):  # it is written into later, perhaps outside
            return self.zeros(*self.shape[:3], 1).fill_(float("nan"))

    def lse(self, rows: tuple[int, int]) -> Float[Tensor, "b h r 1"]:
        """The logarithm of the sum that the softmax of these queries divides by."""
        known = self._lse[:, :, slice(*rows)]
        if self.given is None and known.isnan().any():  # each query's is computed when first asked for, and kept
            scores, allowed = self.scores(rows, self.reach(*rows))
            if allowed is not None:
                scores.masked_fill_(~allowed, float("-inf"))
            known.copy_(scores.logsumexp(-1, keepdim=True))
        return known


@dataclass(frozen=True, kw_only=True, eq=False)
class DenseCall:
    """Weights that were really computed: a score that no fused kernel knows, or a short step of decoding."""

    weights: Float[Tensor, "b h q k"]
    offset: int | Tensor = 0

    @property
    def shape(self) -> tuple[int, int, int, int]:
        b, h, q, k = self.weights.shape
        return b, h, q, k

    @property
    def device(self) -> torch.device:
        return self.weights.device

    def reach(self, start: int, stop: int) -> tuple[int, int]:
        return 0, self.weights.shape[3]

    def zeros(self, *shape: int) -> Tensor:
        return torch.zeros(shape, dtype=_wide(self.weights.dtype), device=self.device)

    def scores(
        self, rows: tuple[int, int], keys: tuple[int, int]
    ) -> tuple[Float[Tensor, "b h r c"], Bool[Tensor, "#b #h #r #c"] | None]:
        weights = self.weights[:, :, slice(*rows), slice(*keys)].to(_wide(self.weights.dtype))
        return weights.log(), ~(weights <= 0)  # a NaN is not hidden

    def without(self, keys: int) -> DenseCall:
        left = torch.arange(self.shape[3], device=self.device) >= keys
        weights = self.weights * left
        return replace(self, weights=weights / weights.sum(-1, keepdim=True).clamp_min(torch.finfo(weights.dtype).tiny))

    def only(self, head: int) -> DenseCall:
        """One head of it."""
        return replace(self, weights=self.weights[:, head : head + 1])

    def lse(self, rows: tuple[int, int]) -> Float[Tensor, "b h r 1"]:
        return self.zeros(*self.shape[:2], rows[1] - rows[0], 1)


def _head(x: Tensor | None, own: slice) -> Tensor | None:
    """One head of what broadcasts to (b, h, q, k)."""
    return x if x is None or x.ndim < 3 or x.shape[-3] == 1 else x[..., own, :, :]


def _wide(dtype: torch.dtype) -> torch.dtype:
    """Statistics are taken in float32, of float64 in float64."""
    return torch.float64 if dtype == torch.float64 else torch.float32


Call = LazyCall | DenseCall


@dataclass(frozen=True, eq=False)
class Band:
    """A band of queries with all the keys it can reach; outside them the weights are 0."""

    rows: tuple[int, int]
    keys: tuple[int, int]
    log: Float[Tensor, "b h r c"]  # logarithms of the weights, very low (but finite) where nobody may look
    weights: Float[Tensor, "b h r c"]


def bands(source: Call) -> Iterator[Band]:
    """The whole map in bands that fit a cache."""
    source = source.wide() if isinstance(source, LazyCall) else source
    for rows in steps(source, (0, source.shape[2])):
        yield band(source, rows, source.reach(*rows))


def steps(source: Call, rows: tuple[int, int]) -> Iterator[tuple[int, int]]:
    """Cut a range of queries so that their scores fit a cache."""
    b, h, _, k = source.shape
    room = TILE_CUDA if source.device.type == "cuda" else TILE
    step = max(16, min(256, room // max(1, b * h * k)))
    for start in range(rows[0], max(rows[1], rows[0] + 1), step):  # nothing is one empty step
        yield start, min(start + step, rows[1])


def tile(source: Call, rows: tuple[int, int], keys: tuple[int, int]) -> Float[Tensor, "b h r c"]:
    """The weights of some queries on some keys, whatever those queries do with the others."""
    scores, allowed = source.scores(rows, keys)
    weights = (scores - source.lse(rows)).exp_()
    return weights if allowed is None else weights.masked_fill_(~allowed, 0.0)


def band(source: Call, rows: tuple[int, int], keys: tuple[int, int]) -> Band:
    """One band; `keys` must hold all that its queries can reach."""
    b, h, _, _ = source.shape
    if keys[0] == keys[1]:
        none = source.zeros(b, h, rows[1] - rows[0], 0)
        return Band(rows, keys, none, none)
    scores, allowed = source.scores(rows, keys)
    if allowed is not None:
        scores.masked_fill_(~allowed, torch.finfo(scores.dtype).min)
    log = torch.log_softmax(scores, dim=-1) if isinstance(source, LazyCall) else scores  # kept weights are as they are
    weights = log.exp()
    if allowed is not None and not (allowed.any(-1).all() and weights[..., :1].isfinite().all()):
        weights.masked_fill_(~allowed, 0.0)  # an empty row came out uniform, a NaN query's all NaN
    return Band(rows, keys, log, weights)
