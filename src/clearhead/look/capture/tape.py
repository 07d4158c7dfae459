"""The Tape of a watch: records by address, the decoding steps of each text joined; those of different texts are not."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator, Mapping
from itertools import pairwise
from typing import Any, Literal

import torch
from torch import Tensor, nn

from ...errors import InputError, InputKeyError
from ...models.hooks import Session, call_before
from ...models.text_events import add_listener, remove_listener
from ..maps.attention_map import AttentionMap, join
from ..maps.call import DenseCall, LazyCall
from ..maps.statistics import MEANING
from .addresses import joined, matching, nearest_addresses

Keep = Literal["all", "last"] | Callable[[Any], Any]
# each decoding step has those of the steps before it too: they do not join
GROWING = ("k", "v", "scores")


class TextCounter:
    """Numbers the texts that one watch sees, and counts the calls of the watched model.

    Args:
        root: The watched model.
        thread: The thread whose calls are recorded.
    """

    def __init__(self, root: nn.Module, thread: int) -> None:
        self.root, self.thread = root, thread
        self.number = 0  # of the present text
        self.calls = 0  # of the watched model itself
        self.searching = False  # a search runs: every call belongs to the text that it announced
        self._part = False  # the watched model is a part of the one that the search runs

    def announce(self, model: nn.Module) -> None:
        """Begin another text: a search on `model` starts."""
        # Searches in other threads are counted by other watches.
        if threading.get_ident() != self.thread:
            return
        self.number += 1
        self.searching = True
        self._part = model is not self.root and self.root in set(model.modules())

    def called(self, *_: Any) -> None:
        """Count a call of the watched model (a forward pre-hook).

        A search runs `start`, `read` and `step` of its model, and never the model itself: such a call is another text.
        """
        if threading.get_ident() != self.thread:
            return
        self.calls += 1
        # A watched part of the model is called by its search, so that its calls belong to the text.
        if self.searching and not self._part:
            self.searching = False
            self.number += 1

    def follow(self, session: Session) -> None:
        """Count texts and calls until the session ends."""
        session.undo_with(lambda: remove_listener(self.root, self.announce))
        add_listener(self.root, self.announce)
        call_before(session, [self.root], self.called)


class Tape:
    """The records of a watch by address, as `watch` gives it.

    `tape[name]` is the record of one text: a tensor, or an AttentionMap for weights, with the steps of a decoding loop
    joined. Several texts are taken apart with `texts`, single calls with `calls`.

    Args:
        leaves: For each watched address the name of the activation inside an attention; None for a module's output.
        grad: Whether gradients are kept.
        possible: As `leaves`, for addresses that exist only if the model calls attention there, in the model's order.

    Examples:
        >>> model = clearhead.build("gpt", vocab=5, context=8, width=8, depth=2, heads=2).eval()
        >>> with watch(model, "blocks.*.attn.entropy") as tape:
        ...     logits = model(torch.tensor([[1, 2, 3]]))
        >>> tape.names
        ['blocks.0.attn.entropy', 'blocks.1.attn.entropy']
        >>> tape["blocks.0.attn.entropy"].shape
        torch.Size([1, 2, 3])
    """

    def __init__(
        self,
        leaves: dict[str, str | None],
        grad: bool,
        possible: Mapping[str, str | None] | None = None,
    ) -> None:
        self._leaves = leaves
        self._known = frozenset(leaves)
        self._grad = grad
        # Of each address: its records, one per call; the indices of calls that begin another text; the number of
        # earlier queries that a call replaces, by its index; and the number of the last call's text.
        self._calls: dict[str, list[Any]] = {name: [] for name in leaves}
        self._starts: dict[str, list[int]] = {name: [] for name in leaves}
        self._replaced: dict[str, dict[int, int]] = {name: {} for name in leaves}
        self._text: dict[str, int] = {}
        # Addresses that only running a foreign model shows, in the model's order, and why they have no record.
        self._possible = dict(possible or {})
        self._order = {name: i for i, name in enumerate(self._possible)}
        self._unseen = ""
        self.unrecorded: dict[str, str] = {}  # addresses that cannot be recorded, and why

    def __repr__(self) -> str:
        """One line: how many addresses have a record, and the first and the last of them."""
        names = list(self)
        if not names:
            return "Tape(no records)"
        shown = ", ".join(map(repr, names))
        if len(names) > 3:
            shown = f"{names[0]!r}, ..., {names[-1]!r}"
        return f"Tape({len(names)} with a record: {shown})"

    @property
    def names(self) -> list[str]:
        """The addresses with a record, in the model's order; before the first record, those that are known to exist."""
        recorded = list(self)
        if recorded:
            return recorded
        known = [name for name in self._calls if name in self._known]
        return [name for name in known if name not in self.unrecorded]

    def calls(self, name: str) -> list[Any]:
        """The records of an address, one per call."""
        if self._calls.get(name):
            return [_shown(record) for record in self._calls[name]]
        if name in self.unrecorded:
            raise InputKeyError(f"nothing was recorded at {name!r}: {self.unrecorded[name]}")
        # A module that was watched and did not run, or ran where no hook is called.
        if name in self._calls:
            raise InputKeyError(
                f"nothing was recorded at {name!r}: the model did not run it inside the `with`, or ran inside a "
                "compiled function that this tape cannot see"
            )
        # A foreign model's attention, which this run did not show.
        if name in self._possible:
            raise InputKeyError(
                f"nothing was recorded at {name!r}: {self._unseen or 'the model did not run yet'}"
            )
        if "*" in str(name):
            raise InputKeyError(
                f"{name!r} is a pattern: expected one address, or tape.match({name!r})"
            )
        raise InputKeyError(f"{name!r} is not on this tape{nearest_addresses(name, self._calls)}")

    def texts(self, name: str) -> list[Any]:
        """The records of an address, one per text, the decoding steps of each text joined.

        The texts of a task such as `generate` or `translate` are in the order given, and without padding: a watched
        model runs them one by one. A search that forgets a part of its text (slide=True) begins another record there.

        In a beam search the rows of a step are its beams, in the order of that step, whichever beams they continue.
        Rows that share a source attend to it together, as one row with a query per beam. For the attention of one
        answer, give it to `look.attention` as the target.

        In a model of transformers whose cache was cropped, as after rejected drafts, later steps replace the queries
        from there on; `calls` has all of them.
        """
        records = self.calls(name)
        bounds = [*self._starts[name], len(records)]
        return [self._joined(name, records[a:b], a) for a, b in pairwise(bounds)]

    def __getitem__(self, name: str) -> Any:
        """The record of an address: a tensor, or an AttentionMap for weights; the steps of a decoding loop joined."""
        records = self.calls(name)
        if len(self._starts[name]) > 1:
            raise InputError(
                f"{name!r} was recorded for {len(self._starts[name])} texts: take them apart with tape.texts or "
                "tape.calls, or watch with keep='last'"
            )
        return self._joined(name, records)

    def _joined(self, name: str, records: list[Any], first: int = 0) -> Any:
        """The records of one text as one; `first` is the index of its first call."""
        leaf = self._leaves[name]
        records = self._without_replaced(name, records, first)
        if len(records) == 1:
            return records[0]
        problem = f"{len(records)} calls of {name!r} do not join: take them apart with tape.calls"
        # Keys, values and scores of a step contain those of the steps before.
        if leaf in GROWING:
            raise InputError(f"{problem}, or watch with keep='last'")
        records = _repeat_rows(records)
        # A call per step becomes one map, whose sources stay apart.
        if all(isinstance(record, AttentionMap) for record in records):
            return AttentionMap([source for record in records for source in record.sources])
        try:
            if leaf in MEANING:
                return join(str(leaf), records)
            # queries are axis 2 of (b, h, q, ...), tokens axis 1 of a module's (b, t, d)
            return torch.cat(records, dim=2 if leaf else 1)
        except (RuntimeError, TypeError, IndexError) as cause:
            raise InputError(problem) from cause

    def _without_replaced(self, name: str, records: list[Any], first: int) -> list[Any]:
        """The records of one text without the queries that later steps of it have replaced."""
        calls = range(first, first + len(records))
        # Indices of calls are counted over all texts: from the first call of this one.
        replaced = {i - first: n for i, n in self._replaced[name].items() if i in calls}
        if not replaced or self._leaves[name] in GROWING:
            return records
        # What keys receive is a sum over queries, in which single ones cannot be replaced.
        has_queries = self._leaves[name] != "received" and all(
            isinstance(record, AttentionMap | Tensor) and len(record.shape) >= 3
            for record in records
        )
        if not has_queries:
            raise InputError(
                f"{len(records)} calls of {name!r} do not join, because some steps replace queries of steps before "
                "them, as those of rejected drafts: take the calls apart with tape.calls, or watch weights"
            )
        kept: list[Any] = []
        for i, record in enumerate(records):
            over = replaced.get(i, 0)
            while over and kept:  # from the end: a step may replace several steps before it
                last = kept.pop()
                queries = last.shape[2] - over  # that are left of it
                over = max(0, -queries)
                if queries > 0:
                    kept.append(_cut(last, queries))
            kept.append(record)
        return kept

    def __contains__(self, name: str) -> bool:
        """Whether anything was recorded at an address."""
        return bool(self._calls.get(name))

    def __iter__(self) -> Iterator[str]:
        """The addresses at which something was recorded, in the model's order."""
        return (name for name in self._calls if self._calls[name])

    def match(self, pattern: str) -> dict[str, Any]:
        """The records of all addresses that a pattern matches."""
        return {name: self[name] for name in matching(pattern, self._calls)}

    def gradient(self, name: str) -> Tensor:
        """The gradient that a backward pass left at an address watched with grad=True."""
        if not self._grad:
            raise InputError("this tape keeps no gradients: watch with grad=True")
        self.calls(name)  # raises if there are none
        # of an attention map the weights that were computed explicitly
        kept = [x.weights if isinstance(x, DenseCall) else x for x in self._calls[name]]
        if self._leaves[name] in MEANING:
            raise InputError(
                f"{name!r} is a measurement, which has no gradient: watch weights, heads, q, k, v or scores"
            )
        if not all(isinstance(x, Tensor) for x in kept):
            raise InputError(
                f"{name!r} is {described(kept[0])}: expected one tensor, to have one gradient"
            )
        grads = [x.grad for x in kept if x.grad is not None]
        # Calls without a gradient: not in the graph at all, or backward has not run.
        missing = [x for x in kept if x.grad is None]
        if any(not x.requires_grad for x in missing):
            raise InputError(
                f"{name!r} was recorded without a graph: expected a model that runs with gradients (not under "
                "torch.no_grad) and an address that depends on something that requires one"
            )
        if missing:
            raise InputError(
                f"{len(missing)} of {len(kept)} calls of {name!r} have no gradient: run backward on the model's output"
            )
        several_texts = len(self._starts[name]) > 1
        growing = self._leaves[name] in (*GROWING, "weights")
        if len(grads) > 1 and (several_texts or growing or self._replaced[name]):
            raise InputError(
                f"the gradients of {len(grads)} calls of {name!r} do not join: watch them one by one"
            )
        return torch.cat(grads, dim=2 if self._leaves[name] else 1)

    def add(self, name: str, leaf: str) -> None:
        """Add an address that a foreign model turns out to have, after those that come before it in the model."""
        last = next(reversed(self._calls), None)
        self._leaves[name] = leaf
        self._calls[name], self._starts[name], self._replaced[name] = [], [], {}
        # Modules usually run in their order, so that it is rarely sorted.
        if last is not None and self._position(name) < self._position(last):
            names = sorted(self._calls, key=self._position)
            self._calls = {name: self._calls[name] for name in names}

    def _position(self, name: str) -> tuple[int, int]:
        """The index of an address in the model's order, and the number of the call: see CallSite.address."""
        path, _, leaf = name.rpartition(".")
        path, _, index = path.partition("@")
        return self._order[joined(path, leaf)], int(index or 0)

    def leave_out(self, name: str, reason: str) -> None:
        """Keep the reason why an address cannot be recorded."""
        self.unrecorded[name] = reason

    @property
    def unseen(self) -> str:
        """Why addresses of attention have no record, once the `with` has ended."""
        return self._unseen

    def explain(self, why: str) -> None:
        """Keep the reason why possible addresses have no record, for the error of a reader."""
        self._unseen = why

    def record(
        self, name: str, value: Any, keep: Keep, continues: bool, text: int = 0, replaced: int = 0
    ) -> None:
        """Add a call; it continues the one before if `continues` is True and it belongs to the same text.

        `replaced` is the number of queries at the end of this text that it replaces.
        """
        if callable(keep):
            value = keep(_shown(value))
        if keep == "last":
            self._calls[name].clear()
            self._starts[name].clear()
        # A text begins: the first record, one that continues nothing, or one of another text.
        if not self._calls[name] or not continues or self._text.get(name) != text:
            self._starts[name].append(len(self._calls[name]))
        elif replaced:
            self._replaced[name][len(self._calls[name])] = replaced
        self._text[name] = text
        self._calls[name].append(value)


def described(value: Any) -> str:
    """The type of a record or an output in words, for a message: "a tuple (Tensor, NoneType)"."""
    inside = ""
    if isinstance(value, tuple | list):
        inside = f" ({', '.join(type(x).__name__ for x in value)})"
    return f"a {type(value).__name__}{inside}"


def _shown(record: Any) -> Any:
    """A record as a reader gets it: a call of attention as the map of its weights."""
    if isinstance(record, LazyCall | DenseCall):
        return AttentionMap([record])
    return record


def _cut(record: AttentionMap | Tensor, queries: int) -> AttentionMap | Tensor:
    """The first queries of a record of one call."""
    if isinstance(record, Tensor):
        return record[:, :, :queries]
    return AttentionMap([source.cut(queries) for source in record.sources])


def _repeat_rows(records: list[Any]) -> list[Any]:
    """Repeat the row of a prompt that was read once for all its beams or samples."""
    if not all(isinstance(record, AttentionMap | Tensor) for record in records):
        return records
    # Beams and samples are rows of the last step; the prompt was read once.
    rows = records[-1].shape[0]
    # Rows that differ in number are not a prompt and its samples.
    if not all(record.shape[0] in (1, rows) for record in records):
        return records
    return [_repeated(record, rows) for record in records]


def _repeated(record: AttentionMap | Tensor, rows: int) -> AttentionMap | Tensor:
    if record.shape[0] == rows:
        return record
    if isinstance(record, Tensor):
        return record.expand(rows, *record.shape[1:])
    return AttentionMap([source.repeat_rows(rows) for source in record.sources])
