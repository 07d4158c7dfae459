"""Checkpoints are read back to the bit, on any number of workers, and damaged ones are detected."""

import errno
import json
import os
import re
import subprocess
import sys
import threading
import time
from pathlib import Path

import numpy as np
import pytest
import torch
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from safetensors.torch import load_file

from clearhead.training import checkpoints as checkpoint_module
from clearhead.training.checkpoints import Checkpoint, CheckpointError, CheckpointWriter, latest
from clearhead.weights.checkpoints import checkpoint as reading_module
from clearhead.weights.checkpoints.checkpoint import place as plain_place
from clearhead.weights.checkpoints.checkpoint import share

HERE = Path(__file__).parent
TYPES = [torch.float32, torch.bfloat16, torch.float16, torch.float64, torch.int64, torch.int32, torch.uint8, torch.bool]


def tensors(step: int = 0) -> dict[str, torch.Tensor]:
    return {
        "w": torch.arange(7 * 5).reshape(7, 5) * 0.1 + step,
        "half": torch.arange(6).bfloat16().reshape(2, 3) + step,
        "ids": torch.tensor([step, -(2**60)]),
        "seen": torch.tensor(True),
        "none": torch.empty(0, 3),
    }


def save(folder, *steps, **options):
    writer = CheckpointWriter(folder, attempt=options.pop("attempt", "a"), **options)
    for step in steps:
        writer.save(step, tensors(step), {"step": step, "seen": [1, None, "x"]})
    writer.wait()
    return writer


def names(folder) -> list[str]:
    return sorted(os.listdir(folder))


def quiet(sentence: str) -> None:
    raise AssertionError(sentence)


def test_a_checkpoint_is_read_back_to_the_bit(tmp_path):
    save(tmp_path, 3)
    checkpoint = latest(tmp_path, say=quiet)
    assert (checkpoint.step, checkpoint.facts) == (3, {"step": 3, "seen": [1, None, "x"]})
    assert checkpoint.path == tmp_path / "step-00000003"
    assert checkpoint.names == list(tensors())
    for name, tensor in tensors(3).items():
        read = checkpoint.read(name)
        assert read.dtype == tensor.dtype
        assert torch.equal(read, tensor)
        into = torch.zeros_like(tensor)
        checkpoint.fill(name, into)
        assert torch.equal(into, tensor)
    assert names(checkpoint.path) == ["index.json", "part-00000.json", "part-00000.safetensors"]
    held = load_file(checkpoint.path / "part-00000.safetensors")  # the safetensors library can read the file
    assert all(torch.equal(held[name], tensors(3)[name]) for name in held)
    assert "none" not in held


def test_save_copies_the_tensors_before_it_returns(tmp_path, monkeypatch):
    go = threading.Event()
    slow = checkpoint_module.write_tensors
    monkeypatch.setattr(checkpoint_module, "write_tensors", lambda *a: go.wait(10) and slow(*a))
    weight = torch.nn.Parameter(torch.ones(3, 4))
    facts = {"best": [1]}
    writer = CheckpointWriter(tmp_path, attempt="a")
    writer.save(1, {"w": weight, "t": weight.t()}, facts)
    weight.data.zero_()
    facts["best"].append(2)
    assert latest(tmp_path) is None
    go.set()
    writer.wait()
    assert latest(tmp_path).read("t").equal(torch.ones(4, 3))
    assert latest(tmp_path).facts == {"best": [1]}
    writer.save(2, {"w": weight}, facts)
    writer.wait()
    assert latest(tmp_path).read("w").equal(torch.zeros(3, 4))
    assert latest(tmp_path).names == ["w"]


def test_a_folder_without_checkpoints_has_no_latest(tmp_path):
    assert latest(tmp_path / "none", say=quiet) is None
    CheckpointWriter(tmp_path / "empty", attempt="a").wait()
    assert latest(tmp_path / "empty", say=quiet) is None


def test_old_checkpoints_are_removed_unless_protected(tmp_path):
    writer = save(tmp_path, 1, 2, 3, keep=2)
    assert names(tmp_path) == ["step-00000002", "step-00000003"]
    writer.save(4, tensors(4), {}, protect=[2])
    writer.save(5, tensors(5), {}, protect={2})
    writer.wait()
    assert names(tmp_path) == ["step-00000002", "step-00000004", "step-00000005"]
    # A run that was resumed at step 2 must not lose its new checkpoint to later ones of the earlier attempt.
    save(tmp_path, 3, attempt="b", keep=1)
    assert names(tmp_path) == ["step-00000003", "step-00000004", "step-00000005"]


def test_a_checkpoint_of_the_same_step_is_replaced(tmp_path):
    writer = save(tmp_path, 1, 2)
    writer.save(2, {"w": torch.ones(2)}, "again")
    writer.wait()
    assert latest(tmp_path, say=quiet).facts == "again"
    assert names(tmp_path) == ["step-00000001", "step-00000002"]


def test_leftovers_of_killed_attempts_are_removed(tmp_path):
    save(tmp_path, 1)
    (tmp_path / ".step-00000002.dead.tmp").mkdir()
    (tmp_path / ".step-00000002.dead.tmp" / "index.json").write_text("{}")
    os.rename(tmp_path / "step-00000001", tmp_path / ".step-00000001.dead.old")  # killed while replacing it
    assert latest(tmp_path, say=quiet).step == 1
    CheckpointWriter(tmp_path, rank=1, world=2, attempt="b")
    assert len(names(tmp_path)) == 2
    CheckpointWriter(tmp_path, attempt="b")
    assert names(tmp_path) == ["step-00000001"]


# Damage


def flip(path: Path, at: float) -> None:
    data = bytearray(path.read_bytes())
    data[int(at * (len(data) - 1))] ^= 1
    path.write_bytes(data)


DAMAGE = {
    "truncated": (lambda p: p.write_bytes(p.read_bytes()[:-3]), "truncated|cannot be read"),
    "longer": (lambda p: p.write_bytes(p.read_bytes() + b"x"), "overwritten|cannot be read"),
    "empty": (lambda p: p.write_bytes(b""), "truncated|cannot be read"),
    "missing": (lambda p: p.unlink(), "is missing"),
    "garbage": (lambda p: p.write_bytes(b"\xff\x00garbage"), "overwritten|cannot be read"),
    "nested": (lambda p: p.write_bytes(b"[" * 100_000), "overwritten|cannot be read"),
    "other": (lambda p: p.write_bytes(b'{"sha256": "", "index": 3}'), "overwritten|checksum"),
    "first bit": (lambda p: flip(p, 0), "checksum|cannot be read"),
    "middle bit": (lambda p: flip(p, 0.5), "checksum|cannot be read"),
}


@pytest.mark.parametrize("kind", DAMAGE)
@pytest.mark.parametrize("file", ["index.json", "part-00000.json", "part-00000.safetensors"])
def test_a_damaged_checkpoint_is_reported_and_skipped(tmp_path, file, kind):
    damage, message = DAMAGE[kind]
    save(tmp_path, 1, 2)
    damage(tmp_path / "step-00000002" / file)
    messages = []
    assert latest(tmp_path, say=messages.append).step == 1
    assert len(messages) == 1
    assert str(Path("step-00000002") / file) in messages[0]
    assert re.search(message, messages[0]), messages[0]
    damage(tmp_path / "step-00000001" / file)
    assert latest(tmp_path, say=messages.append) is None
    save(tmp_path, 2, attempt="b")  # a damaged one is replaced
    assert latest(tmp_path, say=quiet).step == 2


def test_a_flipped_bit_in_an_index_is_detected_or_harmless(tmp_path):
    save(tmp_path, 1)
    path = tmp_path / "step-00000001" / "index.json"
    whole, before = path.read_bytes(), vars(Checkpoint(path.parent))
    for at in range(len(whole)):
        path.write_bytes(whole[:at] + bytes([whole[at] ^ 1 << at % 8]) + whole[at + 1 :])
        try:
            assert vars(Checkpoint(path.parent)) == before  # whitespace that became other whitespace
        except checkpoint_module.DamagedError:
            continue


def test_a_checkpoint_of_another_format_is_refused_and_not_called_damaged(tmp_path, monkeypatch):
    monkeypatch.setattr(checkpoint_module, "FORMAT", 99)
    save(tmp_path, 1)
    monkeypatch.undo()
    with pytest.raises(CheckpointError, match=r"index\.json has format 99; this version of clearhead reads \d+"):
        latest(tmp_path)


# Mismatches


def test_filling_checks_names_shapes_and_dtypes(tmp_path):
    save(tmp_path, 1)
    checkpoint = latest(tmp_path)
    file = re.escape(str(tmp_path / "step-00000001" / "part-00000.safetensors"))
    with pytest.raises(CheckpointError, match=rf"'w' in {file} is float32 \(7, 5\), but .* is float32 \(7, 6\)"):
        checkpoint.fill("w", torch.zeros(7, 6))
    with pytest.raises(CheckpointError, match=r"is bfloat16 \(2, 3\), but .* is float32 \(2, 3\)"):
        checkpoint.fill("half", torch.zeros(2, 3))
    with pytest.raises(CheckpointError, match="no tensor 'sen'; the nearest is seen"):
        checkpoint.read("sen")
    checkpoint.close()
    assert checkpoint.read("seen").item() is True


def test_unsupported_dtypes_and_facts_are_refused(tmp_path):
    writer = CheckpointWriter(tmp_path, attempt="a")
    with pytest.raises(ValueError, match="facts of step 1 cannot be written as JSON"):
        writer.save(1, {}, {"loss": float("inf")})
    with pytest.raises(ValueError, match=r"'c' is complex64, which cannot be saved: expected .*bfloat16"):
        writer.save(1, {"c": torch.zeros(2, dtype=torch.complex64)}, {})
    writer.wait()
    for options in ({"attempt": "../x"}, {"attempt": "a", "keep": 0}, {"attempt": "a", "rank": 2, "world": 2}):
        with pytest.raises(ValueError, match="expected"):
            CheckpointWriter(tmp_path, **options)


# Full disks and lost workers


@pytest.mark.parametrize("when", ["part", "json", "index", "rename"])
def test_a_full_disk_leaves_the_last_checkpoint_intact(tmp_path, monkeypatch, when):
    writer = save(tmp_path, 1, 2)

    def full(*_):
        raise OSError(errno.ENOSPC, "No space left on device")

    atomic, calls = checkpoint_module.atomic_write, []
    if when == "part":
        monkeypatch.setattr(checkpoint_module, "write_tensors", full)
    elif when == "rename":
        rename = os.rename
        monkeypatch.setattr(checkpoint_module.os, "rename", lambda a, b: full() if "tmp" in a.name else rename(a, b))
    else:
        count = {"json": 1, "index": 2}[when]
        monkeypatch.setattr(
            checkpoint_module,
            "atomic_write",
            lambda *a: calls.append(1) or (full() if len(calls) == count else atomic(*a)),
        )
    writer.save(2, tensors(2), {})
    with pytest.raises(
        CheckpointError, match=r"step 2 could not be saved.*the disk is full; the last intact.*00002$"
    ) as e:
        writer.wait()
    assert isinstance(e.value.__cause__, OSError)
    writer.wait()  # the error is raised once
    assert names(tmp_path) == ["step-00000001", "step-00000002"]
    monkeypatch.undo()
    writer.save(3, tensors(3), {})
    writer.wait()
    assert latest(tmp_path, say=quiet).step == 3


LIMITED = """
import resource, sys, torch
from clearhead.training.checkpoints import CheckpointError, CheckpointWriter, latest
writer = CheckpointWriter(sys.argv[1], attempt="a")
writer.save(1, {"w": torch.ones(1000)}, {})
writer.wait()
resource.setrlimit(resource.RLIMIT_FSIZE, (100_000, 100_000))
try:
    writer.save(2, {"w": torch.ones(1_000_000)}, {})
    writer.wait()
except CheckpointError as error:
    print(error)
"""


@pytest.mark.skipif(os.name == "nt", reason="limits of the system are POSIX")
def test_a_file_that_exceeds_the_size_limit_is_reported_as_a_full_disk(tmp_path):
    ran = subprocess.run([sys.executable, "-c", LIMITED, str(tmp_path)], capture_output=True, text=True, timeout=60)
    assert "the disk is full; the last intact checkpoint is" in ran.stdout, ran.stderr
    assert names(tmp_path) == ["step-00000001"]


def test_a_worker_that_fails_or_does_not_write_is_reported(tmp_path, monkeypatch):
    monkeypatch.setattr(checkpoint_module, "_GRACE", 0.2)
    one, two = (CheckpointWriter(tmp_path, rank=rank, world=2, attempt="a", timeout=0.3) for rank in range(2))
    one.save(1, tensors(), {})
    with pytest.raises(CheckpointError, match=r"part-00001 did not arrive; there is no intact checkpoint yet"):
        one.wait()
    assert names(tmp_path) == []

    one, two = (CheckpointWriter(tmp_path, rank=rank, world=2, attempt="a", timeout=20.0) for rank in range(2))
    whole = checkpoint_module.write_tensors

    def full_for_two(path, tensors):
        if "00001" in path.name:
            raise OSError(errno.ENOSPC, "No space left on device")
        return whole(path, tensors)

    monkeypatch.setattr(checkpoint_module, "write_tensors", full_for_two)
    started = time.monotonic()
    one.save(1, tensors(), {})
    two.save(1, tensors(), {})
    with pytest.raises(CheckpointError, match=r"part-00001 failed: .*No space left"):
        one.wait()
    with pytest.raises(CheckpointError, match="the disk is full"):
        two.wait()
    assert time.monotonic() - started < 5
    assert names(tmp_path) == []

    monkeypatch.setattr(checkpoint_module, "write_tensors", lambda *a: 1 / 0 if "00000" in a[0].name else whole(*a))
    two.save(2, tensors(), {})
    time.sleep(0.2)
    one.save(2, tensors(), {})
    with pytest.raises(CheckpointError, match="division by zero"):
        one.wait()
    with pytest.raises(CheckpointError, match="worker 0 did not finish"):
        two.wait()


def test_workers_that_disagree_about_a_tensor_are_reported(tmp_path):
    one, two = (CheckpointWriter(tmp_path, rank=rank, world=2, attempt="a", timeout=1.0) for rank in range(2))
    two.save(1, {"w": torch.zeros(3)}, {})
    one.save(1, {"w": torch.zeros(4)}, {})
    with pytest.raises(CheckpointError, match=r"'w' is float32 \(4,\) for worker 0, but float32 \(3,\) for part-00001"):
        one.wait()
    with pytest.raises(CheckpointError):
        two.wait()


# Resharding


class Sharded:
    """Replaces DTensors in one process: a worker's shard is looked up by the id of its tensor."""

    def __init__(self) -> None:
        self.placed: dict[int, tuple[torch.Tensor, tuple[int, ...], bool]] = {}
        self.alive: list[torch.Tensor] = []  # so that no id is used twice

    def cut(self, whole: torch.Tensor, dim: int | None, parts: int, at: int) -> torch.Tensor:
        alias = whole.view(whole.shape)
        offset, local, writes = [0] * whole.ndim, alias, at == 0
        if dim is not None:
            start, size = share(whole.shape[dim], parts, at)
            offset[dim], local, writes = start, whole.narrow(dim, start, size), True
        self.alive.append(alias)
        self.placed[id(alias)] = (local, tuple(offset), writes)
        return alias

    def place(self, tensor: torch.Tensor, rank: int = 0) -> tuple[torch.Tensor, tuple[int, ...], bool]:
        return self.placed.get(id(tensor)) or plain_place(tensor, rank)


@given(data=st.data())
@settings(suppress_health_check=[HealthCheck.function_scoped_fixture])
def test_tensors_of_any_sharding_fill_those_of_any_other(tmp_path_factory, monkeypatch, data):
    folder = tmp_path_factory.mktemp("c")
    sharded = Sharded()
    for module in (checkpoint_module, reading_module):
        monkeypatch.setattr(module, "place", sharded.place)
    monkeypatch.setattr(checkpoint_module, "_POLL", 0.002)
    before, after = data.draw(st.integers(1, 4)), data.draw(st.integers(1, 4))
    wholes, dims = {}, {}
    for i in range(data.draw(st.integers(1, 3))):
        shape = data.draw(st.lists(st.integers(0, 5), max_size=3))
        dtype = data.draw(st.sampled_from(TYPES))
        raw = np.random.default_rng(i).integers(
            0, 2 if dtype is torch.bool else 256, 8 * max(1, np.prod(shape, dtype=int))
        )
        bits = torch.from_numpy(raw.astype(np.uint8)).view(dtype)
        wholes[f"t{i}"] = bits[: int(np.prod(shape, dtype=int))].reshape(shape)
        dims[f"t{i}"] = [data.draw(st.sampled_from([None, *range(len(shape))])) for _ in range(2)]
    writers = [CheckpointWriter(folder, rank=r, world=before, attempt="a", timeout=20.0) for r in range(before)]
    for rank, writer in reversed(list(enumerate(writers))):
        writer.save(1, {n: sharded.cut(x, dims[n][0], before, rank) for n, x in wholes.items()}, {})
    for writer in writers:
        writer.wait()
    checkpoint = latest(folder, say=quiet)
    for name, whole in wholes.items():
        assert bits_of(checkpoint.read(name)) == bits_of(whole)
        filled = torch.zeros_like(whole)
        for rank in range(after):
            checkpoint.fill(name, sharded.cut(filled, dims[name][1], after, rank))
        assert bits_of(filled) == bits_of(whole)


def bits_of(tensor: torch.Tensor) -> tuple:
    """The bytes, shape and dtype of a tensor, so that NaNs compare equal."""
    return tensor.dtype, tensor.shape, tensor.contiguous().reshape(-1).view(torch.uint8).tolist()


@given(length=st.integers(0, 40), parts=st.integers(1, 9))
def test_shards_are_those_of_torch_chunk(length, parts):
    theirs = [chunk.tolist() for chunk in torch.arange(length).chunk(parts)] if length else []
    for at in range(parts):
        start, size = share(length, parts, at)
        assert list(range(start, start + size)) == (theirs[at] if at < len(theirs) else [])


@pytest.mark.slow
def test_three_gloo_workers_save_and_fill_dtensors(tmp_path):
    """Resharding 2 -> 1, 1 -> 2 and 2 -> 3, and FSDP2 with its optimiser, by three processes."""
    sys.path.insert(0, str(HERE))
    try:
        from sharded_workers import WHOLE
    finally:
        sys.path.remove(str(HERE))
    one = CheckpointWriter(tmp_path / "one", attempt="a")
    one.save(1, WHOLE, {})
    one.wait()
    script = str(HERE / "sharded_workers.py")
    workers = [
        subprocess.Popen([sys.executable, script, str(r), str(tmp_path)], stderr=subprocess.PIPE, text=True)
        for r in range(3)
    ]
    try:
        errors = [worker.communicate(timeout=60)[1] for worker in workers]
    finally:
        for worker in workers:
            worker.kill()
    assert [worker.returncode for worker in workers] == [0, 0, 0], "\n".join(errors)
    checkpoint = latest(tmp_path / "two", say=quiet)
    assert checkpoint.names == list(WHOLE)
    for name, whole in WHOLE.items():
        assert torch.equal(checkpoint.read(name), whole)
    index = json.loads((checkpoint.path / "index.json").read_text())["index"]
    assert [len(index["tensors"][name]["pieces"]) for name in WHOLE] == [2, 2, 1, 1, 1]


# Kills


@pytest.mark.skipif(not hasattr(os, "fork"), reason="forks its victims")
@pytest.mark.parametrize("moment", ["some", pytest.param("each", marks=pytest.mark.slow)])
def test_a_process_killed_while_saving_leaves_an_intact_checkpoint(tmp_path, moment):
    """SIGKILL before any change of the file system, or at random."""
    script = str(HERE / "crash_points.py")
    ran = subprocess.run([sys.executable, script, str(tmp_path), moment], capture_output=True, text=True, timeout=120)
    assert ran.returncode == 0, ran.stderr
    assert int(ran.stdout) > 30


@pytest.mark.cuda
@pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a CUDA device")
def test_tensors_of_a_cuda_device_are_saved_and_filled(tmp_path):
    writer = CheckpointWriter(tmp_path, attempt="a")
    weight = torch.randn(1000, 1000, device="cuda", dtype=torch.bfloat16)
    for step in (1, 2):
        kept = weight.clone()
        writer.save(step, {"w": weight, "t": weight.t(), "n": torch.tensor(step)}, {})
        weight.zero_()
        writer.wait()
        checkpoint = latest(tmp_path, say=quiet)
        checkpoint.fill("w", weight)
        assert torch.equal(weight, kept)
        assert torch.equal(checkpoint.read("t"), kept.t().cpu())
        weight += 1
