"""The tensors of a folder by name, read from whichever weight files it has.

model.safetensors       or several parts: model.safetensors.index.json names the file of each tensor
pytorch_model.bin       or several parts, likewise; read by torch.load(weights_only=True), which runs no code
"""

from __future__ import annotations

import hashlib
import json
import os
import re
import zipfile
from collections.abc import Callable, Collection, Iterator, Mapping
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import torch
from safetensors import SafetensorError, safe_open
from torch import Tensor

from .. import config
from ..atomic_files import replacing
from ..errors import nearest
from .fill import Shapes, WeightsError

WHOLE = ("model.safetensors", "pytorch_model.bin")
Reader = Callable[[str], Tensor]  # tensor name -> tensor


@dataclass(frozen=True)
class Tensors:
    """The tensors of a folder; each is read from its file when it is accessed."""

    path: Path  # the file to name in a message about all of them
    shapes: Shapes
    files: Mapping[str, Path]  # tensor name: its file
    read: Reader
    # stored format, where it differs from the dtype read
    types: Mapping[str, str] = field(default_factory=dict)

    def __getitem__(self, name: str) -> Tensor:
        try:
            return self.read(name)
        except (SafetensorError, OSError, RuntimeError) as cause:
            raise WeightsError(
                f"{self.files[name]}: the tensor {name} cannot be read ({cause})"
            ) from cause

    def renamed(self, rename: Callable[[str], str]) -> Tensors:
        """The same tensors under other names."""
        old = {rename(name): name for name in self.shapes}
        if len(old) < len(self.shapes):
            twice = next(name for name in self.shapes if old[rename(name)] != name)
            other = old[rename(twice)]
            raise WeightsError(
                f"{self.path}: the tensors {twice} and {other} both become {rename(twice)}"
            )
        shapes = {new: self.shapes[name] for new, name in old.items()}
        files = {new: self.files[name] for new, name in old.items()}
        types = {new: self.types[name] for new, name in old.items() if name in self.types}
        return Tensors(self.path, shapes, files, lambda name: self.read(old[name]), types)

    def replaced(self, removed: Collection[str], added: Mapping[str, Tensor]) -> Tensors:
        """The same tensors without some, and with others that were computed from them."""
        kept = [name for name in self.shapes if name not in removed]
        shapes = {name: self.shapes[name] for name in kept}
        shapes |= {name: tuple(x.shape) for name, x in added.items()}
        files = {name: self.files[name] for name in kept} | dict.fromkeys(added, self.path)
        types = {name: self.types[name] for name in kept if name in self.types}

        def read(name: str) -> Tensor:
            return added[name] if name in added else self.read(name)

        return Tensors(self.path, shapes, files, read, types)


@contextmanager
def open_tensors(folder: Path) -> Iterator[Tensors]:
    """Open the weight files of a folder; the tensors can be read inside the `with` block."""
    # the stack keeps every part open until the caller's block ends
    with ExitStack() as stack:
        # safetensors first: a folder often has the same weights in both formats
        for name in WHOLE:
            # one whole file before an index of several
            if (folder / name).is_file():
                yield _combined(folder / name, {name: set()}, stack)
                return
            index = f"{name}.index.json"
            if (folder / index).is_file():
                yield _combined(folder / index, _read_index(folder / index), stack)
                return
        raise WeightsError(
            f"{folder}: there is no {WHOLE[0]} and no {WHOLE[1]} in this folder, whole or with an index of its parts"
        )


@contextmanager
def open_safetensors(path: Path) -> Iterator[Any]:
    """Open a safetensors file; a damaged one raises WeightsError with its name."""
    # raises PermissionError here, which safe_open would report as a damaged file
    path.open("rb").close()
    try:
        with safe_open(path, framework="pt", device="cpu") as file:
            yield file
    except (SafetensorError, OSError) as cause:
        raise WeightsError(f"{path}: is not a whole safetensors file ({cause})") from cause


def safetensors_shapes(file: Any) -> dict[str, tuple[int, ...]]:
    """The shapes of the tensors in an open safetensors file, from its header."""
    return {name: tuple(file.get_slice(name).get_shape()) for name in file.keys()}  # noqa: SIM118


def _read_index(index: Path) -> dict[str, set[str]]:
    """The files that an index names, each with the tensors that it must have."""
    table = config.load(index).get("weight_map")
    is_map = isinstance(table, dict) and all(isinstance(file, str) for file in table.values())
    if not table or not is_map:
        raise WeightsError(
            f"{index}: there is no weight_map: expected the name of a file for each tensor"
        )
    parts: dict[str, set[str]] = {}
    # an index may name any path: only files beside it are opened
    for tensor, file in table.items():
        if Path(file).name != file or file in ("", ".", ".."):
            raise WeightsError(
                f"{index}: the tensor {tensor} has the file {file!r}: expected a file beside the index"
            )
        if not (index.parent / file).is_file():
            hint = nearest(file, [path.name for path in index.parent.iterdir()])
            raise WeightsError(
                f"{index}: the tensor {tensor} has the file {file}, which is missing{hint}"
            )
        parts.setdefault(file, set()).add(tensor)
    return parts


@contextmanager
def open_file(path: Path) -> Iterator[Tensors]:
    """Open one weight file; the tensors can be read inside the `with` block."""
    with ExitStack() as stack:
        yield _combined(path, {path.name: set()}, stack)


def _combined(path: Path, parts: Mapping[str, set[str]], stack: ExitStack) -> Tensors:
    """The tensors of all parts; each must be in one part only, and in the part that the index names."""
    shapes: dict[str, tuple[int, ...]] = {}
    files: dict[str, Path] = {}
    readers: dict[Path, Reader] = {}
    for part, names in parts.items():
        file = path.parent / part
        if file.suffix == ".safetensors":
            part_shapes, readers[file] = _open_safetensors(file, stack)
        else:
            part_shapes, readers[file] = _open_pickle(file)
        # the index and the parts may disagree where an upload was broken off
        for name in sorted(names - part_shapes.keys()):
            raise WeightsError(
                f"{file}: the tensor {name} is missing, which {path.name} lists for this file"
            )
        for name, shape in part_shapes.items():
            if name in shapes:
                raise WeightsError(f"{file}: the tensor {name} is also in {files[name].name}")
            shapes[name], files[name] = shape, file
    return Tensors(path, shapes, files, lambda name: readers[files[name]](name))


def _open_safetensors(path: Path, stack: ExitStack) -> tuple[Shapes, Reader]:
    file = stack.enter_context(open_safetensors(path))
    return safetensors_shapes(file), file.get_tensor


# keys under which training scripts save the weights
WRAPPERS = ("state_dict", "model_state_dict", "model")
PARALLEL = "module."  # the prefix that DataParallel gives to all names


def _open_pickle(path: Path) -> tuple[Shapes, Reader]:
    """The tensors of a file that torch.save wrote; no code in it is run."""
    try:
        # only the zip format, which torch.save has written since 1.6, can be memory-mapped
        tensors = torch.load(
            path, map_location="cpu", weights_only=True, mmap=zipfile.is_zipfile(path)
        )
    except Exception as cause:  # a damaged or malicious file can raise anything
        # torch names the function that the file wanted to call
        code = re.search(r"GLOBAL (\S+)", str(cause))
        if code:
            raise WeightsError(
                f"{path}: asks to run {code[1]}, expected tensors only; nothing was run"
            ) from cause
        raise WeightsError(
            f"{path}: is not a file of weights ({type(cause).__name__}: {cause})"
        ) from cause
    if isinstance(tensors, dict):
        for key in WRAPPERS:
            if isinstance(tensors.get(key), dict):
                # the checkpoint of a training script, which also holds its optimiser and its step
                tensors = tensors[key]
                break
    if not isinstance(tensors, dict) or not all(isinstance(x, Tensor) for x in tensors.values()):
        keys = type(tensors).__name__
        if isinstance(tensors, dict):
            keys = ", ".join(map(repr, list(tensors)[:5]))
        raise WeightsError(
            f"{path}: does not hold a dictionary of tensors, or one under {', '.join(map(repr, WRAPPERS))}; it has "
            f"{keys}"
        )
    # DataParallel wraps the whole model in a module of that name
    if tensors and all(name.startswith(PARALLEL) for name in tensors):
        tensors = {name.removeprefix(PARALLEL): x for name, x in tensors.items()}
    return {name: tuple(x.shape) for name, x in tensors.items()}, tensors.__getitem__


# Writing safetensors files.


_CHUNK = 1 << 24  # bytes hashed and written at a time
TYPES = {
    torch.bool: "BOOL", torch.uint8: "U8", torch.int8: "I8", torch.uint16: "U16", torch.int16: "I16",
    torch.uint32: "U32", torch.int32: "I32", torch.uint64: "U64", torch.int64: "I64", torch.float16: "F16",
    torch.bfloat16: "BF16", torch.float32: "F32", torch.float64: "F64",
    torch.float8_e4m3fn: "F8_E4M3", torch.float8_e5m2: "F8_E5M2",
}  # fmt: skip


def write_tensors(path: Path, tensors: Mapping[str, Tensor]) -> tuple[int, str]:
    """Write CPU tensors to a safetensors file; returns its size in bytes and its SHA-256.

    Unlike the safetensors library's own writer it raises OSError if the disk is full.
    """
    # the widest dtype first, which keeps all values aligned
    ordered = sorted(tensors.items(), key=lambda item: (-item[1].element_size(), item[0]))
    header: dict[str, Any] = {"__metadata__": {"format": "pt"}}
    end = 0
    for name, tensor in ordered:
        # counted from the end of the header
        start, end = end, end + tensor.nbytes
        header[name] = {
            "dtype": TYPES[tensor.dtype],
            "shape": list(tensor.shape),
            "data_offsets": [start, end],
        }
    text = json.dumps(header).encode()
    # the data begin at a multiple of 8 bytes
    text += b" " * (-len(text) % 8)
    head = torch.frombuffer(bytearray(len(text).to_bytes(8, "little") + text), dtype=torch.uint8)
    sha256 = hashlib.sha256()
    # in chunks, so that hashing needs no second copy
    with open(path, "wb") as file:
        for data in (head, *(tensor for _, tensor in ordered)):
            # flat first, because a scalar has no axis that could be viewed as bytes
            view = data.reshape(-1).view(torch.uint8).numpy()
            for at in range(0, len(view), _CHUNK):
                chunk = view[at : at + _CHUNK].data
                sha256.update(chunk)
                file.write(chunk)
        # on the disk before the caller renames the file into place
        file.flush()
        os.fsync(file.fileno())
        return file.tell(), sha256.hexdigest()


def replace_tensors(path: Path, tensors: Mapping[str, Tensor]) -> None:
    """Write tensors of any device to a safetensors file, whole or not at all."""
    with replacing(path) as temporary:
        write_tensors(temporary, {name: tensor.detach().cpu() for name, tensor in tensors.items()})
