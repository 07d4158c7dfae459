"""The residual network: convolutions whose blocks learn what to add to their input.

He et al. 2016: stages of blocks, each x + f(x) with batch norms, the first of a stage halving the grid. A stage can be
followed by self-attention over all places of the grid (Zhang et al. 2019, SAGAN), so that convolution and attention
can be compared in one network.

    images -> stem -> stages [-> attention] -> mean over places -> head -> logits of each class    (b, classes)
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar, Literal

import torch
import torch.nn.functional as F
from jaxtyping import Float
from torch import Tensor, nn

from ..checks import at_least
from ..errors import InputError
from ..layers import Attention, ConvNorm, Linear, ProjectionHead, Residual
from ..layers.choices import ResidualKind, Shrink
from ..layers.conv import EXPANSION
from .model import ImageModel, image_abilities


@dataclass(frozen=True, kw_only=True, slots=True)
class Config:
    """The sizes and choices of a residual network; the defaults are those of ResNet-18."""

    # number of classes; 0: no output layer, the model embeds an image as one vector
    classes: int = 1000
    # outputs of a projection head, which self-supervised objectives compare; 0: none
    projection: int = 0
    channels: int = 3  # channels of the images
    # large: 7x7 convolution and max pooling, a quarter of the size; small: 3x3
    stem: Literal["large", "small"] = "large"
    width: int = 64  # channels of the first stage; each stage doubles them
    depths: tuple[int, ...] = (2, 2, 2, 2)  # blocks per stage
    # two 3x3 convolutions; or 1x1, 3x3 and 1x1 to four times the width
    block: ResidualKind = "basic"
    # convolution of a bottleneck that has the stride: the 3x3, or the first 1x1
    shrink: Shrink = "middle"
    eps: float = 1e-5  # added to the variance in a batch norm
    attention: tuple[int, ...] = ()  # stages, counted from 0, that are followed by self-attention

    def __post_init__(self) -> None:
        at_least(self, 0, "classes", "projection")
        at_least(self, 1, "channels", "width")
        if not self.depths or min(self.depths) < 1:
            raise InputError(
                f"depths={self.depths}: expected the number of blocks of each stage, 1 or more"
            )
        if any(not 0 <= stage < len(self.depths) for stage in self.attention):
            raise InputError(
                f"attention={self.attention}: expected stages from 0 to {len(self.depths) - 1}"
            )


class GridAttention(nn.Module):
    """x + gamma * attention(x) over all places of a grid, with gamma = 0 at the start: Eq. 1 to 3 of Zhang et al. 2019.

    Queries, keys and values have an eighth of the channels, and scores are not scaled.
    """

    def __init__(self, channels: int) -> None:
        super().__init__()
        self.attn = Attention(channels, head=max(channels // 8, 1), bias=False, score="dot")
        # 0: the network begins with convolutions alone, and learns to add attention (section 3)
        self.gamma = nn.Parameter(torch.zeros(1))

    def forward(self, x: Float[Tensor, "b c y x"]) -> Float[Tensor, "b c y x"]:
        tokens = x.flatten(2).mT  # (b, c, y, x) -> (b, y x, c)
        out = self.attn(tokens).mT.unflatten(2, x.shape[2:])
        return x + self.gamma * out


class Stem(nn.Module):
    """The first convolution: 7x7 with stride 2 and max pooling for large images, 3x3 for small ones."""

    def __init__(self, kind: str, channels: int, width: int, *, eps: float) -> None:
        super().__init__()
        self.large = kind == "large"
        kernel, stride = 3, 1
        if self.large:
            # Table 1 of He et al. 2016; small images, such as CIFAR's, would lose their details
            kernel, stride = 7, 2
        self.first = ConvNorm(channels, width, kernel, stride=stride, eps=eps)

    def forward(self, images: Float[Tensor, "b c height width"]) -> Float[Tensor, "b d y x"]:
        x = F.relu(self.first(images))
        if self.large:  # 7x7 with stride 2, then pooling: a quarter of the size
            return F.max_pool2d(x, 3, stride=2, padding=1)
        return x


class ResNet(ImageModel):
    """Images (b, c, height, width) of any size -> logits of classes (b, classes)."""

    methods: ClassVar[tuple[str, ...]] = ("grid", "states", "project")
    may_differ: ClassVar[frozenset[str]] = frozenset({"classes", "projection"})
    config: Config

    def __init__(self, config: Config) -> None:
        super().__init__()
        c = self.config = config
        self.can = image_abilities(c.classes, c.projection)
        self.stem = Stem(c.stem, c.channels, c.width, eps=c.eps)
        self.stages = nn.ModuleList()
        inputs = c.width
        for i, depth in enumerate(c.depths):
            width, stage = c.width * 2**i, nn.ModuleList()
            stride = 2 if i else 1  # of the first block: each stage but the first halves the grid
            for _ in range(depth):
                # only the first block of a stage changes the size and the channels
                stage.append(
                    Residual(inputs, width, kind=c.block, stride=stride, shrink=c.shrink, eps=c.eps)
                )
                inputs, stride = width * EXPANSION[c.block], 1
            if i in c.attention:
                # last in its stage, where the features of the stage are complete
                stage.append(GridAttention(inputs))
            self.stages.append(stage)
        self.projection = ProjectionHead(inputs, c.projection) if c.projection else None
        self.head = Linear(inputs, c.classes) if c.classes else None

    @property
    def grid_channels(self) -> int:
        """The channels of `grid`."""
        c = self.config
        return c.width * 2 ** (len(c.depths) - 1) * EXPANSION[c.block]

    def grid(self, images: Float[Tensor, "b c height width"]) -> Float[Tensor, "b d y x"]:
        """A vector per place: the output of the last stage."""
        x = self.stem(images)
        for stage in self.stages:
            for block in stage:  # type: ignore[attr-defined]
                x = block(x)
        return x

    def states(self, images: Float[Tensor, "b c height width"]) -> Float[Tensor, "b d"]:
        """One vector per image, the mean over all places: the input of the output layer."""
        return self.grid(images).mean((2, 3))

    def forward(self, images: Float[Tensor, "b c height width"]) -> Float[Tensor, "b classes"]:
        x = self.states(images)
        if self.head is None:
            return x
        return self.head(x)
