"""Classification: the cross-entropy of each row's class, for texts and images alike.

labels (b,), and the model's inputs: ids (b, t) and lengths (b,), or images (b, c, height, width).
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, ClassVar

import torch
import torch.nn.functional as F
from torch import Tensor

from .objective import Measurement, Objective, Role, Tensors, weighted_sum
from .token_loss import SmoothingConfig


class Classification(Objective):
    """The cross-entropy of each row's class, for texts and images."""

    Config: ClassVar[type[Any]] = SmoothingConfig
    roles: ClassVar[Mapping[str, Role]] = {"model": Role(can="classify")}
    reads: ClassVar[tuple[str, ...]] = ("labels",)
    may_read: ClassVar[tuple[str, ...]] = ("ids", "lengths", "images")
    measurements: ClassVar[Mapping[str, Measurement]] = {
        "loss": Measurement("nats/row"), "accuracy": Measurement("share", "higher"),
    }  # fmt: skip

    def loss(self, batch: Tensors) -> Tensor:
        """The summed cross-entropy, in nats."""
        each = F.cross_entropy(
            self._logits(batch), batch["labels"], reduction="none", label_smoothing=self.config.smoothing
        )  # fmt: skip
        return weighted_sum(each, batch)

    @torch.no_grad()
    def measure(self, batch: Tensors) -> Tensors:
        logits, labels = self._logits(batch), batch["labels"]
        right = (logits.argmax(-1) == labels).float()
        loss = F.cross_entropy(logits, labels, reduction="none")
        return {"loss": weighted_sum(loss, batch), "accuracy": weighted_sum(right, batch)}

    def _logits(self, batch: Tensors) -> Tensor:
        inputs = {name: batch[name] for name in self.may_read if name in batch}
        return self.outputs("model", **inputs)
