"""FlexAttention: fused attention on a GPU for masks and biases that skip whole blocks of keys."""

from __future__ import annotations

from functools import cache
from typing import Any

import torch
from jaxtyping import Float
from torch import Tensor

from .bias import Bias
from .mask import Mask, MaskCache
from .sdpa import traced


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

    if torch.compiler.is_compiling():
        run = flex_attention
    else:
        run = _compiled_flex()
    if mask.free:
        blocks = None
    else:
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

    rows = (
        isinstance(mask.lengths, Tensor)
        or isinstance(mask.offset, Tensor)
        or mask.documents is not None
    )
    if not rows and mask.allow is None:
        b = 1
    if mask.allow is None:
        h = 1
    if traced():
        return create_block_mask(mask.predicate(k, device), b, h, q, k, device=device)
    blocks, key = _BLOCKS.of(mask), (b, h, q, k, device)
    if key not in blocks:
        blocks[key] = _compiled_blocks()(mask.predicate(k, device), b, h, q, k, device=device)
    return blocks[key]
