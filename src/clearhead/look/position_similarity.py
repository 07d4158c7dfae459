"""position_similarity: how alike the position embeddings of a model are."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np
import torch
from jaxtyping import Float
from torch import Tensor, nn

from .. import draw
from ..errors import InputError
from ..layers import Patches
from ..layers.positions.vectors import Vectors
from ..weights import Bundle
from .layer_features import first_convolution
from .model_inputs import network
from .vectors import unit

if TYPE_CHECKING:
    from matplotlib.figure import Figure

POSITIONS = 64  # positions that are shown of waves that have no end


@dataclass(frozen=True, kw_only=True, eq=False)
class PositionSimilarity(draw.Drawn):
    """The cosine of each position embedding with every other.

    Examples:
        >>> vit = clearhead.build("vit", size=(8, 12), patch=4, width=8, depth=1, heads=2, positions="sincos2d")
        >>> result = position_similarity(vit)
        >>> result.grid, result.matrix.shape
        ((2, 3), (6, 6))
        >>> figure = result.figure()
    """

    matrix: Float[np.ndarray, "t t"]  # cosines; positions of patches row by row
    grid: tuple[int, int] | None  # rows and columns of the patches; None: positions of a text

    def figure(self) -> Figure:
        """Draw, for each cell of the grid, a map of its similarity with all cells; of a text, the matrix."""
        title = "Similarity of position embeddings"
        if self.grid is None:
            return draw.matrix(self.matrix, most=1.0, xlabel="position", ylabel="position", title=title)
        rows, columns = self.grid
        maps = np.pad(self.matrix.reshape(rows, columns, rows, columns), [(0, 0), (0, 0), (0, 1), (0, 1)],
                      constant_values=np.nan)  # fmt: skip
        whole = maps.transpose(0, 2, 1, 3).reshape(rows * (rows + 1), columns * (columns + 1))[:-1, :-1]
        return draw.matrix(
            whole, most=1.0, title=title, rows=[""] * len(whole), columns=[""] * whole.shape[1],
            xlabel="column of the cell", ylabel="row of the cell",
        )  # fmt: skip

    def to_dict(self) -> dict[str, Any]:
        """Plain values, for JSON."""
        return {"matrix": self.matrix.tolist(), "grid": None if self.grid is None else list(self.grid)}


def position_similarity(model: Bundle | nn.Module) -> PositionSimilarity:
    """Return the cosine similarity of each position embedding with every other (Dosovitskiy et al. 2021, Fig. 7).

    Args:
        model: A Bundle, or any torch module, whose positions are vectors: learned, or sinusoids.

    Raises:
        InputError: If its positions are no vectors, as rotary ones are.

    Examples:
        >>> gpt = clearhead.build("gpt", vocab=5, context=8, width=8, depth=1, heads=2)
        >>> position_similarity(gpt).matrix.shape
        (8, 8)
    """
    net = network(model)
    for part in net.modules():
        for kind, find in FINDERS.items():
            found = find(part) if isinstance(part, kind) else None
            if found is not None:
                return _similar(*found)
    for name, table in net.named_parameters():  # the names of transformers, timm and torchvision
        if any(word in name for word in ("pos_embed", "position_embedding")) and table.ndim >= 2:
            flat = table.detach().reshape(-1, table.shape[-1])
            side = int(len(flat) ** 0.5)  # a square of patches after a class token and registers
            square = first_convolution(net) is not None
            return _similar(flat[len(flat) - side**2 :], (side, side)) if square else _similar(flat, None)
    raise InputError(
        f"the positions of this {type(net).__name__} are no vectors: expected learned or sinusoidal ones; rotary and "
        "relative positions act inside the attention (`watch` '...attn.scores')"
    )


def _similar(table: Tensor, grid: tuple[int, int] | None) -> PositionSimilarity:
    x = unit(table.detach().double().cpu())
    return PositionSimilarity(matrix=(x @ x.T).clamp(-1, 1).numpy(), grid=grid)


def _patch_positions(part: Any) -> tuple[Tensor, tuple[int, int]] | None:
    if part.places is not None:
        return part.places, part.grid
    return None if part.sincos is None else (part.sincos.vectors(part.at(part.grid)), part.grid)


def _text_positions(part: Any) -> tuple[Tensor, None]:
    return part.vectors(torch.arange(getattr(part, "context", POSITIONS), device="cpu")), None


# Our modules that hold position vectors, and what returns them with their grid.
FINDERS: dict[type, Any] = {Patches: _patch_positions, Vectors: _text_positions}
