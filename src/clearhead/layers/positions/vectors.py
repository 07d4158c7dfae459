"""Position vectors: sinusoids, a learned table, and sinusoids over a grid."""

from __future__ import annotations

import torch
from jaxtyping import Float, Int
from torch import Tensor, nn

from ...checks import one_of
from ...errors import InputError
from ..choices import Join, Pairs
from .interface import Positions

JOINS = ("add", "concatenate")
PAIRS = ("halves", "neighbours")  # which columns make a pair: i with i + e/2, or 2i with 2i + 1


class Vectors(Positions):
    """Base class of encodings with one vector per position: override `vectors`.

    Args:
        width: width of the position vectors.
        join: "add" them to the tokens, or "concatenate" them with the tokens.

    Examples:
        >>> class Ramp(Vectors):
        ...     def vectors(self, at):
        ...         return at[..., None].expand(*at.shape, self.width) / 10
        >>> Ramp(1).add(torch.ones(1, 3, 1)).flatten().tolist()
        [1.0, 1.1..., 1.2...]
    """

    def __init__(self, width: int, *, join: Join = "add") -> None:
        super().__init__()
        one_of("join", join, JOINS)
        self.width, self.join = width, join
        self.extra = width if join == "concatenate" else 0

    def vectors(self, at: Tensor) -> Float[Tensor, "*b t d"]:
        """Return the vectors of the positions `at`."""
        raise NotImplementedError

    def add(self, x: Float[Tensor, "b t d"], at: Tensor | None = None) -> Float[Tensor, "b t o"]:
        if at is None:
            # all rows begin at position 0
            at = torch.arange(x.shape[1], device=x.device)
        p = self.vectors(at).to(x.dtype)
        if self.join == "concatenate":
            # (b, t, d) with (t, p) or (b, t, p) -> (b, t, d + p)
            return torch.cat([x, p.expand(*x.shape[:2], -1)], dim=-1)
        if p.shape[-1] != x.shape[-1]:
            raise InputError(
                f"positions of width {p.shape[-1]} cannot be added to tokens of width {x.shape[-1]}"
            )
        return x + p


class Sinusoid(Vectors):
    """Sines and cosines of pos / base^(2i/d): section 3.5 of Vaswani et al. 2017.

    Args:
        width: width of the position vectors.
        base: ratio of the longest wavelength to the shortest.
        pairs: "neighbours" has sine and cosine of a frequency in columns 2i and 2i + 1 (the paper); "halves" has all
            sines before all cosines (tensor2tensor, Marian).
        join: "add" them to the tokens, or "concatenate" them with the tokens.
        offset: the first token is at this position (M2M-100: 2).

    Examples:
        >>> Sinusoid(4).vectors(torch.tensor([0])).tolist()
        [[0.0, 1.0, 0.0, 1.0]]
    """

    def __init__(
        self,
        width: int,
        *,
        base: float = 10_000.0,
        pairs: Pairs = "neighbours",
        join: Join = "add",
        offset: int = 0,
    ) -> None:
        super().__init__(width, join=join)
        one_of("pairs", pairs, PAIRS)
        self.base, self.pairs, self.offset = base, pairs, offset

    def vectors(self, at: Tensor) -> Float[Tensor, "*b t d"]:
        waves = _waves(at + self.offset, self.width, self.base)
        if self.pairs == "neighbours":
            return waves
        return torch.cat([waves[..., 0::2], waves[..., 1::2]], dim=-1)


class Learned(Vectors):
    """A learned table with one row per position of the trained context.

    Args:
        width: width of the position vectors.
        context: number of positions.
        join: "add" them to the tokens, or "concatenate" them with the tokens.
        offset: rows of the table before that of the first token, which no token uses (RoBERTa and BART: 2).

    Examples:
        >>> Learned(4, context=16, join="concatenate").add(torch.zeros(2, 7, 12)).shape
        torch.Size([2, 7, 16])
    """

    def __init__(self, width: int, context: int, *, join: Join = "add", offset: int = 0) -> None:
        super().__init__(width, join=join)
        self.context, self.offset = context, offset
        self.table = nn.Parameter(torch.empty(context + offset, width).normal_(std=0.02))

    def vectors(self, at: Tensor) -> Float[Tensor, "*b t d"]:
        if at.device.type == "cpu" and not torch.compiler.is_compiling() and at.numel():
            # elsewhere the check would wait for the device
            for position in (int(at.min()), int(at.max())):
                if not 0 <= position < self.context:
                    raise InputError(
                        f"position {position}: the learned table has positions 0 to {self.context - 1}"
                    )
        if self.offset:
            # the first rows belong to no token
            return self.table[at + self.offset]
        return self.table[at]


class SinCos2d(Vectors):
    """Sinusoids of the row in the first half of the width and of the column in the second (Chen et al. 2021, MoCo v3).

    `at` holds (row, column) pairs, (t, 2) or (b, t, 2), and must be given: see `grid`.

    Args:
        width: width of the position vectors, a multiple of 4.
        base: ratio of the longest wavelength to the shortest.
        join: "add" them to the tokens, or "concatenate" them with the tokens.

    Examples:
        >>> SinCos2d(8).add(torch.zeros(1, 6, 8), grid(2, 3)).shape
        torch.Size([1, 6, 8])
    """

    def __init__(self, width: int, *, base: float = 10_000.0, join: Join = "add") -> None:
        super().__init__(width, join=join)
        if width % 4:
            raise InputError(
                f"width={width}: expected a multiple of 4, for sine and cosine of the row and the column"
            )
        self.base = base

    def add(self, x: Float[Tensor, "b t d"], at: Tensor | None = None) -> Float[Tensor, "b t o"]:
        if at is None:
            raise InputError(f"sincos2d needs the places of the {x.shape[1]} tokens: at=grid(y, x)")
        return super().add(x, at)

    def vectors(self, at: Tensor) -> Float[Tensor, "*b t d"]:
        if at.shape[-1] != 2:
            raise InputError(
                f"at has shape {tuple(at.shape)}: expected (..., 2), the row and column of each token"
            )
        half = self.width // 2
        rows = _waves(at[..., 0], half, self.base)
        columns = _waves(at[..., 1], half, self.base)
        return torch.cat([rows, columns], dim=-1)


def grid(y: int, x: int, device: torch.device | str = "cpu") -> Int[Tensor, "t 2"]:
    """Return the (row, column) of each cell of a grid, row by row.

    Args:
        y: number of rows.
        x: number of columns.
        device: device of the result.

    Examples:
        >>> grid(2, 2).tolist()
        [[0, 0], [0, 1], [1, 0], [1, 1]]
    """
    rows, columns = torch.arange(y, device=device), torch.arange(x, device=device)
    return torch.cartesian_prod(rows, columns).reshape(y * x, 2)


def _waves(at: Tensor, width: int, base: float) -> Float[Tensor, "*b t d"]:
    """sin in even columns and cos in odd ones, of the angles at / base^(2i/width)."""
    # Apple GPUs have no float64
    exact = torch.float32 if at.device.type == "mps" else torch.float64
    speed = base ** -(torch.arange(0, width, 2, dtype=exact, device=at.device) / width)
    angle = at[..., None].to(exact) * speed  # (..., width / 2)
    waves = torch.stack([angle.sin(), angle.cos()], dim=-1).flatten(-2)
    return waves[..., :width]  # an odd width has one sine more
