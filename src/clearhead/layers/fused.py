"""The fused kernels behind `attend`: which one answers, and with what in its hands.

                       no mask, plain causal     window, documents, bias     other masks, dropout
    CUDA               SDPA (flash, cuDNN)       FlexAttention               SDPA with a dense mask
    CPU and others     SDPA (flash)              SDPA, a band of queries at a time, keys in reach only

SDPA itself picks its backend, and steps down to its unfused one for what no kernel can do (on CPU:
dropout, and the gradient of a learned bias).
"""

from __future__ import annotations

from functools import cache
from typing import Any
from weakref import WeakKeyDictionary

import torch
import torch.nn.functional as F
from jaxtyping import Float
from torch import Tensor
from torch.nn.attention import SDPBackend

from .bias import Bias
from .mask import Mask

FREE = Mask()
BAND = 512  # queries at a time where a mask or bias must be written out
ROOM = 1 << 24  # numbers of a mask or bias written out at a time
SMALL = 1 << 20  # scores a head up to which a mask is written out whole
STRETCH = 32  # keys; the CPU kernel takes 512 at a time
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
    """softmax(scale q k' + bias, where the mask allows) v without ever holding the scores.

    With `lse` also each query's log-sum-exp, where the kernel that answers gives it away; the answer is the same
    to the bit.
    """
    if bias is None and q.shape[2] == 1 and mask.numbers and not mask.free:  # a step of decoding
        low, high = mask.reach(0, 1, k.shape[2])
        if low < high:
            k, v, mask = k[:, :, low:high], v[:, :, low:high], FREE
    plain = bias is None and (mask.free or mask.plain_causal)
    if lse and plain and dropout == 0.0:
        told = _telling(q, k, v, mask.causal, scale)
        if told is not None:
            return told
    by_block = bias is not None or mask.window is not None or mask.documents is not None
    if q.is_cuda and by_block and q.shape[2] >= FLEX_FROM and dropout == 0.0 and q.dtype != torch.float64:
        return _flex(q, k, v, mask, bias, scale), None
    # The kernels want one head width: zeros change neither a dot product nor the columns we keep.
    e, f = q.shape[-1], v.shape[-1]
    if e < f:
        q, k = F.pad(q, (0, f - e)), F.pad(k, (0, f - e))
    elif f < e:
        v = F.pad(v, (0, e - f))
    if plain:
        out = _sdpa(q, k, v, None, scale, dropout, causal=mask.causal)
    else:
        out = _bands(q, k, v, mask, bias, scale, dropout)
    return (out[..., :f] if f < e else out), None


def _telling(q: Tensor, k: Tensor, v: Tensor, causal: bool, scale: float) -> tuple[Tensor, Tensor] | None:
    """What SDPA would answer, and the log-sum-exp that it keeps to itself.

    The operators it hands its work to return it: so we ask SDPA for its choice and call that (not under autocast,
    which knows SDPA and not them). None where the choice returns nothing, or pads or repeats its inputs first.
    """
    same = q.shape[:2] == k.shape[:2] and q.shape[-1] == v.shape[-1] and 0 not in (*q.shape, *k.shape)
    if not same or torch.is_autocast_enabled(q.device.type):
        return None
    choice, ops = torch._fused_sdp_choice(q, k, v, None, 0.0, causal, scale=scale), torch.ops.aten
    if choice == SDPBackend.FLASH_ATTENTION.value and q.device.type == "cpu":
        out, lse = ops._scaled_dot_product_flash_attention_for_cpu(q, k, v, 0.0, causal, scale=scale)
        return _honest(q, k, out, causal), lse
    if choice == SDPBackend.CUDNN_ATTENTION.value:
        found = ops._scaled_dot_product_cudnn_attention(q, k, v, None, True, 0.0, causal, False, scale=scale)
        return found[0], found[1].reshape(q.shape[:3])
    if choice == SDPBackend.FLASH_ATTENTION.value and q.is_cuda and q.shape[-1] % 8 == 0:
        found = ops._scaled_dot_product_flash_attention(q, k, v, 0.0, causal, False, scale=scale)
        return found[0], found[1]
    return None


def _sdpa(
    q: Tensor, k: Tensor, v: Tensor, mask: Tensor | None, scale: float, dropout: float, causal: bool = False
) -> Tensor:
    grouped = q.shape[1] != k.shape[1]
    if grouped and mask is not None and q.is_cuda:  # no CUDA kernel takes both groups and a mask
        k, v = (x.repeat_interleave(q.shape[1] // x.shape[1], dim=1) for x in (k, v))
        grouped = False
    out = F.scaled_dot_product_attention(
        q, k, v, mask, dropout_p=dropout, is_causal=causal, scale=scale, enable_gqa=grouped
    )
    return _honest(q, k, out, causal) if mask is None else out


def _honest(q: Tensor, k: Tensor, out: Tensor, causal: bool) -> Tensor:
    """The CPU kernel takes scores that are all NaN for a query that may look at nothing: say NaN, not its zeros."""
    if q.device.type != "cpu" or 0 in (*q.shape, *k.shape):
        return out
    traced = torch.compiler.is_compiling() or torch._C._are_functorch_transforms_active()
    # Keys that are not a number show, unless all of a stretch that the kernel takes at a time are: where a few queries
    # look at many keys, one key of each such stretch is enough.
    seen = k.detach() if causal or q.shape[2] > 16 else k.detach()[:, :, ::STRETCH]
    if not traced and not (q.detach().sum() + seen.sum()).isnan():
        return out
    keys = k.isnan().any(-1).repeat_interleave(q.shape[1] // k.shape[1], dim=1)
    if causal:  # a query sees the keys up to its own
        last = torch.arange(q.shape[2], device=q.device).clamp(max=k.shape[2] - 1)
        keys = (keys.cumsum(-1) > 0)[..., last]
    else:
        keys = keys.any(-1, keepdim=True)
    return torch.where((q.isnan().any(-1) | keys)[..., None], float("nan"), out)


def _bands(q: Tensor, k: Tensor, v: Tensor, mask: Mask, bias: Bias | None, scale: float, dropout: float) -> Tensor:
    """SDPA over bands of queries, each with the keys it can reach and its own tile of mask and bias."""
    n, m = q.shape[2], k.shape[2]
    if torch.compiler.is_compiling():  # one graph for every length
        return _band(q, k, v, mask, bias, scale, dropout, (0, n), (0, m))
    band = n
    if n * m > SMALL:
        band = max(16, min(BAND, ROOM // (m * (1 if bias is None else q.shape[1]))))
    if mask.window is not None:
        band = min(band, max(64, mask.window))
    out = []
    for start in range(0, n, max(band, 1)):
        rows = (start, min(start + band, n))
        low, high = mask.reach(*rows, m)
        # Queries that can reach nothing are refused one key, as any other query would be.
        keys = (low, high) if low < high else (0, min(1, m))
        out.append(_band(q, k, v, mask, bias, scale, dropout, rows, keys))
    return torch.cat(out, dim=2) if out else q.new_zeros(*q.shape[:3], v.shape[-1])


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
    n, m = q.shape[2], k.shape[2]
    q, k, v = q[:, :, slice(*rows)], k[:, :, slice(*keys)], v[:, :, slice(*keys)]
    tile = None if bias is None else bias.tile(rows, keys).to(q.dtype)
    if mask.free:
        return _sdpa(q, k, v, tile, scale, dropout)
    allowed, none = mask_tile(mask, n, m, rows, keys, q.device)
    tile = allowed if tile is None else tile.masked_fill(~allowed, float("-inf"))
    out = _sdpa(q, k, v, tile, scale, dropout)
    return out if none is None else out.masked_fill(none, 0.0)


# A mask serves all layers of a forward pass, and all steps of a search: what is small of it is written out once.
_TILES: WeakKeyDictionary[Mask, dict[tuple[Any, ...], tuple[Tensor, Tensor | None]]] = WeakKeyDictionary()


def mask_tile(
    mask: Mask, n: int, m: int, rows: tuple[int, int], keys: tuple[int, int], device: torch.device
) -> tuple[Tensor, Tensor | None]:
    """Who may look at whom, and which queries may look at nothing.

    Those look at everything, and their answer is then struck out: zeros, and zero gradient, whatever a kernel does
    with an empty row.
    """
    known = None if torch.compiler.is_compiling() else _TILES.setdefault(mask, {})
    key = (n, m, rows, keys, device)
    if known is not None and key in known:
        return known[key]
    allowed = mask.dense(n, m, rows=rows, keys=keys, device=device)
    some = allowed.any(-1, keepdim=True)
    found: tuple[Tensor, Tensor | None] = (allowed | ~some, ~some)
    if known is not None and device.type == "cpu":
        found = (found[0], None if bool(some.all()) else ~some)
        if allowed.numel() <= SMALL:
            known[key] = found
    return found


def _flex(q: Tensor, k: Tensor, v: Tensor, mask: Mask, bias: Bias | None, scale: float) -> Tensor:
    from torch.nn.attention.flex_attention import flex_attention

    run = flex_attention if torch.compiler.is_compiling() else _compiled_flex()
    blocks = None if mask.free else _blocks(mask, q.shape[0], q.shape[1], q.shape[2], k.shape[2], q.device)
    score_mod = None if bias is None else bias.mod()
    grouped = q.shape[1] != k.shape[1]
    out: Tensor = run(q, k, v, score_mod=score_mod, block_mask=blocks, scale=scale, enable_gqa=grouped)
    return out


@cache
def _compiled_flex() -> Any:
    from torch.nn.attention.flex_attention import flex_attention

    return torch.compile(flex_attention)  # uncompiled, it holds the whole score matrix


@cache
def _compiled_blocks() -> Any:
    from torch.nn.attention.flex_attention import create_block_mask

    return torch.compile(create_block_mask)


# A mask is built once for a forward pass and serves all its layers, and so do its blocks.
_BLOCKS: WeakKeyDictionary[Mask, dict[tuple[Any, ...], Any]] = WeakKeyDictionary()


def _blocks(mask: Mask, b: int, h: int, q: int, k: int, device: torch.device) -> Any:
    from torch.nn.attention.flex_attention import create_block_mask

    rows = isinstance(mask.lengths, Tensor) or isinstance(mask.offset, Tensor) or mask.documents is not None
    b = b if rows or mask.allow is not None else 1
    h = h if mask.allow is not None else 1
    if torch.compiler.is_compiling():
        return create_block_mask(mask.predicate(k, device), b, h, q, k, device=device)
    known, key = _BLOCKS.setdefault(mask, {}), (b, h, q, k, device)
    if key not in known:
        known[key] = _compiled_blocks()(mask.predicate(k, device), b, h, q, k, device=device)
    return known[key]
