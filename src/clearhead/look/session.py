"""One watch or edit of a model: what it has set up, and how all of it is undone, whatever happens meanwhile."""

from __future__ import annotations

import sys
import threading
from collections.abc import Callable
from functools import partial
from typing import Any
from weakref import WeakKeyDictionary

from torch import nn


class Session:
    """What one watch or edit has set up on a model.

    Every step is registered with `undo_with` before it acts, and undoing a step twice, or one that did not act, does
    nothing. So a KeyboardInterrupt at any point leaves nothing behind if the session is entered twice,
    `with session, session`: what the first ending did not undo, the second does. A session may end in another thread
    than it began, as a generator does that a thread pool closes.

    Args:
        root: The model.
    """

    def __init__(self, root: nn.Module) -> None:
        self.root, self.thread = root, threading.get_ident()
        self._undo: list[Callable[[], Any]] = []

    def __enter__(self) -> Session:
        return self

    def __exit__(self, *_: object) -> None:
        while self._undo and not sys.is_finalizing():
            self._undo[-1]()
            self._undo.pop()

    def undo_with(self, undo: Callable[[], Any]) -> None:
        """Register how a step that follows is undone; the last step is undone first."""
        self._undo.append(undo)

    def wait_for_turn(self) -> None:
        """Wait until no other thread watches or edits the model, and let others wait until this session ends."""
        self.undo_with(partial(_end_turn, self))
        with _LOCK:
            while any(other.thread != self.thread for other in _OPEN.get(self.root, ())):
                _TURNS.wait()
            _OPEN.setdefault(self.root, []).append(self)


_LOCK = threading.RLock()  # entered itself, not by the condition, whose methods a KeyboardInterrupt may stop half-way
_TURNS = threading.Condition(_LOCK)
_OPEN: WeakKeyDictionary[nn.Module, list[Session]] = WeakKeyDictionary()  # the sessions of each model


def _end_turn(session: Session) -> None:
    with _LOCK:
        if session in _OPEN.get(session.root, ()):
            _OPEN[session.root].remove(session)
        _TURNS.notify_all()
