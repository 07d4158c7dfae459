"""LAMB: Adam whose update of each matrix has a length in proportion to the matrix, for large batches (You et al. 2020).

torch has no LAMB; this one computes all parameters at a time, and norms over all shards (FSDP2).
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from typing import Any

import torch
from torch import Tensor

from ..distributed import as_sharded, local, whole


class Lamb(torch.optim.Optimizer):
    """Algorithm 2 of You et al. 2020, with phi(z) = z.

    Parameters of groups without weight decay, which are biases and norms, are updated as by AdamW: their norms start at
    0, or tell nothing about a good step.
    """

    def __init__(
        self,
        params: Iterable[Any],
        lr: float = 1e-3,
        *,
        betas: tuple[float, float] = (0.9, 0.999),
        eps: float = 1e-6,
        weight_decay: float = 0.01,
    ) -> None:
        super().__init__(
            params,
            {"lr": lr, "betas": betas, "eps": eps, "weight_decay": weight_decay, "decays": True},
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
                if not self.state[p]:
                    # created before the step: the update below handles all parameters at a time
                    self.state[p].update(fresh_state(p))
            if params:
                self._step(params, group)
        return loss

    def _step(self, params: list[Tensor], group: dict[str, Any]) -> None:
        beta1, beta2 = group["betas"]
        states = [self.state[p] for p in params]
        weights = [local(p) for p in params]
        grads = [local(p.grad) for p in params if p.grad is not None]
        m = [local(state["exp_avg"]) for state in states]
        v = [local(state["exp_avg_sq"]) for state in states]
        steps = [state["step"] for state in states]
        torch._foreach_add_(steps, 1)
        # m = beta1 m + (1 - beta1) g;  v = beta2 v + (1 - beta2) g^2
        torch._foreach_lerp_(m, grads, 1 - beta1)
        torch._foreach_mul_(v, beta2)
        torch._foreach_addcmul_(v, grads, grads, 1 - beta2)
        # r = m' / (sqrt(v') + eps) with the unbiased moments m' and v'
        root = torch._foreach_sqrt(torch._foreach_div(v, _weight_of_history(beta2, steps)))
        torch._foreach_add_(root, group["eps"])
        update = torch._foreach_div(torch._foreach_div(m, _weight_of_history(beta1, steps)), root)
        # r + lambda x, scaled to the length of the weights x
        if group["weight_decay"]:
            torch._foreach_add_(update, weights, alpha=group["weight_decay"])
        if group["decays"]:
            # trust ratio phi(|x|) / |r + lambda x| of each layer; 1 where either norm is 0
            sizes, lengths = _norms(weights, params), _norms(update, params)
            trust = torch.where((sizes > 0) & (lengths > 0), sizes / lengths, 1.0)
            update = torch._foreach_mul(update, list(trust.unbind()))
        torch._foreach_add_(weights, update, alpha=-group["lr"])


def fresh_state(p: Tensor) -> dict[str, Tensor]:
    """The state of a parameter before the first step."""
    step = torch.zeros((), dtype=torch.float32, device=p.device)
    return {"step": step, "exp_avg": torch.zeros_like(p), "exp_avg_sq": torch.zeros_like(p)}


def _weight_of_history(beta: float, steps: list[Tensor]) -> list[Tensor]:
    """1 - beta^step: the share of a moving average that does not come from its initial 0."""
    shares = torch._foreach_pow(beta, steps)
    torch._foreach_neg_(shares)
    torch._foreach_add_(shares, 1.0)
    return list(shares)


def _norms(parts: Sequence[Tensor], like: Sequence[Tensor]) -> Tensor:
    """The norms of tensors of which `parts` are this worker's shards, sharded like `like`."""
    if not any(hasattr(p, "to_local") for p in like):
        # not sharded: one kernel for all
        return torch.stack(torch._foreach_norm(list(parts)))
    norms = [whole(as_sharded(part, p).norm()) for part, p in zip(parts, like, strict=True)]
    return torch.stack(norms)
