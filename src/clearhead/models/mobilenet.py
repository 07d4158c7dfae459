"""MobileNetV2: a convolutional network with few products, for small machines.

Sandler et al. 2018: the residual stream is narrow, and each block widens it, filters every channel by itself, and
narrows it again without an activation, which would lose information in so few channels (section 3.2 and 3.3).

    images -> stem -> stages of inverted residuals -> last: 1x1 -> mean over places -> head -> logits    (b, classes)
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

import torch.nn.functional as F
from jaxtyping import Float
from torch import Tensor, nn

from ..checks import at_least, fraction
from ..errors import InputError
from ..layers import ConvNorm, Linear
from .model import Model


@dataclass(frozen=True, kw_only=True, slots=True)
class Config:
    """The sizes of a MobileNetV2; the defaults are those of Table 2 of Sandler et al. 2018."""

    # number of classes; 0: no output layer, the model embeds an image as one vector
    classes: int = 1000
    channels: int = 3  # channels of the images
    width: int = 32  # channels of the first convolution
    widths: tuple[int, ...] = (16, 24, 32, 64, 96, 160, 320)  # channels per stage
    depths: tuple[int, ...] = (1, 2, 3, 4, 3, 3, 1)  # blocks per stage
    # by how much the first block of a stage shrinks the grid
    strides: tuple[int, ...] = (1, 2, 2, 2, 1, 2, 1)
    expansion: int = 6  # channels inside a block, in those of its input; in the first stage 1
    hidden: int = 1280  # channels of the last convolution; 0: there is none
    eps: float = 1e-5  # added to the variance in a batch norm
    dropout: float = 0.2  # share of the pooled vector dropped in training

    def __post_init__(self) -> None:
        at_least(self, 0, "classes", "hidden")
        at_least(self, 1, "channels", "width", "expansion")
        fraction(self, "dropout")
        if not len(self.widths) == len(self.depths) == len(self.strides) > 0:
            raise InputError(
                f"widths={self.widths}, depths={self.depths}, strides={self.strides}: expected one number per stage"
            )
        for name in ("widths", "depths", "strides"):
            if min(getattr(self, name)) < 1:
                raise InputError(f"{name}={getattr(self, name)}: expected 1 or more for each stage")


class InvertedResidual(nn.Module):
    """Widen, filter each channel, narrow; added to the input where the sizes agree (Fig. 3b of Sandler et al. 2018)."""

    def __init__(
        self, inputs: int, outputs: int, *, stride: int, expansion: int, eps: float
    ) -> None:
        super().__init__()
        hidden = inputs * expansion
        self.widen = ConvNorm(inputs, hidden, 1, eps=eps) if expansion > 1 else None
        self.filter = ConvNorm(hidden, hidden, 3, stride=stride, groups=hidden, eps=eps)
        self.narrow = ConvNorm(hidden, outputs, 1, eps=eps)
        self.residual = stride == 1 and inputs == outputs

    def forward(self, x: Float[Tensor, "b i height width"]) -> Float[Tensor, "b o y x"]:
        y = x
        if self.widen is not None:
            # ReLU6 is robust in arithmetic of low precision (section 4 of Sandler et al. 2018)
            y = F.relu6(self.widen(y))
        y = F.relu6(self.filter(y))
        y = self.narrow(y)  # a linear bottleneck: no activation (section 3.2)
        if self.residual:
            # the shortcut connects the narrow ends of two blocks (section 3.3)
            y = x + y
        return y


class MobileNet(Model):
    """Images (b, c, height, width) of any size -> logits of classes (b, classes)."""

    reads: ClassVar[str] = "images"
    methods: ClassVar[tuple[str, ...]] = ("grid", "states")
    may_differ: ClassVar[frozenset[str]] = frozenset({"classes", "dropout"})
    config: Config

    def __init__(self, config: Config) -> None:
        super().__init__()
        c = self.config = config
        self.can = frozenset({"classify" if c.classes else "embed"})
        self.stem = ConvNorm(c.channels, c.width, 3, stride=2, eps=c.eps)
        self.stages = nn.ModuleList()
        inputs, expansion = c.width, 1  # the first stage does not widen
        for outputs, depth, stride in zip(c.widths, c.depths, c.strides, strict=True):
            stage = nn.ModuleList()
            for _ in range(depth):
                # the rows of Table 2, where the expansion is t
                options = {"stride": stride, "expansion": expansion}
                stage.append(InvertedResidual(inputs, outputs, **options, eps=c.eps))
                inputs, stride = outputs, 1  # only the first block shrinks the grid
            self.stages.append(stage)
            expansion = c.expansion
        self.last = ConvNorm(inputs, c.hidden, 1, eps=c.eps) if c.hidden else None
        self.head = Linear(c.hidden or inputs, c.classes) if c.classes else None

    @property
    def grid_channels(self) -> int:
        """The channels of `grid`."""
        return self.config.hidden or self.config.widths[-1]

    def grid(self, images: Float[Tensor, "b c height width"]) -> Float[Tensor, "b d y x"]:
        """A vector per place: the output of the last convolution."""
        x = F.relu6(self.stem(images))
        for stage in self.stages:
            for block in stage:  # type: ignore[attr-defined]
                x = block(x)
        if self.last is not None:
            # 1x1: widens the narrow output of the last stage before it is pooled
            x = F.relu6(self.last(x))
        return x

    def states(self, images: Float[Tensor, "b c height width"]) -> Float[Tensor, "b d"]:
        """One vector per image, the mean over all places: the input of the output layer."""
        return self.grid(images).mean((2, 3))

    def forward(self, images: Float[Tensor, "b c height width"]) -> Float[Tensor, "b classes"]:
        x = F.dropout(self.states(images), self.config.dropout, self.training)
        if self.head is None:
            return x
        return self.head(x)
