"""Mask: who may look at whom, said once and rendered for every kernel."""

from __future__ import annotations

import operator
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from typing import Any, cast

import torch
from jaxtyping import Bool, Int
from torch import Tensor

from ..errors import InputError, InputTypeError

PerRow = int | Sequence[int] | Tensor  # one number for all, or one a row of the batch
Predicate = Callable[[Tensor, Tensor, Tensor, Tensor], Tensor]


@dataclass(frozen=True, kw_only=True, slots=True, weakref_slot=True, eq=False)
class Mask:
    """One predicate over (row b, head h, query i, key j); every field takes possibilities away.

    Query i stands at position p = i + offset among the keys. Values are checked here, on the host, and
    never inside `attend`; tensors on an accelerator are trusted, since reading them would make it wait.
    """

    causal: bool = False  # only keys j <= p
    window: int | None = None  # only keys nearer than this: p - j < window, and j - p < window
    lengths: PerRow | None = None  # keys that exist: j < length
    offset: PerRow | None = None  # where the first query stands; None says 0, and that queries = keys
    documents: Int[Tensor, "#b k"] | None = None  # a number a key: only keys of the query's document
    allow: Bool[Tensor, "..."] | None = None  # anything else that broadcasts to (b, h, q, k)

    def __post_init__(self) -> None:
        if self.window is not None and (not isinstance(self.window, int) or self.window < 1):
            raise InputError(f"window={self.window}: a query sees at least itself, so a window is an int of 1 or more")
        object.__setattr__(self, "lengths", _per_row("lengths", self.lengths))
        object.__setattr__(self, "offset", _per_row("offset", self.offset))
        if self.documents is not None and (self.documents.ndim != 2 or self.documents.is_floating_point()):
            raise InputError(
                f"documents has shape {tuple(self.documents.shape)} and type {self.documents.dtype}: "
                "expected integers (batch, keys)"
            )
        if self.allow is not None and self.allow.dtype != torch.bool:
            raise InputTypeError(f"allow is {self.allow.dtype}: expected torch.bool, true where one may look")

    def to(self, device: torch.device | str) -> Mask:
        """The mask with its tensors on a device: moved once, not by every layer."""
        return self.each(lambda t: t.to(device))

    def each(self, change: Callable[[Tensor], Tensor]) -> Mask:
        """The mask with every tensor of it replaced by a function of it."""
        names = ("lengths", "offset", "documents", "allow")
        new: dict[str, Any] = {n: change(getattr(self, n)) for n in names if isinstance(getattr(self, n), Tensor)}
        return replace(self, **new) if new else self

    @property
    def placed(self) -> bool:
        """It matters where the queries stand among the keys."""
        return self.causal or self.window is not None or self.documents is not None

    @property
    def free(self) -> bool:
        """Nothing is forbidden."""
        return not self.placed and self.lengths is None and self.allow is None

    @property
    def plain_causal(self) -> bool:
        """A kernel's own causal flag, which counts queries from the first key, says it all."""
        return (
            self.causal
            and (self.offset is None or (isinstance(self.offset, int) and self.offset == 0))
            and self.window is None
            and self.lengths is None
            and self.documents is None
            and self.allow is None
        )

    def fit(self, b: int, h: int, q: int, k: int) -> None:
        """Raise unless the mask can serve (b, h, q, k) scores: by shapes, and by values only on the host."""
        if self.placed and self.offset is None and q != k:
            raise InputError(
                f"{q} queries over {k} keys: say where the first query stands among the keys by Mask(offset=...)"
                + (f", for example offset={k - q} for the last {q}" if q < k else "")
            )
        if self.offset is self.lengths is self.documents is self.allow is None:
            return
        for name, rows in (("lengths", self.lengths), ("offset", self.offset)):
            if isinstance(rows, Tensor) and rows.shape[0] not in (1, b):
                raise InputError(f"{name} has {rows.shape[0]} rows: expected {b}, one a row of the batch")
        longest = _largest(self.lengths)
        if longest is not None and longest > k:
            raise InputError(f"lengths go up to {longest}: there are only {k} keys")
        if self.documents is not None and self.documents.shape not in ((1, k), (b, k)):
            raise InputError(f"documents has shape {tuple(self.documents.shape)}: expected ({b}, {k}), a number a key")
        if self.allow is not None:
            broadcasts("allow", self.allow, b, h, q, k)

    def predicate(self, k: int, device: torch.device | str) -> Predicate:
        """`allowed(b, h, i, j)` on index tensors that broadcast: also FlexAttention's `mask_mod`."""
        offset, lengths = _tensor(self.offset, device), _tensor(self.lengths, device)
        documents = None if self.documents is None else self.documents.to(device)
        allow = None if self.allow is None else four(self.allow.to(device))

        causal, window = self.causal, self.window  # a mask that its own predicate held would never be freed

        def allowed(b: Tensor, h: Tensor, i: Tensor, j: Tensor) -> Tensor:
            p = i if offset is None else i + offset[at(b, offset.shape[0])]
            ok = j >= 0
            if causal:
                ok = ok & (j <= p)
            if window is not None:
                ok = ok & (p - j < window) & (j - p < window)
            if lengths is not None:
                ok = ok & (j < lengths[at(b, lengths.shape[0])])
            if documents is not None:
                row = at(b, documents.shape[0])
                ok = ok & (documents[row, p.clamp(max=k - 1)] == documents[row, j])
            if allow is not None:
                y, x, m, n = allow.shape
                ok = ok & allow[at(b, y), at(h, x), at(i, m), at(j, n)]
            return ok

        return allowed

    def dense(
        self,
        q: int,
        k: int,
        *,
        rows: tuple[int, int] | None = None,
        keys: tuple[int, int] | None = None,
        device: torch.device | str = "cpu",
    ) -> Bool[Tensor, "#b #h r c"]:
        """Booleans for q queries over k keys, or a tile of them; batch and heads are 1 where all are alike."""
        rows, keys = rows or (0, q), keys or (0, k)
        sized = [t.shape[0] for t in (self.lengths, self.offset, self.documents) if isinstance(t, Tensor)]
        allow = torch.empty(1, 1, 1, 1) if self.allow is None else four(self.allow)
        b, h = next((n for n in (*sized, allow.shape[0]) if n != 1), 1), allow.shape[1]
        grid = (
            torch.arange(b, device=device)[:, None, None, None],
            torch.arange(h, device=device)[:, None, None],
            torch.arange(*rows, device=device)[:, None],
            torch.arange(*keys, device=device),
        )
        return self.predicate(k, device)(*grid).expand(b, h, rows[1] - rows[0], keys[1] - keys[0])

    @property
    def numbers(self) -> bool:
        """Plain numbers say it all, so `reach` is exact for a single query."""
        rows = isinstance(self.lengths, Tensor) or isinstance(self.offset, Tensor)
        return not rows and self.documents is None and self.allow is None

    def reach(self, start: int, stop: int, k: int) -> tuple[int, int]:
        """Keys low..high-1 outside which queries start..stop-1 cannot look, as far as plain numbers tell."""
        low, high = 0, k
        if isinstance(self.lengths, int):
            high = min(high, self.lengths)
        if not isinstance(self.offset, Tensor):
            offset = self.offset or 0
            assert not isinstance(offset, Sequence)
            if self.window is not None:
                low = max(low, start + offset - self.window + 1)
                high = min(high, stop + offset + self.window - 1)
            if self.causal:
                high = min(high, stop + offset)
        return min(low, k), max(high, min(low, k))


def at(index: Tensor, size: int) -> Tensor | int:
    """An axis of size 1 serves every index."""
    return 0 if size == 1 else index


def four(x: Tensor) -> Tensor:
    """A tensor with all its leading axes, 1 where it had none."""
    return x.reshape((1,) * (4 - x.ndim) + tuple(x.shape))


def broadcasts(name: str, x: Tensor, b: int, h: int, q: int, k: int) -> None:
    """Raise unless a tensor can serve (b, h, q, k) scores."""
    shape, full = tuple(x.shape), (b, h, q, k)
    pairs = zip(reversed(shape), reversed(full), strict=False)
    if len(shape) > 4 or any(have not in (1, want) for have, want in pairs):
        raise InputError(
            f"{name} has shape {shape}: expected one that broadcasts to (batch, heads, queries, keys) = {full}"
        )


def _tensor(value: PerRow | None, device: torch.device | str) -> Int[Tensor, "b"] | None:
    if isinstance(value, int | torch.SymInt):  # written on the device: a copy would make it wait
        return torch.full((1,), value, device=device)
    return None if value is None else torch.as_tensor(value, device=device)


def _readable(value: Tensor) -> bool:
    """Reading it makes no device wait and breaks no graph."""
    return value.device.type == "cpu" and not torch.compiler.is_compiling()


def _largest(value: PerRow | None) -> int | None:
    if isinstance(value, Tensor):
        return int(value.max()) if value.numel() and _readable(value) else None
    return value if isinstance(value, int) else None


def _per_row(name: str, value: PerRow | None) -> int | Tensor | None:
    if value is None:
        return None
    if isinstance(value, torch.SymInt):  # a length that export does not know yet
        return cast(int, value)
    if isinstance(value, Sequence | Tensor):
        value = torch.as_tensor(value)
        if value.ndim != 1 or (value.numel() and (value.is_floating_point() or value.dtype == torch.bool)):
            raise InputError(
                f"{name} has shape {tuple(value.shape)} and type {value.dtype}: expected an int, or integers (batch,)"
            )
        least = int(value.min()) if value.numel() and _readable(value) else 0
    else:
        try:
            value = least = operator.index(value)
        except TypeError:
            raise InputError(f"{name}={value!r}: expected an int, or integers (batch,)") from None
    if least < 0:
        raise InputError(f"{name} holds {least}: expected numbers of 0 or more")
    return value
