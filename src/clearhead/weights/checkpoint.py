"""Checkpoints of trainings: the tensors of a step, which any number of workers can read, whatever number wrote them.

    step-00001000/part-00000.safetensors   the shards of worker 0
    step-00001000/part-00000.json          which shard of which tensor they are
    step-00001000/index.json               checksums of all files, shards of all tensors, the loop's facts

A folder with this name is complete, unless the disk fails, which the checksums detect.
"""

from __future__ import annotations

import re
import sys
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import torch
from safetensors import safe_open
from torch import Tensor

from ..errors import nearest
from .shards import CheckpointError, DamagedError, file_sha256, file_size, place, read_index, type_name

FORMAT = 2
FINAL = re.compile(r"step-(\d{8,})$")
ASIDE = re.compile(r"\.(step-(\d{8,}))\.[\w-]+\.old$")  # a checkpoint that is being replaced by one of the same step


def _say(sentence: str) -> None:
    print(sentence, file=sys.stderr)


def step_name(step: int) -> str:
    """The name of the checkpoint folder of a step."""
    return f"step-{step:08d}"


def latest(folder: str | Path, say: Callable[[str], None] = _say, *, verify: bool = True) -> Checkpoint | None:
    """The newest intact checkpoint in a folder; `say` is called for each damaged one.

    Without `verify` only the sizes of its files are checked, not their checksums, which takes no time.
    """
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
    steps = []
    for path in folder.iterdir() if folder.is_dir() else ():
        if final := FINAL.match(path.name):
            steps.append((int(final[1]), True, path))
        elif aside := ASIDE.match(path.name):
            steps.append((int(aside[2]), False, path))
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
            if size != file["size"]:
                raise DamagedError(f"{self.path / name} is truncated or overwritten: {size} bytes of {file['size']}")

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
        target = (type_name(tensor.dtype), list(tensor.shape))
        if target != (about["dtype"], about["shape"]):
            file = about["pieces"][0]["file"] if about["pieces"] else "index.json"
            raise CheckpointError(
                f"{name!r} in {self.path / file} is {about['dtype']} {tuple(about['shape'])}, "
                f"but the tensor to fill is {target[0]} {tuple(target[1])}"
            )
        local, start, _ = place(tensor)
        for piece in about["pieces"]:
            # The intersection of the piece and our shard in each dimension, then relative to either.
            both = [
                (max(a, b), min(a + m, b + n))
                for a, m, b, n in zip(piece["offset"], piece["shape"], start, local.shape, strict=True)
            ]
            if any(low >= high for low, high in both):
                continue
            theirs = tuple(slice(lo - a, hi - a) for (lo, hi), a in zip(both, piece["offset"], strict=True))
            ours = tuple(slice(lo - b, hi - b) for (lo, hi), b in zip(both, start, strict=True))
            whole = all(s == slice(0, n) for s, n in zip(theirs, piece["shape"], strict=True))
            file = self._reader(piece["file"])
            source = file.get_tensor(name) if whole else file.get_slice(name)[theirs]
            local[ours].copy_(source)

    def close(self) -> None:
        """Close the files; a later read opens them again."""
        self._open.clear()

    def _about(self, name: str) -> Any:
        if name not in self._tensors:
            raise CheckpointError(f"{self.path} holds no tensor {name!r}{nearest(name, self._tensors)}")
        return self._tensors[name]

    def _reader(self, file: str) -> Any:
        if file not in self._open:
            self._open[file] = safe_open(self.path / file, framework="pt")
        return self._open[file]
