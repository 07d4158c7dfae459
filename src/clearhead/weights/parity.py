"""Parity certificates: which tensors of a checkpoint were used, and how far our outputs are from the reference's.

The reference is the folder's own probe (inputs with their expected logits), or else Hugging Face's transformers, if it
is installed.
"""

from __future__ import annotations

import importlib.metadata
import importlib.util
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from ..models import family_of
from . import folder as folders
from .bundle import Bundle
from .fill import WeightsError
from .huggingface import folder as huggingface
from .huggingface.transformers_model import quiet
from .tensor_files import open_safetensors, replace_tensors

PROBE = "probe.safetensors"  # the inputs of forward by name, and its output as `logits`
ROWS, SIZE = 2, 48  # number of random rows to compare, and their tokens (or pixels)
OURS = "it is in our own format, which is exact to the bit"
UNREAD = "transformers does not read such weights, and the folder has no probe"
# Layouts that transformers is not asked about when there is no probe, and why.
NO_REFERENCE = {
    "clearhead": OURS,
    "unfinished": OURS,
    "timm": UNREAD,
    "file": UNREAD,
    "tfjs": UNREAD,
    "peft": "transformers alone does not add adapters, and the folder has no probe",
    "transformers": "transformers itself runs it",
}


@dataclass(frozen=True, kw_only=True, slots=True)
class Certificate:
    """Which tensors of a checkpoint a model was loaded from, and how close its outputs are to the reference's.

    Examples:
        >>> folder = clearhead.save(clearhead.build("deep", width=3, depth=1), tmp)
        >>> print(parity(folder, compare=False))
        /...: clearhead -> deep, ... parameters
        weights: ... float32, in model.safetensors
        tensors: ... used, 0 ignored
        parity: not compared: compare=False
    """

    folder: str  # path of the checkpoint
    kind: str  # its layout and model type
    model: str  # our family, or the class of a model that transformers runs
    parameters: int  # number of parameters
    files: tuple[str, ...]  # weight files
    types: dict[str, int]  # stored format: number of values
    used: dict[str, tuple[int, ...]]  # tensors that became part of the model: name and shape
    ignored: dict[str, tuple[int, ...]]  # constants, and heads of other tasks: name and shape
    reference: str | None  # what the outputs were compared with
    difference: float | None  # largest absolute difference of any output value, in float32
    largest: float | None  # largest absolute output value of the reference
    note: str | None = None  # why there is no difference

    def to_dict(self) -> dict[str, Any]:
        """The fields as plain values."""
        return asdict(self)

    def __str__(self) -> str:
        counts = ", ".join(f"{count:,} {kind}" for kind, count in self.types.items())
        parity = f"not compared: {self.note}"
        if self.difference is not None:
            size = f"largest difference {self.difference:.2e}, of outputs up to {self.largest:.3g}"
            parity = f"{size} ({self.reference})"
        return "\n".join(
            [
                f"{self.folder}: {self.kind} -> {self.model}, {self.parameters:,} parameters",
                f"weights: {counts}, in {', '.join(self.files)}",
                f"tensors: {len(self.used)} used, {len(self.ignored)} ignored",
                *(f"  ignored: {name} {shape}" for name, shape in self.ignored.items()),
                f"parity: {parity}",
            ]
        )


def parity(folder: str | Path, *, compare: bool = True) -> Certificate:
    """Load a checkpoint and return its parity certificate.

    Args:
        folder: What `load` takes.
        compare: Compare outputs with the folder's probe, or with transformers; False: only list the tensors.

    Examples:
        >>> folder = clearhead.save(clearhead.build("deep", width=3, depth=1), tmp)
        >>> parity(folder, compare=False).files
        ('model.safetensors',)
    """
    path, kind = folders.find(folder)
    # float32, since the bound on differences is one of float32
    bundle, used = folders.read(path, kind, torch.device("cpu"), torch.float32)
    # a model that transformers runs belongs to no family of ours
    family = bundle.name if kind == "transformers" else family_of(bundle.model)
    reference = difference = largest = None
    note = None if compare else "compare=False"
    if compare:
        try:
            reference, ours, theirs = _outputs(bundle, path, kind)
            # the largest output gives the difference its scale
            difference, largest = float((ours - theirs).abs().max()), float(theirs.abs().max())
        except _NoReferenceError as problem:
            note = str(problem)
    return Certificate(
        folder=str(path),
        kind=kind,
        model=family,
        parameters=sum(p.numel() for p in bundle.model.parameters()),
        files=used.files,
        types=used.types,
        used=used.used,
        ignored=used.ignored,
        reference=reference,
        difference=difference,
        largest=largest,
        note=note,
    )


certificate = parity  # its name until 0.3


@torch.no_grad()
def write_probe(bundle: Bundle, folder: str | Path, *, seed: int = 0) -> Path:
    """Write random inputs and the model's outputs for them into a folder, for later certificates; returns the file.

    Args:
        bundle: The model.
        folder: The folder of its checkpoint.
        seed: Seed of the random inputs.

    Examples:
        >>> folder = clearhead.save(clearhead.build("gpt", vocab=3, context=8, width=8, depth=1, heads=2), tmp)
        >>> write_probe(clearhead.load(folder, device="cpu"), folder).name
        'probe.safetensors'
        >>> parity(folder).difference
        0.0
    """
    inputs = _random_inputs(bundle, seed)
    path = Path(folder) / PROBE
    replace_tensors(path, {**inputs, "logits": _ours(bundle, inputs).contiguous()})
    return path


class _NoReferenceError(Exception):
    """There is nothing to compare with."""


def _outputs(bundle: Bundle, path: Path, kind: str) -> tuple[str, Tensor, Tensor]:
    """The name of the reference, our output, and the reference's."""
    # beside a GGUF file, or inside a folder
    probe = (path if path.is_dir() else path.parent) / PROBE
    if not probe.is_file():
        # random ids and pixels show a lost tensor as well as a text does, and need no tokenizer
        inputs = _random_inputs(bundle, seed=0)
        name, theirs = _transformers(bundle, path, kind, inputs)
        return name, _ours(bundle, inputs), theirs
    with open_safetensors(probe) as file:
        inputs = {name: file.get_tensor(name) for name in file.keys()}  # noqa: SIM118
    expected = inputs.pop("logits", None)
    if expected is None or not inputs:
        raise WeightsError(
            f"{probe}: expected the inputs of the model by name, and its output as logits"
        )
    ours = _ours(bundle, inputs)
    if ours.shape != expected.shape:
        raise WeightsError(
            f"{probe}: logits has the shape {tuple(expected.shape)}, the model's {tuple(ours.shape)}"
        )
    return PROBE, ours, expected.float()


def _random_inputs(bundle: Bundle, seed: int) -> dict[str, Tensor]:
    # of the kind that the family reads (ids, pairs, pixels), and the same for equal seeds
    inputs: dict[str, Tensor] = bundle.model.example_inputs(
        ROWS, SIZE, torch.Generator().manual_seed(seed)
    )  # type: ignore[operator]
    return inputs


def _ours(bundle: Bundle, inputs: dict[str, Tensor]) -> Tensor:
    on_device = {name: x.to(bundle.device) for name, x in inputs.items()}
    # without gradients faster kernels would run, which round a little more
    with torch.enable_grad():
        out: Tensor = bundle.model(**on_device)
    return out.detach().float()


@torch.no_grad()
def _transformers(
    bundle: Bundle, path: Path, kind: str, inputs: dict[str, Tensor]
) -> tuple[str, Tensor]:
    """The version of transformers, and its output."""
    if kind in NO_REFERENCE:
        raise _NoReferenceError(NO_REFERENCE[kind])
    try:
        import transformers
    except ImportError as cause:
        raise _NoReferenceError(
            "transformers is not installed, and the folder has no probe"
        ) from cause
    # eager attention rounds as the explicit formula does
    options: dict[str, Any] = {
        "local_files_only": True,
        "dtype": torch.float32,
        "attn_implementation": "eager",
    }
    where = path
    if kind == "gguf":
        # transformers dequantises GGUF files with these
        if not all(map(importlib.util.find_spec, ("accelerate", "gguf"))):
            raise _NoReferenceError("transformers needs accelerate and gguf to read GGUF files")
        options, where = {**options, "gguf_file": path.name}, path.parent
    # only Llama's family is read from GGUF; other layouts carry their model type behind the name
    model_type = "llama" if kind == "gguf" else kind.removeprefix("huggingface ")
    layout = huggingface.get_layout(model_type)

    def pretrained(class_name: str) -> Any:
        # without dropout
        return getattr(transformers, class_name).from_pretrained(where, **options).eval()

    with quiet():
        output = layout.reference(pretrained, inputs, bundle.config)
    return f"transformers {importlib.metadata.version('transformers')}", output
