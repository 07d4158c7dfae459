"""Base class of objectives over tokens: the cross-entropy of targets, without all logits in memory at once."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, ClassVar

import numpy as np
import torch
import torch.nn.functional as F
from torch import Tensor

from ...checks import fraction
from ...data import IGNORE
from ...layers import Readout
from ..loss import linear_cross_entropy, measured
from .objective import Losses, Measurement, Objective, Tensors


@dataclass(frozen=True, kw_only=True, slots=True)
class SmoothingConfig:
    """Options of objectives with a cross-entropy."""

    smoothing: float = 0.0  # label smoothing: share of each target that is spread evenly over all classes

    def __post_init__(self) -> None:
        fraction(self, "smoothing")


class TokenObjective(Objective):
    """The cross-entropy of the targets of a batch; targets of -100 are ignored."""

    Config: ClassVar[type[Any]] = SmoothingConfig
    measurements: ClassVar[Mapping[str, Measurement]] = {
        "loss": Measurement("nats/token"), "accuracy": Measurement("share", "higher"),
    }  # fmt: skip

    def count(self, batch: Mapping[str, np.ndarray]) -> int:
        return int((batch["targets"] != IGNORE).sum())

    def loss(self, batch: Tensors) -> Losses:
        """The summed cross-entropy, in nats."""
        return linear_cross_entropy(*self.readout(batch), smoothing=self.config.smoothing, cap=self.cap)

    @torch.no_grad()
    def measure(self, batch: Tensors) -> Tensors:
        loss, right = measured(*self.readout(batch), cap=self.cap)
        return {"loss": loss, "accuracy": right.to(loss.dtype)}

    @property
    def cap(self) -> float | None:
        """The bound of the model's logits, if it has one."""
        head = self.player("model").head
        return head.cap if isinstance(head, Readout) else None

    def readout(self, batch: Tensors) -> tuple[Tensor, Tensor, Tensor]:
        """The input of the output layer, its weights, and the targets."""
        model = self.player("model")
        inputs = {name: x for name, x in batch.items() if name not in ("targets", "weight")}
        x, targets = self.select(model.states(**inputs), batch["targets"])
        if isinstance(model.head, Readout):
            x = x * model.head.scale
        if model.head.bias is None:
            return x, model.head.weight, targets
        # The fused loss has no bias: one more input, which is always 1, adds it.
        weight = torch.cat([model.head.weight, model.head.bias[:, None]], dim=1)
        return F.pad(x, (0, 1), value=1.0), weight, targets

    def select(self, x: Tensor, targets: Tensor) -> tuple[Tensor, Tensor]:
        """The positions whose loss is computed: all of them."""
        return x, targets
