"""Checkpoints of trainings: the tensors of a step, which any number of workers can read, whatever number wrote them.

    step-00001000/part-00000.safetensors   the shards of worker 0
    step-00001000/part-00000.json          which shard of which tensor they are
    step-00001000/index.json               checksums of all files, shards of all tensors, the loop's facts

A folder with this name is complete, unless the disk fails, which the checksums detect.
"""

from __future__ import annotations

import hashlib
import json
import re
import sys
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from math import prod
from pathlib import Path
from typing import Any

import torch
from safetensors import safe_open
from torch import Tensor
from torch.distributed.tensor import DTensor, Replicate, Shard

from ...errors import UserError, nearest

# The shards of tensors in a checkpoint: which part of a tensor a worker holds, and the checksums of files.


class CheckpointError(UserError, RuntimeError):
    """A checkpoint cannot be written or read; the message names the file and the cause."""


class DamagedError(CheckpointError):
    """A file of a checkpoint is missing, truncated or changed."""


def share(length: int, parts: int, at: int) -> tuple[int, int]:
    """The start and length of a worker's shard of a dimension, which is split like torch.chunk, as in FSDP2.

    Shards are of equal length, rounded up, so that the last ones are shorter or empty.
    """
    # rounded up, as torch.chunk does
    most = -(-length // parts)
    start = min(most * at, length)
    return start, min(most, length - start)


def place(tensor: Tensor, rank: int = 0) -> tuple[Tensor, tuple[int, ...], bool]:
    """This worker's shard of a tensor, its offset in the full tensor, and whether this worker writes it."""
    if not isinstance(tensor, DTensor):  # equal on all workers
        return tensor.detach(), (0,) * tensor.ndim, rank == 0
    # an axis of the mesh either splits a dimension of the tensor or repeats all of it
    mesh, local = tensor.device_mesh, tensor.to_local().detach()
    offset, shape, writes = [0] * tensor.ndim, list(tensor.shape), True
    coordinate = mesh.get_coordinate()
    if coordinate is None:  # this worker holds nothing of it
        return local.new_empty((0,) * tensor.ndim), tuple(offset), False
    for axis, (placement, at) in enumerate(zip(tensor.placements, coordinate, strict=True)):
        if type(placement) is Shard:  # strided shards derive from it in some versions
            # a dimension that is split twice is split again within the shard of the first
            start, shape[placement.dim] = share(shape[placement.dim], mesh.size(axis), at)
            offset[placement.dim] += start
        elif type(placement) is Replicate:
            writes = writes and at == 0  # the first of the equal ones
        else:
            raise CheckpointError(
                f"a tensor placed as {placement} cannot be saved or filled: expected Shard or Replicate"
            )
    if list(local.shape) != shape:
        raise CheckpointError(
            f"the shard of a DTensor has shape {tuple(local.shape)}, expected {tuple(shape)}"
        )
    return local, tuple(offset), writes


def gather(tensors: dict[str, Any], part: str, theirs: dict[str, Any]) -> None:
    """Add a worker's shards to the index; raises if workers disagree about a tensor."""
    for name, about in theirs.items():
        # the first worker that names a tensor decides; the others must agree
        entry = tensors.setdefault(
            name, {"dtype": about["dtype"], "shape": about["shape"], "pieces": []}
        )
        if (entry["dtype"], entry["shape"]) != (about["dtype"], about["shape"]):
            raise CheckpointError(
                f"{name!r} is {entry['dtype']} {tuple(entry['shape'])} for worker 0, "
                f"but {about['dtype']} {tuple(about['shape'])} for {part}"
            )
        # a worker that only holds a replica writes no shard
        if about["piece"]:
            entry["pieces"].append({"file": f"{part}.safetensors", **about["piece"]})


def check_cover(tensors: dict[str, Any]) -> None:
    """Raise unless the shards of every tensor cover it completely."""
    for name, about in tensors.items():
        pieces, needed = about["pieces"], prod(about["shape"])
        # every number once: as many as the tensor has, and no shard twice
        held = sum(prod(piece["shape"]) for piece in pieces)
        offsets = {tuple(piece["offset"]) for piece in pieces}
        if held != needed or len(offsets) < len(pieces):
            raise CheckpointError(
                f"the shards of {name!r} hold {held} numbers, the tensor has {needed}"
            )


def read_index(path: Path) -> dict[str, Any]:
    """Read an index and verify its checksum."""
    # raises DamagedError if the file is missing
    file_size(path)
    try:
        sealed = json.loads(path.read_bytes())
        index, sha256 = sealed["index"], sealed["sha256"]
    except (ValueError, KeyError, TypeError, RecursionError, OSError) as cause:
        raise DamagedError(f"{path} cannot be read: {cause}") from cause
    # a JSON file may be cut where it still parses
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
    except FileNotFoundError as cause:
        raise DamagedError(f"{path} is missing") from cause
    except OSError as cause:
        raise DamagedError(str(cause)) from cause


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


FORMAT = 2
FINAL = re.compile(r"step-(\d{8,})$")
# a checkpoint that is being replaced by one of the same step
ASIDE = re.compile(r"\.(step-(\d{8,}))\.[\w-]+\.old$")


def _say(sentence: str) -> None:
    print(sentence, file=sys.stderr)


def step_name(step: int) -> str:
    """The name of the checkpoint folder of a step."""
    return f"step-{step:08d}"


def latest(
    folder: str | Path, say: Callable[[str], None] = _say, *, verify: bool = True
) -> Checkpoint | None:
    """The newest intact checkpoint in a folder; `say` is called for each damaged one.

    Without `verify` only the sizes of its files are checked, not their checksums, which takes no time.
    """
    # the newest first
    for path in reversed(_checkpoint_folders(Path(folder))):
        try:
            checkpoint = Checkpoint(path)
            if verify:
                checkpoint.check()
            return checkpoint
        except DamagedError as problem:
            say(f"{problem}: skipping this checkpoint and trying the one before it")
    return None


def _checkpoint_folders(folder: Path) -> list[Path]:
    """The checkpoints in a folder, oldest first."""
    if not folder.is_dir():
        return []
    steps = []
    # one that was put aside counts after the new one of the same step
    for path in folder.iterdir():
        if final := FINAL.match(path.name):
            steps.append((int(final[1]), True, path))
        elif aside := ASIDE.match(path.name):
            steps.append((int(aside[2]), False, path))
    # of one step False sorts first, and `latest` begins at the end
    return [path for _, _, path in sorted(steps)]


class Checkpoint:
    """A checkpoint on disk. Tensors are read one by one, and only the parts that are needed."""

    def __init__(self, path: str | Path) -> None:
        self.path = Path(path)
        index = read_index(self.path / "index.json")
        if index["format"] != FORMAT:
            raise CheckpointError(
                f"{self.path / 'index.json'} has format {index['format']}; this version of clearhead reads {FORMAT}"
            )
        self.step: int = index["step"]
        self.facts: Any = index["facts"]
        self._tensors: dict[str, Any] = index["tensors"]
        self._files: dict[str, Any] = index["files"]
        self._open: dict[str, Any] = {}
        for name, file in self._files.items():
            size = file_size(self.path / name)
            # sizes are cheap to compare; checksums are for `check`
            if size != file["size"]:
                raise DamagedError(
                    f"{self.path / name} is truncated or overwritten: {size} bytes of {file['size']}"
                )

    @property
    def names(self) -> list[str]:
        """The names of the tensors, in the order in which they were saved."""
        return list(self._tensors)

    def shape(self, name: str) -> tuple[int, ...]:
        """The shape of a full tensor, without reading it."""
        return tuple(self._about(name)["shape"])

    def check(self) -> None:
        """Verify the checksums of all files; raises DamagedError naming the first file that differs."""
        with ThreadPoolExecutor() as pool:  # hashing releases the GIL
            checksums = pool.map(file_sha256, (self.path / name for name in self._files))
            for name, sha256 in zip(self._files, checksums, strict=True):
                if sha256 != self._files[name]["sha256"]:
                    raise DamagedError(f"{self.path / name} is damaged: its checksum differs")

    def read(self, name: str) -> Tensor:
        """Read a full tensor, on the CPU."""
        about = self._about(name)
        tensor = torch.empty(about["shape"], dtype=getattr(torch, about["dtype"]))
        self.fill(name, tensor)
        return tensor

    def fill(self, name: str, tensor: Tensor) -> None:
        """Copy a tensor into an existing one of the same shape and dtype; a DTensor gets only this worker's shard."""
        about = self._about(name)
        # copying would convert silently
        target = (type_name(tensor.dtype), list(tensor.shape))
        if target != (about["dtype"], about["shape"]):
            pieces = about["pieces"]
            file = pieces[0]["file"] if pieces else "index.json"
            raise CheckpointError(
                f"{name!r} in {self.path / file} is {about['dtype']} {tuple(about['shape'])}, "
                f"but the tensor to fill is {target[0]} {tuple(target[1])}"
            )
        # any number of workers may have written it
        local, start, _ = place(tensor)
        for piece in about["pieces"]:
            # The intersection of the piece and our shard in each dimension, then relative to either.
            overlap = [
                (max(a, b), min(a + m, b + n))
                for a, m, b, n in zip(
                    piece["offset"], piece["shape"], start, local.shape, strict=True
                )
            ]
            if any(low >= high for low, high in overlap):
                # this worker needs nothing of the shard
                continue
            # the same ranges, counted from the start of the shard in the file and from ours
            in_piece = _relative(overlap, piece["offset"])
            in_shard = _relative(overlap, start)
            reads_all = in_piece == tuple(slice(0, n) for n in piece["shape"])
            file = self._reader(piece["file"])
            if reads_all:
                source = file.get_tensor(name)
            else:
                source = file.get_slice(name)[in_piece]
            local[in_shard].copy_(source)

    def close(self) -> None:
        """Close the files; a later read opens them again."""
        self._open.clear()

    def _about(self, name: str) -> Any:
        if name not in self._tensors:
            raise CheckpointError(
                f"{self.path} holds no tensor {name!r}{nearest(name, self._tensors)}"
            )
        return self._tensors[name]

    def _reader(self, file: str) -> Any:
        # each file is opened once, however many tensors it has
        if file not in self._open:
            self._open[file] = safe_open(self.path / file, framework="pt")
        return self._open[file]


def _relative(ranges: Sequence[tuple[int, int]], start: Sequence[int]) -> tuple[slice, ...]:
    """Ranges of each dimension as slices of a tensor that begins at `start`."""
    return tuple(slice(low - a, high - a) for (low, high), a in zip(ranges, start, strict=True))
