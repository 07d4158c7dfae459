"""Exact statistics of attention without the matrix of its weights.

One pass over bands of queries that stay in cache gives any of them, for any mask, bias, grouping and score;
on CUDA a streaming kernel (stream.py) gives the same numbers. On a CPU the pass was measured against one more
fused attention call for each statistic that is linear in a key feature, and one transposed call for the
attention received: for entropy, distance and received together the pass takes about half their time.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence

import torch
from jaxtyping import Bool, Float, Int
from torch import Tensor

from . import stream
from .source import Source, bands

# What each name means, for query i with weights p_ij (0 in all of them where a query may look at nothing).
MEANING = {
    "entropy": "- sum_j p_ij ln p_ij, in nats: 0 looks at one key, ln n evenly at n",
    "distance": "sum_j p_ij |place_i - place_j|, Euclidean; places are positions unless a grid is given",
    "rms": "sqrt(sum_j p_ij |place_i - place_j|^2)",
    "position": "sum_j p_ij place_j, the mean place looked at",
    "sink": "p_i0, what the first key swallows (Xiao et al. 2023)",
    "maximum": "max_j p_ij",
    "peak": "argmax_j p_ij, the key most looked at",
    "received": "sum_i p_ij, what key j receives from all queries",
}


class Places:
    """Where queries and keys stand, as points: on a line by default, or in a grid after `special` tokens.

    Tokens before a grid (a class token, registers) have no place: as keys their weight is left out and the
    rest renormalised; as queries their distance is NaN. A query none of whose weight lies on a place gets 0.
    """

    def __init__(self, source: Source, grid: tuple[int, int] | None = None, special: int = 0) -> None:
        b, _, n, k = source.shape
        offset, device = source.offset, source.device
        self.grid, self.special = grid, special
        if grid is None:
            first = offset.to(device) if isinstance(offset, Tensor) else torch.tensor([offset], device=device)
            self.q = (first[:, None] + torch.arange(n, device=device)).float()[..., None]  # (b|1, q, 1)
            self.k = torch.arange(k, device=device).float()[None, :, None]
        else:
            cells = grid[0] * grid[1]
            if not n == k == cells + special:
                raise ValueError(
                    f"{n} queries and {k} keys are not {special} special tokens and a grid of "
                    f"{grid[0]} x {grid[1]} = {cells}"
                )
            points = torch.cartesian_prod(torch.arange(grid[0]), torch.arange(grid[1])).reshape(cells, 2)
            empty = torch.full((special, 2), float("nan"))
            self.q = self.k = torch.cat([empty, points.float()])[None].to(device)

    @property
    def placed(self) -> Bool[Tensor, "k"] | None:
        """Which keys have a place; None if all."""
        return None if self.special == 0 else ~self.k[0, :, 0].isnan()


def check(want: Iterable[str]) -> None:
    """Raise for a statistic there is not."""
    for name in want:
        if name not in MEANING:
            raise ValueError(f"no statistic {name!r}: expected one of {', '.join(MEANING)}")


@torch.no_grad()
def statistics(
    source: Source, *want: str, grid: tuple[int, int] | None = None, special: int = 0
) -> dict[str, Float[Tensor, "b h n"] | Int[Tensor, "b h n"] | Float[Tensor, "b h n c"]]:
    """The named statistics of one call, a number for each row, head and query (or key, for `received`)."""
    check(want)
    places = Places(source, grid, special) if {"distance", "rms", "position"} & set(want) else None
    if stream.serves(source, want, places):
        return stream.statistics(source, want, places)
    return tiled(source, want, places)


def tiled(source: Source, want: Sequence[str], places: Places | None) -> dict[str, Tensor]:
    """The readable reference: each band's weights in full, and what is wanted of them."""
    b, h, n, k = source.shape
    rows: dict[str, list[Tensor]] = {name: [] for name in want if name != "received"}
    received = source.keys.new_zeros(b, h, k) if "received" in want else None
    placed = None if places is None else places.placed
    for band in bands(source):
        p, keys = band.weights, slice(*band.keys)
        if received is not None:
            received[:, :, keys] += p.sum(-2)
        if p.shape[-1] == 0:
            p = p.new_zeros(*p.shape[:-1], 1)
            keys = slice(0, 1)
        if "entropy" in rows:
            rows["entropy"].append(-(p * band.log).sum(-1) if band.log.shape[-1] else p[..., 0])
        if "sink" in rows:
            rows["sink"].append(p[..., 0] if band.keys[0] == 0 else torch.zeros_like(p[..., 0]))
        if "maximum" in rows or "peak" in rows:
            most, peak = p.max(-1)
            if "maximum" in rows:
                rows["maximum"].append(most)
            if "peak" in rows:
                rows["peak"].append(peak + band.keys[0])
        if places is None:
            continue
        there = places.k[:, keys]
        if placed is not None:
            p = p * placed[keys]
            p = p / p.sum(-1, keepdim=True).clamp_min(torch.finfo(p.dtype).tiny)
            there = there.nan_to_num()
        if "position" in rows:
            rows["position"].append(p @ there[:, None].to(p.dtype))
        if "distance" in rows or "rms" in rows:
            here = places.q[:, slice(*band.rows)]
            d = here[:, :, None, 0] - there[:, None, :, 0]
            d = (
                d.abs_()
                if d.ndim and there.shape[-1] == 1
                else torch.hypot(d, here[:, :, None, 1] - there[:, None, :, 1])
            )
            d = d[:, None].to(p.dtype)
            if "distance" in rows:
                rows["distance"].append((p * d).sum(-1))
            if "rms" in rows:
                rows["rms"].append((p * d.square()).sum(-1).sqrt())
    axis = 2
    result = {name: torch.cat(parts, dim=axis) for name, parts in rows.items()}
    if received is not None:
        result["received"] = received
    return result
