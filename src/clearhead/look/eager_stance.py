"""Compiled code runs eagerly while a watch or an edit needs it.

torch has one stance for the whole process, and its own context manager restores the stance that it found. Watches of
several threads or tasks overlap in any order, so the stance is set by the first of them and restored by the last.
"""

from __future__ import annotations

import sys
import threading
from functools import partial
from typing import Any

import torch

from .session import Session

_LOCK = threading.RLock()
_ASKING: list[Session] = []  # the sessions that need it
_BEFORE: list[Any] = []  # the stance that the first of them found


def run_eagerly(session: Session) -> None:
    """Let compiled code run eagerly until the session ends, if anything can be compiled."""
    if "torch._dynamo" not in sys.modules:  # importing it takes a second
        return
    session.undo_with(partial(_release, session))
    with _LOCK:
        found = torch._dynamo.eval_frame._stance
        if not _BEFORE:
            _BEFORE.append(found)
        if session not in _ASKING:
            _ASKING.append(session)
        if found.stance != "force_eager":
            torch.compiler.set_stance("force_eager")


def _release(session: Session) -> None:
    with _LOCK:
        if session in _ASKING:
            _ASKING.remove(session)
        if _BEFORE and not _ASKING:
            torch._dynamo.eval_frame._set_stance(_BEFORE[0])
            _BEFORE.clear()
