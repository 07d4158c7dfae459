"""Convolutions: residual blocks, and stems that turn an image into a grid of tokens."""

from __future__ import annotations

from collections.abc import Callable
from itertools import pairwise

import torch.nn.functional as F
from jaxtyping import Float
from torch import Tensor, nn

from ..checks import one_of
from .choices import ResidualKind, Shrink

EXPANSION = {"basic": 1, "bottleneck": 4}  # channels of a residual block's output, in widths
SHRINKS = ("middle", "first")


def conv_norm(layer: ConvNorm, x: Float[Tensor, "b i height width"]) -> Float[Tensor, "b o y x"]:
    """Compute a ConvNorm by its two modules: norm(conv(x))."""
    out: Tensor = layer.norm(layer.conv(x))
    return out


class ConvNorm(nn.Module):
    """A convolution without bias, and a batch norm (Ioffe and Szegedy 2015, section 3.2).

    `compute(layer, x)` computes them; fast.accelerate sets a faster one for inference on the modules of a model.

    Args:
        inputs: channels of the input.
        outputs: channels of the output.
        kernel: height and width of the convolution, an odd number.
        stride: by how much the grid shrinks.
        groups: number of parts that the channels are divided into; each sees only itself.
        eps: added to the variance in the batch norm.

    Examples:
        >>> ConvNorm(3, 8, 3, stride=2)(torch.zeros(1, 3, 6, 6)).shape
        torch.Size([1, 8, 3, 3])
    """

    compute: Callable[[ConvNorm, Tensor], Tensor] = staticmethod(conv_norm)

    def __init__(
        self,
        inputs: int,
        outputs: int,
        kernel: int,
        *,
        stride: int = 1,
        groups: int = 1,
        eps: float = 1e-5,
    ) -> None:
        super().__init__()
        self.conv = nn.Conv2d(
            inputs, outputs, kernel, stride=stride, padding=kernel // 2, groups=groups, bias=False
        )
        nn.init.kaiming_normal_(self.conv.weight, mode="fan_out", nonlinearity="relu")
        self.norm = nn.BatchNorm2d(outputs, eps=eps)

    def forward(self, x: Float[Tensor, "b i height width"]) -> Float[Tensor, "b o y x"]:
        return self.compute(self, x)


def residual(block: Residual, x: Float[Tensor, "b i height width"]) -> Float[Tensor, "b o y x"]:
    """Compute a Residual layer by layer: relu(f(x) + shortcut(x))."""
    y = x
    for layer in block.layers[:-1]:
        # no ReLU after the last one: it comes after the sum
        y = F.relu(layer(y))
    y = block.layers[-1](y)
    if block.shortcut is not None:
        # option B of He et al. 2016, section 3.3: a projection, only where sizes differ
        x = block.shortcut(x)
    return F.relu(y + x)


class Residual(nn.Module):
    """relu(x + f(x)), Eq. 1 and 2 and Fig. 5 of He et al. 2016; where f changes the size, x is projected.

    The scale of f's last batch norm starts at 0, so that every block starts as the identity (Goyal et al. 2017, 5.1).
    `compute(block, x)` computes it; fast.accelerate sets a faster one.

    Args:
        inputs: channels of the input.
        width: channels inside; also of the output of a basic block, a quarter of those of a bottleneck.
        kind: "basic" (two 3x3 convolutions) or "bottleneck" (1x1, 3x3 and 1x1).
        stride: by how much the grid shrinks.
        shrink: convolution of a bottleneck that has the stride: the "middle" one, as torchvision's, or the "first", as
            in the paper.
        eps: added to the variance in the batch norms.

    Examples:
        >>> Residual(8, 4, kind="bottleneck", stride=2)(torch.zeros(1, 8, 6, 6)).shape
        torch.Size([1, 16, 3, 3])
    """

    compute: Callable[[Residual, Tensor], Tensor] = staticmethod(residual)

    def __init__(
        self,
        inputs: int,
        width: int,
        *,
        kind: ResidualKind = "basic",
        stride: int = 1,
        shrink: Shrink = "middle",
        eps: float = 1e-5,
    ) -> None:
        super().__init__()
        one_of("block", kind, EXPANSION)
        one_of("shrink", shrink, SHRINKS)
        outputs = width * EXPANSION[kind]
        if kind == "basic":
            layers = [
                ConvNorm(inputs, width, 3, stride=stride, eps=eps),
                ConvNorm(width, outputs, 3, eps=eps),
            ]
        else:
            # ResNet v1.5: the 3x3 convolution has the stride, so that no place is skipped unread
            early, late = 1, stride
            if shrink == "first":
                early, late = stride, 1
            layers = [
                ConvNorm(inputs, width, 1, stride=early, eps=eps),
                ConvNorm(width, width, 3, stride=late, eps=eps),
                ConvNorm(width, outputs, 1, eps=eps),
            ]
        nn.init.zeros_(layers[-1].norm.weight)
        self.layers = nn.ModuleList(layers)
        self.shortcut: ConvNorm | None = None
        if stride > 1 or inputs != outputs:
            self.shortcut = ConvNorm(inputs, outputs, 1, stride=stride, eps=eps)

    def forward(self, x: Float[Tensor, "b i height width"]) -> Float[Tensor, "b o y x"]:
        return self.compute(self, x)


class ConvStem(nn.Module):
    """Convolutions, each followed by a ReLU and a max pooling that halves the grid (Hassani et al. 2021, CCT, Eq. 1).

    Unlike a patch projection it looks at overlapping patches.

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

    def __init__(
        self, width: int, *, channels: int = 3, depth: int = 1, kernel: int = 3, hidden: int = 64
    ) -> None:
        super().__init__()
        widths = [channels, *[hidden] * (depth - 1), width]
        self.layers = nn.ModuleList(
            nn.Conv2d(before, after, kernel, padding=kernel // 2, bias=False)
            for before, after in pairwise(widths)
        )
        for layer in self.layers:
            nn.init.kaiming_normal_(layer.weight)  # type: ignore[arg-type]

    def forward(self, image: Float[Tensor, "b c height width"]) -> Float[Tensor, "b d y x"]:
        x = image
        for layer in self.layers:
            x = F.max_pool2d(F.relu(layer(x)), 3, stride=2, padding=1)
        return x


class ResidualStem(nn.Module):
    """The first stages of a ResNet and a convolution to the width of a token (a hybrid, Dosovitskiy et al. 2021, 3.1).

    Args:
        width: channels of the output, the width of a token.
        channels: channels of the image.
        depth: number of stages of two residual blocks; the grid is 2^depth times smaller than the image.
        hidden: channels of the first stage; each stage doubles them.

    Examples:
        >>> ResidualStem(12, depth=2, hidden=8)(torch.zeros(2, 3, 32, 24)).shape
        torch.Size([2, 12, 8, 6])
    """

    def __init__(self, width: int, *, channels: int = 3, depth: int = 1, hidden: int = 64) -> None:
        super().__init__()
        self.first = ConvNorm(channels, hidden, 3)
        self.stages = nn.ModuleList()
        inputs = hidden
        for i in range(depth):
            # each stage but the first halves the grid, and then `last` does: by 2^depth together
            outputs = hidden * 2**i
            first = Residual(inputs, outputs, stride=2 if i else 1)
            self.stages.append(nn.ModuleList([first, Residual(outputs, outputs)]))
            inputs = outputs
        self.last = nn.Conv2d(inputs, width, 3, stride=2, padding=1)

    def forward(self, image: Float[Tensor, "b c height width"]) -> Float[Tensor, "b d y x"]:
        x = F.relu(self.first(image))
        for stage in self.stages:
            for block in stage:  # type: ignore[attr-defined]
                x = block(x)
        return self.last(x)
