"""CheckpointWriter: each worker writes its own shards of the tensors of a checkpoint (weights/checkpoints/ reads them).

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
import threading
import time
from collections.abc import Callable, Collection, Mapping, Sequence
from contextlib import suppress
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from ..atomic_files import atomic_write, sync_folder
from ..errors import InputError
from ..weights.checkpoints.checkpoint import (
    ASIDE,
    FINAL,
    FORMAT,
    Checkpoint,
    CheckpointError,
    DamagedError,
    check_cover,
    file_size,
    gather,
    latest,
    place,
    read_index,
    seal,
    step_name,
    type_name,
)
from ..weights.tensor_files import TYPES, write_tensors
from .distributed import local
from .run_folder import to_json

__all__ = [
    "Checkpoint",
    "CheckpointError",
    "CheckpointWriter",
    "DamagedError",
    "latest",
    "step_name",
]

_POLL = 0.05  # seconds between two looks at the shared file system
_GRACE = 5.0  # seconds of delay that a shared file system may have
_FULL = (errno.ENOSPC, errno.EDQUOT, errno.EFBIG)


class CheckpointWriter:
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
        self._rank, self._world, self._attempt = rank, world, attempt
        self._keep, self._timeout = keep, timeout
        self._saves = 0
        self._host: dict[str, Tensor] = {}  # host memory of the last snapshot, reused by the next
        self._thread: threading.Thread | None = None
        self._error: Exception | None = None
        self.folder.mkdir(parents=True, exist_ok=True)
        if rank == 0:
            self._restore_aside()
            # what earlier attempts left unfinished when they were killed
            for path in self.folder.glob(".step-*.tmp"):
                # other workers of this attempt may already be writing theirs
                if f".{attempt}-" not in path.name:
                    shutil.rmtree(path, ignore_errors=True)

    def save(
        self, step: int, tensors: Mapping[str, Tensor], facts: Any, *, protect: Collection[int] = ()
    ) -> None:
        """Copy the tensors to host memory now and write them in the background; every worker must call this.

        Tensors that are not sharded are equal on all workers, and worker 0 writes them. `facts` is any JSON value;
        worker 0's is written. Checkpoints of the steps in `protect` are never removed. An existing checkpoint of this
        step is replaced.
        """
        # one save at a time: the snapshot's memory is reused, and an error of the last save is raised here
        self.wait()
        try:
            frozen = json.loads(json.dumps(facts, allow_nan=False))
        except (TypeError, ValueError) as cause:
            raise InputError(
                f"the facts of step {step} cannot be written as JSON: {cause}"
            ) from cause
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
        """Copy this worker's shards to `_host`; returns dtype, shape and this worker's shard of each tensor.

        After it the next step may change the tensors. Copies from a GPU run in its streams, which are waited for once.
        """
        about, host, streams = {}, {}, set()
        for name, tensor in tensors.items():
            if tensor.dtype not in TYPES:
                known = ", ".join(map(type_name, TYPES))
                raise InputError(
                    f"{name!r} is {type_name(tensor.dtype)}, which cannot be saved: expected {known}"
                )
            # the shard, its offset in the whole tensor, and whether this worker writes it
            shard, offset, writes = place(tensor, self._rank)
            is_ours = writes and shard.numel() > 0
            piece = {"offset": list(offset), "shape": list(shard.shape)} if is_ours else None
            about[name] = {
                "dtype": type_name(tensor.dtype),
                "shape": list(tensor.shape),
                "piece": piece,
            }
            if not is_ours:
                continue
            # pinned memory is allocated once, because that is slow
            copy = self._host.get(name)
            if copy is None or copy.dtype != shard.dtype or copy.shape != shard.shape:
                copy = torch.empty(shard.shape, dtype=shard.dtype, pin_memory=shard.is_cuda)
            # asynchronous: all copies of the snapshot are queued, and waited for once
            host[name] = copy.copy_(shard, non_blocking=shard.is_cuda)
            if shard.is_cuda:
                streams.add(torch.cuda.current_stream(shard.device))
        for stream in streams:
            stream.synchronize()
        self._host = host
        return about

    def _run(
        self,
        step: int,
        about: dict[str, Any],
        host: dict[str, Tensor],
        facts: Any,
        protect: frozenset[int],
    ) -> None:
        # Numbered, since worker 0 may begin the next save of the same step while another still waits for this one.
        temporary = self.folder / f".{step_name(step)}.{self._attempt}-{self._saves}.tmp"
        part = f"part-{self._rank:05d}"
        try:
            # all workers create the same folder
            temporary.mkdir(exist_ok=True)
            # the shards first: a part's .json says that they are complete
            size, sha256 = write_tensors(temporary / f"{part}.safetensors", host)
            atomic_write(
                temporary / f"{part}.json",
                to_json({"size": size, "sha256": sha256, "tensors": about}),
            )
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
        problem = str(cause)
        if isinstance(cause, OSError) and cause.errno in _FULL:
            problem = "the disk is full"
        last = "there is no intact checkpoint yet"
        if intact := latest(self.folder, say=lambda _: None):
            last = f"the last intact checkpoint is {intact.path}"
        return CheckpointError(
            f"step {step} could not be saved in {self.folder}: {problem}; {last}"
        )

    def _finish(self, step: int, temporary: Path, facts: Any, protect: frozenset[int]) -> None:
        """On worker 0: collect the parts, write the index, rename the folder, and remove old checkpoints."""
        names = [f"part-{rank:05d}" for rank in range(self._world)]

        def failed() -> list[Path]:
            return list(temporary.glob("*.failed"))

        def arrived() -> bool:
            return bool(failed()) or all((temporary / f"{name}.json").exists() for name in names)

        # a worker that failed says so, and nobody waits for the timeout
        if not self._until(arrived):
            missing = [name for name in names if not (temporary / f"{name}.json").exists()]
            raise TimeoutError(f"{', '.join(missing)} did not arrive")
        if failures := failed():
            raise CheckpointError(f"{failures[0].stem} failed: {failures[0].read_text()}")
        # the index has the checksums of all files, and where each shard of each tensor is
        files: dict[str, Any] = {}
        tensors: dict[str, Any] = {}
        for name in names:
            text = (temporary / f"{name}.json").read_bytes()
            part = json.loads(text)
            if (size := file_size(temporary / f"{name}.safetensors")) != part["size"]:
                # a shared file system may not have all bytes of another worker yet
                raise DamagedError(f"{name}.safetensors has {size} bytes of {part['size']}")
            # checksums were computed while writing; reading the files again would double the time
            files[f"{name}.safetensors"] = {"size": part["size"], "sha256": part["sha256"]}
            files[f"{name}.json"] = {"size": len(text), "sha256": hashlib.sha256(text).hexdigest()}
            gather(tensors, name, part["tensors"])
        check_cover(tensors)
        index = {
            "format": FORMAT, "step": step, "attempt": self._attempt, "save": self._saves, "facts": facts,
            "files": files, "tensors": tensors,
        }  # fmt: skip
        atomic_write(temporary / "index.json", to_json({"sha256": seal(index), "index": index}))
        # From here on the checkpoint is complete. A folder cannot replace another in one operation: the old one
        # steps aside, and `_restore_aside` brings it back after a crash between the two.
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

        # the temporary folder disappears when it is renamed, and also when worker 0 gives up
        if not self._until(renamed, hopeless=lambda: not temporary.exists()):
            raise TimeoutError("worker 0 did not finish it")

    def _until(
        self, done: Callable[[], bool], hopeless: Callable[[], bool] = lambda: False
    ) -> bool:
        """Poll until `done`; returns False at the timeout, which is short if `hopeless` or the program is ending."""
        deadline = time.monotonic() + self._timeout
        while not done():
            # without a partner, or at the end of the program, waiting is pointless
            if hopeless() or not threading.main_thread().is_alive():
                deadline = min(deadline, time.monotonic() + _GRACE)
            if time.monotonic() > deadline:
                return False
            time.sleep(_POLL)
        return True

    def _prune(self, step: int, protect: frozenset[int]) -> None:
        """Remove all but the newest `keep` checkpoints up to `step`; later ones, of a run that was resumed, stay."""
        steps = []
        for path in self.folder.iterdir():
            match = FINAL.match(path.name)
            if match and int(match[1]) <= step:
                steps.append(int(match[1]))
        for old in sorted(steps)[: -self._keep]:
            # the best one, or one that the average needs
            if old in protect:
                continue
            gone = self.folder / f".{step_name(old)}.{self._attempt}-{self._saves}.tmp"
            # Windows: another process reads it; the next save tries again
            with suppress(PermissionError):
                # so that a crash leaves no partial one under its name
                os.rename(self.folder / step_name(old), gone)
                shutil.rmtree(gone, ignore_errors=True)

    def _restore_aside(self) -> None:
        """Undo an interrupted replacement: the old checkpoint gets its name back, unless the new one has it."""
        for path in self.folder.iterdir():
            if aside := ASIDE.match(path.name):
                if (self.folder / aside[1]).exists():
                    shutil.rmtree(path, ignore_errors=True)
                else:
                    os.rename(path, self.folder / aside[1])


class MeanCheckpoint:
    """Several checkpoints of one run, read as one whose tensors are the means of theirs.

    Means are computed in float64 and rounded once. A tensor of whole numbers, such as a batch norm's count of batches,
    is taken from the last checkpoint.
    """

    def __init__(self, checkpoints: Sequence[Checkpoint]) -> None:
        """`checkpoints`: oldest first."""
        self.checkpoints = checkpoints

    @torch.no_grad()
    def fill(self, name: str, tensor: Tensor) -> None:
        """Copy the mean of a tensor into an existing one, as `Checkpoint.fill` does."""
        if not tensor.is_floating_point():
            self.checkpoints[-1].fill(name, tensor)
            return
        # on the CPU: not every device has float64
        total = torch.zeros(local(tensor).shape, dtype=torch.float64)
        for checkpoint in self.checkpoints:
            # the tensor itself is the buffer for reading, and is overwritten by the mean
            checkpoint.fill(name, tensor)
            total += local(tensor).cpu()
        local(tensor).copy_(total / len(self.checkpoints))
