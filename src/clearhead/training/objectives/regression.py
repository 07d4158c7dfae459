"""Regression: the mean square error of vectors, x (b, d) and y (b, d)."""

from __future__ import annotations

from collections.abc import Mapping
from typing import ClassVar

import torch
from torch import Tensor

from .objective import Measurement, Objective, Role, Tensors, weighted_sum


class Regression(Objective):
    """The mean square error of vectors."""

    roles: ClassVar[Mapping[str, Role]] = {"model": Role(can="map")}
    reads: ClassVar[tuple[str, ...]] = ("x", "y")
    measurements: ClassVar[Mapping[str, Measurement]] = {"loss": Measurement("mean square/row")}

    def loss(self, batch: Tensors) -> Tensor:
        """The mean square error over the width, summed over rows."""
        return weighted_sum(
            (self.outputs("model", batch["x"]) - batch["y"]).square().mean(-1), batch
        )

    @torch.no_grad()
    def measure(self, batch: Tensors) -> Tensors:
        return {"loss": self.loss(batch)}
