"""What the server holds: models by their ids, and the looks that were taken, of which the oldest go."""

from __future__ import annotations

import re
import secrets
import threading
from collections import OrderedDict
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import anyio

from ..errors import InputError, UserError
from ..weights import Bundle, load, shipped
from .inspections import Look, kinds

MEMORY = 512 << 20  # bytes of looks that are kept
RUN, TRAINED = "run-", 4  # how the model of a training is called, and how many of them are kept


class UnknownError(UserError, LookupError):
    """An id that nothing here has."""


@dataclass(eq=False)
class Model:
    """A model that can be asked; it is loaded when it first is."""

    id: str
    folder: str  # what `load` is given: never from a request
    about: str
    turn: anyio.Lock = field(default_factory=anyio.Lock)  # covers one step: requests take turns
    _ready: Bundle | None = None
    _loading: threading.Lock = field(default_factory=threading.Lock)

    def bundle(self, device: str) -> Bundle:
        with self._loading:
            if self._ready is None:
                self._ready = load(self.folder, device=device)
            return self._ready

    def to_dict(self, device: str) -> dict[str, Any]:
        bundle = self.bundle(device)
        model = bundle.model
        return {
            "id": self.id, "about": self.about, "kinds": kinds(bundle), "family": type(model).__name__,
            "parameters": sum(p.numel() for p in model.parameters()),
            "context": getattr(bundle.config, "context", None),
        }  # fmt: skip


class Shelf:
    """The models that this server was started with, and those of finished trainings."""

    def __init__(
        self, folders: Sequence[str | Path] = (), finished: Callable[[], Mapping[str, Path]] | None = None
    ) -> None:
        self.finished = finished
        self._trained: OrderedDict[str, Model] = OrderedDict()  # by run-ID; a few are kept
        zoo = shipped()
        named = [str(folder) for folder in folders if str(folder) in zoo]
        self.models: dict[str, Model] = {}
        for folder in (str(f) for f in folders if str(f) not in zoo):
            self._add(folder, Path(folder).resolve().name, f"the folder {Path(folder).name}")
        for name in [*named, *(name for name in zoo if name not in named)]:
            self._add(name, name, zoo[name].does)

    def _add(self, folder: str, name: str, about: str) -> None:
        found = new_id(name, self.models)
        self.models[found] = Model(found, folder, about)

    def __getitem__(self, model: str) -> Model:
        trained = self.finished() if self.finished is not None and model.startswith(RUN) else {}
        if model.removeprefix(RUN) in trained:
            folder = trained[model.removeprefix(RUN)]
            found = self._trained.setdefault(model, Model(model, str(folder / "model"), f"trained in {folder.name}"))
            self._trained.move_to_end(model)
            while len(self._trained) > TRAINED:
                self._trained.popitem(last=False)
            return found
        if model not in self.models:
            raise UnknownError(f"there is no model {model!r} here: expected one of {', '.join(self.models)}")
        return self.models[model]


class Looks:
    """The looks that were taken, by ids that cannot be guessed; the oldest go when there are too many."""

    def __init__(self, memory: int = MEMORY) -> None:
        self.memory = memory
        self._kept: OrderedDict[str, tuple[Look, int]] = OrderedDict()
        self._lock = threading.Lock()

    def keep(self, look: Look) -> str:
        size = look.size()
        if size > self.memory:
            raise InputError(
                f"this text needs {size >> 20} MB to be looked at, and the explorer keeps {self.memory >> 20}: "
                "expected a shorter text"
            )
        name = secrets.token_urlsafe(12)
        with self._lock:
            self._kept[name] = look, size
            self._shrink()
        return name

    def _shrink(self) -> None:
        while sum(size for _, size in self._kept.values()) > self.memory or len(self._kept) > 256:
            self._kept.popitem(last=False)

    def __getitem__(self, name: str) -> Look:
        with self._lock:
            if name not in self._kept:
                raise UnknownError("this result is no longer kept: ask for it again")
            self._kept.move_to_end(name)
            look = self._kept[name][0]
            self._kept[name] = look, look.size()  # overviews that were made since count too
            self._shrink()
            return look

    def __len__(self) -> int:
        return len(self._kept)


def new_id(name: str, taken: Any) -> str:
    """An id that can stand in an address, and that no other has."""
    plain = re.sub(r"[^A-Za-z0-9._-]+", "-", name).strip("-.")[:60] or "model"
    found, n = plain, 1
    while found in taken:
        found, n = f"{plain}-{n + 1}", n + 1
    return found
