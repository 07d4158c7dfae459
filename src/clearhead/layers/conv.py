"""Convolutions in front of a transformer: from an image to a grid of tokens."""

from __future__ import annotations

import torch.nn.functional as F
from jaxtyping import Float
from torch import Tensor, nn


class ConvStem(nn.Module):
    """Convolutions, each followed by a ReLU and a max pooling that halves the grid (Hassani et al. 2021, CCT, Eq. 1).

    Unlike a patch projection it looks at overlapping patches and keeps more of the neighbourhood of a pixel.

    Args:
        width: channels of the output, the width of a token.
        channels: channels of the image.
        depth: number of convolutions; the grid is 2^depth times smaller than the image.
        kernel: height and width of a convolution, an odd number.
        hidden: channels between the convolutions.

    Examples:
        >>> ConvStem(12, depth=2)(torch.zeros(1, 3, 32, 24)).shape
        torch.Size([1, 12, 8, 6])
    """

    def __init__(self, width: int, *, channels: int = 3, depth: int = 1, kernel: int = 3, hidden: int = 64) -> None:
        super().__init__()
        widths = [channels, *[hidden] * (depth - 1), width]
        self.layers = nn.ModuleList(
            nn.Conv2d(before, after, kernel, padding=kernel // 2, bias=False)
            for before, after in zip(widths, widths[1:], strict=False)
        )
        for layer in self.layers:
            nn.init.kaiming_normal_(layer.weight)

    def forward(self, image: Float[Tensor, "b c height width"]) -> Float[Tensor, "b d y x"]:
        x = image
        for layer in self.layers:
            x = F.max_pool2d(F.relu(layer(x)), 3, stride=2, padding=1)
        return x
