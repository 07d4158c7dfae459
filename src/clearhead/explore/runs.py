"""The runs under a folder, or the example that ships, by id; a run can be read while it is being written."""

from __future__ import annotations

import json
import os
import socket
import sys
import threading
import time
import zlib
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, Literal

import filelock

from .. import config
from ..tokens import saved
from ..training.run_folder import Folder, FolderError
from . import answers
from .store import TrainedRun, UnknownError, unique_id

# The state of a run: running, stopped or finished.


State = Literal["running", "stopped", "finished"]
# seconds after its last record for which a run counts as running, if its lock cannot be seen from here
RECENT = 60.0
PACE = 5.0  # the same, in times between two records


def run_state(folder: Path, metrics: Sequence[Mapping[str, Any]], steps: int | None) -> State:
    """The state of the run in a folder with these metrics and this number of steps.

    A run is running while a process holds the lock of its folder. The lock of another machine, or of a folder that
    cannot be written to, cannot be tested: then a run is running if its last record is recent for its pace.
    """
    held = _is_held(folder)
    # Without a number of steps in the recipe, only a saved model shows that a run is done.
    done = (folder / "model").is_dir() or (
        steps is not None and bool(metrics) and metrics[-1]["step"] >= steps
    )
    if held or (held is None and not done and _is_recent(folder, metrics)):
        return "running"
    return "finished" if done else "stopped"


def _is_held(folder: Path) -> bool | None:
    """Whether a process of this machine holds the lock; None if that cannot be known here."""
    try:
        # The training writes its process and machine here while it holds the lock.
        holder = json.loads((folder / "holder.json").read_bytes())
        pid, host = int(holder["pid"]), str(holder["host"])
    except (OSError, ValueError, KeyError, TypeError):
        return None
    # Process ids and file locks of another machine mean nothing here.
    if host != socket.gethostname():
        return None
    # Only the lock of a process that is alive is tested, because the test itself holds it for a moment.
    return _is_alive(pid) and _is_locked(folder / "lock")


def _is_alive(pid: int) -> bool:
    if sys.platform == "win32":  # where os.kill would end the process
        return True
    try:
        # Signal 0 ends nothing: it only tests whether the process exists.
        os.kill(pid, 0)
    except ProcessLookupError:
        return False
    # The process exists but belongs to another user, or its number is not one that this system can ask for.
    except (PermissionError, OverflowError):
        return True
    return True


def _is_locked(path: Path) -> bool | None:
    if not path.is_file():
        # A run without its lock file was not locked by anyone.
        return False
    lock = filelock.FileLock(path, timeout=0, thread_local=False)
    try:
        lock.acquire()
    except filelock.Timeout:
        return True
    # A folder that cannot be written to, or a file system without locks: unknown.
    except OSError:
        return None
    lock.release()
    return False


def _is_recent(folder: Path, metrics: Sequence[Mapping[str, Any]]) -> bool:
    # The time between records, from the latest record that has it; records of validations have none.
    pace = next(
        (
            float(r["seconds"])
            for r in reversed(metrics)
            if isinstance(r.get("seconds"), int | float)
        ),
        0.0,
    )
    return time.time() - (folder / "metrics.jsonl").stat().st_mtime < max(RECENT, PACE * pace)


DEPTH = 3  # levels of subfolders to search for runs
MOST = 200  # runs to list
DEFAULT_LOSSES = ["loss"]  # of a run whose folder does not name its losses
# A run that ships, without its model, and the recipe that it was trained by.
EXAMPLE, EXAMPLE_RECIPE = Path(__file__).parent / "example_run", "configs/shakespeare-cpu.toml"


class Runs:
    """The run folders under `root`; without one, the example that ships."""

    def __init__(self, root: Path | None) -> None:
        self.root = root
        self._ids: dict[Path, str] = {}
        # metrics by run folder, with the time and size of their file
        self._read: dict[Path, tuple[tuple[int, int], list[dict[str, Any]]]] = {}
        # checksums of tokenizers, with the state of their files
        self._digests: dict[Path, tuple[Any, str]] = {}
        self._lock = threading.Lock()

    def folders(self) -> dict[str, Path]:
        """The folders of the runs by id, the most recently written first; a folder keeps its id."""
        if self.root is None:
            return {Path(EXAMPLE_RECIPE).stem: EXAMPLE}
        runs: list[Path] = []
        level = [self.root]
        for _ in range(DEPTH):
            runs += [folder for folder in level if (folder / "metrics.jsonl").is_file()]
            # A run is not searched for further runs: its checkpoints and samples are its own.
            level = [
                inner for folder in level if folder not in runs for inner in _subfolders(folder)
            ]
        runs.sort(key=lambda folder: -_written(folder))
        with self._lock:
            for folder in runs[:MOST]:
                # An id that was given once stays, so that links keep working while new runs appear.
                if folder not in self._ids:
                    self._ids[folder] = unique_id(self._name(folder), self._ids.values())
            return {self._ids[folder]: folder for folder in runs[:MOST]}

    def trained(self) -> dict[str, TrainedRun]:
        """The runs that have saved their model, or a checkpoint, by id."""
        by_id = {}
        for id_, folder in self.folders().items():
            saved, unfinished = folder / "model", folder / "unfinished"
            # The finished model wins over the checkpoints that it was made from.
            if saved.is_dir():
                by_id[id_] = TrainedRun(self._name(folder), folder, saved)
            # Without a checkpoint there are settings but no weights to load.
            elif unfinished.is_dir() and any((folder / "checkpoints").glob("step-*")):
                by_id[id_] = TrainedRun(self._name(folder), folder, unfinished)
        return by_id

    def _name(self, folder: Path) -> str:
        """The path of a run below the folder of all runs."""
        if self.root is None or folder == self.root:
            # The root is a run itself, so it has no path below the root.
            if self.root is not None:
                return folder.name
            return Path(EXAMPLE_RECIPE).stem
        return folder.relative_to(self.root).as_posix()

    def listed(self) -> list[dict[str, Any]]:
        """A summary of each run; a run that cannot be read has an error instead of numbers."""
        lines = []
        for id_, folder in self.folders().items():
            try:
                lines.append(self._line(id_, folder))
            except (FolderError, ValueError, OSError) as problem:
                # All fields of a line, so that the page finds every key, and the error in place of numbers.
                lines.append(
                    dict.fromkeys(answers.RunLine.__annotations__)
                    | {
                        "id": id_,
                        "name": self._name(folder),
                        "step": 0,
                        "finished": False,
                        "state": "stopped",
                        "players": {},
                        "losses": [],
                        "measurements": {},
                        "error": str(problem),
                    }
                )
        return lines

    def records(self, id_: str, since: int = 0) -> dict[str, Any]:
        """The summary of a run and its metrics from record `since` on; all of them if there are fewer than that.

        A run that was resumed from an earlier checkpoint has fewer records than before.
        """
        folders = self.folders()
        if id_ not in folders:
            raise UnknownError(f"there is no run {id_!r} here: it may have been moved or deleted")
        folder = folders[id_]
        metrics = self._metrics(folder)
        # The page knows more records than there are: the run began again from an earlier
        # checkpoint, so send all.
        begin = since if since <= len(metrics) else 0
        return self._line(id_, folder) | {
            "since": begin,
            "total": len(metrics),
            "records": metrics[begin:],
        }

    def _line(self, id_: str, folder: Path) -> dict[str, Any]:
        metrics = self._metrics(folder)
        recipe: dict[str, Any] = (
            config.load(folder / "recipe.toml") if (folder / "recipe.toml").is_file() else {}
        )
        setup: dict[str, Any] = (
            config.load(folder / "setup.json") if (folder / "setup.json").is_file() else {}
        )
        losses = list(setup.get("losses") or DEFAULT_LOSSES)
        values = [record[losses[0]] for record in metrics if record.get(losses[0]) is not None]
        steps, players = recipe.get("steps"), _players(recipe, setup)
        facts = _facts(folder)
        attempt, saved_model = _last_attempt(facts), facts.get("model") or {}
        state: str = run_state(folder, metrics, steps)
        # The last attempt recorded an error: the user did not stop it.
        if state == "stopped" and attempt.get("problem"):
            state = "failed"
        return {
            "id": id_,
            "name": self._name(folder),
            "step": metrics[-1]["step"] if metrics else 0,
            "steps": steps,
            "finished": (folder / "model").is_dir(),
            "state": state,
            "problem": attempt.get("problem") if state == "failed" else None,
            "model_step": saved_model.get("best") or saved_model.get("step"),
            "best": _name(recipe.get("run"), "best"),
            "tokens": self._tokens(folder, recipe, setup),
            "model": _name(recipe.get("model")) or players.get("model"),
            "data": _name(recipe.get("data")),
            "objective": _name(setup, "objective") or _name(recipe.get("objective")),
            "players": players if len(players) > 1 else {},
            "losses": losses,
            "loss": values[-1] if values else None,
            "measurements": setup.get("measurements", {}),
            "example": EXAMPLE_RECIPE if folder == EXAMPLE else None,
        }

    def _tokens(
        self, folder: Path, recipe: Mapping[str, Any], setup: Mapping[str, Any]
    ) -> dict[str, Any]:
        """What is known of the tokens that losses are counted in: a digest of their files, their number and kind."""
        # The first place that holds a tokenizer: a finished model, a checkpoint's, or that saved before training.
        places = [
            place
            for place in (folder / "model", folder / "unfinished", folder / "tokens")
            if saved(place) is not None
        ]
        model = (setup.get("players") or {}).get("model") or {}
        options = model.get("options") or {}
        return {
            "files": self._digest(places[0]) if places else None,
            "vocab": options.get("target_vocab") or options.get("vocab"),
            "kind": _name(recipe.get("data"), "tokens"),
        }

    def _digest(self, folder: Path) -> str:
        """A checksum of a tokenizer's files; a source tokenizer in the same folder is ignored."""
        files = [
            file for file in sorted(folder.glob("*token*")) if not file.name.startswith("source")
        ]
        states = tuple(
            (file.name, (state := file.stat()).st_mtime_ns, state.st_size) for file in files
        )
        with self._lock:
            # Reading the files again is needed only after one of them has changed.
            if self._digests.get(folder, ((), ""))[0] != states:
                crc = 0
                for file in files:
                    crc = zlib.crc32(file.read_bytes(), crc)
                self._digests[folder] = states, f"{crc:08x}"
            return self._digests[folder][1]

    def _metrics(self, folder: Path) -> list[dict[str, Any]]:
        state = (folder / "metrics.jsonl").stat()
        key = state.st_mtime_ns, state.st_size
        with self._lock:
            cached = self._read.get(folder)
            # The file grows while the run trains; its time and size show whether the cached records are current.
            if cached is None or cached[0] != key:
                cached = self._read[folder] = (
                    key,
                    Folder(folder, create=False, lock=False).metrics(),
                )
            return cached[1]


def _facts(folder: Path) -> dict[str, Any]:
    """The contents of a run's facts.json; {} if it cannot be read."""
    try:
        return Folder(folder, create=False, lock=False).facts()
    except (FolderError, OSError):
        return {}


def _last_attempt(facts: Mapping[str, Any]) -> dict[str, Any]:
    """The record of a run's last attempt; {} if there is none."""
    attempts = facts.get("attempts")
    last = attempts[-1] if isinstance(attempts, list) and attempts else None
    return last if isinstance(last, dict) else {}


def _players(recipe: Mapping[str, Any], setup: Mapping[str, Any]) -> dict[str, str | None]:
    """The networks of a run by name, each with its model's family."""
    if isinstance(setup.get("players"), Mapping):
        # The setup names what was built; the recipe, below, only what was asked for.
        return {name: _name(player, "model") for name, player in setup["players"].items()}
    return {
        name: _name(player["model"])
        for name, player in (recipe.get("players") or {}).items()
        if "model" in player
    }


def _name(section: Any, key: str = "name") -> str | None:
    """The name in a section of a recipe or setup; None if it has none."""
    name = section.get(key) if isinstance(section, Mapping) else None
    return name if isinstance(name, str) else None


def _subfolders(folder: Path) -> list[Path]:
    try:
        return sorted(
            path for path in folder.iterdir() if path.is_dir() and not path.name.startswith(".")
        )[:1000]
    except OSError:  # a folder without read permission has no runs for us
        return []


def _written(folder: Path) -> float:
    return (folder / "metrics.jsonl").stat().st_mtime
