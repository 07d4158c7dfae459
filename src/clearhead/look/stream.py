"""The statistics of statistics.py on CUDA: two Triton kernels that stream the scores and hold none of them.

`_rows` goes over the keys once for a block of queries, with the running maximum and sum of an online softmax
(Milakov and Gimelshein 2018), and keeps beside them the running sums of p s, p d, p d^2 and p place. `_columns`
goes over the queries for a block of keys, with the log-sum-exp of `_rows`, and sums what each key receives.
Neither adds in an order that varies, so the same input gives the same bits. Scores are taken in base 2,
where the hardware exponentiates, and everything is summed in float32.
"""

from __future__ import annotations

import math
import os
from collections.abc import Sequence
from importlib.util import find_spec
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor

from .source import Seen, Source

if TYPE_CHECKING:
    from .statistics import Places

LOG2E = math.log2(math.e)
# The kernels also run on a CPU, slowly, in Triton's interpreter: that is how they are tested without a GPU.
INTERPRETED = os.environ.get("TRITON_INTERPRET") == "1"
AVAILABLE = find_spec("triton") is not None


def serves(source: Source, want: Sequence[str], places: Places | None) -> bool:
    """Whether the kernels can give these statistics."""
    return (
        AVAILABLE
        and isinstance(source, Seen)
        and (source.device.type == "cuda" or INTERPRETED)
        and source.q.dtype == source.k.dtype
        and source.q.dtype in (torch.float32, torch.float16, torch.bfloat16)
        and source.q.shape[-1] <= 256
        and 0 not in source.shape
    )


def statistics(source: Source, want: Sequence[str], places: Places | None) -> dict[str, Tensor]:
    """The named statistics of one call."""
    assert isinstance(source, Seen)
    b, h, n, _ = source.shape
    rows, peak = _run_rows(source, want, places)
    lse = rows[0] / LOG2E
    empty = lse == -math.inf
    result: dict[str, Tensor] = {}
    for name in want:
        if name == "entropy":
            value = lse - rows[1] / LOG2E
        elif name == "distance":
            value = rows[3]
        elif name == "rms":
            value = rows[4].clamp_min(0).sqrt()
        elif name == "maximum":
            value = rows[7]
        elif name == "peak":
            value = peak
        elif name == "sink":
            scores, allowed = source.scores((0, n), (0, 1))
            value = (scores[..., 0] - lse).exp()
            if allowed is not None:
                value = value.masked_fill(~allowed[..., 0], 0.0)
        elif name == "position":
            assert places is not None
            value = rows[5 : 5 + places.k.shape[-1]].permute(1, 2, 3, 0)
        else:
            result[name] = _run_columns(source, rows[0])
            continue
        result[name] = value.masked_fill(empty[..., None] if value.ndim == 4 else empty, 0)
    if places is not None and places.special:
        lost = places.q[0, :, 0].isnan()
        for name in ("distance", "rms"):
            if name in result:
                result[name] = result[name].masked_fill(lost, math.nan)
    return result


def _run_rows(source: Seen, want: Sequence[str], places: Places | None) -> tuple[Tensor, Tensor]:
    """(lse, E[score], placed mass, E[d], E[d^2], E[y], E[x], max) in base 2, and the peak, each (b, h, q)."""
    from .stream_kernels import rows_kernel

    b, h, n, _ = source.shape
    out = torch.empty(8, b, h, n, device=source.device, dtype=torch.float32)
    peak = torch.empty(b, h, n, device=source.device, dtype=torch.int32 if "peak" in want else torch.int8)
    grid = places is not None and places.grid is not None
    sizes = _sizes(source)
    rows_kernel[(_blocks(n, sizes["BM"]), b * h)](
        out, peak,
        *((places.q.contiguous(), places.k.contiguous()) if grid and places is not None else (out, out)),
        *_arguments(source),
        **_flags(source), **sizes,
        ENTROPY="entropy" in want,
        DISTANCE="distance" in want,
        RMS="rms" in want,
        POSITION="position" in want,
        PEAK="peak" in want,
        GRID=grid,
    )  # fmt: skip
    return out, peak.long()


def _run_columns(source: Seen, lse: Tensor) -> Tensor:
    """What each key receives, (b, h, k)."""
    from .stream_kernels import columns_kernel

    b, h, _, k = source.shape
    out = torch.empty(b, h, k, device=source.device, dtype=torch.float32)
    sizes = _sizes(source)
    columns_kernel[(_blocks(k, sizes["BN"]), b * h)](
        out, lse.contiguous(), *_arguments(source), **_flags(source), **sizes
    )
    return out


def _blocks(n: int, size: int) -> int:
    return -(-n // size)


def _sizes(source: Seen) -> dict[str, int]:
    """Tile sizes that ran fastest on a Hopper GPU; float32 products are done exactly, in smaller tiles."""
    width = max(16, 1 << (source.q.shape[-1] - 1).bit_length())
    if INTERPRETED:
        return {"BM": 16, "BN": 16, "BE": width}
    small = source.q.dtype == torch.float32 or width > 128
    return {
        "BM": 64 if small else 128,
        "BN": 32 if small else 64,
        "BE": width,
        "num_warps": 4,
        "num_stages": 3,
    }


def _flags(source: Seen) -> dict[str, Any]:
    mask, bias = source.mask, source.bias
    at = None if bias is None or bias.q_at is None else bias
    return {
        "CAUSAL": mask.causal,
        "WINDOW": mask.window or 0,
        "LENGTHS": mask.lengths is not None,
        "OFFSET": mask.offset is not None,
        "DOCUMENTS": mask.documents is not None,
        "ALLOW": mask.allow is not None,
        "SLOPE": at is not None and at.slope is not None,
        "TABLE": at is not None and at.table is not None,
        "DENSE": bias is not None and bias.dense is not None,
        "EXACT": source.q.dtype == torch.float32,
    }


def _arguments(source: Seen) -> list[Any]:
    """The kernels' common arguments: tensors with their strides, 0 along an axis that is shared."""
    mask, bias, q, k = source.mask, source.bias, source.q, source.k
    b, h, n, m = source.shape
    none = q  # stands in for a tensor that its flag says is not there

    def rows(value: Any) -> list[Any]:
        if value is None:
            return [none, 0]
        t = torch.as_tensor(value, device=q.device).reshape(-1)
        return [t, t.stride(0) if t.shape[0] > 1 else 0]

    def four(x: Tensor | None) -> list[Any]:
        if x is None:
            return [none, 0, 0, 0, 0]
        x = x.to(q.device)
        return [x, *x.expand(b, h, n, m).stride()]

    def line(x: Tensor | None) -> list[Any]:
        """Positions (n,) or (b, n)."""
        if x is None:
            return [none, 0]
        x = x.to(q.device).reshape(-1, x.shape[-1]).contiguous()
        return [x, x.stride(0) if x.shape[0] > 1 else 0]

    def heads(x: Tensor | None) -> list[Any]:
        if x is None:
            return [none, 0]
        x = x.float().contiguous()
        return [x, x.stride(0) if x.shape[0] > 1 else 0]

    documents = None if mask.documents is None else mask.documents.to(q.device).contiguous()
    allow = None if mask.allow is None else mask.allow.view(torch.uint8)
    table = None if bias is None else bias.table
    return [
        q, *q.stride(), k, *k.stride(),
        h, h // k.shape[1], n, m, q.shape[-1], source.scale * LOG2E,
        *rows(mask.lengths), *rows(mask.offset), *line(documents), *four(allow),
        *line(None if bias is None else bias.q_at), *line(None if bias is None else bias.k_at),
        *heads(None if bias is None else bias.slope), *heads(table), 0 if table is None else table.shape[1] // 2,
        *four(None if bias is None or bias.dense is None else bias.dense.float()),
    ]  # fmt: skip
