"""Exact statistics of attention without the matrix of its weights.

One pass over bands of queries, each of which fits into the processor's cache, gives any of them, for any mask, bias,
grouping and score; on CUDA a streaming kernel (statistics_cuda.py) gives the same numbers.

The alternative is one more fused attention call for each statistic that is linear in a feature f_j of the key, since
sum_j p_ij f_j is the output of attention whose values are f. With ln p_ij = s_ij - lse_i:

    entropy_i   = lse_i - sum_j p_ij s_ij = lse_i - scale q_i . (sum_j p_ij k_j)      values k, without a bias
    position_i  = sum_j p_ij place_j                                                  values place
    rms_i^2     = |place_i|^2 - 2 place_i . position_i + sum_j p_ij |place_j|^2       values |place|^2
    received_j  = sum_i exp(s_ij - lse_i)                                             queries and keys exchanged

On a CPU, for entropy, distance and received together, the pass takes about half of the time of these calls.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from functools import cached_property, lru_cache
from typing import TYPE_CHECKING

import torch
import torch.nn.functional as F
from jaxtyping import Float, Int
from torch import Tensor

from ...errors import InputError
from . import statistics_cuda
from .call import Band, Call, LazyCall, bands, full_precision
from .statistics_cuda import PLACED

if TYPE_CHECKING:
    from ..capture.tape import Tape

# The definition of each statistic, for query i with weights p_ij; all are 0 for a query whose keys are all masked.
MEANING = {
    "entropy": "- sum_j p_ij ln p_ij, in nats: 0 if one key has all the weight, ln n if n keys share it equally",
    "distance": "sum_j p_ij |place_i - place_j|, Euclidean; places are positions unless a grid is given",
    "rms": "sqrt(sum_j p_ij |place_i - place_j|^2)",
    "position": "sum_j p_ij place_j, the mean place of its keys",
    "sink": "p_i0, the weight on the first key (Xiao et al. 2023)",
    "maximum": "max_j p_ij",
    "peak": "argmax_j p_ij, the key with the largest weight",
    "received": "sum_i p_ij, the weight that key j receives from all queries",
}


LINE = 4096  # the most tokens on a line whose numbers are kept for the other layers


@lru_cache(maxsize=64)
def _short_line(first: int, count: int, device: torch.device) -> Float[Tensor, "n"]:
    with torch.inference_mode(False):  # it is kept, and may be used outside of inference mode
        return torch.arange(first, first + count, device=device, dtype=torch.float32)


def line(first: int, count: int, device: torch.device) -> Float[Tensor, "n"]:
    """The places of tokens on a line."""
    # on a GPU another stream might read them before they are written
    kept = count <= LINE and device.type == "cpu"
    made = _short_line if kept else _short_line.__wrapped__
    return made(first, count, device)


class Places:
    """The places of queries and keys: on a line, or in a grid after `special` tokens that have no place.

    They are made on the device when they are read: a copy from the host would wait for the device.
    """

    def __init__(self, source: Call, grid: tuple[int, int] | None = None, special: int = 0) -> None:
        self.source, self.grid, self.special = source, grid, special
        _, _, n, k = source.shape
        # A grid has every token as query and key, so that lengths must agree.
        if grid is not None and not n == k == grid[0] * grid[1] + special:
            raise InputError(
                f"{n} queries and {k} keys are not {special} special tokens and a grid of "
                f"{grid[0]} x {grid[1]} = {grid[0] * grid[1]}"
            )

    @property
    def axes(self) -> int:
        """Numbers of a place."""
        if self.grid is None:
            return 1
        return 2

    @property
    def start(self) -> int | None:
        """The position of the first query among the keys, on a line and if all rows have the same."""
        offset = self.source.offset
        if self.grid is None and isinstance(offset, int):
            return offset
        return None

    @cached_property
    def q(self) -> Float[Tensor, "b q axes"]:
        """The places of the queries, for all rows or per row."""
        if self.grid is not None:
            return self.k
        offset, device = self.source.offset, self.source.device
        first = offset.to(device)[:, None] if isinstance(offset, Tensor) else offset
        places = first + line(self.source.first_key, self.source.shape[2], device)[None]  # (b, q)
        return places[..., None]

    @cached_property
    def k(self) -> Float[Tensor, "1 k axes"]:
        """The places of the keys."""
        device = self.source.device
        if self.grid is None:
            return line(self.source.first_key, self.source.shape[3], device)[None, :, None]
        # (rows, columns) of each patch, row by row; special tokens get (0, 0), which nothing reads.
        patch = torch.arange(self.grid[0] * self.grid[1], device=device)
        points = torch.stack([patch // self.grid[1], patch % self.grid[1]], dim=-1).float()
        return torch.cat([points.new_zeros(self.special, 2), points])[None]


def check(names: Iterable[str]) -> None:
    """Raise for an unknown statistic."""
    for name in names:
        if name not in MEANING:
            raise InputError(f"no statistic {name!r}: expected one of {', '.join(MEANING)}")


@torch.no_grad()
def statistics(
    source: Call, *names: str, grid: tuple[int, int] | None = None, special: int = 0
) -> dict[str, Float[Tensor, "b h n"] | Int[Tensor, "b h n"] | Float[Tensor, "b h n c"]]:
    """Compute statistics of one recorded call, a number per row, head and query (`received`: per key).

    Args:
        source: A recorded call: one of `AttentionMap.sources`.
        names: Names of look.MEANING.
        grid: Height and width of a grid of patches, over which distances are Euclidean; None: tokens on a line.
        special: Tokens before the grid that have no place in it (a class token, registers). Distances leave out the
            weight on them, and scale the rest to sum to 1; their own distance is NaN.

    Returns:
        The statistics by name.

    Examples:
        >>> attention = clearhead.layers.Attention(8, heads=2)
        >>> with torch.no_grad(), clearhead.watch(attention, "weights") as tape:
        ...     out = attention(torch.randn(1, 7, 8))
        >>> numbers = statistics(tape["weights"].sources[0], "entropy", "received")
        >>> numbers["entropy"].shape, round(float(numbers["received"].sum()))
        (torch.Size([1, 2, 7]), 14)
    """
    check(names)
    if special < 0 or (special and grid is None):
        raise InputError(
            f"special={special}, grid={grid}: expected a number of tokens before a grid"
        )
    # Places are made only where a statistic needs them.
    placed = [name for name in names if name in PLACED]
    places = Places(source, grid, special) if placed else None
    with full_precision(source.device):
        # The streaming kernels, where they take this call.
        if statistics_cuda.serves(source, grid if placed else None):
            result = statistics_cuda.statistics(source, names, places, special)
        elif special and placed:
            # distances leave out the weight on special tokens, other statistics do not
            result = tiled(source.without(special), placed, places)
            others = [name for name in names if name not in PLACED]
            if others:
                result |= tiled(source, others, None)
        else:
            result = tiled(source, names, places)
    # A special token as a query has no place, and so no distance.
    if special:
        for name in {"distance", "rms"} & set(placed):
            result[name][:, :, :special] = float("nan")
    return result


def tiled(source: Call, names: Sequence[str], places: Places | None) -> dict[str, Tensor]:
    """The reference implementation: statistics of each band's weights."""
    b, h, n, k = source.shape
    of_queries: dict[str, list[Tensor]] = {name: [] for name in names if name != "received"}
    received: Tensor | None = None
    causal = isinstance(source, LazyCall) and source.mask.causal
    for band in bands(source):
        # What keys receive is added up over bands, all else is joined by queries.
        if "received" in names:
            sums = band.weights.sum(-2)
            if band.rows == (0, n) and band.keys == (0, k):  # the only band
                received = sums
            else:
                if received is None:
                    received = source.zeros(b, h, k)
                received[:, :, slice(*band.keys)] += sums
        for name, parts in of_queries.items():
            parts.append(_of_band(name, band, source.first_key, places, causal))
    result = {}
    for name, parts in of_queries.items():
        # One band need not be copied.
        result[name] = parts[0] if len(parts) == 1 else torch.cat(parts, dim=2)
    if received is not None:
        if source.first_key:  # keys that a sliding window has forgotten receive nothing
            received = F.pad(received, (source.first_key, 0))
        result["received"] = received
    return result


def _of_band(name: str, band: Band, first_key: int, places: Places | None, causal: bool) -> Tensor:
    """One statistic of a band's queries; `causal`: none of them attends to a later key."""
    p = band.weights
    if p.shape[-1] == 0:  # all keys are masked
        p = p.new_zeros(*p.shape[:-1], 1)
        band = Band(band.rows, (0, 1), p, p, normal=True)
    first = first_key + band.keys[0]  # the position of the band's first key
    if name == "entropy":
        # nothing else needs the logarithms, which are overwritten; not -x, which would be -0.0
        return 0.0 - band.log().mul_(p).sum(-1)
    # The first key of the text has the index 0, and a window may have forgotten it.
    if name == "sink":
        if first == 0:
            return p[..., 0].clone()
        return torch.zeros_like(p[..., 0])
    if name == "maximum":
        return p.amax(-1)
    if name == "peak":
        most, peak = p.max(-1)
        # A fully masked query has no key: index 0, as `maximum` is 0.
        return torch.where(most > 0, peak + first, 0)
    assert places is not None
    rows, keys = p.shape[2:]
    if name == "distance" and causal and places.start is not None:
        # No key comes after its query, so that sum_j p_ij (i - j) is i sum_j p_ij - sum_j p_ij j: two products with a
        # vector instead of a matrix of distances. i and j count from the first query, so that little cancels.
        i = line(0, rows, p.device).to(p.dtype)
        j = line(band.keys[0] - band.rows[0] - places.start, keys, p.device).to(p.dtype)
        return i * p.sum(-1) - p @ j
    # Places of this band's keys and queries: (1 or b, n, axes).
    there, here = places.k[:, slice(*band.keys)], places.q[:, slice(*band.rows)]
    if name == "position":
        return p @ there[:, None].to(p.dtype)
    difference = here[:, :, None] - there[:, None]  # (b, q, k, 1 or 2)
    if difference.shape[-1] == 1:
        d = difference[..., 0].abs()
    else:
        d = torch.hypot(difference[..., 0], difference[..., 1])
    # (b, q, k) -> (b, 1, q, k), the same for all heads
    d = d[:, None].to(p.dtype)
    if name == "distance":
        return (p * d).sum(-1)
    return (p * d.square()).sum(-1).sqrt()


# Statistics of all watched attentions of a tape, stacked layer by layer.


def entropy(tape: Tape) -> Float[Tensor, "l b h q"]:
    """Return the entropy of each query in every watched attention, layer by layer, in nats.

    Args:
        tape: A tape of entropies ("...attn.entropy") or maps ("...attn.weights").

    Examples:
        >>> model = clearhead.build("gpt", vocab=5, context=8, width=8, depth=3, heads=2).eval()
        >>> with watch(model, "blocks.*.attn.weights") as tape:
        ...     logits = model(torch.tensor([[1, 2, 3, 4]]))
        >>> entropy(tape).shape
        torch.Size([3, 1, 2, 4])
    """
    return _every(tape, "entropy")


def received(tape: Tape) -> Float[Tensor, "l b h k"]:
    """Return the weight that each key receives from all queries in every watched attention, layer by layer.

    Args:
        tape: A tape of these sums ("...attn.received") or of maps ("...attn.weights").

    Examples:
        >>> model = clearhead.build("gpt", vocab=5, context=8, width=8, depth=3, heads=2).eval()
        >>> with watch(model, "blocks.*.attn.received") as tape:
        ...     logits = model(torch.tensor([[1, 2, 3, 4]]))
        >>> received(tape).sum(-1).round()[:, 0, 0]
        tensor([4., 4., 4.])
    """
    return _every(tape, "received")


def distance(
    tape: Tape, *, grid: tuple[int, int] | None = None, special: int = 0, rms: bool = False
) -> Float[Tensor, "l b h q"]:
    """Return the mean distance from each query to its keys in every watched attention, layer by layer.

    Args:
        tape: A tape of distances ("...attn.distance", "...attn.rms") or of maps; a grid needs maps.
        grid: Height and width of a grid of patches; None: tokens on a line.
        special: Tokens before the grid that have no place in it.
        rms: The root mean square instead of the mean.

    Examples:
        >>> model = clearhead.build("gpt", vocab=5, context=8, width=8, depth=3, heads=2).eval()
        >>> with watch(model, "blocks.*.attn.distance") as tape:
        ...     logits = model(torch.tensor([[1, 2, 3, 4]]))
        >>> distance(tape)[:, 0, 0, 0]
        tensor([0., 0., 0.])
    """
    return _every(tape, "rms" if rms else "distance", grid=grid, special=special)


def _every(
    tape: Tape, name: str, *, grid: tuple[int, int] | None = None, special: int = 0
) -> Tensor:
    """A statistic of all watched attentions, stacked."""
    layers = []
    paths = ["".join(address.rpartition(".")[:2]) for address in tape.names]  # "blocks.0.attn."
    for path in dict.fromkeys(paths):
        # The leaf's own record, if it was watched; otherwise computed from the map.
        if grid is None and path + name in tape:
            layers.append(tape[path + name])
        elif path + "weights" in tape:
            layers.append(tape[path + "weights"].statistics(name, grid=grid, special=special)[name])
    if not layers:
        raise InputError(f"this tape has no {name}: watch '...attn.{name}' or '...attn.weights'")
    sizes = sorted({tuple(x.shape) for x in layers})
    if len(sizes) > 1:
        raise InputError(
            f"layers of sizes {sizes} do not stack: take {name} from the tape one by one"
        )
    return torch.stack(layers)
