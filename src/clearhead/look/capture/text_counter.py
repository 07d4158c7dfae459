"""Which text a call belongs to: the decoding steps of one text join on a tape, those of different texts do not."""

from __future__ import annotations

import threading
from typing import Any
from weakref import WeakKeyDictionary

from torch import nn

from .addresses import module_of
from .hooks import Session, call_before

_LOCK = threading.RLock()


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
        if threading.get_ident() == self.thread:
            self.number += 1
            self.searching, self._part = (
                True,
                model is not self.root and self.root in set(model.modules()),
            )

    def called(self, *_: Any) -> None:
        """Count a call of the watched model (a forward pre-hook).

        A search runs `start`, `read` and `step` of its model, and never the model itself: such a call is another text.
        """
        if threading.get_ident() != self.thread:
            return
        self.calls += 1
        if self.searching and not self._part:
            self.searching = False
            self.number += 1

    def follow(self, session: Session) -> None:
        """Count texts and calls until the session ends."""
        session.undo_with(self._leave)
        with _LOCK:
            _COUNTERS.setdefault(self.root, []).append(self)
        call_before(session, [self.root], self.called)

    def _leave(self) -> None:
        with _LOCK:
            if self in _COUNTERS.get(self.root, ()):
                _COUNTERS[self.root].remove(self)


_COUNTERS: WeakKeyDictionary[nn.Module, list[TextCounter]] = WeakKeyDictionary()


def new_text(model: Any) -> None:
    """Tell all watches of a model, or of a part of it, that its next call begins another text.

    Every search does so when it starts. Until the model itself is called, or the next text begins, all calls count as
    decoding steps of this text and join on the tape.

    Args:
        model: The model that the search runs, or a Bundle.

    Examples:
        >>> model = clearhead.build("gpt", vocab=5, context=8, width=8, depth=1, heads=2).eval()
        >>> with torch.no_grad(), watch(model, "blocks.0.attn.weights") as tape:
        ...     for text in ([1, 2, 3], [4]):
        ...         new_text(model)
        ...         state = model.start({}, rows=1, limit=4)
        ...         for token in text:
        ...             _, state = model.step(torch.tensor([[token]]), state)
        >>> tape.texts("blocks.0.attn.weights")
        [AttentionMap(batch=1, heads=2, queries=3, keys=3), AttentionMap(batch=1, heads=2, queries=1, keys=1)]
    """
    root = module_of(model)
    with _LOCK:
        counters = [counter for found in _COUNTERS.values() for counter in found]
    for counter in counters:
        if root in set(counter.root.modules()) or counter.root in set(root.modules()):
            counter.announce(root)
