"""Constants that keep their dtype in a model of any dtype."""

from __future__ import annotations

from collections.abc import Callable

import torch
from torch import Tensor, nn


class Exact(nn.Module):
    """A module whose constants follow its device but keep their dtype, such as the angles of a bfloat16 model.

    They are computed on the CPU when the module is built, whatever device it is built for (a meta device too),
    and are not part of its state dict.
    """

    def constant(self, name: str, value: Tensor) -> None:
        """Register `value` as a constant attribute."""
        self.__dict__.setdefault("_exact", {})[name] = value
        self.register_buffer(name, value, persistent=False)

    def _apply(self, fn: Callable[[Tensor], Tensor], recurse: bool = True) -> Exact:
        super()._apply(fn, recurse)
        for name, value in self.__dict__.get("_exact", {}).items():
            device = self.get_buffer(name).device
            narrow = device.type == "mps" and value.dtype == torch.float64  # Apple GPUs have no float64
            self.register_buffer(name, value.to(device, torch.float32 if narrow else value.dtype), persistent=False)
        return self
