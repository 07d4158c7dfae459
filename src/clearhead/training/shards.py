"""A checkpoint's pieces: which part of a tensor a worker holds, and the files that keep it."""

from __future__ import annotations

import hashlib
import json
from math import prod
from pathlib import Path
from typing import Any

import torch
from torch import Tensor
from torch.distributed.tensor import DTensor, Replicate, Shard

from ..errors import UserError


class CheckpointError(UserError, RuntimeError):
    """A checkpoint cannot be written or read; the message names the file and says why."""


class DamagedError(CheckpointError):
    """A file of a checkpoint is missing, cut short or changed."""


def share(length: int, parts: int, at: int) -> tuple[int, int]:
    """Where a worker's share of a dimension starts and how long it is: cut like torch.chunk, as FSDP2 does, into equal
    shares rounded up, so that the last ones are short or empty."""
    most = -(-length // parts)
    start = min(most * at, length)
    return start, min(most, length - start)


def place(tensor: Tensor, rank: int = 0) -> tuple[Tensor, tuple[int, ...], bool]:
    """This worker's piece of a tensor, its offset in the whole, and whether it is the one that writes this piece."""
    if not isinstance(tensor, DTensor):  # the same on every worker
        return tensor.detach(), (0,) * tensor.ndim, rank == 0
    mesh, local = tensor.device_mesh, tensor.to_local().detach()
    offset, shape, writes = [0] * tensor.ndim, list(tensor.shape), True
    coordinate = mesh.get_coordinate()
    if coordinate is None:  # this worker holds nothing of it
        return local.new_empty((0,) * tensor.ndim), tuple(offset), False
    for axis, (kind, at) in enumerate(zip(tensor.placements, coordinate, strict=True)):
        if type(kind) is Shard:  # strided shards derive from it in some versions
            start, shape[kind.dim] = share(shape[kind.dim], mesh.size(axis), at)
            offset[kind.dim] += start
        elif type(kind) is Replicate:
            writes = writes and at == 0
        else:
            raise CheckpointError(f"a tensor placed as {kind} cannot be saved or filled; Shard and Replicate can")
    if list(local.shape) != shape:
        raise CheckpointError(f"a DTensor's piece has shape {tuple(local.shape)}, expected {tuple(shape)}")
    return local, tuple(offset), writes


def gather(tensors: dict[str, Any], part: str, theirs: dict[str, Any]) -> None:
    """Add a worker's pieces to the index, and see that all workers speak of the same tensors."""
    for name, about in theirs.items():
        known = tensors.setdefault(name, {"dtype": about["dtype"], "shape": about["shape"], "pieces": []})
        if (known["dtype"], known["shape"]) != (about["dtype"], about["shape"]):
            raise CheckpointError(
                f"{name!r} is {known['dtype']} {tuple(known['shape'])} for worker 0, "
                f"but {about['dtype']} {tuple(about['shape'])} for {part}"
            )
        if about["piece"]:
            known["pieces"].append({"file": f"{part}.safetensors", **about["piece"]})


def check_cover(tensors: dict[str, Any]) -> None:
    """See that the pieces of every tensor make up the whole of it."""
    for name, about in tensors.items():
        held, needed = sum(prod(piece["shape"]) for piece in about["pieces"]), prod(about["shape"])
        if held != needed or len({tuple(piece["offset"]) for piece in about["pieces"]}) != len(about["pieces"]):
            raise CheckpointError(f"the workers' pieces of {name!r} hold {held} numbers, the tensor has {needed}")


def read_index(path: Path) -> dict[str, Any]:
    """An index, its own checksum compared."""
    file_size(path)
    try:
        sealed = json.loads(path.read_bytes())
        index, sha256 = sealed["index"], sealed["sha256"]
    except (ValueError, KeyError, TypeError, RecursionError, OSError) as cause:
        raise DamagedError(f"{path} cannot be read: {cause}") from cause
    if not isinstance(index, dict) or seal(index) != sha256:
        raise DamagedError(f"{path} is not what was written: its checksum differs")
    return index


def seal(index: Any) -> str:
    """The index's own checksum: of its content, however it is spaced."""
    return hashlib.sha256(json.dumps(index, sort_keys=True).encode()).hexdigest()


def file_size(path: Path) -> int:
    """A file's bytes; one that is not there is damage."""
    try:
        return path.stat().st_size
    except OSError as cause:
        raise DamagedError(f"{path} is missing" if isinstance(cause, FileNotFoundError) else str(cause)) from cause


def file_sha256(path: Path) -> str:
    """A file's checksum, read piece by piece."""
    try:
        with open(path, "rb") as file:
            return hashlib.file_digest(file, "sha256").hexdigest()
    except OSError as cause:
        raise DamagedError(f"{path} cannot be read: {cause.strerror}") from cause


def type_name(dtype: torch.dtype) -> str:
    """A type's word, such as bfloat16."""
    return str(dtype).removeprefix("torch.")
