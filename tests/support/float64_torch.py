"""torch with float32 replaced by float64, for modeling files that compute norms and angles in float32."""

from typing import Any

import torch


class Float64Torch:
    float = float32 = torch.float64

    def __getattr__(self, name: str) -> Any:
        return getattr(torch, name)
