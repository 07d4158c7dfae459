"""A parity certificate: what became of every tensor of a checkpoint, and how far our answers are from the reference's.

The reference is the folder's own probe (ids and the logits they must give), or else Hugging Face's transformers, if it
is installed.
"""

from __future__ import annotations

import importlib.metadata
import importlib.util
import logging
from collections.abc import Iterator
from contextlib import contextmanager, redirect_stderr
from dataclasses import asdict, dataclass
from io import StringIO
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from ..models import family_of
from . import folder as door
from . import huggingface
from .bundle import Bundle
from .files import open_safetensors
from .fill import WeightsError
from .tensors import write_tensors

PROBE = "probe.safetensors"  # the inputs of forward by their names, and `logits`, its output
ROWS, SIZE = 2, 48  # rows that are compared, and their tokens (or pixels)


@dataclass(frozen=True, kw_only=True, slots=True)
class Certificate:
    """What a checkpoint was, and how well it came over."""

    folder: str
    kind: str  # whose layout, and of which family
    model: str  # our family
    parameters: int
    files: tuple[str, ...]
    types: dict[str, int]  # how the file stores its numbers: how many of each type
    used: dict[str, tuple[int, ...]]  # every tensor that became a part of the model, with its shape
    ignored: dict[str, tuple[int, ...]]  # constants, and what answers other questions than the model is asked
    reference: str | None  # what the answers were compared with
    difference: float | None  # the largest, of all numbers that the model answers, in float32
    largest: float | None  # of those numbers, to compare it with
    note: str | None = None  # why there is no difference

    def to_dict(self) -> dict[str, Any]:
        """Plain values, for machines."""
        return asdict(self)

    def __str__(self) -> str:
        many = ", ".join(f"{count:,} {kind}" for kind, count in self.types.items())
        if self.difference is None:
            parity = f"not compared: {self.note}"
        else:
            parity = f"largest difference {self.difference:.2e}, of answers up to {self.largest:.3g}"
            parity += f" ({self.reference})"
        return "\n".join(
            [
                f"{self.folder}: {self.kind} -> {self.model}, {self.parameters:,} parameters",
                f"numbers: {many}, in {', '.join(self.files)}",
                f"tensors: {len(self.used)} used, {len(self.ignored)} ignored",
                *(f"  ignored: {name} {shape}" for name, shape in self.ignored.items()),
                f"parity: {parity}",
            ]
        )


def certificate(folder: str | Path, *, compare: bool = True) -> Certificate:
    """The parity certificate of a checkpoint; without `compare` only what became of its tensors."""
    path, kind = door.find(folder)
    bundle, used = door.read(path, kind, torch.device("cpu"), torch.float32)
    reference, difference, largest, note = None, None, None, None if compare else "nobody asked"
    if compare:
        try:
            reference, ours, theirs = _answers(bundle, path, kind)
            difference, largest = float((ours - theirs).abs().max()), float(theirs.abs().max())
        except _NoReferenceError as problem:
            note = str(problem)
    return Certificate(
        folder=str(path), kind=kind, model=family_of(bundle.model),
        parameters=sum(p.numel() for p in bundle.model.parameters()),
        files=used.files, types=used.types, used=used.used, ignored=used.ignored, reference=reference,
        difference=difference, largest=largest, note=note,
    )  # fmt: skip


@torch.no_grad()
def write_probe(bundle: Bundle, folder: str | Path, *, seed: int = 0) -> Path:
    """Write what a model answers to drawn ids into a folder, for whoever loads it later; returns the file."""
    asked = bundle.model.example_inputs(ROWS, SIZE, torch.Generator().manual_seed(seed))  # type: ignore[operator]
    path = Path(folder) / PROBE
    write_tensors(path, {**asked, "logits": _ours(bundle, asked).float().cpu().contiguous()})
    return path


class _NoReferenceError(Exception):
    """There is nothing to compare with."""


@torch.no_grad()
def _answers(bundle: Bundle, path: Path, kind: str) -> tuple[str, Tensor, Tensor]:
    probe = (path if path.is_dir() else path.parent) / PROBE
    if probe.is_file():
        with open_safetensors(probe) as file:
            found = {name: file.get_tensor(name) for name in file.keys()}  # noqa: SIM118
        theirs = found.pop("logits", None)
        if theirs is None or not found:
            raise WeightsError(f"{probe}: expected the model's inputs by their names, and its output as logits")
        ours = _ours(bundle, found)
        if ours.shape != theirs.shape:
            raise WeightsError(f"{probe}: logits {tuple(theirs.shape)}, and the model says {tuple(ours.shape)}")
        return PROBE, ours, theirs.float()
    asked = bundle.model.example_inputs(ROWS, SIZE, torch.Generator().manual_seed(0))  # type: ignore[operator]
    name, theirs = _transformers(bundle, path, kind, asked)
    return name, _ours(bundle, asked), theirs


def _ours(bundle: Bundle, asked: dict[str, Tensor]) -> Tensor:
    inputs = {name: x.to(bundle.device) for name, x in asked.items()}
    with torch.enable_grad():  # the usual products: the faster ones of inference round a little more
        out: Tensor = bundle.model(**inputs)
    return out.detach().float()


def _transformers(bundle: Bundle, path: Path, kind: str, asked: dict[str, Tensor]) -> tuple[str, Tensor]:
    """The answer of transformers."""
    if kind == "clearhead":
        raise _NoReferenceError("a folder of our own, which comes back to the bit")
    try:
        import transformers
    except ImportError as cause:
        raise _NoReferenceError("transformers is not installed, and the folder has no probe") from cause
    name = f"transformers {importlib.metadata.version('transformers')}"
    words: dict[str, Any] = {"local_files_only": True, "dtype": torch.float32, "attn_implementation": "eager"}
    where = path
    if kind.startswith("gguf"):
        if importlib.util.find_spec("accelerate") is None:
            raise _NoReferenceError("transformers reads GGUF files only where accelerate is installed too")
        words, where = {**words, "gguf_file": path.name}, path.parent
    family = huggingface.find("llama" if kind.startswith("gguf") else kind.removeprefix("huggingface "))

    def pretrained(class_name: str) -> Any:
        return getattr(transformers, class_name).from_pretrained(where, **words).eval()

    with _quiet():
        return name, family.reference(pretrained, asked, bundle.config)


@contextmanager
def _quiet() -> Iterator[None]:
    """No talk and no progress bars of theirs."""
    import transformers

    log, level = transformers.utils.logging, transformers.utils.logging.get_verbosity()
    bars = log.is_progress_bar_enabled()
    log.set_verbosity(logging.ERROR)
    log.disable_progress_bar()
    try:
        with redirect_stderr(StringIO()):
            yield
    finally:
        log.set_verbosity(level)
        if bars:
            log.enable_progress_bar()
