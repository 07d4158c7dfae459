"""The state of a run: running, stopped or finished."""

from __future__ import annotations

import json
import os
import socket
import sys
import time
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, Literal

import filelock

State = Literal["running", "stopped", "finished"]
RECENT = 60.0  # seconds after its last record for which a run counts as running, if its lock cannot be seen from here
PACE = 5.0  # the same, in times between two records


def run_state(folder: Path, metrics: Sequence[Mapping[str, Any]], steps: int | None) -> State:
    """The state of the run in a folder with these metrics and this number of steps.

    A run is running while a process holds the lock of its folder. The lock of another machine, or of a folder that
    cannot be written to, cannot be tested: then a run is running if its last record is recent for its pace.
    """
    held = _is_held(folder)
    done = (folder / "model").is_dir() or (steps is not None and bool(metrics) and metrics[-1]["step"] >= steps)
    if held or (held is None and not done and _is_recent(folder, metrics)):
        return "running"
    return "finished" if done else "stopped"


def _is_held(folder: Path) -> bool | None:
    """Whether a process of this machine holds the lock; None if that cannot be known here."""
    try:
        holder = json.loads((folder / "holder.json").read_bytes())
        pid, host = int(holder["pid"]), str(holder["host"])
    except (OSError, ValueError, KeyError, TypeError):
        return None
    if host != socket.gethostname():
        return None
    # Only the lock of a process that is alive is tested, because the test itself holds it for a moment.
    return _is_alive(pid) and _is_locked(folder / "lock")


def _is_alive(pid: int) -> bool:
    if sys.platform == "win32":  # where os.kill would end the process
        return True
    try:
        os.kill(pid, 0)
    except ProcessLookupError:
        return False
    except (PermissionError, OverflowError):
        return True
    return True


def _is_locked(path: Path) -> bool | None:
    if not path.is_file():
        return False
    lock = filelock.FileLock(path, timeout=0, thread_local=False)
    try:
        lock.acquire()
    except filelock.Timeout:
        return True
    except OSError:
        return None
    lock.release()
    return False


def _is_recent(folder: Path, metrics: Sequence[Mapping[str, Any]]) -> bool:
    pace = next((float(r["seconds"]) for r in reversed(metrics) if isinstance(r.get("seconds"), int | float)), 0.0)
    return time.time() - (folder / "metrics.jsonl").stat().st_mtime < max(RECENT, PACE * pace)
