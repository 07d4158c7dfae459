"""Embeddings: from token ids and images to tensors of shape (batch, tokens, width)."""

from __future__ import annotations

from collections.abc import Callable

import torch
import torch.nn.functional as F
from jaxtyping import Float, Int
from torch import Tensor, nn

from ..checks import one_of
from ..errors import InputError
from .choices import Join, PatchPosition
from .positions import SinCos2d, grid
from .positions.vectors import JOINS

PATCH_POSITIONS = ("learned", "sincos2d", "none")


class Tokens(nn.Module):
    """Token embedding: one row of a table per id.

    Args:
        vocab: number of ids.
        width: width of an embedding.
        scale: multiply by sqrt(width) (section 3.4 of Vaswani et al. 2017).

    Examples:
        >>> tokens = Tokens(vocab=5, width=4)
        >>> x = tokens(torch.tensor([[3, 0, 3]]))
        >>> x.shape, tokens.logits(x).shape
        (torch.Size([1, 3, 4]), torch.Size([1, 3, 5]))
    """

    def __init__(self, vocab: int, width: int, *, scale: bool = False) -> None:
        super().__init__()
        # numbers of a scaled embedding have variance 1
        self.scale, std = 1.0, 0.02
        if scale:
            # rows of length about 1, times sqrt(width)
            self.scale, std = width**0.5, width**-0.5
        self.table = nn.Parameter(torch.empty(vocab, width).normal_(std=std))

    def forward(self, ids: Int[Tensor, "b t"]) -> Float[Tensor, "b t d"]:
        x = F.embedding(ids, self.table)
        if self.scale != 1.0:
            x = x * self.scale
        return x

    def logits(self, x: Float[Tensor, "b t d"]) -> Float[Tensor, "b t v"]:
        """Return the logits of an output layer whose weights are the embedding table (tied)."""
        return x @ self.table.T


class Patches(nn.Module):
    """Patch embedding: cut an image into patches, map each linearly, add positions (Dosovitskiy et al. 2021, Eq. 1).

    The tokens are the class token, the registers (Darcet et al. 2024), then the patches row by row. Positions are
    interpolated to images of another size, square or not. The class token has a position only if they are learned and
    added.

    Args:
        width: width of a token.
        patch: height and width of a patch in pixels.
        channels: channels of the image.
        grid: rows and columns of patches that the positions are made for.
        cls: start with a class token.
        registers: number of register tokens, which belong to no place.
        positions: "learned", "sincos2d" or "none".
        join: "add" the position vectors to the patches, or "concatenate" half a width of each.
        antialias: smooth learned positions where they are interpolated to a smaller grid.
        stem: maps an image to (b, d, y, x) instead of the linear map of patches, with a cell for each patch.

    Examples:
        >>> patches = Patches(8, patch=4, grid=(2, 2), registers=1)
        >>> patches(torch.zeros(1, 3, 8, 8)).shape  # 1 class token, 1 register, 2 x 2 patches
        torch.Size([1, 6, 8])
        >>> patches(torch.zeros(1, 3, 8, 12)).shape  # positions are interpolated to 2 x 3 patches
        torch.Size([1, 8, 8])
    """

    def __init__(
        self,
        width: int,
        *,
        patch: int | tuple[int, int] = 16,
        channels: int = 3,
        grid: int | tuple[int, int] = 14,
        cls: bool = True,
        registers: int = 0,
        positions: PatchPosition = "learned",
        join: Join = "add",
        antialias: bool = False,
        stem: Callable[[int], nn.Module] | None = None,
    ) -> None:
        super().__init__()
        one_of("positions", positions, PATCH_POSITIONS)
        one_of("join", join, JOINS)
        self.join, self.antialias = join, antialias
        self.patch = (patch, patch) if isinstance(patch, int) else patch
        self.grid = (grid, grid) if isinstance(grid, int) else grid

        # concatenated positions have the second half of the columns to themselves
        patch_width = place_width = width
        if join == "concatenate" and positions != "none":
            # an odd width gives the patches one column more
            place_width = width // 2
            patch_width = width - place_width
        self.project: nn.Module
        if stem is None:
            self.project = nn.Conv2d(channels, patch_width, self.patch, stride=self.patch)
        else:
            self.project = stem(patch_width)

        self.cls: nn.Parameter | None = None
        self.registers: nn.Parameter | None = None
        self.places: nn.Parameter | None = None
        self.cls_place: nn.Parameter | None = None
        if cls:
            self.cls = _drawn(1, 1, width)
        if registers:
            self.registers = _drawn(1, registers, width)
        if positions == "learned":
            self.places = _drawn(self.grid[0] * self.grid[1], place_width)
            if cls and place_width == width:
                self.cls_place = _drawn(1, width)
        self.sincos = SinCos2d(place_width) if positions == "sincos2d" else None

    @property
    def special(self) -> int:
        """The number of tokens before the patches."""
        registers = 0 if self.registers is None else self.registers.shape[1]
        return (self.cls is not None) + registers

    def size(self, height: int, width: int) -> tuple[int, int]:
        """Return the rows and columns of patches of an image; raise if its size is not a multiple of the patch."""
        if height % self.patch[0] or width % self.patch[1] or not height or not width:
            raise InputError(
                f"an image of {height} x {width} does not divide into patches of {self.patch[0]} x {self.patch[1]}"
            )
        return height // self.patch[0], width // self.patch[1]

    def forward(self, image: Float[Tensor, "b c height width"]) -> Float[Tensor, "b t d"]:
        size = self.size(*image.shape[-2:])
        x = self.project(image).flatten(2).mT  # (b, d, y, x) -> (b, y x, d)
        if self.places is not None:
            # (t, d): learned for the grid of the training images, interpolated to this one
            places = resize(self.places, self.grid, size, antialias=self.antialias)
            x = self._joined(x, places)
        elif self.sincos is not None:
            # computed at fractional places of the training grid, so that no table is interpolated
            places = self.sincos.vectors(self.at(size, x.device))
            x = self._joined(x, places.to(x.dtype))

        # the class token and the registers come first, the same for every image
        tokens = []
        if self.cls is not None:
            # Eq. 1 of Dosovitskiy et al. 2021: x_class has a position of its own
            cls: Tensor = self.cls
            if self.cls_place is not None:
                cls = cls + self.cls_place
            tokens.append(cls.expand(x.shape[0], -1, -1))
        if self.registers is not None:
            # without positions, as in Darcet et al. 2024
            tokens.append(self.registers.expand(x.shape[0], -1, -1))
        return torch.cat([*tokens, x], dim=1)

    def at(self, size: tuple[int, int], device: torch.device | str = "cpu") -> Float[Tensor, "t 2"]:
        """Return the (row, column) of each patch of a grid of this size, in units of the grid it was made for."""
        row, column = grid(*size, device=device).unbind(-1)
        row = row * (self.grid[0] / size[0])
        column = column * (self.grid[1] / size[1])
        return torch.stack([row, column], dim=-1)

    def _joined(
        self, x: Float[Tensor, "b t p"], places: Float[Tensor, "t q"]
    ) -> Float[Tensor, "b t d"]:
        if self.join == "add":
            return x + places
        return torch.cat([x, places.expand(x.shape[0], -1, -1)], dim=-1)


def resize(
    table: Float[Tensor, "t d"],
    old: tuple[int, int],
    new: tuple[int, int],
    *,
    antialias: bool = False,
) -> Float[Tensor, "n d"]:
    """Interpolate a grid of position vectors to another size (bicubic); return the same table for the same size.

    Args:
        table: position vectors of the old grid, row by row.
        old: rows and columns of the old grid.
        new: rows and columns of the new grid.
        antialias: smooth before shrinking, as image libraries do.

    Examples:
        >>> resize(torch.zeros(4, 8), (2, 2), (3, 5)).shape
        torch.Size([15, 8])
    """
    if table.shape[0] != old[0] * old[1]:
        raise InputError(
            f"{table.shape[0]} positions are not a grid of {old[0]} x {old[1]}: expected {old[0] * old[1]}"
        )
    if old == new:
        return table
    field = table.reshape(1, *old, -1).permute(0, 3, 1, 2)  # (y x, d) -> (1, d, y, x)
    field = F.interpolate(field, size=new, mode="bicubic", align_corners=False, antialias=antialias)
    return field.permute(0, 2, 3, 1).reshape(new[0] * new[1], -1)


def _drawn(*shape: int) -> nn.Parameter:
    """A learned token or position, random with the standard deviation of BERT's."""
    return nn.Parameter(torch.empty(*shape).normal_(std=0.02))
