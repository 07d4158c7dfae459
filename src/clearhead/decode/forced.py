"""Forced decoding: what a model thinks of a given answer; and several models that answer as one."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import torch
from jaxtyping import Float, Int
from torch import Tensor, nn

from ..errors import InputError


@torch.no_grad()
def forced(
    model: Any, inputs: Mapping[str, Tensor], ids: Int[Tensor, "b t"], targets: Int[Tensor, "b t"]
) -> Float[Tensor, "b t"]:
    """The log-probability of each target after the ids before it, in one pass; 0 where a target is negative."""
    logp = model(ids, **inputs).float().log_softmax(-1)
    found = logp.gather(-1, targets.clamp(min=0)[..., None])[..., 0]
    return found.masked_fill(targets < 0, 0.0)


class Ensemble(nn.Module):
    """Several models of one vocabulary that answer together: their probabilities are averaged."""

    def __init__(self, models: Sequence[nn.Module]) -> None:
        super().__init__()
        if not models:
            raise InputError("an ensemble of no models: expected one or more")
        self.models = nn.ModuleList(models)

    def forward(self, ids: Int[Tensor, "b t"], **inputs: Tensor) -> Float[Tensor, "b t v"]:
        """The logarithm of the mean of their probabilities."""
        return _mean([model(ids, **inputs) for model in self.models])

    def start(self, inputs: Mapping[str, Tensor], rows: int, limit: int) -> States:
        return States([model.start(inputs, rows, limit) for model in self.models])  # type: ignore[operator]

    def step(self, ids: Int[Tensor, "b t"], state: States) -> tuple[Float[Tensor, "b t v"], States]:
        found = [model.step(ids, part) for model, part in zip(self.models, state.parts, strict=True)]  # type: ignore[operator]
        return _mean([logits for logits, _ in found]), States([part for _, part in found])


class States:
    """The states of an ensemble's models, moved together."""

    def __init__(self, parts: list[Any]) -> None:
        self.parts = parts

    @property
    def rows(self) -> int:
        return self.parts[0].rows

    def expand(self, n: int) -> None:
        for part in self.parts:
            part.expand(n)

    def reorder(self, index: Int[Tensor, "n"]) -> None:
        for part in self.parts:
            part.reorder(index)


def _mean(logits: list[Tensor]) -> Tensor:
    stacked = torch.stack([x.float().log_softmax(-1) for x in logits])
    return stacked.logsumexp(0) - torch.tensor(float(len(logits))).log()
