"""Checkpoints: each worker writes its own piece of every tensor, and any number of workers can read them back.

    step-00001000/part-00000.safetensors   what worker 0 held
    step-00001000/part-00000.json          which piece of which tensor that is
    step-00001000/index.json               every file's checksum, every tensor's pieces, the loop's facts

A checkpoint is written under a temporary name and renamed when its index, the last file, is on the disk: a folder with
its final name is whole, unless the disk itself lost something, which the checksums tell.
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
_GRACE = 5.0  # seconds in which a shared file system may show a change late
_FULL = (errno.ENOSPC, errno.EDQUOT, errno.EFBIG)
_FINAL = re.compile(r"step-(\d{8,})$")
_ASIDE = re.compile(r"\.(step-(\d{8,}))\.[\w-]+\.old$")  # a checkpoint that is being replaced by one of the same step


def _say(sentence: str) -> None:
    print(sentence, file=sys.stderr)


def step_name(step: int) -> str:
    """The folder of a step."""
    return f"step-{step:08d}"


def latest(folder: str | Path, say: Callable[[str], None] = _say) -> Checkpoint | None:
    """The newest whole checkpoint in a folder of checkpoints, every byte checked; `say` hears of each damaged one."""
    for path in reversed(_found(Path(folder))):
        try:
            checkpoint = Checkpoint(path)
            checkpoint.check()
            return checkpoint
        except DamagedError as problem:
            say(f"{problem}: this checkpoint is passed over, and the one before it is tried")
    return None


def _found(folder: Path) -> list[Path]:
    """The checkpoints of a folder, oldest first."""
    steps = []
    for path in folder.iterdir() if folder.is_dir() else ():
        if final := _FINAL.match(path.name):
            steps.append((int(final[1]), True, path))
        elif aside := _ASIDE.match(path.name):
            steps.append((int(aside[2]), False, path))
    return [path for _, _, path in sorted(steps)]


class Checkpoint:
    """A checkpoint on disk; tensors are read one by one, only the bytes that are asked for."""

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
        """The tensors, in the order they were given."""
        return list(self._tensors)

    def shape(self, name: str) -> tuple[int, ...]:
        """The shape of a whole tensor, without reading it."""
        return tuple(self._about(name)["shape"])

    def check(self) -> None:
        """Read every byte and compare with the checksums; raise DamagedError naming the first file that differs."""
        with ThreadPoolExecutor() as pool:  # hashing leaves Python's lock alone
            for name, found in zip(
                self._files, pool.map(file_sha256, (self.path / n for n in self._files)), strict=True
            ):
                if found != self._files[name]["sha256"]:
                    raise DamagedError(f"{self.path / name} is not what was written: its checksum differs")

    def read(self, name: str) -> Tensor:
        """A whole tensor, on the CPU."""
        about = self._about(name)
        tensor = torch.empty(about["shape"], dtype=getattr(torch, about["dtype"]))
        self.fill(name, tensor)
        return tensor

    def fill(self, name: str, tensor: Tensor) -> None:
        """Copy a tensor into an existing one of the same shape and type; a DTensor gets only this worker's piece."""
        about = self._about(name)
        given = (type_name(tensor.dtype), list(tensor.shape))
        if given != (about["dtype"], about["shape"]):
            file = about["pieces"][0]["file"] if about["pieces"] else "index.json"
            raise CheckpointError(
                f"{name!r} in {self.path / file} is {about['dtype']} {tuple(about['shape'])}, "
                f"but the tensor to fill is {given[0]} {tuple(given[1])}"
            )
        local, start, _ = place(tensor)
        for piece in about["pieces"]:
            # In each dimension: where the piece and our part of the tensor meet, seen from either.
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

    `attempt` names this start of the run: the same word for all its workers, and never used before.
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
            raise InputError(f"an attempt is named by letters, digits, _ and -, not {attempt!r}")
        if not 0 <= rank < world:
            raise InputError(f"rank is {rank}, expected at least 0 and less than world, {world}")
        if keep < 1:
            raise InputError(f"keep is {keep}, expected at least 1")
        self.folder = Path(folder)
        self._rank, self._world, self._attempt, self._keep, self._timeout = rank, world, attempt, keep, timeout
        self._saves = 0
        self._host: dict[str, Tensor] = {}  # host memory of the last snapshot, used again by the next
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

        Plain tensors are the same on every worker, and worker 0 writes them. `facts` is anything JSON can say, from
        worker 0. Checkpoints of the steps in `protect` are never pruned. A checkpoint of this step is replaced.
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
        """Wait until the last save is whole, on every worker; raise what went wrong with it."""
        if self._thread is not None:
            self._thread.join()
            self._thread = None
        error, self._error = self._error, None
        if error is not None:
            raise error

    def _snapshot(self, tensors: Mapping[str, Tensor]) -> dict[str, Any]:
        """Copy this worker's pieces to `_host`; return what every tensor is and where its piece begins."""
        about, host, streams = {}, {}, set()
        for name, tensor in tensors.items():
            if tensor.dtype not in TYPES:
                known = ", ".join(map(type_name, TYPES))
                raise InputError(f"{name!r} is {type_name(tensor.dtype)}, which cannot be saved; known are {known}")
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
        # Numbered, since worker 0 may be at the next save of the same step while another still looks for this one.
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
            else:  # worker 0 must not wait for us
                with suppress(OSError):
                    (temporary / f"{part}.safetensors").unlink(missing_ok=True)
                    (temporary / f"{part}.failed").write_text(str(cause))
            self._error = self._explained(step, cause)
            self._error.__cause__ = cause

    def _explained(self, step: int, cause: Exception) -> CheckpointError:
        full = isinstance(cause, OSError) and cause.errno in _FULL
        whole = latest(self.folder, say=lambda _: None)
        last = f"the last whole checkpoint is {whole.path}" if whole else "there is no whole checkpoint yet"
        return CheckpointError(
            f"step {step} could not be saved in {self.folder}: {'the disk is full' if full else cause}; {last}"
        )

    def _finish(self, step: int, temporary: Path, facts: Any, protect: frozenset[int]) -> None:
        """Worker 0: gather the parts, write the index, give the folder its name, prune."""
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
        """Other workers: wait until worker 0 has renamed the folder."""
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
        """Look until `done`; give up at the timeout, and soon if nothing can come or the program is ending."""
        deadline = time.monotonic() + self._timeout
        while not done():
            if hopeless() or not threading.main_thread().is_alive():
                deadline = min(deadline, time.monotonic() + _GRACE)
            if time.monotonic() > deadline:
                return False
            time.sleep(_POLL)
        return True

    def _prune(self, step: int, protect: frozenset[int]) -> None:
        """Remove what is older than the newest `keep`; later steps, which a resumed run has yet to reach, stay."""
        steps = sorted(int(found[1]) for path in self.folder.iterdir() if (found := _FINAL.match(path.name)))
        old = [s for s in steps if s <= step][: -self._keep]
        for s in old:
            if s in protect:
                continue
            gone = self.folder / f".{step_name(s)}.{self._attempt}-{self._saves}.tmp"
            with suppress(PermissionError):  # Windows: somebody reads it; the next save tries again
                os.rename(self.folder / step_name(s), gone)  # so that a crash leaves no half of it under its name
                shutil.rmtree(gone, ignore_errors=True)

    def _restore_aside(self) -> None:
        """Undo a replacement that was cut off: the old checkpoint gets its name back, unless the new one has it."""
        for path in self.folder.iterdir():
            if aside := _ASIDE.match(path.name):
                if (self.folder / aside[1]).exists():
                    shutil.rmtree(path, ignore_errors=True)
                else:
                    os.rename(path, self.folder / aside[1])
