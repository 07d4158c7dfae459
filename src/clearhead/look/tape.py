"""The Tape that a watch writes: records by address, and how addresses are named."""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping
from itertools import pairwise
from typing import Any, Literal

import torch
from torch import Tensor

from ..errors import InputError, InputKeyError, nearest
from .call import DenseCall, LazyCall
from .maps import AttentionMap, join
from .statistics import MEANING

Keep = Literal["all", "last"] | Callable[[Any], Any]


class Tape:
    """What a watch recorded, by address; the steps of a decoding loop join, queries following queries."""

    def __init__(self, leaves: dict[str, str | None], grad: bool) -> None:
        self._leaves = leaves  # what each address asks of the inside of an attention; None for a module's output
        self._calls: dict[str, list[Any]] = {name: [] for name in leaves}
        self._starts: dict[str, list[int]] = {name: [] for name in leaves}  # calls that begin another text
        self._text: dict[str, int] = {}  # the number of the last call's text
        self._grad = grad

    @property
    def names(self) -> list[str]:
        """The addresses that are watched, in the model's order."""
        return list(self._calls)

    def calls(self, name: str) -> list[Any]:
        """The records of an address, one a call."""
        if name not in self._calls:
            raise InputKeyError(f"{name!r} is not on this tape{nearest_addresses(name, self._calls)}")
        if not self._calls[name]:
            raise InputKeyError(
                f"nothing was recorded at {name!r}: the model did not run it inside the `with`, or ran inside a "
                "compiled function that this tape cannot see"
            )
        return [AttentionMap([x]) if isinstance(x, LazyCall | DenseCall) else x for x in self._calls[name]]

    def texts(self, name: str) -> list[Any]:
        """The record of each text: its decoding steps joined, as in tape[name]."""
        records = self.calls(name)
        bounds = [*self._starts[name], len(records)]
        return [self._joined(name, records[a:b]) for a, b in pairwise(bounds)]

    def __getitem__(self, name: str) -> Any:
        """The record of an address: a tensor, or an AttentionMap for weights; the steps of a decoding loop joined."""
        records = self.calls(name)
        if len(self._starts[name]) > 1:
            raise InputError(
                f"{name!r} was recorded for {len(self._starts[name])} texts: take them apart with tape.texts or "
                "tape.calls, or watch with keep='last'"
            )
        return self._joined(name, records)

    def _joined(self, name: str, records: list[Any]) -> Any:
        """The records of one text as one."""
        kind = self._leaves[name]
        if len(records) == 1:
            return records[0]
        problem = f"{len(records)} calls of {name!r} do not join: take them apart with tape.calls"
        if kind in ("k", "v", "scores"):  # each step's keys include those before it
            raise InputError(f"{problem}, or watch with keep='last'")
        if all(isinstance(r, AttentionMap) for r in records):
            return AttentionMap([source for record in records for source in record.sources])
        try:
            measured = kind is not None and kind in MEANING
            return join(str(kind), records) if measured else torch.cat(records, dim=2 if kind else 1)
        except (RuntimeError, TypeError) as cause:
            raise InputError(problem) from cause

    def __contains__(self, name: str) -> bool:
        return bool(self._calls.get(name))

    def match(self, pattern: str) -> dict[str, Any]:
        """The records of all addresses that a pattern names."""
        return {name: self[name] for name in matching(pattern, self._calls)}

    def gradient(self, name: str) -> Tensor:
        """The gradient that a backward pass left at an address watched with grad=True."""
        if not self._grad:
            raise InputError("this tape keeps no gradients: watch with grad=True")
        self.calls(name)  # raises if there are none
        kept = [x.weights if isinstance(x, DenseCall) else x for x in self._calls[name]]
        if not all(isinstance(x, Tensor) for x in kept):
            raise InputError(f"{name!r} is not one tensor: its gradient cannot be told")
        grads = [x.grad for x in kept if x.grad is not None]
        missing = len(kept) - len(grads)
        if missing:
            raise InputError(
                f"{missing} of {len(kept)} calls of {name!r} have no gradient: run backward on the model's output"
            )
        if len(grads) > 1 and (len(self._starts[name]) > 1 or self._leaves[name] in ("k", "v", "scores", "weights")):
            raise InputError(f"the gradients of {len(grads)} calls of {name!r} do not join: watch them one by one")
        return torch.cat(grads, dim=2 if self._leaves[name] else 1)

    def record(self, name: str, value: Any, keep: Keep, continues: bool, text: int = 0) -> None:
        """Add a call; it continues the one before if `continues` is True and it belongs to the same text."""
        if callable(keep):
            value = keep(AttentionMap([value]) if isinstance(value, LazyCall | DenseCall) else value)
        if keep == "last":
            self._calls[name].clear()
            self._starts[name].clear()
        if not self._calls[name] or not continues or self._text.get(name) != text:
            self._starts[name].append(len(self._calls[name]))
        self._text[name] = text
        self._calls[name].append(value)


def matching(pattern: str, names: Mapping[str, Any]) -> list[str]:
    """The names that a pattern names: `*` is one part, `**` any number."""
    parts = [{"*": r"[^.]+", "**": r".+"}.get(part, re.escape(part)) for part in pattern.split(".")]
    expression = re.compile(r"\.".join(parts).replace(r".+\.", r"(?:.+\.)?"))
    return [name for name in names if expression.fullmatch(name)]


def nearest_addresses(name: str, names: Mapping[str, Any]) -> str:
    """errors.nearest() over addresses, which may also be written with * for a number."""
    return nearest(name, [*names, *dict.fromkeys(re.sub(r"\b\d+\b", "*", n) for n in names)])
