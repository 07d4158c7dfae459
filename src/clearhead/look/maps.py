"""The attention map as a lazy object: a row, a tile, a top-k or an overview, computed when asked."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence

import torch
import torch.nn.functional as F
from jaxtyping import Float, Int
from torch import Tensor

from ..errors import InputError, InputIndexError, InputTypeError
from .call import Call, DenseCall, band, bands, steps, tile
from .statistics import statistics

DENSE_LIMIT = 1 << 26  # weights that dense() will hold: 256 MB in float32


class AttentionMap:
    """All weights (b, h, queries, keys) of a watched attention, implied by what it saw.

    The calls of a decoding loop follow one another as queries; a key that a step could not see yet has
    weight 0 there. Nothing of size queries x keys is held unless dense() is asked for.
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
        b, h = self.sources[0].shape[:2]
        return b, h, sum(s.shape[2] for s in self.sources), max(s.shape[3] for s in self.sources)

    def __repr__(self) -> str:
        b, h, q, k = self.shape
        return f"AttentionMap(batch={b}, heads={h}, queries={q}, keys={k})"

    def only(self, head: int) -> AttentionMap:
        """The map of one head, for what would take long for all of them."""
        if not 0 <= head < self.shape[1]:
            raise InputIndexError(f"head {head}: there are {self.shape[1]}, counted from 0")
        return AttentionMap([source.only(head) for source in self.sources])

    def row(self, i: int) -> Float[Tensor, "b h k"]:
        """Where query i looks."""
        q = self.shape[2]
        if not -q <= i < q:
            raise InputIndexError(f"query {i}: there are {q}")
        i %= q
        return self.tile((i, i + 1), (0, self.shape[3]))[:, :, 0]

    def tile(self, rows: tuple[int, int], keys: tuple[int, int]) -> Float[Tensor, "b h r c"]:
        """The weights of queries rows[0]..rows[1]-1 on keys keys[0]..keys[1]-1."""
        for name, (low, high), most in (("rows", rows, self.shape[2]), ("keys", keys, self.shape[3])):
            if not 0 <= low < high <= most:
                raise InputIndexError(f"{name} {low}..{high}: expected a range within 0..{most}")
        parts = []
        for source, first in self._placed():
            own = (max(rows[0] - first, 0), min(rows[1] - first, source.shape[2]))
            have = (keys[0], min(keys[1], source.shape[3]))  # an early step had not seen the later keys
            for some in steps(source, own) if own[0] < own[1] else ():
                part = (
                    tile(source, some, have)
                    if have[0] < have[1]
                    else source.zeros(*self.shape[:2], some[1] - some[0], 0)
                )
                parts.append(F.pad(part, (0, keys[1] - keys[0] - part.shape[3])))
        return torch.cat(parts, dim=2)

    def top(self, k: int) -> tuple[Float[Tensor, "b h q n"], Int[Tensor, "b h q n"]]:
        """The k largest weights of each query, largest first, and their keys."""
        keys = self.shape[3]
        if not 1 <= k <= keys:
            raise InputError(f"top({k}): there are {keys} keys")
        weights, index = [], []
        for source in self.sources:
            for b in bands(source):
                padded = F.pad(b.weights, (0, max(0, k - b.weights.shape[-1])))
                value, at = padded.topk(k, dim=-1)
                weights.append(value)
                index.append(torch.where(value > 0, at + b.keys[0], 0) if b.keys[0] else at)
        return torch.cat(weights, dim=2), torch.cat(index, dim=2)

    def reach(self, rows: tuple[int, int]) -> tuple[int, int]:
        """The keys outside which queries rows[0]..rows[1]-1 cannot look: their weights there are 0."""
        own = [(s, max(rows[0] - first, 0), min(rows[1] - first, s.shape[2])) for s, first in self._placed()]
        reaches = [source.reach(low, high) for source, low, high in own if low < high]
        return min((low for low, _ in reaches), default=0), max((high for _, high in reaches), default=0)

    def pool(self, size: int | tuple[int, int]) -> Float[Tensor, "b h y x"]:
        """An overview of about size x size cells: mean over a cell's queries, sum over its keys.

        So a row of the overview still sums to 1: it says where an average query of the cell looks.
        """
        b, h, q, k = self.shape
        ny, nx = (size, size) if isinstance(size, int) else size
        if ny < 1 or nx < 1:
            raise InputError(f"pool({size}): expected sizes of 1 or more")
        ny, nx = min(ny, q), min(nx, k)
        sums = self.sources[0].zeros(b, h, ny, nx)
        columns = torch.arange(k, device=sums.device) * nx // k
        cells = torch.arange(q, device=sums.device) * ny // q
        for source, first in self._placed():
            for part in bands(source):
                x = sums.new_zeros(b, h, part.weights.shape[2], nx)
                x.index_add_(3, columns[slice(*part.keys)], part.weights.to(sums.dtype))
                sums.index_add_(2, cells[part.rows[0] + first : part.rows[1] + first], x)
        return sums / torch.bincount(cells, minlength=ny)[:, None]

    def dense(self, *, limit: int = DENSE_LIMIT) -> Float[Tensor, "b h q k"]:
        """The whole matrix, if it is not too large to hold."""
        b, h, q, k = self.shape
        if b * h * q * k > limit:
            raise InputError(
                f"the map of {b} x {h} x {q} x {k} holds {b * h * q * k:,} weights, over the limit of {limit:,}: "
                "ask for row, tile, top or pool, or raise limit"
            )
        return self.tile((0, q), (0, k))

    def statistics(
        self, *want: str, grid: tuple[int, int] | None = None, special: int = 0
    ) -> dict[str, Float[Tensor, "b h n"] | Int[Tensor, "b h n"] | Float[Tensor, "b h n c"]]:
        """Any of look.MEANING, exactly, without the matrix; several at once cost little more than one."""
        parts = [statistics(source, *want, grid=grid, special=special) for source in self.sources]
        return {name: join(name, [part[name] for part in parts]) for name in want}

    def entropy(self) -> Float[Tensor, "b h q"]:
        return self.statistics("entropy")["entropy"]

    def received(self) -> Float[Tensor, "b h k"]:
        return self.statistics("received")["received"]

    def distance(
        self, *, grid: tuple[int, int] | None = None, special: int = 0, rms: bool = False
    ) -> Float[Tensor, "b h q"]:
        """Mean (or root mean square) distance looked at, along the sequence or over a grid of patches."""
        name = "rms" if rms else "distance"
        return self.statistics(name, grid=grid, special=special)[name]

    def maximum(self) -> tuple[Float[Tensor, "b h q"], Int[Tensor, "b h q"]]:
        """The largest weight of each query, and its key."""
        both = self.statistics("maximum", "peak")
        return both["maximum"], both["peak"]

    def mass(self, keys: Sequence[int] | Tensor) -> Float[Tensor, "b h q"]:
        """How much of each query's weight lies on a set of keys, given by numbers or as booleans (keys,)."""
        k = self.shape[3]
        given = torch.as_tensor(keys, device=self.sources[0].device)
        if given.dtype == torch.bool:
            if given.shape != (k,):
                raise InputError(f"a boolean set of shape {tuple(given.shape)}: expected ({k},)")
            chosen = given
        else:
            if given.numel() and given.is_floating_point():
                raise InputTypeError(f"keys {given.tolist()}: expected whole numbers, or booleans")
            if given.numel() and (int(given.min()) < 0 or int(given.max()) >= k):
                raise InputIndexError(f"keys from {int(given.min())} to {int(given.max())}: there are {k}")
            chosen = torch.zeros(k, dtype=torch.bool, device=given.device)
            chosen[given.long()] = True
        return self._rows(lambda b: b.weights @ chosen[slice(*b.keys)].to(b.weights.dtype))

    def _rows(self, of: Callable[..., Tensor]) -> Tensor:
        return torch.cat([of(b) for source in self.sources for b in bands(source)], dim=2)

    def _placed(self) -> Iterator[tuple[Call, int]]:
        """Each call with the number of its first query."""
        first = 0
        for source in self.sources:
            yield source, first
            first += source.shape[2]


def join(name: str, parts: list[Tensor]) -> Tensor:
    """The statistics of successive calls as one: queries follow one another; what keys receive adds up."""
    if name != "received":
        return torch.cat(parts, dim=2)
    keys = max(part.shape[2] for part in parts)
    return torch.stack([F.pad(part, (0, keys - part.shape[2])) for part in parts]).sum(0)


def settle(source: Call) -> Call:
    """Keep whichever is smaller, what was seen or its weights: a decoding step's weights are a few rows."""
    b, h, q, k = source.shape
    if isinstance(source, DenseCall):
        return source
    if b * h * q * k > source.q.numel() + source.k.numel():
        return source.owned()
    part = band(source, (0, q), (0, k))
    return DenseCall(weights=part.weights, offset=source.offset)
