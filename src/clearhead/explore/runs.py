"""The trainings under a folder, by ids; a run is read while it is written."""

from __future__ import annotations

import threading
from pathlib import Path
from typing import Any

from .. import config
from ..training.run_folder import Folder, FolderError
from .schemas import RunLine
from .store import UnknownError, new_id

DEPTH = 3  # folders that are looked into for runs
MOST = 200  # runs that are listed


class Runs:
    """The run folders under `root`."""

    def __init__(self, root: Path | None) -> None:
        self.root = root
        self._ids: dict[Path, str] = {}
        self._read: dict[Path, tuple[tuple[int, int], list[dict[str, Any]]]] = {}
        self._lock = threading.Lock()

    def folders(self) -> dict[str, Path]:
        """The runs there are now, the latest first; an id stays with its folder."""
        if self.root is None:
            return {}
        found: list[Path] = []
        here = [self.root]
        for _ in range(DEPTH):
            found += [folder for folder in here if (folder / "metrics.jsonl").is_file()]
            here = [one for folder in here if folder not in found for one in _inside(folder)]
        found.sort(key=lambda folder: -_written(folder))
        with self._lock:
            for folder in found[:MOST]:
                if folder not in self._ids:
                    name = folder.relative_to(self.root).as_posix() if folder != self.root else folder.name
                    self._ids[folder] = new_id(name, self._ids.values())
            return {self._ids[folder]: folder for folder in found[:MOST]}

    def finished(self) -> dict[str, Path]:
        """Those that have made a model."""
        return {name: folder for name, folder in self.folders().items() if (folder / "model").is_dir()}

    def listed(self) -> list[dict[str, Any]]:
        """Each run in a line; one that cannot be read says why, and hides no other."""
        found = []
        for name, folder in self.folders().items():
            try:
                found.append(self._line(name, folder))
            except (FolderError, ValueError, OSError) as problem:
                found.append(dict.fromkeys(RunLine.model_fields) | {
                    "id": name, "step": 0, "finished": False, "error": str(problem),
                })  # fmt: skip
        return found

    def records(self, name: str, since: int = 0) -> dict[str, Any]:
        """What a run has measured, from record `since` on; from the first if it has been cut back since."""
        folders = self.folders()
        if name not in folders:
            raise UnknownError(f"there is no run {name!r} here: it may have been moved")
        folder = folders[name]
        metrics = self._metrics(folder)
        begin = since if since <= len(metrics) else 0
        return self._line(name, folder) | {"since": begin, "total": len(metrics), "records": metrics[begin:]}

    def _line(self, name: str, folder: Path) -> dict[str, Any]:
        metrics = self._metrics(folder)
        recipe: dict[str, Any] = config.load(folder / "recipe.toml") if (folder / "recipe.toml").is_file() else {}
        last = metrics[-1]["step"] if metrics else 0
        losses = [one["loss"] for one in metrics if one.get("loss") is not None]
        return {
            "id": name, "step": last, "steps": recipe.get("steps"), "finished": (folder / "model").is_dir(),
            "model": (recipe.get("model") or {}).get("name"), "data": (recipe.get("data") or {}).get("name"),
            "loss": losses[-1] if losses else None,
        }  # fmt: skip

    def _metrics(self, folder: Path) -> list[dict[str, Any]]:
        state = (folder / "metrics.jsonl").stat()
        key = state.st_mtime_ns, state.st_size
        with self._lock:
            known = self._read.get(folder)
            if known is None or known[0] != key:
                known = self._read[folder] = key, Folder(folder, create=False, lock=False).metrics()
            return known[1]


def _inside(folder: Path) -> list[Path]:
    try:
        return sorted(one for one in folder.iterdir() if one.is_dir() and not one.name.startswith("."))[:1000]
    except OSError:  # a folder that may not be looked into has no runs for us
        return []


def _written(folder: Path) -> float:
    return (folder / "metrics.jsonl").stat().st_mtime
