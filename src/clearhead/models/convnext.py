"""ConvNeXt: a convolutional network that takes over the choices of vision transformers, one by one.

Liu et al. 2022, section 2: patches as the first layer, few norms and activations, an MLP of four times the width, and a
7x7 convolution per channel where a transformer has attention: mixing of places and mixing of channels are apart.

    images -> stem: patches -> stages [norm, halve the grid] -> mean over places -> norm -> head -> logits  (b, classes)
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

import torch
from jaxtyping import Float
from torch import Tensor, nn

from ..checks import at_least, fraction
from ..errors import InputError
from ..layers import MLP, Linear, ProjectionHead, skip_rows
from .model import ImageModel, image_abilities


@dataclass(frozen=True, kw_only=True, slots=True)
class Config:
    """The sizes and choices of a ConvNeXt; the defaults are those of ConvNeXt-T."""

    # number of classes; 0: no output layer, the model embeds an image as one vector
    classes: int = 1000
    # outputs of a projection head, which self-supervised objectives compare; 0: none
    projection: int = 0
    channels: int = 3  # channels of the images
    patch: int = 4  # height and width of a patch in pixels
    width: int = 96  # channels of the first stage; each stage doubles them
    depths: tuple[int, ...] = (3, 3, 9, 3)  # blocks per stage
    kernel: int = 7  # height and width of the convolution of a block, an odd number
    # initial value of a learned factor per channel of each block; None: no factor
    layer_scale: float | None = 1e-6
    eps: float = 1e-6  # added to the variance in a norm
    last_eps: float = 1e-6  # the same in the norm of the pooled vector
    # stochastic depth: share of rows that skip the last block; grows linearly to it
    skip: float = 0.0

    def __post_init__(self) -> None:
        at_least(self, 0, "classes", "projection")
        at_least(self, 1, "channels", "patch", "width", "kernel")
        fraction(self, "skip")
        if self.kernel % 2 == 0:
            # an even kernel has no centre, and kernel // 2 of padding would change the size of the
            # grid
            raise InputError(f"kernel={self.kernel}: expected an odd number")
        if not self.depths or min(self.depths) < 1:
            raise InputError(
                f"depths={self.depths}: expected the number of blocks of each stage, 1 or more"
            )


class ChannelNorm(nn.LayerNorm):
    """A layer norm over the channels of each place of a grid."""

    def forward(self, x: Float[Tensor, "b c y x"]) -> Float[Tensor, "b c y x"]:
        return super().forward(x.permute(0, 2, 3, 1)).permute(0, 3, 1, 2)


class ConvBlock(nn.Module):
    """x + scale * MLP(norm(conv(x))), Fig. 4 of Liu et al. 2022: the convolution mixes places, the MLP channels."""

    def __init__(
        self, width: int, *, kernel: int, layer_scale: float | None, eps: float, skip: float
    ) -> None:
        super().__init__()
        self.conv = nn.Conv2d(width, width, kernel, padding=kernel // 2, groups=width)
        self.norm = nn.LayerNorm(width, eps=eps)
        self.mlp = MLP(width, 4 * width, kind="gelu")
        self.scale: nn.Parameter | None = None
        if layer_scale is not None:
            # small at first, so that every block starts close to the identity (Touvron et al. 2021,
            # CaiT)
            self.scale = nn.Parameter(torch.full((width,), layer_scale))
        self.skip = skip

    def forward(self, x: Float[Tensor, "b c y x"]) -> Float[Tensor, "b c y x"]:
        y = self.conv(x).permute(0, 2, 3, 1)  # (b, c, y, x) -> (b, y, x, c)
        y = self.mlp(self.norm(y))
        if self.scale is not None:
            y = y * self.scale
        y = y.permute(0, 3, 1, 2)
        if self.training and self.skip:
            # stochastic depth (Huang et al. 2016): some images of the batch skip this block
            y = skip_rows(y, self.skip)
        return x + y


class ConvNeXt(ImageModel):
    """Images (b, c, height, width) of any size -> logits of classes (b, classes)."""

    methods: ClassVar[tuple[str, ...]] = ("grid", "states", "project")
    may_differ: ClassVar[frozenset[str]] = frozenset({"classes", "skip", "projection"})
    config: Config

    def __init__(self, config: Config) -> None:
        super().__init__()
        c = self.config = config
        self.can = image_abilities(c.classes, c.projection)
        # "patchify": a convolution whose kernel is as large as its stride (section 2.2)
        patches = nn.Conv2d(c.channels, c.width, c.patch, stride=c.patch)
        self.stem = nn.Sequential(patches, ChannelNorm(c.width, eps=c.eps))
        self.stages = nn.ModuleList()
        width = c.width
        blocks, last = 0, max(sum(c.depths) - 1, 1)  # blocks so far, and the number of the last
        for i, depth in enumerate(c.depths):
            stage = nn.ModuleList()
            if i:  # every stage but the first halves the grid and doubles the channels
                halve = nn.Conv2d(width, 2 * width, 2, stride=2)
                stage.append(nn.Sequential(ChannelNorm(width, eps=c.eps), halve))
                width *= 2
            for _ in range(depth):
                # from 0 in the first block to c.skip in the last
                skip = c.skip * blocks / last
                options = {"layer_scale": c.layer_scale, "eps": c.eps, "skip": skip}
                stage.append(ConvBlock(width, kernel=c.kernel, **options))  # type: ignore[arg-type]
                blocks += 1
            self.stages.append(stage)
        self.norm = nn.LayerNorm(width, eps=c.last_eps)
        self.projection = ProjectionHead(width, c.projection) if c.projection else None
        self.head = Linear(width, c.classes) if c.classes else None
        for module in self.modules():
            if isinstance(module, nn.Conv2d | nn.Linear):  # Table 5 of Liu et al. 2022
                nn.init.trunc_normal_(module.weight, std=0.02)
                if module.bias is not None:
                    nn.init.zeros_(module.bias)

    def example_inputs(self, rows: int, size: int, generator: torch.Generator) -> dict[str, Tensor]:
        # a smaller grid has no place left
        least = self.config.patch * 2 ** (len(self.config.depths) - 1)
        return super().example_inputs(rows, max(size, least), generator)

    @property
    def grid_channels(self) -> int:
        """The channels of `grid`."""
        return self.norm.normalized_shape[0]

    def grid(self, images: Float[Tensor, "b c height width"]) -> Float[Tensor, "b d y x"]:
        """A vector per place: the normalised output of the last stage."""
        places = self._last_stage(images).permute(0, 2, 3, 1)  # (b, d, y, x) -> (b, y, x, d)
        return self.norm(places).permute(0, 3, 1, 2)

    def states(self, images: Float[Tensor, "b c height width"]) -> Float[Tensor, "b d"]:
        """One vector per image, the normalised mean over all places: the input of the output layer."""
        return self.norm(self._last_stage(images).mean((2, 3)))

    def _last_stage(self, images: Tensor) -> Tensor:
        x = self.stem(images)
        for stage in self.stages:
            for block in stage:  # type: ignore[attr-defined]
                x = block(x)
        return x

    def forward(self, images: Float[Tensor, "b c height width"]) -> Float[Tensor, "b classes"]:
        x = self.states(images)
        if self.head is None:
            return x
        return self.head(x)
