"""Checkpoints: each worker writes its own shards of the tensors, and any number of workers can read them back.

    step-00001000/part-00000.safetensors   the shards of worker 0
    step-00001000/part-00000.json          which shard of which tensor they are
    step-00001000/index.json               checksums of all files, shards of all tensors, the loop's facts

A checkpoint is written under a temporary name and renamed when its index, the last file, is on disk. So a folder with
its final name is complete, unless the disk fails, which the checksums detect.
"""

from __future__ import annotations

import errno
import hashlib
import json
import os
import re
import shutil
import sys
import threading
import time
from collections.abc import Callable, Collection, Mapping
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from pathlib import Path
from typing import Any

import torch
from safetensors import safe_open
from torch import Tensor

from ..atomic_files import atomic_write, sync_folder
from ..errors import InputError, nearest
from ..weights.tensors import TYPES, write_tensors
from .run_folder import to_json
from .shards import (
    CheckpointError,
    DamagedError,
    check_cover,
    file_sha256,
    file_size,
    gather,
    place,
    read_index,
    seal,
    type_name,
)

__all__ = ["Checkpoint", "CheckpointError", "DamagedError", "Writer", "latest", "step_name"]

FORMAT = 2
_POLL = 0.05  # seconds between two looks at the shared file system
_GRACE = 5.0  # seconds of delay that a shared file system may have
_FULL = (errno.ENOSPC, errno.EDQUOT, errno.EFBIG)
_FINAL = re.compile(r"step-(\d{8,})$")
_ASIDE = re.compile(r"\.(step-(\d{8,}))\.[\w-]+\.old$")  # a checkpoint that is being replaced by one of the same step


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
        if final := _FINAL.match(path.name):
            steps.append((int(final[1]), True, path))
        elif aside := _ASIDE.match(path.name):
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


class Writer:
    """Writes checkpoints in the background, one at a time, into a folder that all workers see.

    `attempt` is the unique name of this attempt at the run, the same for all its workers.
    """

    def __init__(
        self,
        folder: str | Path,
        *,
        rank: int = 0,
        world: int = 1,
        attempt: str,
        keep: int = 2,  # newest checkpoints to keep
        timeout: float = 600.0,  # seconds that workers wait for each other
    ) -> None:
        if not re.fullmatch(r"[\w-]+", attempt):
            raise InputError(f"attempt is {attempt!r}, expected letters, digits, _ and -")
        if not 0 <= rank < world:
            raise InputError(f"rank is {rank}, expected at least 0 and less than world, {world}")
        if keep < 1:
            raise InputError(f"keep is {keep}, expected at least 1")
        self.folder = Path(folder)
        self._rank, self._world, self._attempt, self._keep, self._timeout = rank, world, attempt, keep, timeout
        self._saves = 0
        self._host: dict[str, Tensor] = {}  # host memory of the last snapshot, reused by the next
        self._thread: threading.Thread | None = None
        self._error: Exception | None = None
        self.folder.mkdir(parents=True, exist_ok=True)
        if rank == 0:
            self._restore_aside()
            for path in self.folder.glob(".step-*.tmp"):
                if f".{attempt}-" not in path.name:
                    shutil.rmtree(path, ignore_errors=True)

    def save(self, step: int, tensors: Mapping[str, Tensor], facts: Any, *, protect: Collection[int] = ()) -> None:
        """Copy the tensors to host memory now and write them in the background; every worker must call this.

        Tensors that are not sharded are equal on all workers, and worker 0 writes them. `facts` is any JSON value; that
        of worker 0 is written. Checkpoints of the steps in `protect` are never removed. An existing checkpoint of this
        step is replaced.
        """
        self.wait()
        try:
            frozen = json.loads(json.dumps(facts, allow_nan=False))
        except (TypeError, ValueError) as cause:
            raise InputError(f"the facts of step {step} cannot be written as JSON: {cause}") from cause
        about = self._snapshot(tensors)
        self._saves += 1
        work = (step, about, dict(self._host), frozen, frozenset(protect))
        self._thread = threading.Thread(target=self._run, args=work, name=f"save {step_name(step)}")
        self._thread.start()

    def wait(self) -> None:
        """Wait until the last save is complete on all workers; raises its error if it failed."""
        if self._thread is not None:
            self._thread.join()
            self._thread = None
        error, self._error = self._error, None
        if error is not None:
            raise error

    def _snapshot(self, tensors: Mapping[str, Tensor]) -> dict[str, Any]:
        """Copy this worker's shards to `_host`; returns dtype, shape and this worker's shard of each tensor."""
        about, host, streams = {}, {}, set()
        for name, tensor in tensors.items():
            if tensor.dtype not in TYPES:
                known = ", ".join(map(type_name, TYPES))
                raise InputError(f"{name!r} is {type_name(tensor.dtype)}, which cannot be saved: expected {known}")
            local, offset, writes = place(tensor, self._rank)
            mine = writes and local.numel() > 0
            about[name] = {
                "dtype": type_name(tensor.dtype),
                "shape": list(tensor.shape),
                "piece": {"offset": list(offset), "shape": list(local.shape)} if mine else None,
            }
            if not mine:
                continue
            kept = self._host.get(name)
            if kept is None or kept.dtype != local.dtype or kept.shape != local.shape:
                kept = torch.empty(local.shape, dtype=local.dtype, pin_memory=local.is_cuda)
            host[name] = kept.copy_(local, non_blocking=local.is_cuda)
            if local.is_cuda:
                streams.add(torch.cuda.current_stream(local.device))
        for stream in streams:
            stream.synchronize()
        self._host = host
        return about

    def _run(
        self, step: int, about: dict[str, Any], host: dict[str, Tensor], facts: Any, protect: frozenset[int]
    ) -> None:
        # Numbered, since worker 0 may begin the next save of the same step while another still waits for this one.
        temporary = self.folder / f".{step_name(step)}.{self._attempt}-{self._saves}.tmp"
        part = f"part-{self._rank:05d}"
        try:
            temporary.mkdir(exist_ok=True)
            size, sha256 = write_tensors(temporary / f"{part}.safetensors", host)
            atomic_write(temporary / f"{part}.json", to_json({"size": size, "sha256": sha256, "tensors": about}))
            if self._rank == 0:
                self._finish(step, temporary, facts, protect)
            else:
                self._await_final(step, temporary)
        except Exception as cause:
            self._error = cause
            if self._rank == 0:
                shutil.rmtree(temporary, ignore_errors=True)
                self._restore_aside()
            else:  # tell worker 0 not to wait for this one
                with suppress(OSError):
                    (temporary / f"{part}.safetensors").unlink(missing_ok=True)
                    (temporary / f"{part}.failed").write_text(str(cause))
            self._error = self._explained(step, cause)
            self._error.__cause__ = cause

    def _explained(self, step: int, cause: Exception) -> CheckpointError:
        full = isinstance(cause, OSError) and cause.errno in _FULL
        intact = latest(self.folder, say=lambda _: None)
        last = f"the last intact checkpoint is {intact.path}" if intact else "there is no intact checkpoint yet"
        return CheckpointError(
            f"step {step} could not be saved in {self.folder}: {'the disk is full' if full else cause}; {last}"
        )

    def _finish(self, step: int, temporary: Path, facts: Any, protect: frozenset[int]) -> None:
        """On worker 0: collect the parts, write the index, rename the folder, and remove old checkpoints."""
        names = [f"part-{rank:05d}" for rank in range(self._world)]

        def failed() -> list[Path]:
            return list(temporary.glob("*.failed"))

        def arrived() -> bool:
            return bool(failed()) or all((temporary / f"{name}.json").exists() for name in names)

        if not self._until(arrived):
            missing = [name for name in names if not (temporary / f"{name}.json").exists()]
            raise TimeoutError(f"{', '.join(missing)} did not arrive")
        if failures := failed():
            raise CheckpointError(f"{failures[0].stem} failed: {failures[0].read_text()}")
        files: dict[str, Any] = {}
        tensors: dict[str, Any] = {}
        for name in names:
            text = (temporary / f"{name}.json").read_bytes()
            part = json.loads(text)
            if (size := file_size(temporary / f"{name}.safetensors")) != part["size"]:
                raise DamagedError(f"{name}.safetensors has {size} bytes of {part['size']}")
            files[f"{name}.safetensors"] = {"size": part["size"], "sha256": part["sha256"]}
            files[f"{name}.json"] = {"size": len(text), "sha256": hashlib.sha256(text).hexdigest()}
            gather(tensors, name, part["tensors"])
        check_cover(tensors)
        index = {
            "format": FORMAT, "step": step, "attempt": self._attempt, "save": self._saves, "facts": facts,
            "files": files, "tensors": tensors,
        }  # fmt: skip
        atomic_write(temporary / "index.json", to_json({"sha256": seal(index), "index": index}))
        final = self.folder / step_name(step)
        aside = self.folder / f".{step_name(step)}.{self._attempt}.old"
        if final.exists():
            os.rename(final, aside)
        os.rename(temporary, final)
        sync_folder(self.folder)
        shutil.rmtree(aside, ignore_errors=True)
        self._prune(step, protect)

    def _await_final(self, step: int, temporary: Path) -> None:
        """On other workers: wait until worker 0 has renamed the folder."""
        final = self.folder / step_name(step) / "index.json"

        def renamed() -> bool:
            if temporary.exists():
                return False
            try:
                index = read_index(final)
            except DamagedError:
                return False
            return (index["attempt"], index["save"]) == (self._attempt, self._saves)

        if not self._until(renamed, hopeless=lambda: not temporary.exists()):
            raise TimeoutError("worker 0 did not finish it")

    def _until(self, done: Callable[[], bool], hopeless: Callable[[], bool] = lambda: False) -> bool:
        """Poll until `done`; returns False at the timeout, which is short if `hopeless` or the program is ending."""
        deadline = time.monotonic() + self._timeout
        while not done():
            if hopeless() or not threading.main_thread().is_alive():
                deadline = min(deadline, time.monotonic() + _GRACE)
            if time.monotonic() > deadline:
                return False
            time.sleep(_POLL)
        return True

    def _prune(self, step: int, protect: frozenset[int]) -> None:
        """Remove all but the newest `keep` checkpoints up to `step`; later ones, of a run that was resumed, stay."""
        steps = sorted(int(found[1]) for path in self.folder.iterdir() if (found := _FINAL.match(path.name)))
        old = [s for s in steps if s <= step][: -self._keep]
        for s in old:
            if s in protect:
                continue
            gone = self.folder / f".{step_name(s)}.{self._attempt}-{self._saves}.tmp"
            with suppress(PermissionError):  # Windows: another process reads it; the next save tries again
                os.rename(self.folder / step_name(s), gone)  # so that a crash leaves no partial one under its name
                shutil.rmtree(gone, ignore_errors=True)

    def _restore_aside(self) -> None:
        """Undo an interrupted replacement: the old checkpoint gets its name back, unless the new one has it."""
        for path in self.folder.iterdir():
            if aside := _ASIDE.match(path.name):
                if (self.folder / aside[1]).exists():
                    shutil.rmtree(path, ignore_errors=True)
                else:
                    os.rename(path, self.folder / aside[1])
