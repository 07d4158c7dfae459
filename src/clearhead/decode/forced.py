"""Forced decoding, the log-probabilities of a given answer; and ensembles of models."""

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
    """Return the log-probability of each target token, computed in one forward pass.

    Args:
        model: A language model or a translator.
        inputs: The other arguments of its forward: `source` and `lengths` of a translator.
        ids: The ids that it reads.
        targets: The token that is to follow each id; negative ones give 0.

    Examples:
        >>> model = clearhead.build("gpt", vocab=11, context=16, width=8, depth=1, heads=2).eval()
        >>> text = torch.tensor([[3, 1, 4, 1]])
        >>> forced(model, {}, text[:, :-1], text[:, 1:]).shape
        torch.Size([1, 3])
    """
    logp = model(ids, **inputs).float().log_softmax(-1)  # (b, t, v)
    logprobs = logp.gather(-1, targets.clamp(min=0)[..., None])[..., 0]  # (b, t)
    return logprobs.masked_fill(targets < 0, 0.0)


class Ensemble(nn.Module):
    """Several models with the same vocabulary as one model: their probabilities are averaged.

    Args:
        models: The models, one or more.

    Examples:
        >>> options = {"vocab": 11, "context": 16, "width": 8, "depth": 1, "heads": 2}
        >>> both = Ensemble([clearhead.build("gpt", **options).eval() for _ in range(2)])
        >>> both(torch.tensor([[1, 2]])).exp().sum(-1).allclose(torch.ones(1, 2))
        True
    """

    def __init__(self, models: Sequence[nn.Module]) -> None:
        super().__init__()
        if not models:
            raise InputError("an ensemble of no models: expected one or more")
        self.models = nn.ModuleList(models)

    def forward(self, ids: Int[Tensor, "b t"], **inputs: Tensor) -> Float[Tensor, "b t v"]:
        """The logarithm of the mean probability of each token."""
        return _mean([model(ids, **inputs) for model in self.models])

    def start(self, inputs: Mapping[str, Tensor], rows: int, limit: int) -> States:
        return States([model.start(inputs, rows, limit) for model in self.models])  # type: ignore[operator]

    def step(self, ids: Int[Tensor, "b t"], state: States) -> tuple[Float[Tensor, "b t v"], States]:
        all_logits, parts = [], []
        for model, part in zip(self.models, state.parts, strict=True):
            logits, part = model.step(ids, part)  # type: ignore[operator]
            all_logits.append(logits)
            parts.append(part)
        return _mean(all_logits), States(parts)


class States:
    """The states of an ensemble's models, expanded and reordered together."""

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
    """Return the logarithm of the mean of the models' probabilities, by a log-sum-exp."""
    logp = torch.stack([x.float().log_softmax(-1) for x in logits])  # (models, b, t, v)
    return logp.logsumexp(0) - torch.tensor(float(len(logits))).log()
