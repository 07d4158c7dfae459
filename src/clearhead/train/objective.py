"""What a model is trained for: a batch in, one number out. Compile and distribution wrap this, not the model."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np
import torch
import torch.nn.functional as F
from torch import Tensor, nn

from ..data import IGNORE
from .loss import linear_cross_entropy, measured


class Objective(nn.Module):
    """The summed loss of a batch; the loop divides by how much all workers counted together.

    sequences   cross-entropy of the next token, in nats, a counted token       targets (b, t)
    images      cross-entropy of the class, an image                            labels (b,)
    vectors     mean square over the width, a vector                            y (b, d)
    """

    def __init__(self, model: nn.Module, kind: str, smoothing: float = 0.0) -> None:
        super().__init__()
        if (kind == "sequences") != hasattr(model, "states"):
            raise ValueError(
                f"{type(model).__name__} {'reads' if hasattr(model, 'states') else 'does not read'} tokens, "
                f"and the data are {kind}: expected a model and data that go together"
            )
        self.model, self.kind, self.smoothing = model, kind, smoothing

    def forward(self, batch: dict[str, Tensor]) -> Tensor:
        if self.kind == "sequences":
            x, weight = self._states(batch)
            return linear_cross_entropy(x, weight, batch["targets"], smoothing=self.smoothing)
        return self._rows(batch, self.smoothing)[0]

    @torch.no_grad()
    def measure(self, batch: dict[str, Tensor]) -> Tensor:
        """The summed loss without smoothing, and how many answers were right (0 where there is no such thing)."""
        if self.kind == "sequences":
            x, weight = self._states(batch)
            loss, right = measured(x, weight, batch["targets"])
        else:
            loss, right = self._rows(batch, 0.0)
        return torch.stack([loss, right.to(loss.dtype)])

    def _states(self, batch: dict[str, Tensor]) -> tuple[Tensor, Tensor]:
        model: Any = self.model
        return model.states(batch["ids"], documents=batch.get("documents"), at=batch.get("at")), model.head.weight

    def _rows(self, batch: dict[str, Tensor], smoothing: float) -> tuple[Tensor, Tensor]:
        kind = next(p.dtype for p in self.model.parameters() if p.ndim > 1)  # batch norms stay wide
        if self.kind == "vectors":
            x, y = batch["x"].to(kind), batch["y"]
            each = (self.model(x).float() - y).square().mean(-1)
            right = torch.zeros((), device=each.device)
        else:
            logits = self.model(batch["images"].to(kind)).float()
            each = F.cross_entropy(logits, batch["labels"], reduction="none", label_smoothing=smoothing)
            hit = (logits.argmax(-1) == batch["labels"]).float()
            right = (hit if "weight" not in batch else hit * batch["weight"]).sum()
        return (each if "weight" not in batch else each * batch["weight"]).sum(), right


def count(batch: Mapping[str, np.ndarray]) -> int:
    """How much a batch counts: tokens, or rows."""
    if "targets" in batch:
        return int((batch["targets"] != IGNORE).sum())
    rows = next(iter(batch.values()))
    return int(batch["weight"].sum()) if "weight" in batch else len(rows)
