"""The numbers of somebody's folder by their names, in whatever files they are.

model.safetensors                  or in parts: model.safetensors.index.json names the file of each tensor
pytorch_model.bin                  or in parts, likewise; read by torch.load(weights_only=True), which runs no code
"""

from __future__ import annotations

import re
import zipfile
from collections.abc import Callable, Iterator, Mapping
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import torch
from safetensors import SafetensorError, safe_open
from torch import Tensor

from .. import config
from ..errors import nearest
from .fill import WeightsError

WHOLE = ("model.safetensors", "pytorch_model.bin")
PARTS = {f"{name}.index.json": name for name in WHOLE}


@dataclass(frozen=True)
class Tensors:
    """The tensors of a folder; a number is read when its tensor is asked for."""

    path: Path  # the file that a message about all of them names
    shapes: Mapping[str, tuple[int, ...]]
    files: Mapping[str, Path]
    read: Callable[[str], Tensor]
    types: Mapping[str, str] = field(default_factory=dict)  # how a file stores them, where it is not as it is read

    def __getitem__(self, name: str) -> Tensor:
        try:
            return self.read(name)
        except (SafetensorError, OSError, RuntimeError) as cause:
            raise WeightsError(f"{self.files[name]}: the tensor {name} cannot be read ({cause})") from cause

    def renamed(self, rename: Callable[[str], str]) -> Tensors:
        """The same by other names."""
        old = {rename(name): name for name in self.shapes}
        if len(old) < len(self.shapes):
            twice = next(name for name in self.shapes if old[rename(name)] != name)
            raise WeightsError(f"{self.path}: the tensors {twice} and {old[rename(twice)]} are two names of one")
        return Tensors(
            self.path,
            {new: self.shapes[name] for new, name in old.items()},
            {new: self.files[name] for new, name in old.items()},
            lambda name: self.read(old[name]),
            {new: self.types[name] for new, name in old.items() if name in self.types},
        )


@contextmanager
def opened(folder: Path) -> Iterator[Tensors]:
    """The tensors of a folder, as long as they are looked at."""
    with ExitStack() as stack:
        for name in WHOLE:
            if (folder / name).is_file():
                yield _together(folder / name, {name: None}, stack)
                return
            index = f"{name}.index.json"
            if (folder / index).is_file():
                yield _together(folder / index, _parts(folder / index), stack)
                return
        raise WeightsError(
            f"{folder}: there is no {WHOLE[0]} and no {WHOLE[1]} in this folder, whole or with an index of its parts"
        )


def _parts(index: Path) -> dict[str, set[str] | None]:
    """The files that an index names, and the tensors that each must have."""
    table = config.load(index).get("weight_map")
    if not isinstance(table, dict) or not table or not all(isinstance(file, str) for file in table.values()):
        raise WeightsError(f"{index}: there is no weight_map: expected the name of a file for each tensor")
    parts: dict[str, set[str] | None] = {}
    for tensor, file in table.items():
        if Path(file).name != file or file in ("", ".", ".."):
            raise WeightsError(f"{index}: the tensor {tensor} is said to be in {file!r}: expected a file beside it")
        if not (index.parent / file).is_file():
            others = [path.name for path in index.parent.iterdir()]
            hint = nearest(file, others)
            raise WeightsError(f"{index}: the tensor {tensor} is said to be in {file}, which is missing{hint}")
        names = parts.setdefault(file, set())
        assert names is not None
        names.add(tensor)
    return parts


def _together(path: Path, parts: Mapping[str, set[str] | None], stack: ExitStack) -> Tensors:
    """The tensors of all files; each stands in one of them, the one that the index says."""
    shapes: dict[str, tuple[int, ...]] = {}
    files: dict[str, Path] = {}
    readers: dict[Path, Callable[[str], Tensor]] = {}
    for part, names in parts.items():
        file = path.parent / part
        safe = file.suffix == ".safetensors"
        found, readers[file] = _safetensors(file, stack) if safe else _pickled(file)
        for name in sorted((names or set()) - found.keys()):
            raise WeightsError(f"{file}: the tensor {name} is missing, which {path.name} says is there")
        for name, shape in found.items():
            if name in shapes:
                raise WeightsError(f"{file}: the tensor {name} is in {files[name].name} too")
            shapes[name], files[name] = shape, file
    return Tensors(path, shapes, files, lambda name: readers[files[name]](name))


def _safetensors(path: Path, stack: ExitStack) -> tuple[dict[str, tuple[int, ...]], Callable[[str], Tensor]]:
    file = stack.enter_context(open_safetensors(path))
    return {name: tuple(file.get_slice(name).get_shape()) for name in file.keys()}, file.get_tensor  # noqa: SIM118


@contextmanager
def open_safetensors(path: Path) -> Iterator[Any]:
    """A safetensors file, or an error that names it."""
    path.open("rb").close()  # which tells a file that may not be read from one that is broken
    try:
        with safe_open(path, framework="pt", device="cpu") as file:
            yield file
    except (SafetensorError, OSError) as cause:
        raise WeightsError(f"{path}: is not a whole safetensors file ({cause})") from cause


def _pickled(path: Path) -> tuple[dict[str, tuple[int, ...]], Callable[[str], Tensor]]:
    """The tensors of a file of torch.save, of which nothing is run."""
    try:
        found = torch.load(path, map_location="cpu", weights_only=True, mmap=zipfile.is_zipfile(path))
    except Exception as cause:  # whatever a broken or a dangerous file makes it raise
        code = re.search(r"GLOBAL (\S+)", str(cause))
        if code:
            raise WeightsError(f"{path}: asks to run {code[1]}, expected numbers only; nothing was run") from cause
        raise WeightsError(f"{path}: is not a file of weights ({type(cause).__name__}: {cause})") from cause
    if not isinstance(found, dict) or not all(isinstance(x, Tensor) for x in found.values()):
        raise WeightsError(f"{path}: holds something else than tensors by their names")
    return {name: tuple(x.shape) for name, x in found.items()}, found.__getitem__
