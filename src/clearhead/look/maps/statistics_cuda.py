"""The statistics of statistics.py on CUDA: Triton kernels that stream over the scores and store none of them.

Two passes over the scores s_ij, both a tile of queries and keys at a time:

    normalise         lse_i = log2 sum_j 2^s_ij, by an online softmax (Milakov and Gimelshein 2018); left out if the
                      fused kernel of the forward pass has returned it
    measure_queries   with p_ij = 2^(s_ij - lse_i): sum_j p log2 p, p d, p d^2 and p place of each query i
    measure           the same with a block of keys at a time, where received_j = sum_i p_ij is asked for, too

In `measure` the partial sums of queries arrive in any order, and are added as integers, so that the same input gives
the same bits. Scores are in float32 and in base 2, in which the hardware exponentiates: s_ij log2 e.
"""

from __future__ import annotations

import math
import os
from collections.abc import Callable, Sequence
from functools import cache, lru_cache
from importlib.util import find_spec
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor

from .call import Call, LazyCall

if TYPE_CHECKING:
    from .statistics import Places

LOG2E = math.log2(math.e)
PLACED = ("distance", "rms", "position")  # the statistics that depend on the places of tokens
SIDE = 1024  # rows and columns of a grid whose squared distances are exact
PLACE = 16  # numbers of a row in a table of places, as many as a matrix instruction takes
ONE = 2.0**56  # the integer that represents 1 in sums of p and p log p, which stay under 2^6
# Queries and keys of a tile, stages of its pipeline, and warps, in the order of their speed on a Hopper GPU, by the
# bytes of a number: products of float32 in full precision need many registers.
_SMALL = [(64, 32, 3, 4), (64, 32, 2, 4), (32, 32, 2, 4), (16, 16, 1, 4)]
TILES = {4: _SMALL, 2: [(128, 64, 3, 4), (64, 64, 3, 4), *_SMALL]}
QUERY_TILES = {4: _SMALL, 2: [(64, 128, 3, 4), (64, 64, 3, 4), *_SMALL]}  # of measure_queries
# On a CPU the kernels run, slowly, in Triton's interpreter: so they can be tested without a GPU.
INTERPRETED = os.environ.get("TRITON_INTERPRET") == "1"
AVAILABLE = find_spec("triton") is not None


def serves(source: Call, grid: tuple[int, int] | None = None) -> bool:
    """Whether the kernels can compute the statistics of a call."""
    return (
        AVAILABLE
        and (grid is None or max(grid) <= SIDE)
        and isinstance(source, LazyCall)
        and (source.device.type == "cuda" or INTERPRETED)
        and source.q.dtype == source.k.dtype
        and source.q.dtype in (torch.float32, torch.float16, torch.bfloat16)
        and source.q.shape[-1] <= 256
        and 0 not in source.shape
        and source.first_key == 0
        and source.shape[0] * source.shape[1] < 1 << 16  # the limit of a launch's second axis
    )


def statistics(
    source: Call, names: Sequence[str], places: Places | None, special: int = 0
) -> dict[str, Tensor]:
    """The named statistics of one call; those over places leave out the first `special` keys."""
    assert isinstance(source, LazyCall)
    wanted, n = set(names), source.shape[2]
    lse, peak, most = _normalise(source, bool(wanted & {"peak", "maximum"}))
    result: dict[str, Tensor] = {"peak": peak, "maximum": most}
    if "sink" in wanted:
        scores, pattern = source.scores((0, n), (0, 1))  # of the first key alone
        # The log-sum-exp is in base 2, and these scores are natural.
        sink = (scores[..., 0] - lse / LOG2E).exp()
        if pattern is not None:
            sink = sink.masked_fill(pattern.forbidden[..., 0], 0.0)
        result["sink"] = sink

    # Sums per query: in the pass over keys if there is one, unless their keys are others than those that receive.
    sums = wanted & {"entropy", *PLACED}
    if "received" in wanted:
        beside = sums
        # Special keys receive weight and have no place, which takes two passes.
        if special:
            beside = sums - set(PLACED)
        total, result["received"] = _measure(source, beside, places, lse)
        result |= _read(total, beside, places)
        sums -= beside
    if sums:
        result |= _read(_measure_queries(source, sums, places, lse, special), sums, places)
    floats = wanted - {"peak"}  # which is an index
    asked = {name: result[name].float() for name in floats}
    if "peak" in wanted:
        asked["peak"] = peak
    return asked


def _read(
    total: Callable[[int], Tensor], names: set[str], places: Places | None
) -> dict[str, Tensor]:
    """Turn the sums per query, 0 to 4 (p log2 p, p d, p d^2, p y, p x), into statistics."""
    read = {}
    if "entropy" in names:
        # Base 2 to natural logarithms; not -x, which would be -0.0.
        read["entropy"] = 0.0 - total(0) / LOG2E
    if "distance" in names:
        read["distance"] = total(1)
    if "rms" in names:
        read["rms"] = total(2).sqrt()
    if "position" in names:
        assert places is not None
        read["position"] = torch.stack([total(3 + axis) for axis in range(places.axes)], dim=-1)
    return read


def _normalise(source: LazyCall, peak: bool) -> tuple[Tensor, Tensor, Tensor]:
    """The log-sum-exp in base 2 and, with `peak`, the key with the largest weight and that weight, each (b, h, q)."""
    from .statistics_cuda_kernels import normalise

    b, h, n, _ = source.shape
    # The forward kernel's log-sum-exp saves this pass, unless the largest weight is wanted, too.
    if source.given is not None and not peak:
        lse = source.given.float().contiguous() * LOG2E
        return lse, lse, lse
    lse = torch.empty(b, h, n, device=source.device)
    best = lse  # any tensor: without PEAK the kernel writes no others
    if peak:  # the key, and the bits of its weight
        best = torch.empty(2, b, h, n, device=source.device, dtype=torch.int32)
    sizes = _sizes(source)
    # One program per block of queries, row and head.
    normalise[(_blocks(n, sizes["BM"]), b * h)](
        lse, best, *_arguments(source), **_flags(source), **sizes, PEAK=peak
    )
    # The second table has the bits of floats in integers.
    most = best[1].view(torch.float32) if peak else lse
    most = most.masked_fill(lse == -math.inf, 0.0).masked_fill(lse.isnan(), math.nan)
    return lse, best[0].long(), most


def _measure(
    source: LazyCall, names: set[str], places: Places | None, lse: Tensor
) -> tuple[Callable[[int], Tensor], Tensor]:
    """The sums of each query that the names need, read by number in float64, and the weight that each key receives."""
    from .statistics_cuda_kernels import measure

    b, h, n, k = source.shape
    sums = torch.zeros(5, b, h, n, device=source.device, dtype=torch.int64)
    received = torch.empty(b, h, k, device=source.device)
    spots = _spots(places, lse)
    sizes = _sizes(source)
    # The units in which sums of distances are integers. No distance needs more bits than this (offsets per row lie
    # among the keys), so that no sum reaches 2^61 units.
    offset = source.offset if isinstance(source.offset, int) else 0
    bits = math.ceil(math.log2(n + k + offset))
    far, far2 = 2.0 ** (61 - bits), 2.0 ** (61 - 2 * bits)
    # One program per block of keys: what a key receives is summed within it.
    measure[(_blocks(k, sizes["BN"]), b * h)](
        sums, received, lse, *spots, ONE, far, far2, *_arguments(source), **_flags(source), **sizes,
        ENTROPY="entropy" in names, DISTANCE="distance" in names, RMS="rms" in names, POSITION="position" in names,
        RECEIVED=True, GRID=spots[0] is not lse, PLACE=PLACE,
    )  # fmt: skip
    # What represents 1 in each of the five integer sums.
    units = (ONE, far, far2, far, far)
    invalid = lse.isnan()  # an integer cannot hold NaN
    return lambda i: (sums[i].double() / units[i]).masked_fill(invalid, math.nan), received


def _measure_queries(
    source: LazyCall, names: set[str], places: Places | None, lse: Tensor, special: int
) -> Callable[[int], Tensor]:
    """The sums of each query that the names need, read by number."""
    from .statistics_cuda_kernels import measure_queries

    b, h, n, _ = source.shape
    sums = torch.empty(5, b, h, n, device=source.device)
    spots = _spots(places, lse)
    sizes = _sizes(source, QUERY_TILES)
    measure_queries[(_blocks(n, sizes["BM"]), b * h)](
        sums, lse, *spots, *_arguments(source), **_flags(source), **sizes,
        ENTROPY="entropy" in names, DISTANCE="distance" in names, RMS="rms" in names, POSITION="position" in names,
        GRID=spots[0] is not lse, SPECIAL=special, PLACE=PLACE,
    )  # fmt: skip
    return sums.__getitem__


def _spots(places: Places | None, unread: Tensor) -> tuple[Tensor, Tensor]:
    """The tables of places of queries and keys in a grid, or twice `unread` for tokens on a line."""
    if places is None or places.grid is None:
        return unread, unread
    device, stream = places.source.device, 0
    # Tables are kept per stream: another stream might read them before they are written.
    if device.type == "cuda":
        stream = torch.cuda.current_stream(device).cuda_stream
    return _tables(places.grid, places.special, device, stream)


@lru_cache(maxsize=8)
def _tables(
    grid: tuple[int, int], special: int, device: torch.device, stream: int
) -> tuple[Tensor, Tensor]:
    """Two tables of half-precision numbers; row i of one times row j of the other is the squared distance of i and j.

    That is y_i^2 + x_i^2 - 2 y_i y_j - 2 x_i x_j + y_j^2 + x_j^2, exactly: all factors and products are integers that
    half precision holds, because the squares are split into thousands (1,024) and the rest. The matrix unit computes
    them faster than the others compute differences and squares. Special tokens have rows of 0. The tables are kept for
    the other layers; the stream is named because another one might read them before they are written.
    """
    patch = torch.arange(grid[0] * grid[1], device=device)
    y, x = patch // grid[1], patch % grid[1]
    square, one = y * y + x * x, torch.ones_like(patch)
    # y^2 + x^2 may be over 2^11, the last whole number that half precision has: two digits of 1024.
    high, low = square // 1024, square % 1024
    none = [torch.zeros_like(patch)] * (PLACE - 6)  # a matrix instruction takes PLACE numbers
    # q_i . k_j = - 2 y_i y_j - 2 x_i x_j + 1024 high_i + low_i + 1024 high_j + low_j
    q = torch.stack([y, x, high, low, 1024 * one, one, *none], dim=-1)
    k = torch.stack([-2 * y, -2 * x, 1024 * one, one, high, low, *none], dim=-1)
    # Special tokens get a row of zeros in front.
    q, k = (torch.nn.functional.pad(table, (0, 0, special, 0)).half() for table in (q, k))
    return q, k


def _blocks(n: int, size: int) -> int:
    return -(-n // size)


def _sizes(
    source: LazyCall, tiles: dict[int, list[tuple[int, int, int, int]]] = TILES
) -> dict[str, int]:
    """The first tiles that fit into shared memory."""
    # Triton's tiles have sizes that are powers of 2; features beyond the width are masked.
    width = max(16, 1 << (source.q.shape[-1] - 1).bit_length())  # the next power of 2
    bytes_ = source.q.element_size()
    if INTERPRETED:
        return {"BM": 16, "BN": 16, "BE": width}
    # Shared memory per block, less what the compiler uses itself.
    room = _shared_memory(source.device) - 1024
    token = bytes_ * width + 2 * PLACE  # with its row of a table of places

    def fits(tile: tuple[int, int, int, int]) -> bool:
        queries, keys, stages, _ = tile
        # one tile stays, and each stage of the pipeline holds one that is read
        return token * (max(queries, keys) * stages + min(queries, keys)) <= room

    bm, bn, stages, warps = next(filter(fits, tiles[bytes_]), tiles[bytes_][-1])
    return {"BM": bm, "BN": bn, "BE": width, "num_warps": warps, "num_stages": stages}


@cache
def _shared_memory(device: torch.device) -> int:
    properties: Any = torch.cuda.get_device_properties(device)
    return int(
        getattr(properties, "shared_memory_per_block_optin", properties.shared_memory_per_block)
    )


def _flags(source: LazyCall) -> dict[str, Any]:
    """Which parts of mask and bias a call has: the kernels are compiled without the others."""
    mask, bias = source.mask, source.bias
    by_distance = None if bias is None or bias.q_at is None else bias
    return {
        "CAUSAL": mask.causal,
        "WINDOW": mask.window or 0,
        "LENGTHS": mask.lengths is not None,
        "OFFSET": mask.offset is not None,
        "DOCUMENTS": mask.documents is not None,
        "ALLOW": mask.allow is not None,
        "SLOPE": by_distance is not None and by_distance.slope is not None,
        "TABLE": by_distance is not None and by_distance.table is not None,
        "DENSE": bias is not None and bias.dense is not None,
        "EXACT": source.q.dtype == torch.float32,
    }


def _arguments(source: LazyCall) -> list[Any]:
    """The arguments that both kernels have: tensors with their strides, 0 along a broadcast axis."""
    mask, bias, q, k = source.mask, source.bias, source.q, source.k
    b, h, n, m = source.shape

    def shared(x: Any, axes: int, size: tuple[int, ...] = ()) -> list[Any]:
        """A tensor and the strides of its first axes; for None any tensor, which the kernel's flag leaves unread."""
        if x is None:
            return [q, *([0] * axes)]
        x = torch.as_tensor(x, device=q.device)
        x = x.expand(size) if size else x.contiguous()
        # An expanded axis has the stride 0, so that the kernel reads the same number again.
        strides = [s if d > 1 else 0 for s, d in zip(x.stride(), x.shape, strict=True)]
        return [x, *strides[:axes]]

    def rows(x: Any) -> list[Any]:
        """One number for all rows, or one per row."""
        if isinstance(x, int):  # filled in on the device: a copy would wait for it
            x = torch.full((1,), x, device=q.device)
        return shared(x, 1)

    def line(x: Tensor | None) -> list[Any]:
        """Numbers along the sequence, for all rows or per row."""
        return shared(None if x is None else x.reshape(-1, x.shape[-1]), 1)

    # Triton reads booleans as bytes.
    allow = None if mask.allow is None else mask.allow.view(torch.uint8)
    slope = table = dense = q_at = k_at = None
    if bias is not None:
        slope, table, dense, q_at, k_at = bias.slope, bias.table, bias.dense, bias.q_at, bias.k_at
    reach = 0 if table is None else table.shape[1] // 2  # the largest distance in the table
    return [
        q, *q.stride(), k, *k.stride(),
        h, h // k.shape[1], n, m, q.shape[-1], source.scale * LOG2E,
        *rows(mask.lengths), *rows(mask.offset), *line(mask.documents), *shared(allow, 4, (b, h, n, m)),
        *line(q_at), *line(k_at), *shared(slope, 1), *shared(table, 1), reach, *shared(dense, 4, (b, h, n, m)),
    ]  # fmt: skip
