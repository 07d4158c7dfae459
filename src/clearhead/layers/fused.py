"""The fused kernels behind `attend`, and the choice between them.

                       no mask, plain causal     window, documents, bias     other masks, dropout
    CUDA               SDPA (flash, cuDNN)       FlexAttention               SDPA with a dense mask
    CPU and others     SDPA (flash)              SDPA, a band of queries at a time, keys in reach only

SDPA chooses its own backend, and falls back to its unfused one for what no kernel can do (on CPU: dropout, and the
gradient of a learned bias).
"""

from __future__ import annotations

from functools import cache
from typing import Any

import torch
import torch.nn.functional as F
from jaxtyping import Bool, Float
from torch import Tensor

from .bias import Bias
from .mask import Mask, MaskCache
from .sdpa import sdpa, sdpa_with_lse, traced

FREE = Mask()
BAND = 512  # queries at a time where a mask or bias must be rendered
ROOM = 1 << 24  # numbers of a mask or bias rendered at a time
SMALL = 1 << 20  # scores per head up to which a mask is rendered whole
FLEX_FROM = 128  # queries from which FlexAttention pays: below, a mask is smaller than a block


def fused(
    q: Float[Tensor, "b h q e"],
    k: Float[Tensor, "b g k e"],
    v: Float[Tensor, "b g k f"],
    *,
    mask: Mask,
    bias: Bias | None,
    scale: float,
    dropout: float,
    lse: bool = False,
) -> tuple[Float[Tensor, "b h q f"], Float[Tensor, "b h q"] | None]:
    """Return softmax(scale q k' + bias, where the mask allows) v without holding the scores.

    With `lse` also return each query's log-sum-exp if the kernel provides it, else None; the output is the same to the
    bit.
    """
    if bias is None and q.shape[2] == 1 and mask.numbers and not mask.free:  # a decoding step
        # its mask is a range of keys, so that cutting them needs no mask
        low, high = mask.reach(0, 1, k.shape[2])
        if low < high:
            k, v, mask = k[:, :, low:high], v[:, :, low:high], FREE
    plain = bias is None and (mask.free or mask.plain_causal)
    if lse and plain and dropout == 0.0:
        # None if the backend that SDPA chooses does not return it
        both = sdpa_with_lse(q, k, v, scale, mask.causal)
        if both is not None:
            return both
    by_block = bias is not None or mask.window is not None or mask.documents is not None
    supported = q.is_cuda and dropout == 0.0 and q.dtype != torch.float64
    if by_block and supported and q.shape[2] >= FLEX_FROM:
        return flex(q, k, v, mask, bias, scale), None

    # The kernels need equal head dimensions: zeros change neither a dot product nor the columns that are kept.
    e, f = q.shape[-1], v.shape[-1]
    if e < f:
        q, k = F.pad(q, (0, f - e)), F.pad(k, (0, f - e))
    elif f < e:
        v = F.pad(v, (0, e - f))
    if plain:
        out = sdpa(q, k, v, None, scale, dropout, causal=mask.causal)
    else:
        out = _bands(q, k, v, mask, bias, scale, dropout)
    if f < e:
        out = out[..., :f]
    return out, None


def _bands(
    q: Tensor, k: Tensor, v: Tensor, mask: Mask, bias: Bias | None, scale: float, dropout: float
) -> Tensor:
    """SDPA over bands of queries, each with the keys in its reach and its own tile of mask and bias."""
    n, m = q.shape[2], k.shape[2]
    if torch.compiler.is_compiling():  # one graph for every length
        return _band(q, k, v, mask, bias, scale, dropout, (0, n), (0, m))
    band = n
    if n * m > SMALL:
        # bands so narrow that a rendered tile has about ROOM numbers at most
        heads = 1 if bias is None else q.shape[1]  # a mask is the same for all heads, mostly
        band = max(16, min(BAND, ROOM // (m * heads)))
    # with a window, a band reaches its own keys and one window more on each side
    if mask.window is not None:
        band = min(band, max(64, mask.window))
    out = []
    for start in range(0, n, max(band, 1)):  # without queries the band is empty
        rows = (start, min(start + band, n))
        # keys outside the reach are never read: a causal mask saves half of the work
        keys = mask.reach(*rows, m)
        if keys[0] >= keys[1]:
            # Queries without a key in reach get one, which the mask then forbids as for any other query.
            keys = (0, min(1, m))
        out.append(_band(q, k, v, mask, bias, scale, dropout, rows, keys))
    if out:
        return torch.cat(out, dim=2)
    return q.new_zeros(*q.shape[:3], v.shape[-1])


def _band(
    q: Tensor,
    k: Tensor,
    v: Tensor,
    mask: Mask,
    bias: Bias | None,
    scale: float,
    dropout: float,
    rows: tuple[int, int],
    keys: tuple[int, int],
) -> Tensor:
    """SDPA of some queries over some keys, with the mask and the bias rendered for them."""
    n, m = q.shape[2], k.shape[2]  # the mask places queries among all keys, not those of the band
    q, k, v = q[:, :, slice(*rows)], k[:, :, slice(*keys)], v[:, :, slice(*keys)]
    tile = None if bias is None else bias.tile(rows, keys).to(q.dtype)
    if mask.free:
        # only a bias: no key is forbidden
        return sdpa(q, k, v, tile, scale, dropout)
    allowed, empty = mask_tile(mask, n, m, rows, keys, q.device)
    if tile is None:
        tile = allowed
    else:
        # SDPA takes one tensor: the mask becomes part of the bias
        tile = tile.masked_fill(~allowed, float("-inf"))
    out = sdpa(q, k, v, tile, scale, dropout)
    if empty is not None:
        # mask_tile let these queries attend to every key, so that no kernel meets an empty row
        out = out.masked_fill(empty, 0.0)
    return out


_TILES: MaskCache[tuple[Tensor, Tensor | None]] = MaskCache()


def mask_tile(
    mask: Mask, n: int, m: int, rows: tuple[int, int], keys: tuple[int, int], device: torch.device
) -> tuple[Bool[Tensor, "#b #h r c"], Bool[Tensor, "#b #h r 1"] | None]:
    """Return which keys each query of a tile may attend to, and which queries may attend to none (None: no query).

    The first lets those queries attend to everything; set their output to zero. So they give zeros and zero gradients,
    whatever a kernel does with an empty row. Small tiles are kept for the next layer and the next step.

    Args:
        mask: the mask.
        n: number of queries of the whole mask.
        m: number of keys of the whole mask.
        rows: first query of the tile, and the one after its last.
        keys: first key of the tile, and the one after its last.
        device: device of the result.
    """
    # while tracing there are no values to keep
    tiles = None if traced() else _TILES.of(mask)
    key = (n, m, rows, keys, device)
    if tiles is not None and key in tiles:
        return tiles[key]
    allowed = mask.dense(n, m, rows=rows, keys=keys, device=device)
    empty = ~allowed.any(-1, keepdim=True)
    tile: tuple[Tensor, Tensor | None] = (allowed | empty, empty)
    # on another device the host would wait for the answer whether any query is empty
    if tiles is None or device.type != "cpu":
        return tile
    if not bool(empty.any()):
        tile = (allowed, None)
    if allowed.numel() <= SMALL:
        tiles[key] = tile
    return tile


# FlexAttention: skips whole blocks of keys that a mask forbids


def flex(
    q: Float[Tensor, "b h q e"],
    k: Float[Tensor, "b g k e"],
    v: Float[Tensor, "b g k f"],
    mask: Mask,
    bias: Bias | None,
    scale: float,
) -> Float[Tensor, "b h q f"]:
    """Return softmax(scale q k' + bias, where the mask allows) v by a compiled FlexAttention kernel."""
    from torch.nn.attention.flex_attention import flex_attention

    run = flex_attention if torch.compiler.is_compiling() else _compiled_flex()
    blocks = None
    if not mask.free:
        blocks = _blocks(mask, q.shape[0], q.shape[1], q.shape[2], k.shape[2], q.device)
    score_mod = None if bias is None else bias.mod()
    grouped = q.shape[1] != k.shape[1]
    out: Tensor = run(
        q, k, v, score_mod=score_mod, block_mask=blocks, scale=scale, enable_gqa=grouped
    )
    return out


@cache
def _compiled_flex() -> Any:
    from torch.nn.attention.flex_attention import flex_attention

    return torch.compile(flex_attention)  # uncompiled, it holds the whole score matrix


@cache
def _compiled_blocks() -> Any:
    from torch.nn.attention.flex_attention import create_block_mask

    return torch.compile(create_block_mask)


_BLOCKS: MaskCache[Any] = MaskCache()


def _blocks(mask: Mask, b: int, h: int, q: int, k: int, device: torch.device) -> Any:
    """The block mask of a mask, with as few rows and heads as differ."""
    from torch.nn.attention.flex_attention import create_block_mask

    # `allow` may differ between heads; without it and without tensors, the mask is the same for all rows
    if mask.allow is None:
        h = 1
    if mask.numbers:
        b = 1
    if traced():
        return create_block_mask(mask.predicate(k, device), b, h, q, k, device=device)
    blocks, key = _BLOCKS.of(mask), (b, h, q, k, device)
    if key not in blocks:
        blocks[key] = _compiled_blocks()(mask.predicate(k, device), b, h, q, k, device=device)
    return blocks[key]
