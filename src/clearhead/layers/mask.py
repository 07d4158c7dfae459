"""Mask: which keys each query may attend to, described once and rendered for every kernel."""

from __future__ import annotations

import operator
from collections.abc import Callable, Hashable, Sequence
from dataclasses import dataclass, replace
from typing import Any, Generic, TypeVar, cast
from weakref import WeakKeyDictionary

import torch
from jaxtyping import Bool, Int
from torch import Tensor

from ..errors import InputError, InputTypeError

PerRow = int | Sequence[int] | Tensor  # one number for all rows of the batch, or one per row
Predicate = Callable[[Tensor, Tensor, Tensor, Tensor], Tensor]


@dataclass(frozen=True, kw_only=True, slots=True, weakref_slot=True, eq=False)
class Mask:
    """Which keys each query may attend to: a predicate over (row b, head h, query i, key j).

    A mask without fields allows everything; every field that is given forbids some pairs. Query i is at position
    p = i + offset among the keys.

    Values are checked here, on the host, and never inside `attend`. Tensors on an accelerator are not checked, because
    reading them would wait for it. The mask keeps the tensors it is given: it follows a write to them, except one
    that torch does not count (through numpy or `.data`).

    Examples:
        >>> Mask(causal=True).dense(3, 3)[0, 0].int().tolist()
        [[1, 0, 0], [1, 1, 0], [1, 1, 1]]
        >>> Mask(causal=True, window=2, offset=2).dense(1, 3)[0, 0].int().tolist()  # the last query of three
        [[0, 1, 1]]
        >>> Mask(lengths=[2, 3]).dense(1, 3)[:, 0, 0].int().tolist()  # two rows, padded to three tokens
        [[1, 1, 0], [1, 1, 1]]
    """

    causal: bool = False  # allow only keys j <= p
    window: int | None = None  # allow only keys with |p - j| < window
    lengths: PerRow | None = None  # the number of keys that exist: allow only j < length
    # position of the first query among the keys; None: 0, and as many queries as keys
    offset: PerRow | None = None
    # document number of each key: allow only keys of the query's document
    documents: Int[Tensor, "#b k"] | None = None
    allow: Bool[Tensor, "..."] | None = None  # any other condition, broadcastable to (b, h, q, k)

    def __post_init__(self) -> None:
        if self.window is not None and (not isinstance(self.window, int) or self.window < 1):
            # a window of 0 would forbid even the query's own key
            raise InputError(
                f"window={self.window}: expected an int of 1 or more, since a query attends at least to itself"
            )
        object.__setattr__(self, "lengths", _per_row("lengths", self.lengths))
        object.__setattr__(self, "offset", _per_row("offset", self.offset))
        documents = self.documents
        if documents is not None and (documents.ndim != 2 or documents.is_floating_point()):
            raise InputError(
                f"documents has shape {tuple(documents.shape)} and type {documents.dtype}: "
                "expected integers (batch, keys)"
            )
        if self.allow is not None and self.allow.dtype != torch.bool:
            raise InputTypeError(
                f"allow is {self.allow.dtype}: expected torch.bool, True where attention is allowed"
            )

    def to(self, device: torch.device | str) -> Mask:
        """Return the mask with its tensors on a device, so that they are moved once and not by every layer."""
        return self.each(lambda t: t.to(device))

    def each(self, change: Callable[[Tensor], Tensor]) -> Mask:
        """Return the mask with `change` applied to each of its tensors."""
        new: dict[str, Any] = {}
        for name in ("lengths", "offset", "documents", "allow"):
            # ints stay as they are: they belong to no device
            tensor = getattr(self, name)
            if isinstance(tensor, Tensor):
                new[name] = change(tensor)
        if not new:
            return self
        return replace(self, **new)

    @property
    def version(self) -> tuple[int, ...] | None:
        """The write counters of the mask's tensors, for caches; None if one has no counter (an inference tensor)."""
        writes = []
        for tensor in (self.lengths, self.offset, self.documents, self.allow):
            if isinstance(tensor, Tensor):
                if tensor.is_inference():
                    return None
                writes.append(tensor._version)
        return tuple(writes)

    @property
    def placed(self) -> bool:
        """Whether the positions of the queries among the keys matter."""
        return self.causal or self.window is not None or self.documents is not None

    @property
    def free(self) -> bool:
        """Whether every query may attend to every key."""
        return not self.placed and self.lengths is None and self.allow is None

    @property
    def plain_causal(self) -> bool:
        """Whether a kernel's causal flag, which places the first query at the first key, describes the whole mask."""
        if not self.causal:
            return False
        at_first_key = self.offset is None or (isinstance(self.offset, int) and self.offset == 0)
        nothing_else = self.window is self.lengths is self.documents is self.allow is None
        return at_first_key and nothing_else

    def fit(self, b: int, h: int, q: int, k: int) -> None:
        """Raise unless the mask fits scores of shape (b, h, q, k); values are checked only on the host."""
        if self.placed and self.offset is None and q != k:
            # decoding asks for the last queries; the message says which offset that is
            example = f", for example offset={k - q} for the last {q}" if q < k else ""
            raise InputError(
                f"{q} queries over {k} keys: give the position of the first query among the keys by Mask(offset=...)"
                f"{example}"
            )
        if self.offset is self.lengths is self.documents is self.allow is None:
            return
        for name, rows in (("lengths", self.lengths), ("offset", self.offset)):
            if isinstance(rows, Tensor) and rows.shape[0] not in (1, b):
                raise InputError(
                    f"{name} has {rows.shape[0]} rows: expected {b}, one per row of the batch"
                )
        # values are read on the host only: elsewhere the check would wait for the device
        longest = _largest(self.lengths)
        if longest is not None and longest > k:
            raise InputError(f"lengths go up to {longest}: there are only {k} keys")
        if self.documents is not None and self.documents.shape not in ((1, k), (b, k)):
            raise InputError(
                f"documents has shape {tuple(self.documents.shape)}: expected ({b}, {k}), one number per key"
            )
        if self.allow is not None:
            broadcasts("allow", self.allow, b, h, q, k)

    def predicate(self, k: int, device: torch.device | str) -> Predicate:
        """Return `allowed(b, h, i, j)`, a function of broadcastable index tensors: FlexAttention's `mask_mod`."""
        offset, lengths = _tensor(self.offset, device), _tensor(self.lengths, device)
        documents = None if self.documents is None else self.documents.to(device)
        allow = None if self.allow is None else four(self.allow.to(device))
        # No reference to self: caches hold the predicate, and would keep the mask alive.
        causal, window = self.causal, self.window

        def allowed(b: Tensor, h: Tensor, i: Tensor, j: Tensor) -> Tensor:
            p = i  # the position of query i among the keys
            if offset is not None:
                p = i + offset[at(b, offset.shape[0])]
            ok = j >= 0  # True, in the shape of j
            if causal:
                ok = ok & (j <= p)
            if window is not None:
                ok = ok & (p - j < window) & (j - p < window)
            if lengths is not None:
                ok = ok & (j < lengths[at(b, lengths.shape[0])])
            if documents is not None:
                row = at(b, documents.shape[0])
                # a position past the last key would be out of bounds
                own = documents[row, p.clamp(max=k - 1)]
                ok = ok & (own == documents[row, j])
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
        """Return booleans for q queries over k keys, or for a tile of them.

        Batch and heads have size 1 if the mask is the same for all of them.
        """
        rows, keys = rows or (0, q), keys or (0, k)
        # the batch size of the result: of any field with a row per text
        b = h = 1
        for field in (self.lengths, self.offset, self.documents):
            # a tensor of one row serves all rows
            if isinstance(field, Tensor) and b == 1:
                b = field.shape[0]
        if self.allow is not None:
            allow = four(self.allow)
            h = allow.shape[1]
            if b == 1:
                b = allow.shape[0]
        grid = (
            torch.arange(b, device=device)[:, None, None, None],
            torch.arange(h, device=device)[:, None, None],
            torch.arange(*rows, device=device)[:, None],
            torch.arange(*keys, device=device),
        )
        allowed = self.predicate(k, device)(*grid)
        return allowed.expand(b, h, rows[1] - rows[0], keys[1] - keys[0])

    @property
    def numbers(self) -> bool:
        """Whether ints describe the whole mask, so that `reach` is exact for a single query."""
        rows = isinstance(self.lengths, Tensor) or isinstance(self.offset, Tensor)
        return not rows and self.documents is None and self.allow is None

    def reach(self, start: int, stop: int, k: int) -> tuple[int, int]:
        """Return (low, high): queries start..stop-1 attend to no key outside low..high-1, judging by the ints alone."""
        # each int narrows the range; tensors differ between rows, so that they say nothing about all
        low, high = 0, k
        if isinstance(self.lengths, int):
            high = min(high, self.lengths)
        if not isinstance(self.offset, Tensor):
            # the first query bounds the low end, the last one the high end
            offset = self.offset or 0
            assert not isinstance(offset, Sequence)
            if self.window is not None:
                low = max(low, start + offset - self.window + 1)
                high = min(high, stop + offset + self.window - 1)
            if self.causal:
                high = min(high, stop + offset)
        return min(low, k), max(high, min(low, k))


def at(index: Tensor, size: int) -> Tensor | int:
    """Return the index into an axis of this size; an axis of size 1 broadcasts."""
    return 0 if size == 1 else index


def four(x: Tensor) -> Tensor:
    """Return x with four axes, the missing leading ones of size 1."""
    return x.reshape((1,) * (4 - x.ndim) + tuple(x.shape))


def broadcasts(name: str, x: Tensor, b: int, h: int, q: int, k: int) -> None:
    """Raise unless x broadcasts to (b, h, q, k)."""
    shape, full = tuple(x.shape), (b, h, q, k)
    pairs = zip(reversed(shape), reversed(full), strict=False)
    if len(shape) > 4 or any(have not in (1, want) for have, want in pairs):
        raise InputError(
            f"{name} has shape {shape}: expected one that broadcasts to (batch, heads, queries, keys) = {full}"
        )


def _tensor(value: PerRow | None, device: torch.device | str) -> Int[Tensor, "b"] | None:
    if isinstance(value, int | torch.SymInt):  # created on the device: a copy would wait for it
        return torch.full((1,), value, device=device)
    if value is None:
        return None
    return torch.as_tensor(value, device=device)


def _readable(value: Tensor) -> bool:
    """Whether its values can be read without waiting for a device or breaking a graph."""
    return value.device.type == "cpu" and not torch.compiler.is_compiling()


def _largest(value: PerRow | None) -> int | None:
    if isinstance(value, Tensor):
        if value.numel() and _readable(value):
            return int(value.max())
        return None
    return value if isinstance(value, int) else None


def _per_row(name: str, value: PerRow | None) -> int | Tensor | None:
    if value is None:
        return None
    if isinstance(value, torch.SymInt):  # a dynamic length under torch.export
        return cast(int, value)
    if isinstance(value, Sequence | Tensor):
        value = torch.as_tensor(value)
        # an empty list becomes an empty tensor of floats
        integers = not value.is_floating_point() and value.dtype != torch.bool
        if value.ndim != 1 or not (integers or value.numel() == 0):
            raise InputError(
                f"{name} has shape {tuple(value.shape)} and type {value.dtype}: expected an int, or integers (batch,)"
            )
        least = 0
        if value.numel() and _readable(value):
            least = int(value.min())
    else:
        try:
            value = least = operator.index(value)
        except TypeError:
            raise InputError(f"{name}={value!r}: expected an int, or integers (batch,)") from None
    if least < 0:
        raise InputError(f"{name} holds {least}: expected numbers of 0 or more")
    return value


Value = TypeVar("Value")


class MaskCache(Generic[Value]):
    """Values computed from masks, kept as long as their mask lives and its tensors are not written to.

    One mask serves all layers of a forward pass, and often all steps of a search.
    """

    def __init__(self) -> None:
        self._entries: WeakKeyDictionary[Mask, tuple[tuple[int, ...], dict[Hashable, Value]]] = (
            WeakKeyDictionary()
        )

    def of(self, mask: Mask) -> dict[Hashable, Value]:
        """Return the dict of a mask's cached values, to be read and added to.

        A write to one of the mask's tensors empties them, and so does entering or leaving inference mode, because
        inference tensors cannot be trained with. They are not kept if a write could not be noticed.
        """
        writes = mask.version
        if writes is None:
            return {}
        version = (torch.is_inference_mode_enabled(), *writes)
        entry = self._entries.get(mask)
        if entry is None or entry[0] != version:  # new, or written to since
            entry = self._entries[mask] = (version, {})
        return entry[1]
