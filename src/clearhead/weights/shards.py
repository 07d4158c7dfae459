"""The shards of tensors in a checkpoint: which part of a tensor a worker holds, and the checksums of files."""

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
    """A checkpoint cannot be written or read; the message names the file and the cause."""


class DamagedError(CheckpointError):
    """A file of a checkpoint is missing, truncated or changed."""


def share(length: int, parts: int, at: int) -> tuple[int, int]:
    """The start and length of a worker's shard of a dimension, which is split like torch.chunk, as in FSDP2.

    Shards are of equal length, rounded up, so that the last ones are shorter or empty.
    """
    most = -(-length // parts)
    start = min(most * at, length)
    return start, min(most, length - start)


def place(tensor: Tensor, rank: int = 0) -> tuple[Tensor, tuple[int, ...], bool]:
    """This worker's shard of a tensor, its offset in the full tensor, and whether this worker writes it."""
    if not isinstance(tensor, DTensor):  # equal on all workers
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
            raise CheckpointError(f"a tensor placed as {kind} cannot be saved or filled: expected Shard or Replicate")
    if list(local.shape) != shape:
        raise CheckpointError(f"the shard of a DTensor has shape {tuple(local.shape)}, expected {tuple(shape)}")
    return local, tuple(offset), writes


def gather(tensors: dict[str, Any], part: str, theirs: dict[str, Any]) -> None:
    """Add a worker's shards to the index; raises if workers disagree about a tensor."""
    for name, about in theirs.items():
        entry = tensors.setdefault(name, {"dtype": about["dtype"], "shape": about["shape"], "pieces": []})
        if (entry["dtype"], entry["shape"]) != (about["dtype"], about["shape"]):
            raise CheckpointError(
                f"{name!r} is {entry['dtype']} {tuple(entry['shape'])} for worker 0, "
                f"but {about['dtype']} {tuple(about['shape'])} for {part}"
            )
        if about["piece"]:
            entry["pieces"].append({"file": f"{part}.safetensors", **about["piece"]})


def check_cover(tensors: dict[str, Any]) -> None:
    """Raise unless the shards of every tensor cover it completely."""
    for name, about in tensors.items():
        held, needed = sum(prod(piece["shape"]) for piece in about["pieces"]), prod(about["shape"])
        if held != needed or len({tuple(piece["offset"]) for piece in about["pieces"]}) != len(about["pieces"]):
            raise CheckpointError(f"the shards of {name!r} hold {held} numbers, the tensor has {needed}")


def read_index(path: Path) -> dict[str, Any]:
    """Read an index and verify its checksum."""
    file_size(path)
    try:
        sealed = json.loads(path.read_bytes())
        index, sha256 = sealed["index"], sealed["sha256"]
    except (ValueError, KeyError, TypeError, RecursionError, OSError) as cause:
        raise DamagedError(f"{path} cannot be read: {cause}") from cause
    if not isinstance(index, dict) or seal(index) != sha256:
        raise DamagedError(f"{path} is damaged: its checksum differs")
    return index


def seal(index: Any) -> str:
    """The checksum of an index, independent of whitespace."""
    return hashlib.sha256(json.dumps(index, sort_keys=True).encode()).hexdigest()


def file_size(path: Path) -> int:
    """The size of a file in bytes; raises DamagedError if it is missing."""
    try:
        return path.stat().st_size
    except OSError as cause:
        raise DamagedError(f"{path} is missing" if isinstance(cause, FileNotFoundError) else str(cause)) from cause


def file_sha256(path: Path) -> str:
    """The SHA-256 of a file."""
    try:
        with open(path, "rb") as file:
            return hashlib.file_digest(file, "sha256").hexdigest()
    except OSError as cause:
        raise DamagedError(f"{path} cannot be read: {cause.strerror}") from cause


def type_name(dtype: torch.dtype) -> str:
    """The name of a dtype, such as bfloat16."""
    return str(dtype).removeprefix("torch.")
