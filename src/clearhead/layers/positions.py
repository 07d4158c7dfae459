"""Positions: how a set becomes a sequence. A kind adds to x, turns q and k, or biases the scores.

Attention treats its input as a set: permute the tokens and the answers are permuted, no more. Every kind
here breaks that in one of three places, and is a no-op in the other two:

    add(x, at)          none sinusoid learned sincos2d   (added to x, or concatenated to it)
    turn(q, k, at)      rotary
    bias(q_at, k_at)    alibi relative
"""

from __future__ import annotations

import math
import weakref
from collections.abc import Callable
from typing import Any
from weakref import WeakKeyDictionary

import torch
from jaxtyping import Float, Int
from torch import Tensor, nn

from ..errors import InputError
from .bias import Bias
from .exact_buffers import Exact

PAIRS = ("halves", "neighbours")  # which columns make a pair: i with i + e/2, or 2i with 2i+1


class Positions(Exact):
    """No positions at all, and the interface of all kinds. `at` holds positions, (t,) or one row each (b, t)."""

    extra = 0  # width that `add` appends to x
    biases = False  # whether `bias` says anything

    def add(self, x: Float[Tensor, "b t d"], at: Tensor | None = None) -> Float[Tensor, "b t o"]:
        return x

    def turn(
        self, q: Float[Tensor, "b h t e"], k: Float[Tensor, "b g t e"], at: Int[Tensor, "*b t"]
    ) -> tuple[Float[Tensor, "b h t e"], Float[Tensor, "b g t e"]]:
        return q, k

    def bias(self, q_at: Int[Tensor, "*p q"], k_at: Int[Tensor, "*r k"]) -> Bias | None:
        return None


class Vectors(Positions):
    """A vector a position, added to x (its width kept, meaning and place mixed) or concatenated to it."""

    def __init__(self, width: int, *, join: str = "add") -> None:
        super().__init__()
        if join not in ("add", "concatenate"):
            raise InputError(f"join={join!r}: expected add or concatenate")
        self.width, self.join = width, join
        self.extra = width if join == "concatenate" else 0

    def vectors(self, at: Tensor) -> Float[Tensor, "*b t d"]:
        """The vectors of the positions `at`."""
        raise NotImplementedError

    def add(self, x: Float[Tensor, "b t d"], at: Tensor | None = None) -> Float[Tensor, "b t o"]:
        at = torch.arange(x.shape[1], device=x.device) if at is None else at
        p = self.vectors(at).to(x.dtype)
        if self.join == "concatenate":
            return torch.cat([x, p.expand(*x.shape[:2], -1)], dim=-1)
        if p.shape[-1] != x.shape[-1]:
            raise InputError(f"positions of width {p.shape[-1]} cannot be added to tokens of width {x.shape[-1]}")
        return x + p


class Sinusoid(Vectors):
    """sin and cos of pos / base^(2i/d) in columns 2i and 2i+1: section 3.5 of Vaswani et al. 2017.

    With pairs="halves" the sines stand in the first half and the cosines in the second (tensor2tensor, Marian).
    """

    def __init__(self, width: int, *, base: float = 10_000.0, pairs: str = "neighbours", join: str = "add") -> None:
        super().__init__(width, join=join)
        if pairs not in PAIRS:
            raise InputError(f"pairs={pairs!r}: expected {' or '.join(PAIRS)}")
        self.base, self.pairs = base, pairs

    def vectors(self, at: Tensor) -> Float[Tensor, "*b t d"]:
        waves = _waves(at, self.width, self.base)
        return waves if self.pairs == "neighbours" else torch.cat([waves[..., 0::2], waves[..., 1::2]], dim=-1)


class Learned(Vectors):
    """A table with a row for each position of the trained context: nn.Embedding over positions."""

    def __init__(self, width: int, context: int, *, join: str = "add") -> None:
        super().__init__(width, join=join)
        self.context = context
        self.table = nn.Parameter(torch.randn(context, width) * 0.02)

    def vectors(self, at: Tensor) -> Float[Tensor, "*b t d"]:
        if at.device.type == "cpu" and not torch.compiler.is_compiling() and at.numel():
            least, most = int(at.min()), int(at.max())
            if least < 0 or most >= self.context:
                raise InputError(
                    f"position {least if least < 0 else most}: the learned table has positions 0 to {self.context - 1}"
                )
        return self.table[at]


class SinCos2d(Vectors):
    """Sinusoids of the row in one half of the width and of the column in the other (Chen et al. 2021, MoCo v3).

    `at` holds (y, x) pairs: (t, 2) or (b, t, 2).
    """

    def __init__(self, width: int, *, base: float = 10_000.0, join: str = "add") -> None:
        super().__init__(width, join=join)
        if width % 4:
            raise InputError(f"width={width}: a sine and a cosine of a row and of a column need a multiple of 4")
        self.base = base

    def add(self, x: Float[Tensor, "b t d"], at: Tensor | None = None) -> Float[Tensor, "b t o"]:
        if at is None:
            raise InputError(f"{x.shape[1]} tokens in which grid? Give their places: at=grid(y, x)")
        return super().add(x, at)

    def vectors(self, at: Tensor) -> Float[Tensor, "*b t d"]:
        if at.shape[-1] != 2:
            raise InputError(f"at has shape {tuple(at.shape)}: expected (..., 2), a row and a column a token")
        half = self.width // 2
        return torch.cat([_waves(at[..., 0], half, self.base), _waves(at[..., 1], half, self.base)], dim=-1)


def grid(y: int, x: int, device: torch.device | str = "cpu") -> Int[Tensor, "t 2"]:
    """The (row, column) of each cell of a y by x grid, row by row."""
    rows, columns = torch.arange(y, device=device), torch.arange(x, device=device)
    return torch.cartesian_prod(rows, columns).reshape(y * x, 2)


class Rotary(Positions):
    """Turn each pair of columns of q and k by an angle that grows with position (Su et al. 2021, Eq. 15).

    q . k then depends on the distance of the two positions only. `pairs` names which columns make a pair:
    "halves" i with i + e/2 (Llama, NeoX), "neighbours" 2i with 2i+1 (the paper). `scaling` stretches a
    context trained at `context` by `factor`: "linear" slows every angle down (Chen et al. 2023), "ntk" raises
    the base so that only slow angles slow down, "yarn" ramps between the two and warms the scores (Peng et al.
    2023), "llama3" keeps fast angles, slows slow ones, and blends between.
    """

    def __init__(
        self,
        head: int,
        *,
        base: float = 10_000.0,
        pairs: str = "halves",
        scaling: str | None = None,
        factor: float = 1.0,
        context: int | None = None,
    ) -> None:
        super().__init__()
        if head < 2 or head % 2:
            raise InputError(f"head={head}: rotary positions turn pairs of columns, so the head width must be even")
        if pairs not in PAIRS:
            raise InputError(f"pairs={pairs!r}: expected {' or '.join(PAIRS)}")
        if scaling not in (None, "linear", "ntk", "yarn", "llama3"):
            raise InputError(f"scaling={scaling!r}: expected linear, ntk, yarn or llama3")
        if scaling in ("yarn", "llama3") and context is None:
            raise InputError(f"scaling={scaling!r} needs context, the length that was trained")
        if factor < 1.0:
            raise InputError(f"factor={factor}: a context is stretched by 1 or more")
        self.head, self.pairs, self.loudness = head, pairs, 1.0
        if scaling == "ntk":
            base = base * factor ** (head / (head - 2)) if head > 2 else base
        speed = base ** -(torch.arange(0, head, 2, dtype=torch.float64, device="cpu") / head)  # radians a position
        if scaling == "linear":
            speed = speed / factor
        elif scaling == "yarn":
            assert context is not None
            # Column at which a wave makes `turns` turns over the trained context.
            column = [head * math.log(context / (turns * 2 * math.pi)) / (2 * math.log(base)) for turns in (32, 1)]
            low, high = max(math.floor(column[0]), 0), min(math.ceil(column[1]), head - 1)
            keep = 1 - (
                (torch.arange(head // 2, dtype=torch.float64, device="cpu") - low) / max(high - low, 0.001)
            ).clamp(0, 1)
            speed = speed * keep + speed / factor * (1 - keep)
            self.loudness = 0.1 * math.log(factor) + 1.0
        elif scaling == "llama3":
            assert context is not None
            turns = context * speed / (2 * math.pi)
            keep = ((turns - 1) / (4 - 1)).clamp(0, 1)  # under 1 turn: slow down; over 4: keep
            speed = speed * keep + speed / factor * (1 - keep)
        self.constant("speed", speed)
        self.speed: Tensor

    def turn(
        self, q: Float[Tensor, "b h t e"], k: Float[Tensor, "b g t e"], at: Int[Tensor, "*b t"]
    ) -> tuple[Float[Tensor, "b h t e"], Float[Tensor, "b g t e"]]:
        for name, x in (("q", q), ("k", k)):
            if x.shape[-1] != self.head:
                raise InputError(f"{name} has head width {x.shape[-1]}: these rotary positions turn {self.head}")
        cos, sin = self.angles(at, q.dtype)
        return self.turned(q, cos, sin), self.turned(k, cos, sin)

    def angles(self, at: Int[Tensor, "*b t"], dtype: torch.dtype) -> tuple[Tensor, Tensor]:
        """cos and sin of each column's angle, the sine with the sign it has there: made once for all layers.

        Angles are taken in at least float32: in half precision position 4,097 would be 4,096.
        """
        kind = torch.float64 if dtype == torch.float64 else torch.float32
        traced = torch.compiler.is_compiling() or torch._C._are_functorch_transforms_active()
        last = None if traced else _LAST.get(self)
        if last is not None and last[0]() is at and last[1:3] == (at._version, kind):
            return last[3], last[4]
        angle = at[..., None].to(kind) * self.speed.to(kind)  # (*b, t, e/2)
        angle = angle[:, None] if at.ndim == 2 else angle  # one axis for the heads
        cos, sin = angle.cos() * self.loudness, angle.sin() * self.loudness
        if self.pairs == "halves":
            cos, sin = torch.cat([cos, cos], dim=-1), torch.cat([-sin, sin], dim=-1)
        else:
            cos, sin = cos.repeat_interleave(2, dim=-1), torch.stack([-sin, sin], dim=-1).flatten(-2)
        if not traced and not at.is_inference():
            _LAST[self] = (weakref.ref(at), at._version, kind, cos, sin)
        return cos, sin

    def turned(self, x: Float[Tensor, "b h t e"], cos: Tensor, sin: Tensor) -> Float[Tensor, "b h t e"]:
        """x, turned by these angles."""
        y = x.to(cos.dtype)
        if self.pairs == "halves":
            partner = y.roll(self.head // 2, -1)
        else:
            partner = y.unflatten(-1, (-1, 2)).flip(-1).flatten(-2)
        return torch.addcmul(y * cos, partner, sin).to(x.dtype)


# The angles of the last positions that each has turned to: a step asks for the same in every layer.
_LAST: WeakKeyDictionary[Rotary, tuple[Any, ...]] = WeakKeyDictionary()


class Alibi(Positions):
    """Subtract from each score its distance times a slope of the head's own: forgetting (Press et al. 2022).

    The slopes of n = 2^m heads are 2^(-8/n), 2^(-16/n), ...; for other n the paper's code takes those of the
    power of two below and then every second one of twice that.
    """

    biases = True

    def __init__(self, heads: int) -> None:
        super().__init__()
        if heads < 1:
            raise InputError(f"heads={heads}: expected 1 or more")
        below = 2 ** int(math.log2(heads))
        slopes = [2.0 ** (-8 * i / below) for i in range(1, below + 1)]
        slopes += [2.0 ** (-4 * i / below) for i in range(1, 2 * (heads - below), 2)]
        self.constant("slope", -torch.tensor(slopes, dtype=torch.float32, device="cpu"))
        self.slope: Tensor

    def bias(self, q_at: Int[Tensor, "*p q"], k_at: Int[Tensor, "*r k"]) -> Bias:
        return Bias(q_at=q_at, k_at=k_at, slope=self.slope)


class Relative(Positions):
    """A learned bias a head and a bucket of distance (Raffel et al. 2020, section 2.1, T5).

    The nearest distances have a bucket each, further ones share logarithmically wider ones, and all past
    `reach` share the last. A decoder (`causal`) spends no bucket on the future.
    """

    biases = True

    def __init__(self, heads: int, *, buckets: int = 32, reach: int = 128, causal: bool = False) -> None:
        super().__init__()
        exact = buckets // 2 if causal else buckets // 4  # distances with a bucket of their own
        if exact < 1 or reach <= exact:
            raise InputError(
                f"buckets={buckets}, reach={reach}: expected at least {2 if causal else 4} buckets, and a reach past "
                f"the first {exact} distances, which have a bucket each"
            )
        self.reach = reach
        self.table = nn.Parameter(torch.zeros(buckets, heads))
        distances = torch.arange(-reach, reach + 1, device="cpu")
        self.constant("bucket", _bucket(distances, buckets, reach, causal))
        self.bucket: Tensor

    def bias(self, q_at: Int[Tensor, "*p q"], k_at: Int[Tensor, "*r k"]) -> Bias:
        return Bias(q_at=q_at, k_at=k_at, table=self.table[self.bucket].T)


def _waves(at: Tensor, width: int, base: float) -> Float[Tensor, "*b t d"]:
    """sin in even columns, cos in odd ones, of positions at/base^(2i/width)."""
    kind = torch.float32 if at.device.type == "mps" else torch.float64  # which Apple's GPUs do not have
    speed = base ** -(torch.arange(0, width, 2, dtype=kind, device=at.device) / width)
    angle = at[..., None].to(kind) * speed
    return torch.stack([angle.sin(), angle.cos()], dim=-1).flatten(-2)[..., :width]


def _bucket(distance: Int[Tensor, "d"], buckets: int, reach: int, causal: bool) -> Int[Tensor, "d"]:
    """The bucket of each distance key - query."""
    first = torch.zeros_like(distance)
    if causal:
        back = (-distance).clamp(min=0)
    else:
        buckets //= 2
        first = (distance > 0) * buckets  # the future has the second half
        back = distance.abs()
    exact = buckets // 2
    far = torch.log(back.clamp(min=1).float() / exact) / math.log(reach / exact) * (buckets - exact)
    return first + torch.where(back < exact, back, (exact + far.long()).clamp(max=buckets - 1))


POSITIONS = ("none", "sinusoid", "learned", "sincos2d", "rotary", "alibi", "relative")


def make_positions(
    kind: str,
    *,
    width: int,
    heads: int,
    head: int,
    context: int,
    causal: bool = False,
    join: str = "add",
    pairs: str | None = None,
    **rotary: Any,
) -> Positions:
    """The kind of positions a word names, with the sizes of the model that will use it; `rotary` is Rotary's own."""
    makers: dict[str, Callable[[], Positions]] = {
        "none": Positions,
        "sinusoid": lambda: Sinusoid(width, join=join, pairs=pairs or "neighbours"),
        "learned": lambda: Learned(width, context, join=join),
        "sincos2d": lambda: SinCos2d(width, join=join),
        "rotary": lambda: Rotary(head, pairs=pairs or "halves", context=context, **rotary),
        "alibi": lambda: Alibi(heads),
        "relative": lambda: Relative(heads, causal=causal),
    }
    if kind not in makers:
        raise InputError(f"positions={kind!r}: expected one of {', '.join(makers)}")
    if join != "add" and kind not in ("sinusoid", "learned", "sincos2d"):
        raise InputError(f"join={join!r} with positions={kind!r}: only sinusoid, learned and sincos2d join tokens")
    return makers[kind]()
