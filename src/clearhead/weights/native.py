"""Our own folder of a model: what it is, its numbers, and how it reads text.

config.json         {"clearhead": version, "model": family, "options": {...}}: build(family, **options)
model.safetensors   every parameter and every buffer of its state; a shared one once, under its first name
tokens.json         how text becomes ids, where the model reads text; or what else clearhead.tokens saves

What is saved and loaded again is the same to the bit, whatever its type.
"""

from __future__ import annotations

import difflib
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from safetensors import SafetensorError, safe_open
from torch import Tensor, nn

from .. import __version__, config
from .. import tokens as text
from ..models import family, name_of
from .ready import Ready
from .tensors import write_tensors

TYPES = {"float32": torch.float32, "float64": torch.float64, "bfloat16": torch.bfloat16, "float16": torch.float16}


class WeightsError(ValueError):
    """A folder of weights is not what it should be; the sentence names the file."""


@dataclass(frozen=True, kw_only=True, slots=True)
class Saved:
    """What config.json says."""

    clearhead: str  # the version that wrote it
    model: str  # its family
    options: dict[str, Any]  # of its Config


def save(model: Ready | nn.Module, folder: str | Path, *, tokens: text.Tokens | text.Pair | None = None) -> Path:
    """Write a model, and the tokens it reads, into a folder, each file whole or not at all; returns the folder."""
    if isinstance(model, Ready):
        return save(model.model, folder, tokens=model.tokens if tokens is None else tokens)
    model = getattr(model, "_orig_mod", model)  # what torch.compile wraps
    folder, name = Path(folder), name_of(model)
    written = {"clearhead": __version__, "model": name, "options": config.dump(model.config)}
    _check_tokens(tokens, model.config, "cannot be saved")
    folder.mkdir(parents=True, exist_ok=True)
    with config.replacing(folder / "model.safetensors") as temporary:  # first: a full disk leaves the rest alone
        write_tensors(temporary, {name: tensor.detach().cpu() for name, tensor in _state(model).items()})
    if tokens is None:
        text.remove(folder)  # of another model
    else:
        text.save(tokens, folder)
    config.write(written, folder / "config.json")  # last: a new folder without it is not whole
    return folder


def load(folder: str | Path, device: str | torch.device = "auto", dtype: str | torch.dtype | None = None) -> Ready:
    """The model of a folder that `save` wrote, or of a finished run's folder.

    `device` "auto" is the first there is of cuda, mps and cpu. Numbers keep their type unless `dtype` gives another.
    """
    folder, device, dtype = _find(Path(folder)), _device(device), _dtype(dtype)
    table = config.load(folder / "config.json")
    saved = config.read(Saved, table)
    try:
        kind, options = family(saved.model)
    except ValueError as cause:
        raise WeightsError(f"{table.source.place(('model',))}{cause}") from cause
    chosen = config.read(options, table["options"])
    beside = text.saved(folder)
    tokens = None if beside is None else text.load(folder)
    _check_tokens(tokens, chosen, str(beside))
    with torch.device("meta"):  # numbers that are about to be replaced are neither drawn nor stored
        model = kind(chosen)
    _fill(model, folder / "model.safetensors", device, dtype)
    return Ready(model, tokens, chosen)


def _find(folder: Path) -> Path:
    """The folder itself, or the model of a run's folder; raises if it cannot be one."""
    if not folder.is_dir():
        others = [p.name for p in folder.parent.iterdir() if p.is_dir()] if folder.parent.is_dir() else []
        what = (
            "is a file, not a folder" if folder.exists() else f"there is no such folder{_nearest(folder.name, others)}"
        )
        raise WeightsError(f"{folder}: {what}")
    if (folder / "recipe.toml").exists() and not (folder / "config.json").exists():
        if not (folder / "model").is_dir():
            raise WeightsError(f"{folder}: this run has no model/ yet, which is written when its training ends")
        folder = folder / "model"
    for name in ("config.json", "model.safetensors"):
        if not (folder / name).is_file():
            raise WeightsError(f"{folder}: there is no {name} in this folder")
    return folder


def _state(model: nn.Module) -> dict[str, Tensor]:
    """What a model is made of: parameters, each once, and the buffers that belong to its state."""
    kept = model.state_dict(keep_vars=True).keys()
    return dict(model.named_parameters()) | {name: x for name, x in model.named_buffers() if name in kept}


@torch.no_grad()
def _fill(model: nn.Module, path: Path, device: torch.device, dtype: torch.dtype | None) -> None:
    """Give a model without numbers those of a file: every tensor is used, every parameter filled, every shape equal."""
    with _opened(path) as file:
        found = {name: file.get_slice(name) for name in file.keys()}  # noqa: SIM118
        shapes = {name: tuple(part.get_shape()) for name, part in found.items()}
        _compare(shapes, {name: tuple(x.shape) for name, x in _state(model).items()}, path)
        for name, (slot, holders) in _slots(model).items():
            tensor = file.get_tensor(name)
            if tensor.is_floating_point() != slot.is_floating_point():
                raise WeightsError(f"{path}: the tensor {name} is {tensor.dtype}, expected one like {slot.dtype}")
            kind = dtype if dtype is not None and tensor.is_floating_point() else tensor.dtype
            new = tensor.to(device, kind, copy=True)  # a copy, for the file may change or go
            if isinstance(slot, nn.Parameter):
                new = nn.Parameter(new, requires_grad=slot.requires_grad)
            for module, leaf in holders:
                setattr(module, leaf, new)
    model.to(device)  # constants, which are no part of the state


def _slots(model: nn.Module) -> dict[str, tuple[Tensor, list[tuple[nn.Module, str]]]]:
    """Every tensor of a model's state with all the places that hold it: a tied one has several."""
    places: dict[int, list[tuple[nn.Module, str]]] = {}
    for module in model.modules():
        for leaf, x in (*module.named_parameters(recurse=False), *module.named_buffers(recurse=False)):
            places.setdefault(id(x), []).append((module, leaf))
    return {name: (x, places[id(x)]) for name, x in _state(model).items()}


@contextmanager
def _opened(path: Path) -> Iterator[Any]:
    try:
        with safe_open(path, framework="pt", device="cpu") as file:
            yield file
    except (SafetensorError, OSError) as cause:
        raise WeightsError(f"{path}: is not a whole safetensors file ({cause})") from cause


def _compare(given: Mapping[str, tuple[int, ...]], expected: Mapping[str, tuple[int, ...]], path: Path) -> None:
    """Raise unless a file has just the tensors of a model."""
    extra = [name for name in given if name not in expected]
    for name, shape in expected.items():
        if name not in given:
            raise WeightsError(f"{path}: the tensor {name} {shape} is missing{_nearest(name, extra)}")
        if given[name] != shape:
            raise WeightsError(f"{path}: the tensor {name} has the shape {given[name]}, expected {shape}")
    if extra:
        more = f" (and {len(extra) - 1} more)" if len(extra) > 1 else ""
        raise WeightsError(f"{path}: the tensor {extra[0]} {given[extra[0]]}{more} has no place in this model")


def _check_tokens(tokens: text.Tokens | text.Pair | None, options: Any, where: str) -> None:
    """Raise if there are more tokens than the model knows: a pair has them for what is read and what is written."""
    vocab = getattr(options, "vocab", None)
    if isinstance(tokens, text.Pair):
        written = getattr(options, "target_vocab", None) or vocab
        both = {"source tokens": (tokens.source, vocab), "target tokens": (tokens.target, written)}
    else:
        both = {} if tokens is None else {"tokens": (tokens, vocab)}
    for name, (found, size) in both.items():
        if len(found) > (size or 0):
            what = "reads no tokens" if size is None else f"was built for {size}"
            raise WeightsError(f"{where}: there are {len(found)} {name}, and the model {what}")


def _device(device: str | torch.device) -> torch.device:
    """The device a word names."""
    there = {"cuda": torch.cuda.is_available(), "mps": torch.backends.mps.is_available(), "cpu": True}
    if device == "auto":
        return torch.device(next(kind for kind, is_there in there.items() if is_there))
    try:
        found = torch.device(device)
    except RuntimeError as cause:
        raise ValueError(f"device={device!r}: expected auto, cpu, cuda, cuda:1, mps ...") from cause
    if not there.get(found.type, True):
        raise ValueError(
            f"device={str(device)!r}: there is none here; there is {', '.join(k for k in there if there[k])}"
        )
    return found


def _dtype(dtype: str | torch.dtype | None) -> torch.dtype | None:
    """The type of numbers a word names."""
    if isinstance(dtype, str) and dtype not in TYPES:
        raise ValueError(f"dtype={dtype!r}: expected one of {', '.join(TYPES)}{_nearest(dtype, TYPES)}")
    return TYPES[dtype] if isinstance(dtype, str) else dtype


def _nearest(name: str, names: Mapping[str, Any] | list[str]) -> str:
    near = difflib.get_close_matches(name, list(names), n=1, cutoff=0.6)
    return f"; the nearest is {near[0]}" if near else ""
