"""AttentionMap: the weights of an attention as a lazy object; a row, a tile or an overview is computed on request."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

import torch
import torch.nn.functional as F
from jaxtyping import Float, Int
from torch import Tensor

from ...errors import InputError, InputIndexError, InputTypeError
from .call import Band, Call, DenseCall, band, bands, full_precision, steps, tile
from .statistics import statistics

DENSE_LIMIT = 1 << 26  # the most weights that dense() returns: 256 MB in float32


class MapSizeError(InputError):
    """A whole attention map of this input would be too large for memory."""


class AttentionMap:
    """The weights (batch, heads, queries, keys) of a watched attention, computed on request.

    The calls of a decoding loop follow one another as queries; a key that a step did not have yet, or that a sliding
    window has forgotten, has weight 0 there.
    Nothing of size queries x keys is stored, except in the result of dense().

    Args:
        sources: The recorded calls of one attention, in order.

    Examples:
        >>> attention = clearhead.layers.Attention(8, heads=2)
        >>> with torch.no_grad(), watch(attention, "weights") as tape:
        ...     out = attention(torch.randn(1, 1000, 8))
        >>> weights = tape["weights"]
        >>> weights
        AttentionMap(batch=1, heads=2, queries=1000, keys=1000)
        >>> weights.row(3).shape, weights.pool(10).shape, weights.entropy().shape
        (torch.Size([1, 2, 1000]), torch.Size([1, 2, 10, 10]), torch.Size([1, 2, 1000]))
    """

    def __init__(self, sources: Sequence[Call]) -> None:
        if not sources:
            raise InputError("an attention map needs at least one call")
        heads = {source.shape[:2] for source in sources}
        if len(heads) > 1:
            raise InputError(
                f"calls of (batch, heads) {sorted(heads)} do not join into one map: take them apart with tape.calls"
            )
        self.sources = list(sources)

    @property
    def shape(self) -> tuple[int, int, int, int]:
        """(batch, heads, queries, keys)."""
        b, h = self.sources[0].shape[:2]
        # Sliding windows forget keys, so that the last key of any call is the map's last one.
        keys = max(s.first_key + s.shape[3] for s in self.sources)
        return b, h, sum(s.shape[2] for s in self.sources), keys

    def __repr__(self) -> str:
        b, h, q, k = self.shape
        return f"AttentionMap(batch={b}, heads={h}, queries={q}, keys={k})"

    def only(self, head: int) -> AttentionMap:
        """The map of one head: what is computed of it costs that head only."""
        if not 0 <= head < self.shape[1]:
            raise InputIndexError(f"head {head}: there are {self.shape[1]}, counted from 0")
        return AttentionMap([source.only(head) for source in self.sources])

    def row(self, i: int) -> Float[Tensor, "b h k"]:
        """The weights of query i on all keys."""
        q = self.shape[2]
        if not -q <= i < q:
            raise InputIndexError(f"query {i}: there are {q}")
        # A negative number counts from the last query.
        i %= q
        return self.tile((i, i + 1), (0, self.shape[3]))[:, :, 0]

    def tile(self, rows: tuple[int, int], keys: tuple[int, int]) -> Float[Tensor, "b h r c"]:
        """The weights of queries rows[0]..rows[1]-1 on keys keys[0]..keys[1]-1."""
        for name, (low, high), most in (
            ("rows", rows, self.shape[2]),
            ("keys", keys, self.shape[3]),
        ):
            if not 0 <= low < high <= most:
                raise InputIndexError(f"{name} {low}..{high}: expected a range within 0..{most}")
        parts = []
        width = keys[1] - keys[0]
        for source, first in self._placed():
            # The rows of the tile that this call has, counted from its first query.
            own = (max(rows[0] - first, 0), min(rows[1] - first, source.shape[2]))
            if own[0] >= own[1]:
                continue
            # Its keys, counted from its first key: an early step lacks the later keys, a window the earlier ones.
            low = max(keys[0] - source.first_key, 0)
            high = max(min(keys[1] - source.first_key, source.shape[3]), low)
            left = min(low + source.first_key, keys[1]) - keys[0]  # columns before them
            # Queries of this call, in bands that fit into the cache.
            for some in steps(source, own):
                if low < high:
                    part = tile(source, some, (low, high))
                else:
                    part = source.zeros(*self.shape[:2], some[1] - some[0], 0)
                # Keys outside of the call have weight 0 on both sides of what it has.
                parts.append(F.pad(part, (left, width - left - part.shape[3])))
        return torch.cat(parts, dim=2)

    def top(self, k: int) -> tuple[Float[Tensor, "b h q n"], Int[Tensor, "b h q n"]]:
        """The k largest weights of each query, largest first, and their keys."""
        keys = self.shape[3]
        if not 1 <= k <= keys:
            raise InputError(f"top({k}): there are {keys} keys")
        weights, index = [], []
        for source in self.sources:
            for b in bands(source):
                # a band may reach fewer keys than are asked for
                padded = F.pad(b.weights, (0, max(0, k - b.weights.shape[-1])))
                value, at = padded.topk(k, dim=-1)
                first = b.keys[0] + source.first_key
                # Padded and masked keys have the weight 0: their index is 0.
                if first:
                    at = torch.where(value > 0, at + first, 0)
                weights.append(value)
                index.append(at)
        return torch.cat(weights, dim=2), torch.cat(index, dim=2)

    def reach(self, rows: tuple[int, int]) -> tuple[int, int]:
        """The range of keys outside which queries rows[0]..rows[1]-1 have weight 0."""
        lows, highs = [], []
        for source, first in self._placed():
            start, stop = max(rows[0] - first, 0), min(rows[1] - first, source.shape[2])
            if start < stop:
                low, high = source.reach(start, stop)
                lows.append(source.first_key + low)
                highs.append(source.first_key + high)
        return min(lows, default=0), max(highs, default=0)

    def pool(self, size: int | tuple[int, int]) -> Float[Tensor, "b h y x"]:
        """An overview of at most size x size cells: the mean over a cell's queries of the sum over its keys.

        So each row of the overview still sums to 1: it is the attention of an average query of the cell.
        """
        b, h, q, k = self.shape
        ny, nx = (size, size) if isinstance(size, int) else size
        if ny < 1 or nx < 1:
            raise InputError(f"pool({size}): expected sizes of 1 or more")
        # No more cells than queries or keys.
        ny, nx = min(ny, q), min(nx, k)
        sums = self.sources[0].zeros(b, h, ny, nx)
        # the cell of each key, and of each query
        columns = torch.arange(k, device=sums.device) * nx // k
        cells = torch.arange(q, device=sums.device) * ny // q
        for source, first in self._placed():
            for part in bands(source):
                # (b, h, r, c) -> (b, h, r, nx), then added to the rows (b, h, ny, nx)
                x = sums.new_zeros(b, h, part.weights.shape[2], nx)
                x.index_add_(3, columns[_columns(source, part)], part.weights.to(sums.dtype))
                sums.index_add_(2, cells[part.rows[0] + first : part.rows[1] + first], x)
        # Sums per cell become means over its queries.
        return sums / torch.bincount(cells, minlength=ny)[:, None]

    def dense(self, *, limit: int = DENSE_LIMIT) -> Float[Tensor, "b h q k"]:
        """The whole matrix; raises if it has more than `limit` weights."""
        b, h, q, k = self.shape
        if b * h * q * k > limit:
            raise MapSizeError(
                f"the map of {b} x {h} x {q} x {k} holds {b * h * q * k:,} weights, over the limit of {limit:,}: "
                "ask for row, tile, top or pool, or raise limit"
            )
        return self.tile((0, q), (0, k))

    def statistics(
        self, *names: str, grid: tuple[int, int] | None = None, special: int = 0
    ) -> dict[str, Float[Tensor, "b h n"] | Int[Tensor, "b h n"] | Float[Tensor, "b h n c"]]:
        """Statistics of look.MEANING by name, exact and without the matrix; several at once cost little more than one.

        `grid` and `special` are for patches of an image: see look.statistics.
        """
        # One pass per call for all statistics that are asked for.
        parts = [statistics(source, *names, grid=grid, special=special) for source in self.sources]
        return {name: join(name, [part[name] for part in parts]) for name in names}

    def entropy(self) -> Float[Tensor, "b h q"]:
        """The entropy of each query's weights, in nats."""
        return self.statistics("entropy")["entropy"]

    def received(self) -> Float[Tensor, "b h k"]:
        """The sum of the weights on each key over all queries."""
        return self.statistics("received")["received"]

    def distance(
        self, *, grid: tuple[int, int] | None = None, special: int = 0, rms: bool = False
    ) -> Float[Tensor, "b h q"]:
        """The mean (or root mean square) distance from each query to its keys, in tokens or over a grid of patches."""
        name = "rms" if rms else "distance"
        return self.statistics(name, grid=grid, special=special)[name]

    def maximum(self) -> tuple[Float[Tensor, "b h q"], Int[Tensor, "b h q"]]:
        """The largest weight of each query, and its key."""
        # Both come from one pass over the map.
        both = self.statistics("maximum", "peak")
        return both["maximum"], both["peak"]

    def mass(self, keys: Sequence[int] | Tensor) -> Float[Tensor, "b h q"]:
        """The total weight of each query on a set of keys, given by their indices or as booleans (keys,)."""
        k = self.shape[3]
        index = torch.as_tensor(keys, device=self.sources[0].device)
        if index.dtype == torch.bool:
            if index.shape != (k,):
                raise InputError(f"a boolean set of shape {tuple(index.shape)}: expected ({k},)")
            chosen = index
        else:
            if index.numel() and index.is_floating_point():
                raise InputTypeError(f"keys {index.tolist()}: expected whole numbers, or booleans")
            if index.numel() and (int(index.min()) < 0 or int(index.max()) >= k):
                raise InputIndexError(
                    f"keys from {int(index.min())} to {int(index.max())}: there are {k}"
                )
            # Keys by number become booleans, so that both forms take the same product.
            chosen = torch.zeros(k, dtype=torch.bool, device=index.device)
            chosen[index.long()] = True
        parts = []
        with full_precision(self.sources[0].device):
            for source in self.sources:
                for part in bands(source):
                    inside = chosen[_columns(source, part)].to(part.weights.dtype)
                    # (b, h, r, c) @ (c,) -> (b, h, r)
                    parts.append(part.weights @ inside)
        return torch.cat(parts, dim=2)

    def _placed(self) -> Iterator[tuple[Call, int]]:
        """Each call with the index of its first query in the map."""
        first = 0
        for source in self.sources:
            yield source, first
            first += source.shape[2]


def _columns(source: Call, part: Band) -> slice:
    """The columns of a map that the keys of a band are."""
    return slice(part.keys[0] + source.first_key, part.keys[1] + source.first_key)


def join(name: str, parts: list[Tensor]) -> Tensor:
    """Join a statistic of successive calls: those of queries follow one another, what keys receive is added up."""
    if name != "received":
        return torch.cat(parts, dim=2)
    # Early steps have fewer keys than late ones: the missing ones received nothing.
    keys = max(part.shape[2] for part in parts)
    return torch.stack([F.pad(part, (0, keys - part.shape[2])) for part in parts]).sum(0)


def compact_copy(source: Call) -> Call:
    """Return a copy of a call in its smaller form: its queries and keys, or its weights (few in a decoding step)."""
    if isinstance(source, DenseCall):
        return source
    b, h, q, k = source.shape
    # Whichever is smaller: b h q k weights, or queries and keys of width e.
    if b * h * q * k > source.q.numel() + source.k.numel():
        return source.owned()
    part = band(source, (0, q), (0, k))
    return DenseCall(weights=part.weights, offset=source.offset, first_key=source.first_key)
