"""FlexAttention under a watch: it runs uncompiled, where it holds all scores, so its size is limited."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor

from ..errors import InputError
from .maps import DENSE_LIMIT
from .tap import WatchTap


def check_flex(q: Tensor, k: Tensor, tap: WatchTap) -> None:
    """Raise if a call is too large to run uncompiled, or if its scores or weights are to be edited."""
    b, h, n, m = *q.shape[:3], k.shape[2]
    if b * h * n * m > DENSE_LIMIT:
        raise InputError(
            f"FlexAttention of {b} x {h} x {n} x {m} runs uncompiled while it is watched or edited and would hold "
            f"{b * h * n * m:,} scores, over the limit of {DENSE_LIMIT:,}: watch a shorter input, or the model with "
            "attn_implementation='sdpa', which has no such limit"
        )
    if tap.explicit:
        raise InputError(
            "scores and weights of FlexAttention cannot be edited and have no gradients: use attn_implementation='sdpa'"
        )


def flex_weights(func: Callable[..., Any], q: Tensor, k: Tensor, rest: tuple[Any, ...]) -> Tensor:
    """The weights (b, h, q, k) of a call of FlexAttention: its output where the values are unit vectors."""
    kind = torch.float64 if q.dtype == torch.float64 else torch.float32
    units = torch.eye(k.shape[2], dtype=kind, device=k.device).expand(*k.shape[:2], -1, -1)
    weights: Tensor = func(q.detach().to(kind), k.detach().to(kind), units, *rest)[0]
    return weights
