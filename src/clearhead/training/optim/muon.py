"""Muon: momentum with orthogonalised updates, for the matrices inside a network (Jordan et al. 2024).

An orthogonal update changes all directions of a matrix equally, including rare ones. torch.optim.Muon is the same
method, one matrix at a time; this one batches all matrices of a shape, and gathers sharded ones (FSDP2).
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable
from typing import Any

import torch
from jaxtyping import Float
from torch import Tensor

from ...errors import InputError
from ..distributed import as_sharded, local, shard_of, whole

# x -> a x + b x^3 + c x^5, steep at 0: five rounds map singular values of 0.01 to 1 into about 0.7 to 1.2.
QUINTIC = (3.4445, -4.7750, 2.0315)


def orthogonalise(
    x: Float[Tensor, "*n r c"], *, rounds: int = 5, dtype: torch.dtype | None = None
) -> Tensor:
    """Approximately U V^T of each matrix x = U S V^T, by the Newton-Schulz iteration of Jordan et al. 2024.

    The iteration is computed in `dtype`; by default bfloat16 on CUDA, where that is fast, else float32 or better.
    """
    if dtype is None and x.is_cuda:
        dtype = torch.bfloat16
    elif dtype is None:
        dtype = torch.promote_types(x.dtype, torch.float32)
    a, b, c = QUINTIC
    is_tall = x.shape[-2] > x.shape[-1]
    y = x.mT if is_tall else x  # so that y y^T is the smaller square
    # no singular value above 1, where the iteration would diverge: the largest is at most the Frobenius norm
    y = (y / y.norm(dim=(-2, -1), keepdim=True).clamp(min=1e-7)).to(dtype)
    y = y.reshape(-1, *y.shape[-2:])
    for _ in range(rounds):
        # s = y y^T, symmetric, of the smaller side
        square = y @ y.mT
        # (a + b s + c s^2) y with s = y y^T
        y = torch.baddbmm(y, torch.baddbmm(square, square, square, beta=b, alpha=c), y, beta=a)
    return (y.mT if is_tall else y).reshape(x.shape).to(x.dtype)


class Muon(torch.optim.Optimizer):
    """Nesterov momentum, orthogonalised, with decoupled decay.

    Updates are scaled by 0.2 sqrt(max(rows, columns)), the size of AdamW's, so that one learning rate and one decay
    serve both (Eq. 4 of Liu et al. 2025).
    """

    def __init__(
        self,
        params: Iterable[Any],
        lr: float = 1e-3,
        *,
        momentum: float = 0.95,
        weight_decay: float = 0.1,
        dtype: torch.dtype | None = None,  # of the iteration, as in `orthogonalise`
    ) -> None:
        super().__init__(
            params, {"lr": lr, "momentum": momentum, "weight_decay": weight_decay, "dtype": dtype}
        )
        for group in self.param_groups:
            for p in group["params"]:
                if p.ndim != 2:
                    raise InputError(
                        f"a parameter of shape {tuple(p.shape)}: Muon expects matrices"
                    )

    @torch.no_grad()
    def step(self, closure: Callable[[], Any] | None = None) -> Any:
        loss = None
        if closure is not None:
            with torch.enable_grad():
                loss = closure()
        for group in self.param_groups:
            params = [p for p in group["params"] if p.grad is not None]
            for p in params:
                # only without `Optimiser`, which allocates all state beforehand
                if "momentum_buffer" not in self.state[p]:
                    self.state[p]["momentum_buffer"] = torch.zeros_like(p)
            if params:
                self._step(params, group)
        return loss

    def _step(self, params: list[Tensor], group: dict[str, Any]) -> None:
        lr, momentum = group["lr"], group["momentum"]
        weights = [local(p) for p in params]
        grads = [local(p.grad) for p in params if p.grad is not None]
        buffers = [local(self.state[p]["momentum_buffer"]) for p in params]
        # An average instead of a sum, because orthogonalisation removes the scale.
        torch._foreach_lerp_(buffers, grads, 1 - momentum)
        updates = torch._foreach_lerp(grads, buffers, momentum)  # Nesterov momentum
        # An update is orthogonal as a whole: shards are gathered, and cut again afterwards.
        gathered = [whole(as_sharded(u, p)) for u, p in zip(updates, params, strict=True)]
        torch._foreach_mul_(weights, 1 - lr * group["weight_decay"])
        alike: dict[tuple[torch.Size, torch.dtype, torch.device], list[int]] = {}
        for i, update in enumerate(gathered):
            # matrices of one shape are one batched product
            alike.setdefault((update.shape, update.dtype, update.device), []).append(i)
        for (shape, _, _), indices in alike.items():
            stacked = torch.stack([gathered[i] for i in indices])  # (n, r, c)
            orthogonal = orthogonalise(stacked, dtype=group["dtype"]).unbind(0)
            shards = [shard_of(x, params[i]) for x, i in zip(orthogonal, indices, strict=True)]
            # an orthogonal matrix has the RMS 1 / sqrt(max(r, c)); AdamW's updates have about 0.2
            rate = lr * 0.2 * math.sqrt(max(shape))
            torch._foreach_add_([weights[i] for i in indices], shards, alpha=-rate)
