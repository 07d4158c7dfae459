"""From ids and images to tokens: tensors of shape (batch, tokens, width)."""

from __future__ import annotations

import torch
import torch.nn.functional as F
from jaxtyping import Float, Int
from torch import Tensor, nn

from ..errors import InputError
from .positions import SinCos2d, grid


class Tokens(nn.Module):
    """A row of a table for each id, times sqrt(width) if `scale` (section 3.4 of Vaswani et al. 2017)."""

    def __init__(self, vocab: int, width: int, *, scale: bool = False) -> None:
        super().__init__()
        self.table = nn.Parameter(torch.randn(vocab, width) * (width**-0.5 if scale else 0.02))
        self.scale = width**0.5 if scale else 1.0

    def forward(self, ids: Int[Tensor, "b t"]) -> Float[Tensor, "b t d"]:
        x = F.embedding(ids, self.table)
        return x if self.scale == 1.0 else x * self.scale

    def logits(self, x: Float[Tensor, "b t d"]) -> Float[Tensor, "b t v"]:
        """The tied readout: how well each row of the table matches x."""
        return x @ self.table.T


class Patches(nn.Module):
    """Cut an image into patches, a linear map of each, and positions: Eq. 1 of Dosovitskiy et al. 2021.

    Before the patches stand a class token, if `cls`, and `registers` tokens that belong to no place (Darcet et
    al. 2024). The position grid was laid for images of `grid` patches and is interpolated to any other image,
    square or not. Positions: learned, sincos2d or none; the class token has a position if they are learned.
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
        positions: str = "learned",
    ) -> None:
        super().__init__()
        if positions not in ("learned", "sincos2d", "none"):
            raise InputError(f"positions={positions!r}: expected learned, sincos2d or none for patches")
        self.patch = (patch, patch) if isinstance(patch, int) else patch
        self.grid = (grid, grid) if isinstance(grid, int) else grid
        self.project = nn.Conv2d(channels, width, self.patch, stride=self.patch)
        self.cls = nn.Parameter(torch.randn(1, 1, width) * 0.02) if cls else None
        self.registers = nn.Parameter(torch.randn(1, registers, width) * 0.02) if registers else None
        places = self.grid[0] * self.grid[1]
        self.places = nn.Parameter(torch.randn(places, width) * 0.02) if positions == "learned" else None
        self.cls_place = nn.Parameter(torch.randn(1, width) * 0.02) if positions == "learned" and cls else None
        self.sincos = SinCos2d(width) if positions == "sincos2d" else None

    @property
    def special(self) -> int:
        """How many tokens stand before the patches."""
        return (self.cls is not None) + (0 if self.registers is None else self.registers.shape[1])

    def size(self, height: int, width: int) -> tuple[int, int]:
        """The grid of patches of an image; raises if it cannot be cut evenly."""
        if height % self.patch[0] or width % self.patch[1] or not height or not width:
            raise InputError(
                f"an image of {height} x {width} does not divide into patches of {self.patch[0]} x {self.patch[1]}"
            )
        return height // self.patch[0], width // self.patch[1]

    def forward(self, image: Float[Tensor, "b c height width"]) -> Float[Tensor, "b t d"]:
        size = self.size(*image.shape[-2:])
        x = self.project(image).flatten(2).mT  # (b, d, y, x) -> (b, y x, d)
        if self.places is not None:
            x = x + resize(self.places, self.grid, size)
        elif self.sincos is not None:
            y, x_ = grid(*size, device=x.device).unbind(-1)  # on the scale of the grid that was laid
            x = self.sincos.add(x, torch.stack([y * (self.grid[0] / size[0]), x_ * (self.grid[1] / size[1])], dim=-1))
        before = []
        if self.cls is not None:
            before.append(self.cls if self.cls_place is None else self.cls + self.cls_place)
        if self.registers is not None:
            before.append(self.registers)
        return torch.cat([*(t.expand(x.shape[0], -1, -1) for t in before), x], dim=1)


def resize(table: Float[Tensor, "t d"], old: tuple[int, int], new: tuple[int, int]) -> Float[Tensor, "n d"]:
    """A grid of position vectors, interpolated (bicubic) to another size; the same grid comes back untouched."""
    if table.shape[0] != old[0] * old[1]:
        raise InputError(f"{table.shape[0]} positions are not a grid of {old[0]} x {old[1]}")
    if old == new:
        return table
    field = table.reshape(1, *old, -1).permute(0, 3, 1, 2)
    field = F.interpolate(field, size=new, mode="bicubic", align_corners=False)
    return field.permute(0, 2, 3, 1).reshape(new[0] * new[1], -1)
