"""Compact storage in our own folder: matrices in 8 bits, and parts of a model that another folder holds.

model.safetensors   NAME (int8) and NAME.scale: the tensor is their product, with one scale per row
config.json         "shared": {"encoder": "captioner"}: the tensors encoder.* are those of the folder captioner that
                    lies beside this one
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from contextlib import ExitStack, contextmanager
from pathlib import Path

import torch
from torch import Tensor

from .fill import WeightsError
from .tensor_files import Tensors, open_file

SCALE = ".scale"  # follows the name of a rounded tensor
MOST = 127  # largest number of a byte
TINY = 1e-30  # the scale of a row of zeros
UP = 1 + 2.0**-7  # scales are stored in bfloat16, which has the range of float32; rounded down they would clip a row


def compress(tensors: Mapping[str, Tensor], buffers: frozenset[str]) -> dict[str, Tensor]:
    """The tensors of a compact file: matrices and kernels in 8 bits, buffers unchanged, others in half precision.

    Args:
        tensors: The tensors of a model.
        buffers: The names of its buffers: the variances of a batch norm may exceed half precision.
    """
    stored: dict[str, Tensor] = {}
    for name, tensor in tensors.items():
        x = tensor.detach().cpu()
        if name in buffers or not x.is_floating_point():
            stored[name] = x
        elif x.ndim < 2 or x.shape[0] == 1:
            half = x.half()
            stored[name] = half if torch.equal(half.isfinite(), x.isfinite()) else x  # too large for half precision
        else:
            rows = x.float().flatten(1)
            scale = (rows.abs().amax(1) * UP / MOST).clamp(min=TINY).bfloat16()
            stored[name] = (rows / scale.float()[:, None]).round().to(torch.int8).reshape(x.shape)
            stored[name + SCALE] = scale
    return stored


def without_shared(tensors: Mapping[str, Tensor], folder: Path, shared: Mapping[str, str]) -> dict[str, Tensor]:
    """The tensors that a compact file itself holds; raises unless the shared ones are equal to those of their folder.

    Args:
        tensors: The result of `compress`.
        folder: The folder that is written.
        shared: Part of the model: name of the folder beside `folder` that holds it.
    """
    kept = dict(tensors)
    for part, other in shared.items():
        with open_file(_file_beside(folder, part, other)) as there:
            for name in [name for name in tensors if name.startswith(f"{part}.")]:
                if name not in there.shapes or not torch.equal(there[name], tensors[name]):
                    raise WeightsError(f"{there.path}: the tensor {name} is not that of the model to be saved")
                del kept[name]
    return kept


@contextmanager
def open_compact(path: Path, shared: Mapping[str, str]) -> Iterator[Tensors]:
    """Open a safetensors file with the shared parts of its model; one with 8-bit tensors is read as float32."""
    with ExitStack() as stack:
        tensors = stack.enter_context(open_file(path))
        for part, other in shared.items():
            there = stack.enter_context(open_file(_file_beside(path.parent, part, other)))
            tensors = _joined(tensors, there, f"{part}.")
        yield _expanded(tensors)


def _file_beside(folder: Path, part: str, other: str) -> Path:
    """The weight file of the folder that holds a shared part."""
    if Path(other).name != other or other in ("", ".", ".."):
        raise WeightsError(f"{folder}: {part} is shared with {other!r}: expected the name of a folder beside this one")
    path = folder.absolute().parent / other / "model.safetensors"
    if not path.is_file():
        raise WeightsError(f"{folder}: {part} is that of the folder {other} beside it, and there is no {path}")
    return path


def _joined(own: Tensors, there: Tensors, prefix: str) -> Tensors:
    """The tensors of a file, and those of another file whose names begin with a prefix."""
    names = {name for name in there.shapes if name.startswith(prefix)}
    for name in sorted(names & own.shapes.keys()):
        raise WeightsError(f"{own.path}: the tensor {name} is also in {there.path}, which it is shared with")
    return Tensors(
        own.path,
        {**own.shapes, **{name: there.shapes[name] for name in names}},
        {**own.files, **{name: there.files[name] for name in names}},
        lambda name: there.read(name) if name in names else own.read(name),
    )


def _expanded(tensors: Tensors) -> Tensors:
    """The same tensors, each int8 one multiplied by its scale, and then all in float32."""
    rounded = {name for name in tensors.shapes if name + SCALE in tensors.shapes}
    if not rounded:
        return tensors
    for name in rounded:
        if tensors.shapes[name + SCALE] != tensors.shapes[name][:1]:
            raise WeightsError(
                f"{tensors.files[name]}: the tensor {name + SCALE} has the shape {tensors.shapes[name + SCALE]}, "
                f"expected {tensors.shapes[name][:1]}"
            )

    def read(name: str) -> Tensor:
        x = tensors.read(name)
        if name not in rounded:
            return x.float() if x.is_floating_point() else x
        if x.dtype != torch.int8:
            raise WeightsError(f"{tensors.files[name]}: the tensor {name} is {x.dtype}, expected int8, for its scale")
        return x.float() * tensors.read(name + SCALE).float().reshape(-1, *[1] * (x.ndim - 1))

    scales = {name + SCALE for name in rounded}
    kept = [name for name in tensors.shapes if name not in scales]
    return Tensors(
        tensors.path, {name: tensors.shapes[name] for name in kept}, {name: tensors.files[name] for name in kept}, read,
        dict.fromkeys(rounded, "int8"),
    )  # fmt: skip
