"""The Triton kernel of AdamW with master weights: one pass over memory instead of five.

It fuses clipping, weight decay, both moments, the float32 master weight and its bfloat16 copy in the model. It is
imported when a tensor is on a GPU, since Triton is not installed everywhere.
"""

from __future__ import annotations

from collections.abc import Iterable

import triton
import triton.language as tl
from torch import Tensor

BLOCK = 2048  # numbers per program


@triton.jit
def _adamw(  # type: ignore[no-untyped-def]
    weight, grad, master, first, second, steps, norm, n, clip, lr, beta1, beta2, eps, decay, BLOCK: tl.constexpr
):  # fmt: skip
    at = tl.program_id(0).to(tl.int64) * BLOCK + tl.arange(0, BLOCK)
    inside = at < n
    step = tl.load(steps)
    g = tl.load(grad + at, mask=inside, other=0.0).to(tl.float32)
    # the norm stays on the device: reading it would make the host wait
    if clip > 0.0:
        g *= tl.minimum(clip / (tl.load(norm) + 1e-6), 1.0)
    w = tl.load(master + at, mask=inside, other=0.0)
    m = tl.load(first + at, mask=inside, other=0.0)
    v = tl.load(second + at, mask=inside, other=0.0)
    # decoupled decay (Loshchilov and Hutter 2019), then Adam (Kingma and Ba 2015, Algorithm 1), in torch's order
    w *= 1.0 - lr * decay
    m += (g - m) * (1.0 - beta1)
    v = v * beta2 + g * g * (1.0 - beta2)
    unbias1 = 1.0 - tl.exp2(step * tl.log2(beta1))
    unbias2 = 1.0 - tl.exp2(step * tl.log2(beta2))
    w -= lr / unbias1 * m / (tl.sqrt(v / unbias2) + eps)
    tl.store(master + at, w, mask=inside)
    tl.store(first + at, m, mask=inside)
    tl.store(second + at, v, mask=inside)
    tl.store(weight + at, w, mask=inside)


def adamw_step(
    rows: Iterable[tuple[Tensor, Tensor, Tensor, Tensor, Tensor, Tensor]],
    norm: Tensor,
    *,
    clip: float,
    lr: float,
    betas: tuple[float, float],
    eps: float,
    decay: float,
) -> None:
    """Update each (weight, gradient, master weight, first moment, second moment, step counter) in place."""
    for weight, grad, master, first, second, steps in rows:
        n = master.numel()
        # the kernel reads all five tensors in the order of memory, so their layouts must be the same
        if grad.stride() != master.stride():
            grad = grad.contiguous()
        _adamw[(triton.cdiv(n, BLOCK),)](
            weight, grad, master, first, second, steps, norm, n, clip, lr, *betas, eps, decay,
            BLOCK=BLOCK, num_warps=8,
        )  # fmt: skip
