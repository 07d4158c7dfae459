"""Rotary positions: queries and keys are rotated by angles that grow with position."""

from __future__ import annotations

import math
import weakref
from typing import Any
from weakref import WeakKeyDictionary

import torch
from jaxtyping import Float
from torch import Tensor

from ...checks import one_of
from ...errors import InputError
from ..choices import Pairs, Rope
from .interface import Positions
from .vectors import PAIRS

SCALINGS = ("linear", "ntk", "yarn", "llama3")


class Rotary(Positions):
    """Rotary positions: rotate each pair of columns of q and k by an angle proportional to the position.

    Su et al. 2021, Eq. 15: q . k then depends only on the distance of the two positions.

    Args:
        head: head dimension.
        base: the longest wavelength is almost 2 pi base tokens.
        pairs: which columns make a pair: "halves" i with i + e/2 (Llama, NeoX), "neighbours" 2i with 2i + 1 (the
            paper).
        scaling: how a model that was trained on a shorter context is stretched: "linear" slows every rotation down
            (Chen et al. 2023), "ntk" raises the base, so that only slow rotations slow down, "yarn" blends between
            the two and sharpens the scores (Peng et al. 2023), "llama3" keeps fast rotations, slows down slow ones,
            and blends between.
        factor: by how much it is stretched.
        context: tokens that it was trained on, before it was stretched.
        columns: columns of a head that are rotated, the first ones, an even number; all if not given.

    Examples:
        >>> q = torch.randn(1, 2, 5, 8)
        >>> turned, _ = Rotary(8).turn(q, q, torch.arange(5))
        >>> torch.equal(turned[:, :, 0], q[:, :, 0])  # position 0 is not rotated
        True
    """

    def __init__(
        self,
        head: int,
        *,
        base: float = 10_000.0,
        pairs: Pairs = "halves",
        scaling: Rope | None = None,
        factor: float = 1.0,
        context: int | None = None,
        columns: int | None = None,
    ) -> None:
        super().__init__()
        if columns is None:
            columns = head
        if columns < 2 or columns % 2 or columns > head:
            raise InputError(
                f"head={head}, columns={columns}: rotary positions rotate pairs of columns, expected an even number"
            )
        one_of("pairs", pairs, PAIRS)
        if scaling is not None:
            one_of("scaling", scaling, SCALINGS)
        if scaling in ("yarn", "llama3") and context is None:
            raise InputError(
                f"scaling={scaling!r} needs context, the number of tokens that the model was trained on"
            )
        if factor < 1.0:
            raise InputError(
                f"factor={factor}: expected 1 or more, since scaling stretches a context"
            )
        self.head, self.columns, self.pairs = head, columns, pairs
        self.attention_factor = 1.0
        if scaling == "yarn":  # sharper scores: Eq. 22 of Peng et al. 2023
            self.attention_factor = 0.1 * math.log(factor) + 1.0
        self.constant("speed", _speeds(columns, base, scaling, factor, context))
        self.speed: Tensor

    def turn(
        self, q: Float[Tensor, "b h t e"], k: Float[Tensor, "b g t e"], at: Tensor
    ) -> tuple[Float[Tensor, "b h t e"], Float[Tensor, "b g t e"]]:
        for name, x in (("q", q), ("k", k)):
            if x.shape[-1] != self.head:
                raise InputError(
                    f"{name} has head width {x.shape[-1]}: these rotary positions turn {self.head}"
                )
        cos, sin = self.angles(at, q.dtype)
        return self.turned(q, cos, sin), self.turned(k, cos, sin)

    def angles(self, at: Tensor, dtype: torch.dtype) -> tuple[Tensor, Tensor]:
        """Return cos and signed sin of each column's angle; computed once for all layers of a forward pass.

        They are at least float32: in half precision position 4,097 would be 4,096.
        """
        wide = torch.float64 if dtype == torch.float64 else torch.float32
        traced = torch.compiler.is_compiling() or torch._C._are_functorch_transforms_active()
        # inference tensors cannot be trained with
        inference = not traced and torch.is_inference_mode_enabled()
        last = None if traced else _LAST.get(self)
        if last is not None and last[0]() is at and last[1:4] == (at._version, wide, inference):
            return last[4], last[5]

        angle = self.angle(at.to(wide))  # (t, pairs) or (b, t, pairs)
        if angle.ndim == 3:
            angle = angle[:, None]  # an axis for the heads
        cos, sin = angle.cos() * self.attention_factor, angle.sin() * self.attention_factor
        # per column: the pair (a, b) becomes (a cos - b sin, b cos + a sin), each column with its partner times sin
        if self.pairs == "halves":
            # columns i and i + e/2 have the same angle
            cos = torch.cat([cos, cos], dim=-1)
            sin = torch.cat([-sin, sin], dim=-1)
        else:
            # columns 2i and 2i + 1 have the same angle
            cos = cos.repeat_interleave(2, dim=-1)
            sin = torch.stack([-sin, sin], dim=-1).flatten(-2)
        if not traced and not at.is_inference():
            _LAST[self] = (weakref.ref(at), at._version, wide, inference, cos, sin)
        return cos, sin

    def angle(self, at: Float[Tensor, "*b t"]) -> Float[Tensor, "*b t pairs"]:
        """Return the angle of each pair of columns at these positions."""
        return at[..., None] * self.speed.to(at.dtype)

    def turned(
        self, x: Float[Tensor, "b h t e"], cos: Tensor, sin: Tensor
    ) -> Float[Tensor, "b h t e"]:
        """Return x rotated by the angles that `angles` returned."""
        if self.columns < self.head:
            # partial rotation: the other columns carry no position
            first, rest = x.split([self.columns, self.head - self.columns], dim=-1)
            return torch.cat([self._turned(first, cos, sin), rest], dim=-1)
        return self._turned(x, cos, sin)

    def _turned(
        self, x: Float[Tensor, "b h t c"], cos: Tensor, sin: Tensor
    ) -> Float[Tensor, "b h t c"]:
        y = x.to(cos.dtype)
        if self.pairs == "halves":
            partner = y.roll(self.columns // 2, -1)
        else:
            partner = y.unflatten(-1, (-1, 2)).flip(-1).flatten(-2)
        return torch.addcmul(y * cos, partner, sin).to(x.dtype)


class Rotary2d(Rotary):
    """Rotary positions on a grid: half of the pairs rotate with the row, half with the column (Heo et al. 2024, Eq. 7).

    `at` holds (row, column) pairs, (t, 2) or (b, t, 2), whole numbers or not.

    Args:
        head: head dimension, a multiple of 4.
        base: ratio of the longest wavelength to the shortest is almost this; grids are small, and so is it.

    Examples:
        >>> q = torch.randn(1, 2, 6, 8)
        >>> turned, _ = Rotary2d(8).turn(q, q, grid(2, 3))
        >>> torch.equal(turned[:, :, 0], q[:, :, 0]), turned.shape  # the first place is not rotated
        (True, torch.Size([1, 2, 6, 8]))
    """

    def __init__(self, head: int, *, base: float = 100.0) -> None:
        if head < 4 or head % 4:
            raise InputError(
                f"head={head}: expected a multiple of 4, for pairs that rotate with the row and the column"
            )
        super().__init__(head // 2, base=base)
        self.head = self.columns = head

    def angle(self, at: Float[Tensor, "*b t 2"]) -> Float[Tensor, "*b t pairs"]:
        return (at[..., None] * self.speed.to(at.dtype)).flatten(-2)


# The angles of the last positions of each module: all layers of a forward pass need the same.
_LAST: WeakKeyDictionary[Rotary, tuple[Any, ...]] = WeakKeyDictionary()


def _speeds(
    head: int, base: float, scaling: Rope | None, factor: float, context: int | None
) -> Float[Tensor, "pairs"]:
    """The angle of each pair of columns, in radians per position."""
    if scaling == "ntk" and head > 2:
        base = base * factor ** (head / (head - 2))
    # theta_i = base^(-2i/e)
    speed = base ** -(torch.arange(0, head, 2, dtype=torch.float64, device="cpu") / head)
    if scaling == "linear":
        return speed / factor
    if scaling == "yarn":
        assert context is not None
        # pairs that make more than 32 turns over the trained context are kept, those of less than 1 are slowed down
        low = max(math.floor(_pair_with(32, head, base, context)), 0)
        high = min(math.ceil(_pair_with(1, head, base, context)), head - 1)
        pairs = torch.arange(head // 2, dtype=torch.float64, device="cpu")
        ramp = (pairs - low) / max(high - low, 0.001)
        keep = 1 - ramp.clamp(0, 1)
        return speed * keep + speed / factor * (1 - keep)
    if scaling == "llama3":
        assert context is not None
        # full turns of each pair within the trained context
        turns = context * speed / (2 * math.pi)
        keep = ((turns - 1) / (4 - 1)).clamp(0, 1)  # under 1 turn: slowed down; over 4: kept
        return speed * keep + speed / factor * (1 - keep)
    return speed


def _pair_with(turns: int, head: int, base: float, context: int) -> float:
    """Return the index (not rounded) of the pair of columns that makes `turns` full turns over the context."""
    return head * math.log(context / (turns * 2 * math.pi)) / (2 * math.log(base))
