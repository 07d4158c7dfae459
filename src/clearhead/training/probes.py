"""Probes of a training: attention statistics per head, and the sizes of activations and gradients per block."""

from __future__ import annotations

import warnings
from collections.abc import Mapping
from typing import Any

import torch
from torch import Tensor, nn

from ..errors import Notice
from ..layers import Attention
from ..look import watch
from .distributed import blocks, whole
from .objectives import Objective

ROWS = 4  # rows of the batch that are probed
STATISTICS = ("entropy", "distance", "sink")


def gradients(model: nn.Module, grads: Mapping[str, Tensor]) -> dict[str, float]:
    """The gradient norm of each block, and of all other parameters as "rest", given the gradients by name."""
    names = [name for name, _ in blocks(model)]
    norms: dict[str, list[Tensor]] = {}  # by block
    for name, gradient in grads.items():
        block = next((block for block in names if name.startswith(f"{block}.")), "rest")
        norm = torch.linalg.vector_norm(gradient.detach(), dtype=torch.float32)
        norms.setdefault(block, []).append(whole(norm))
    # the norm of all gradients together is the norm of their norms
    return {b: float(torch.linalg.vector_norm(torch.stack(n))) for b, n in norms.items()}


@torch.no_grad()
def activations(
    objective: Objective, model: nn.Module, batch: Mapping[str, Tensor]
) -> dict[str, Any]:
    """Entropy, distance and sink of every head, and the root mean square of each block's output.

    They are averaged over a few rows of the batch and all queries; the model runs eagerly, in eval mode.
    """
    # recording keeps tensors of every head: a few rows are enough for a mean
    few = {name: x[:ROWS] for name, x in batch.items()}
    heads = [name for name, m in model.named_modules() if isinstance(m, Attention)]
    addresses = [f"{name}.{statistic}" for name in heads for statistic in STATISTICS]
    addresses += [name for name, _ in blocks(model)]
    if not addresses:
        return {}
    training = objective.training
    objective.eval()
    try:
        with warnings.catch_warnings():
            # the notice that a compiled model is watched eagerly
            warnings.simplefilter("ignore", Notice)
            with watch(model, *addresses) as tape:
                objective.measure(few)
        results: dict[str, Any] = {}
        for name in addresses:
            if name not in tape:  # a part that this objective does not run
                continue
            # several, if the objective runs a network more than once
            calls = [x.float() for x in tape.calls(name)]
            if name.rsplit(".", 1)[-1] in STATISTICS:
                per_head = torch.stack([x.mean((0, 2)) for x in calls])  # (calls, h) from (b, h, q)
                results[name] = per_head.mean(0).tolist()
            else:
                squares = torch.stack([x.square().mean() for x in calls])
                results[name] = float(squares.mean().sqrt())
        return results
    finally:
        objective.train(training)
