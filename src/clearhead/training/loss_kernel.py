"""Triton kernel of the cross-entropy, which replaces each row of logits by its gradient."""

from __future__ import annotations

import torch
import triton
import triton.language as tl
from torch import Tensor

LANES = 512  # each has its own running maximum and sum, which are combined at the end of a row
EACH = 8  # neighbouring logits that a lane reads at a time: 16 bytes of bf16


@triton.jit
def _kernel(  # type: ignore[no-untyped-def]
    logits, targets, losses, stride, v, smoothing, ignored, LANES: tl.constexpr, EACH: tl.constexpr
):
    row = tl.program_id(0).to(tl.int64)
    logits += row * stride
    target = tl.load(targets + row)
    at = tl.arange(0, LANES)[:, None] * EACH + tl.arange(0, EACH)[None, :]
    if target == ignored:
        tl.store(losses + row, 0.0)
        for start in range(0, v, LANES * EACH):
            tl.store(logits + start + at, tl.zeros((LANES, EACH), tl.float32), mask=start + at < v)
        return
    most = tl.full((LANES,), -1.0e30, tl.float32)
    total = tl.zeros((LANES,), tl.float32)
    plain = tl.zeros((LANES,), tl.float32)
    for start in range(0, v, LANES * EACH):
        inside = start + at < v
        x = tl.load(logits + start + at, mask=inside, other=float("-inf")).to(tl.float32)
        new = tl.maximum(most, tl.max(x, 1))
        total = total * tl.exp(most - new) + tl.sum(tl.exp(x - new[:, None]), 1)
        if smoothing != 0.0:
            plain += tl.sum(tl.where(inside, x, 0.0), 1)
        most = new
    top = tl.max(most, 0)
    lse = top + tl.log(tl.sum(total * tl.exp(most - top), 0))
    hit = tl.load(logits + target).to(tl.float32)
    tl.store(losses + row, lse - (1.0 - smoothing) * hit - smoothing * tl.sum(plain, 0) / v)
    tl.debug_barrier()  # read the target's logit before any lane overwrites it
    for start in range(0, v, LANES * EACH):
        inside = start + at < v
        x = tl.load(logits + start + at, mask=inside, other=float("-inf")).to(tl.float32)
        p = tl.exp(x - lse) - smoothing / v - tl.where(start + at == target, 1.0 - smoothing, 0.0)
        tl.store(logits + start + at, p, mask=inside)


def logits_to_gradient(logits: Tensor, targets: Tensor, smoothing: float, ignored: int) -> Tensor:
    """Replace logits (n, v) by the gradient of their loss, in place; returns the summed loss."""
    losses = torch.empty(logits.shape[0], dtype=torch.float32, device=logits.device)
    if logits.shape[0]:
        _kernel[(logits.shape[0],)](
            logits,
            targets,
            losses,
            logits.stride(0),
            logits.shape[1],
            smoothing,
            ignored,
            LANES=LANES,
            EACH=EACH,
            num_warps=16,
        )
    return losses.sum()
