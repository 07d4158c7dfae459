"""What the server holds: models by id, loaded on first use, and the most recent inspections, within a memory limit."""

from __future__ import annotations

import os
import re
import secrets
import threading
import unicodedata
import zlib
from collections import OrderedDict
from collections.abc import Callable, Collection, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import NamedTuple

import anyio

from .. import config
from ..errors import InputError, UserError
from ..weights import Bundle, load, shipped
from ..weights.folder import find
from . import answers
from .comparison import Study
from .examples import Outline, answer_length, examples_for, examples_of, mask_name, outline
from .inspections.caption import captions_images
from .inspections.image import reads_images
from .inspections.text import Inspection
from .reading import is_encoder

MEMORY = 512 << 20  # bytes of inspections to keep
MOST_INSPECTIONS = 256  # inspections to keep, however small
RUN_PREFIX = "run-"  # the model of a run has the id run-ID
MOST_RUN_MODELS = 4  # models of runs to keep loaded


Stamp = tuple[tuple[str, int, int], ...]  # name, time of change and size of each file


class UnknownError(UserError, LookupError):
    """No model, run or inspection has this id."""


class TrainedRun(NamedTuple):
    """A run that has saved its model, or a checkpoint."""

    name: str  # what the page calls it
    folder: Path
    model: Path  # folder of its model


class RecipeFacts(NamedTuple):
    """What the recipe of a run says about its model."""

    data: str | None = None  # the name of the data set
    # names that may say what it translates: of a checkpoint, of the columns of its data
    names: tuple[str, ...] = ()

    @staticmethod
    def of(folder: Path) -> RecipeFacts:
        """What the recipe of a run folder says; empty if it has none that can be read."""
        try:
            recipe = config.load(folder / "recipe.toml")
        except (UserError, OSError):
            return RecipeFacts()
        data, started = recipe.get("data") or {}, recipe.get("pretrained")
        # The name of a checkpoint ("opus-mt-de-en") or the columns of the data ("de-en") name the languages.
        texts = [
            Path(started).name if isinstance(started, str) else None,
            f"{data.get('source')}-{data.get('target')}",
        ]
        name = data.get("name")
        return RecipeFacts(name if isinstance(name, str) else None, tuple(filter(None, texts)))


@dataclass(eq=False)
class StoredModel:
    """A model that is loaded when it is first used."""

    id: str
    folder: str  # argument of `load`; never taken from a request
    about: str  # one line about it
    # texts to try it with; if there are none, texts of examples.py or example images
    examples: tuple[str, ...] = ()
    name: str = ""  # what the page calls it; "": its id
    training: RecipeFacts | None = None  # of the model of a run
    # held for one step at a time, so that requests alternate
    lock: anyio.Lock = field(default_factory=anyio.Lock)
    study: Study | None = None  # what the view Compare has measured of it
    _bundle: Bundle | None = None
    _path: Path | None = None  # where it was loaded from
    _stamp: Stamp = ()  # of its files when they were loaded
    _loading: threading.Lock = field(default_factory=threading.Lock)

    def bundle(self, device: str) -> Bundle:
        """The loaded model; it is loaded again if its files have changed, as after further training."""
        with self._loading:
            if self._bundle is None or self._stamp != stamp(self._path):
                # The old weights are freed before the new ones are loaded, because both may not fit
                # into memory; a study of the old ones is void.
                self._bundle = self.study = None  # memory for the new one
                self._path = find(self.folder)[0]
                self._stamp = stamp(self._path)  # before loading: files may be replaced meanwhile
                self._bundle = load(self._path, device=device)
            return self._bundle

    @property
    def version(self) -> str:
        """A checksum of the state of the loaded model's files."""
        return version_of(self._stamp)

    def to_dict(self, device: str) -> answers.ModelLine:
        """Plain values, for JSON; loads the model."""
        bundle = self.bundle(device)
        kinds = views(bundle)
        return {
            "id": self.id,
            "name": self.name or self.id,
            "version": self.version,
            "trained": self.training is not None,
            "about": self.about,
            "note": bundle.note,
            "kinds": kinds,
            "family": bundle.name,
            "parameters": sum(p.numel() for p in bundle.model.parameters()),
            "context": getattr(bundle.config, "context", None),
            "why": None if kinds else why_no_view(bundle),
            "mask": mask_name(bundle),
            "chat": bundle.chat is not None and "write" in kinds,
            "max_new": answer_length(bundle, self.task),
            "examples": self._examples(bundle) if kinds else [],
        }

    @property
    def task(self) -> str | None:
        """The data set that it was trained on, if that is known."""
        if self.training is None:
            return None
        return self.training.data

    def _examples(self, bundle: Bundle) -> list[str]:
        if reads_images(bundle) or captions_images(bundle):
            # Texts mean nothing to a model of images: it gets example images instead.
            return examples_for(bundle)
        named = [
            Path(self.folder).name,
            *(self.training.names if self.training is not None else ()),
        ]
        return list(self.examples) or examples_of(bundle, self.task, named)


def stamp(path: Path | None) -> Stamp:
    """The state of a model's files; () if there are none."""
    if path is None or not path.exists():
        return ()
    if path.is_file():
        files = [path]
    else:
        files = sorted(one for one in path.iterdir() if one.is_file())
    if path.name == "unfinished":  # the model of a run, whose weights are in its checkpoints
        # The folder itself stays unchanged while training goes on: the index of each checkpoint
        # shows the new weights.
        files += sorted((path.parent / "checkpoints").glob("step-*/index.json"))
    states = []
    for file in files:
        with suppress(FileNotFoundError):  # a checkpoint that the training has removed
            state = file.stat()
            states.append((file.name, state.st_mtime_ns, state.st_size))
    return tuple(states)


def version_of(files: Stamp) -> str:
    """A short checksum of the state of files."""
    return f"{zlib.crc32(repr(files).encode()):08x}"


# the views of the page that show models, and which ones each shows
VIEWS: dict[str, Callable[[Bundle | Outline], bool]] = {
    "translate": lambda bundle: bundle.tokens is not None and "translate" in bundle.can,
    "write": lambda bundle: bundle.tokens is not None and "generate" in bundle.can,
    "read": lambda bundle: bundle.tokens is not None and is_encoder(bundle),
    "classify": reads_images,
    "caption": captions_images,
}


def views(bundle: Bundle | Outline) -> list[str]:
    """The views of the page that can use a model."""
    return [view for view, fits in VIEWS.items() if fits(bundle)]


def why_no_view(bundle: Bundle) -> str:
    """Why no view of the page can use a model."""
    if bundle.reads in ("images", "captions") and bundle.preprocessing is None:
        return "it was saved without image preprocessing, so that no image can be given to it"
    if bundle.reads == "vectors":
        return "it reads vectors: no view shows them yet"
    if bundle.tokens is None:
        return "it was saved without tokens, so that no text can be given to it"
    return f"a {bundle.name} neither continues, translates nor encodes a text: no view shows it yet"


class ModelStore:
    """The models that the server was started with, the shipped models, and the models of runs."""

    def __init__(
        self,
        folders: Sequence[str | Path] = (),
        runs: Callable[[], Mapping[str, TrainedRun]] | None = None,
    ) -> None:
        self._runs = runs if runs is not None else dict  # returns the runs that have a model, by id
        # models of runs, the most recently used last
        self._trained: OrderedDict[str, StoredModel] = OrderedDict()
        # outlines of the models of runs; None: the model cannot be read
        self._outlines: dict[Path, tuple[Stamp, Outline | None]] = {}
        zoo = shipped()
        named = [str(folder) for folder in folders if str(folder) in zoo]
        self.models: dict[str, StoredModel] = {}
        for folder in (str(f) for f in folders if str(f) not in zoo):
            # Folders named on the command line come first, then the shipped models named there,
            # then the rest.
            # The name that the user gave: a link keeps its own, and "." gets that of the folder.
            name = Path(os.path.abspath(folder)).name
            self._add(folder, name, f"the folder {name}")
        for name in [*named, *(name for name in zoo if name not in named)]:
            self._add(name, name, zoo[name].does, zoo[name].examples)

    def _add(self, folder: str, name: str, about: str, examples: tuple[str, ...] = ()) -> None:
        id_ = unique_id(name, self.models)
        self.models[id_] = StoredModel(id_, folder, about, examples)

    def __getitem__(self, id_: str) -> StoredModel:
        # Listing the runs reads the disk: only an id with the prefix of a run needs it.
        runs = self._runs() if id_.startswith(RUN_PREFIX) else {}
        run = runs.get(id_.removeprefix(RUN_PREFIX))
        if run is not None:
            model = self._trained.get(id_)
            if model is None or model.folder != str(run.model):  # its training has finished since
                # A finished run moves from unfinished/ to model/: the stored model would point to
                # the old folder.
                model = StoredModel(
                    id_, str(run.model), f"trained in {run.folder.name}", name=run.name
                )
                self._trained[id_] = model
            model.training = RecipeFacts.of(run.folder)
            self._trained.move_to_end(id_)
            # The least recently used model is at the front.
            while len(self._trained) > MOST_RUN_MODELS:
                self._trained.popitem(last=False)
            return model
        if id_ in self.models:
            return self.models[id_]
        # The id may also be the name of a model whose folder begins with run-, so this comes last.
        if id_.startswith(RUN_PREFIX):
            raise UnknownError(
                f"there is no trained model of a run {id_.removeprefix(RUN_PREFIX)!r} here: it may have been moved or "
                "deleted, or have no checkpoint yet"
            )
        raise UnknownError(
            f"there is no model {id_!r} here: expected one of {', '.join(self.models)}"
        )

    def trained(self) -> list[answers.TrainedLine]:
        """The models of runs that a view can use, as plain values for JSON; none is loaded for it."""
        lines: list[answers.TrainedLine] = []
        for id_, run in self._runs().items():
            outline = self._outline(run.model)
            if outline is not None and (kinds := views(outline)):
                lines.append(
                    {
                        "id": f"{RUN_PREFIX}{id_}",
                        "name": run.name,
                        "kinds": kinds,
                        "family": outline.name,
                        "parameters": outline.parameters,
                        "version": version_of(self._outlines[run.model][0]),
                    }
                )
        return lines

    def _outline(self, folder: Path) -> Outline | None:
        """The outline of a run's model, read again if its files have changed."""
        now, known = stamp(folder), self._outlines.get(folder)
        if known is None or known[0] != now:
            try:
                known = now, outline(folder)
            # The page leaves this run out; opening the model itself shows why it cannot be read.
            except (UserError, ValueError, OSError, RuntimeError):  # opening the model says why
                known = now, None
            self._outlines[folder] = known
        return known[1]


class InspectionStore:
    """Inspections by random ids; the least recently used are dropped when they take too much memory."""

    def __init__(self, memory: int = MEMORY) -> None:
        self.memory = memory  # bytes
        # inspections by id, with their sizes in bytes
        self._kept: OrderedDict[str, tuple[Inspection, int]] = OrderedDict()
        self._lock = threading.Lock()

    def keep(self, inspection: Inspection) -> str:
        """Store an inspection and return its id; raises if it is larger than the memory limit."""
        size = inspection.size()
        if size > self.memory:
            raise InputError(
                f"inspecting this takes {size >> 20} MB, and the explorer keeps {self.memory >> 20}: "
                "expected a shorter text or a smaller image"
            )
        # Random, so that nobody can guess the id of another user's inspection.
        id_ = secrets.token_urlsafe(12)
        with self._lock:
            self._kept[id_] = inspection, size
            self._shrink()
        return id_

    def _shrink(self) -> None:
        while (
            sum(size for _, size in self._kept.values()) > self.memory
            or len(self._kept) > MOST_INSPECTIONS
        ):
            self._kept.popitem(last=False)

    def __getitem__(self, id_: str) -> Inspection:
        with self._lock:
            if id_ not in self._kept:
                raise UnknownError("this result is no longer kept: send its text or image again")
            self._kept.move_to_end(id_)
            inspection = self._kept[id_][0]
            self._kept[id_] = inspection, inspection.size()  # cached overviews may have been added
            self._shrink()
            return inspection

    def __len__(self) -> int:
        return len(self._kept)


def unique_id(name: str, taken: Collection[str]) -> str:
    """An id that is made from a name, is safe in a URL, and is not taken yet."""
    # Letters without their accents: é becomes e and a combining mark, and the mark is dropped.
    letters = "".join(
        c for c in unicodedata.normalize("NFKD", name) if not unicodedata.combining(c)
    )
    plain = re.sub(r"[^A-Za-z0-9._-]+", "-", letters).strip("-.")[:60] or "model"
    id_, n = plain, 1
    while id_ in taken:
        id_, n = f"{plain}-{n + 1}", n + 1
    return id_
