"""Bias: numbers added to the scores before the softmax, stored compactly and rendered tile by tile."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import torch
from jaxtyping import Float, Int
from torch import Tensor

from ..errors import InputError
from .mask import at, broadcasts, four


@dataclass(frozen=True, kw_only=True, slots=True, eq=False)
class Bias:
    """A bias of the scores: slope[h] |d| + table[h, clip(d)] + dense[b, h, i, j], with d = k_at[j] - q_at[i].

    A part that is not given is 0. A bias by distance needs memory for its distances, not for all pairs: ALiBi is one
    slope per head, and a bucketed relative bias is a table, because its last bucket holds every distance past its
    reach.

    Examples:
        >>> at = torch.arange(3)
        >>> Bias(q_at=at, k_at=at, slope=torch.tensor([-0.5])).tile((0, 3), (0, 3))[0, 0].tolist()
        [[0.0, -0.5, -1.0], [-0.5, 0.0, -0.5], [-1.0, -0.5, 0.0]]
    """

    q_at: Int[Tensor, "*p q"] | None = None  # positions of the queries, for a bias by distance
    k_at: Int[Tensor, "*r k"] | None = None  # positions of the keys, for a bias by distance
    slope: Float[Tensor, "h"] | None = None  # per head, times the distance
    # per head and distance -m..m, so 2m + 1 columns
    table: Float[Tensor, "h distances"] | None = None
    dense: Float[Tensor, "..."] | None = None  # broadcastable to (b, h, q, k)

    def __post_init__(self) -> None:
        by_distance = self.slope is not None or self.table is not None
        positions = self.q_at is not None and self.k_at is not None
        empty = not by_distance and self.dense is None
        if by_distance != positions or empty:
            raise InputError(
                "a Bias has a dense part, or a slope or a table together with the positions q_at and k_at"
            )
        if self.table is not None and self.table.shape[1] % 2 == 0:
            raise InputError(
                f"a table of {self.table.shape[1]} columns: expected an odd number, for distances -m..m"
            )

    def fit(self, b: int, h: int, q: int, k: int) -> None:
        """Raise unless the bias fits scores of shape (b, h, q, k)."""
        for name in ("slope", "table"):
            # one row for all heads, or one per head
            part = getattr(self, name)
            if part is not None and part.shape[0] not in (1, h):
                raise InputError(f"the bias has a {name} for {part.shape[0]} heads: expected {h}")
        for name, n in (("q_at", q), ("k_at", k)):
            at = getattr(self, name)
            if at is not None and tuple(at.shape) not in ((n,), (1, n), (b, n)):
                raise InputError(
                    f"{name} has shape {tuple(at.shape)}: expected ({n},) or ({b}, {n})"
                )
        if self.dense is not None:
            broadcasts("bias", self.dense, b, h, q, k)

    def tile(self, rows: tuple[int, int], keys: tuple[int, int]) -> Float[Tensor, "#b #h #q #k"]:
        """Return the bias of queries rows[0]..rows[1]-1 for keys keys[0]..keys[1]-1."""
        total: Tensor | float = 0.0
        if self.q_at is not None and self.k_at is not None:
            q_at, k_at = self.q_at[..., slice(*rows)], self.k_at[..., slice(*keys)]
            d = k_at[..., None, :] - q_at[..., :, None]  # (q, k) or (b, q, k)
            if d.ndim == 2:
                d = d[None]
            d = d[:, None]  # (b, 1, q, k)
            if self.slope is not None:
                # (h, 1, 1) * (b, 1, q, k) -> (b, h, q, k)
                total = total + self.slope[:, None, None] * d.abs()
            if self.table is not None:
                m = self.table.shape[1] // 2  # column m is distance 0
                by_head = self.table[:, d[:, 0].clamp(-m, m) + m]  # (h, b, q, k)
                total = total + by_head.transpose(0, 1)
        if self.dense is not None:
            dense = four(self.dense)
            # an axis of size 1 broadcasts, whichever part of it is asked for
            if dense.shape[2] != 1:
                dense = dense[:, :, slice(*rows)]
            if dense.shape[3] != 1:
                dense = dense[..., slice(*keys)]
            total = total + dense
        assert isinstance(total, Tensor)
        return total

    def mod(self) -> Callable[[Tensor, Tensor, Tensor, Tensor, Tensor], Tensor]:
        """Return the bias as FlexAttention's `score_mod(score, b, h, i, j)`."""
        slope, table, q_at, k_at, dense = self.slope, self.table, self.q_at, self.k_at, self.dense
        # a row of positions for all texts becomes one of shape (1, n)
        if q_at is not None and k_at is not None:
            q_at = q_at.reshape(-1, q_at.shape[-1])
            k_at = k_at.reshape(-1, k_at.shape[-1])
        if dense is not None:
            dense = four(dense)

        def add(score: Tensor, b: Tensor, h: Tensor, i: Tensor, j: Tensor) -> Tensor:
            if q_at is not None and k_at is not None:
                # FlexAttention calls this with scalar indices of one score
                d = k_at[at(b, k_at.shape[0]), j] - q_at[at(b, q_at.shape[0]), i]
                if slope is not None:
                    score = score + slope[at(h, slope.shape[0])] * d.abs()
                if table is not None:
                    m = table.shape[1] // 2
                    score = score + table[at(h, table.shape[0]), d.clamp(-m, m) + m]
            if dense is not None:
                y, x, p, n = dense.shape  # an axis of size 1 broadcasts
                score = score + dense[at(b, y), at(h, x), at(i, p), at(j, n)]
            return score

        return add

    def owned(self) -> Bias:
        """Return a detached copy in memory of its own, for an attention map that outlives the call."""
        parts = (self.q_at, self.k_at, self.slope, self.table, self.dense)
        q_at, k_at, slope, table, dense = (None if t is None else t.detach().clone() for t in parts)
        return Bias(q_at=q_at, k_at=k_at, slope=slope, table=table, dense=dense)


def as_bias(bias: Bias | Tensor | None) -> Bias | None:
    """Return a Bias; a tensor becomes its dense part."""
    if isinstance(bias, torch.Tensor):
        return Bias(dense=bias)
    return bias
