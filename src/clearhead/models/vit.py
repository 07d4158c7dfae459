"""The vision transformer: an image becomes a sequence of patches, which a Transformer encoder reads.

Dosovitskiy et al. 2021, section 3.1: patches, a class token, learned positions, pre-norm blocks. Convolutions instead
of patches and pooling by attention make it a compact convolutional transformer (Hassani et al. 2021, CCT); layer scale
and stochastic depth are those of DeiT III (Touvron et al. 2022), registers those of Darcet et al. 2024.

    images -> embed: patches or convolutions, + class token, registers, positions      (b, t, d)
           -> blocks -> norm -> pool: one vector -> head -> logits of each class       (b, classes)
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar, Literal

import torch
import torch.nn.functional as F
from jaxtyping import Float
from torch import Tensor, nn

from ..checks import at_least, fraction
from ..errors import InputError
from ..layers import (
    Attention,
    Block,
    ConvStem,
    Linear,
    Patches,
    Positions,
    ProjectionHead,
    ResidualStem,
    Rotary2d,
    make_norm,
)
from ..layers.choices import Join, MLPKind, Norm, Order, PatchPosition
from .model import ImageModel, check_heads, image_abilities


@dataclass(frozen=True, kw_only=True, slots=True)
class Config:
    """The sizes and choices of a vision transformer; the defaults are those of ViT-B/16."""

    # number of classes; 0: no output layer, the model embeds an image as one vector
    classes: int = 1000
    channels: int = 3  # channels of the images
    # height and width of training images in pixels, which positions are made for
    size: int | tuple[int, int] = 224
    # height and width of a patch in pixels: the ratio of the image and the grid of tokens
    patch: int = 16
    # linear map of each patch, log2(patch) convolutions with pooling, or as many stages of a ResNet
    stem: Literal["patch", "conv", "resnet"] = "patch"
    # conv, resnet: channels of the first layers; each further stage of a ResNet doubles them
    stem_width: int = 64
    width: int = 768  # width of the residual stream (d_model)
    depth: int = 12  # number of blocks
    heads: int = 12  # attention heads per block
    hidden: int | None = None  # width inside the MLP; None: 4 x width
    # how places are encoded
    positions: Literal["none", "learned", "sincos2d", "rotary"] = "learned"
    # learned: smooth positions where they are interpolated to a smaller grid
    antialias: bool = False
    # learned, sincos2d: add position vectors to the patches, or concatenate them
    join: Join = "add"
    registers: int = 0  # number of extra tokens that belong to no place
    # norms before each sublayer, after each addition, of each output, or before and of output
    order: Order = "pre"
    norm: Norm = "layer"  # kind of normalisation
    eps: float = 1e-6  # added to the variance in a norm
    mlp: MLPKind = "gelu"  # activation of the MLP; swiglu and geglu have a gate
    bias: bool = True  # linear maps have a bias
    # one vector: the class token, the mean of the patches, both side by side, a learned weighted
    # mean, or the class token and the first register side by side (the distillation token of DeiT,
    # Touvron et al. 2021)
    pool: Literal["cls", "mean", "both", "attention", "distilled"] = "cls"
    # output layer; mlp: one hidden layer of the model's width before it
    head: Literal["linear", "mlp"] = "linear"
    # outputs of a projection head, which self-supervised objectives compare; 0: none
    projection: int = 0
    # initial value of a learned factor per column of each sublayer; None: no factor
    layer_scale: float | None = None
    # stochastic depth: share of rows that skip a sublayer of the last block; grows linearly to it
    skip: float = 0.0
    # share dropped in training: of embeddings, attention weights, and what each sublayer adds
    dropout: float = 0.0

    def __post_init__(self) -> None:
        at_least(self, 1, "channels", "patch", "stem_width", "width", "heads", "hidden")
        at_least(self, 0, "classes", "depth", "registers", "projection")
        fraction(self, "dropout", "skip")
        check_heads(self.width, self.heads)
        head_width = self.width // self.heads
        if self.positions == "rotary" and head_width % 4:
            raise InputError(
                f"positions='rotary' rotates pairs by row and by column: the head width {head_width} is "
                "not a multiple of 4"
            )
        if self.pool == "distilled" and not self.registers:
            raise InputError(
                "pool='distilled' reads the class token and a register: expected registers=1 or more"
            )
        if self.join == "concatenate" and self.positions not in ("learned", "sincos2d"):
            raise InputError(
                f"join='concatenate' is for positions learned and sincos2d, not {self.positions!r}"
            )
        if self.stem != "patch" and (self.patch < 2 or self.patch & (self.patch - 1)):
            # each layer of such a stem halves the grid, so that the patch is 2^depth
            raise InputError(
                f"patch={self.patch} with stem={self.stem!r}: it halves the grid, expected 2, 4, 8 ..."
            )
        if any(n < 1 or n % self.patch for n in self.shape):
            raise InputError(
                f"size={self.size} does not divide into patches of {self.patch} x {self.patch}"
            )

    @property
    def shape(self) -> tuple[int, int]:
        """The height and width of training images in pixels."""
        if isinstance(self.size, int):
            return self.size, self.size
        return self.size


class ViT(ImageModel):
    """Images (b, c, height, width) of any size that divides into patches -> logits of classes (b, classes)."""

    methods: ClassVar[tuple[str, ...]] = ("encode", "grid", "parts", "states", "project")
    may_differ: ClassVar[frozenset[str]] = frozenset(
        {"dropout", "skip", "classes", "size", "pool", "head", "projection"}
    )
    # if pool needs no class token
    spare_parts: ClassVar[frozenset[str]] = frozenset({"embed.cls", "embed.cls_place"})
    head_parts: ClassVar[tuple[str, ...]] = (
        "head",
        "head_hidden",
        "pool",
        "pool_query",
        "projection",
    )
    config: Config

    def __init__(self, config: Config) -> None:
        super().__init__()
        c = self.config = config
        self.can = image_abilities(c.classes, c.projection)
        # rotary positions turn queries and keys; the others are joined with the patches
        joined: PatchPosition = "none"
        if c.positions != "rotary":
            joined = c.positions
        self.embed = Patches(
            c.width,
            patch=c.patch,
            channels=c.channels,
            grid=(c.shape[0] // c.patch, c.shape[1] // c.patch),
            cls=c.pool in ("cls", "both", "distilled"),
            registers=c.registers,
            positions=joined,
            join=c.join,
            antialias=c.antialias,
            stem=None if c.stem == "patch" else self._stem,
        )
        self.positions = Positions()
        if c.positions == "rotary":
            # used inside attention, and not by the patch embedding
            self.positions = Rotary2d(c.width // c.heads)
        self.blocks = nn.ModuleList()
        for i in range(c.depth):
            # from 0 in the first block to 1 in the last
            depth_share = i / (c.depth - 1) if c.depth > 1 else 1.0
            block = Block(
                c.width,
                c.heads,
                hidden=c.hidden,
                order=c.order,
                norm=c.norm,
                eps=c.eps,
                mlp=c.mlp,
                bias=c.bias,
                dropout=c.dropout,
                layer_scale=c.layer_scale,
                skip=c.skip * depth_share,
            )
            self.blocks.append(block)
        self.norm = make_norm("none" if c.order == "post" else c.norm, c.width, eps=c.eps)

        # one vector per image: a learned query attends to all tokens, or some of them are taken (see `states`)
        self.pool: Attention | None = None
        self.pool_query: nn.Parameter | None = None
        if c.pool == "attention":
            # one learned query, over tokens that are their own keys and values
            self.pool = Attention(c.width, project="none", out=False, score="dot")
            self.pool_query = nn.Parameter(torch.empty(1, 1, c.width).normal_(std=0.02))
        width = 2 * c.width if c.pool in ("both", "distilled") else c.width
        self.projection = ProjectionHead(width, c.projection) if c.projection else None
        self.head_hidden: Linear | None = None
        self.head: Linear | None = None
        if c.classes and c.head == "mlp":
            # back to the width of the model, whatever the width of the pooled vector is
            self.head_hidden = Linear(width, c.width)
            width = c.width
        if c.classes:
            self.head = Linear(width, c.classes)

    def _stem(self, width: int) -> nn.Module:
        c = self.config
        stem = {"conv": ConvStem, "resnet": ResidualStem}[c.stem]
        depth = c.patch.bit_length() - 1  # log2(patch), since each layer halves the grid
        return stem(width, channels=c.channels, depth=depth, hidden=c.stem_width)

    def example_inputs(self, rows: int, size: int, generator: torch.Generator) -> dict[str, Tensor]:
        c = self.config
        height, width = c.shape
        if height == width:  # a multiple of the patch, close to the size
            height = width = max(size - size % c.patch, c.patch)
        return {"images": torch.randn(rows, c.channels, height, width, generator=generator)}

    def encode(self, images: Float[Tensor, "b c height width"]) -> Float[Tensor, "b t d"]:
        """A vector per token: class token and registers, if there are any, then the patches row by row."""
        size = self.embed.size(*images.shape[-2:])
        # the row and column of each patch; tokens that belong to no place are at (0, 0), where nothing is rotated
        at = F.pad(self.embed.at(size, images.device), (0, 0, self.embed.special, 0))
        x = F.dropout(self.embed(images), self.config.dropout, self.training)
        for block in self.blocks:
            # no mask: every patch sees all others
            x = block(x, positions=self.positions, at=at)
        return self.norm(x)

    @property
    def grid_channels(self) -> int:
        """The channels of `grid`."""
        return self.config.width

    def grid(self, images: Float[Tensor, "b c height width"]) -> Float[Tensor, "b d y x"]:
        """A vector per place: the tokens of the patches."""
        return self.parts(images)[1]

    def parts(
        self, images: Float[Tensor, "b c height width"]
    ) -> tuple[Float[Tensor, "b s d"], Float[Tensor, "b d y x"]]:
        """The class token and registers, which have no place, and the grid of the patches."""
        x, special = self.encode(images), self.embed.special
        places = x[:, special:].mT  # (b, y x, d) -> (b, d, y x)
        return x[:, :special], places.unflatten(2, self.embed.size(*images.shape[-2:]))

    def states(self, images: Float[Tensor, "b c height width"]) -> Float[Tensor, "b p"]:
        """One vector per image, pooled from its tokens: the input of the output layer."""
        x, special = self.encode(images), self.embed.special
        # softmax(g(x)) x of Hassani et al. 2021, Eq. 2 and 3: the query is g
        if self.pool is not None and self.pool_query is not None:
            return self.pool(self.pool_query.repeat(x.shape[0], 1, 1), x)[:, 0]
        if self.config.pool == "cls":
            # the class token is always the first
            return x[:, 0]
        if self.config.pool == "distilled":  # (b, 2, d) -> (b, 2 d)
            return x[:, :2].flatten(1)
        mean = x[:, special:].mean(1)
        if self.config.pool == "mean":
            return mean
        return torch.cat([x[:, 0], mean], dim=-1)

    def forward(self, images: Float[Tensor, "b c height width"]) -> Float[Tensor, "b classes"]:
        x = self.states(images)
        # section 3.1: an MLP in pretraining, a linear layer after it
        if self.head_hidden is not None:
            # with a tanh, as in the authors' code
            x = torch.tanh(self.head_hidden(x))
        if self.head is None:
            return x
        return self.head(x)
