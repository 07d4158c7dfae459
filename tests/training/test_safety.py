"""Failures while training (signals, NaN, full disks, damaged files, other processes): no intact checkpoint is lost."""

import os
import shutil
import signal
import subprocess
import sys
import time
from contextlib import contextmanager

import pytest
import torch
from PIL import Image
from trainings import VECTORS, go, metrics, recipe, same_bits, state, weights

from clearhead import config
from clearhead.data import DataError
from clearhead.training import TrainingError, loop, train
from clearhead.training.checkpoints import Checkpoint, CheckpointError
from clearhead.training.objectives.tokens import NextToken
from clearhead.training.optim import optimisers as optim
from clearhead.training.run_folder import Folder, FolderError

pytestmark = pytest.mark.usefixtures("own_models")


def at_step(monkeypatch, step, do):
    """Call `do` in the middle of a step, counted from 1 at the start of the run."""
    real, left = optim.Optimiser.step, [step]

    def counted(self, *args):
        left[0] -= 1
        if left[0] == 0:
            do()
        return real(self, *args)

    monkeypatch.setattr(optim.Optimiser, "step", counted)


def finite(folder):
    """Assert that every checkpoint of a run is finite; returns their steps."""
    checkpoints = [Checkpoint(path) for path in sorted((folder / "checkpoints").glob("step-*"))]
    for checkpoint in checkpoints:
        assert all(checkpoint.read(name).isfinite().all() for name in checkpoint.names)
    return [checkpoint.step for checkpoint in checkpoints]


def resumes(table, out, whole):
    """Resume a run, and assert that its result equals that of an uninterrupted one."""
    run = go(table, out)
    assert run.finished
    same_bits(state(out), state(whole))
    assert metrics(out) == metrics(whole)


@pytest.fixture(scope="module")
def table():
    return recipe(run__save_every=2, model__dropout=0.1)


@pytest.fixture(scope="module")
def whole(table, tmp_path_factory, own_models):
    """The folder of the same training without interruption."""
    return go(table, tmp_path_factory.mktemp("whole") / "run").folder


# Signals


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT])
def test_a_signal_stops_after_the_step_and_prints_how_to_resume(tmp_path, monkeypatch, capsys, table, whole, number):
    with monkeypatch.context() as patch:
        at_step(patch, 5, lambda: os.kill(os.getpid(), number))
        run = go(table, tmp_path, quiet=False)
    assert not run.finished
    assert run.model is None
    assert run.step == state(tmp_path)["step"] == 5
    assert f"{tmp_path}: stopped at step 5 of 8; the same command resumes it" in capsys.readouterr().err
    assert go(table, tmp_path, quiet=False).finished
    assert f"{tmp_path}: resuming at step 5 of 8" in capsys.readouterr().err
    same_bits(state(tmp_path), state(whole))


def test_a_resumed_run_says_what_changed_and_a_finished_one_that_it_is_finished(tmp_path, capsys, table):
    go(table, tmp_path, "steps=3")
    longer = go(table, tmp_path, "steps=5", quiet=False)
    said = capsys.readouterr().err
    assert "changed: steps was 3, now 5: schedules now differ from those of an uninterrupted run" in said
    assert longer.step == 5
    assert longer.best is None
    go(table, tmp_path, "steps=5", quiet=False)
    said = capsys.readouterr().err
    assert f"{tmp_path}: already finished at step 5 of 5" in said
    assert "changed" not in said


def test_a_resumed_run_says_that_its_data_has_changed(tmp_path, capsys):
    def add_images(numbers):
        for i in numbers:
            path = tmp_path / "data" / "train" / f"class {i % 2}" / f"{i}.png"
            path.parent.mkdir(parents=True, exist_ok=True)
            Image.new("RGB", (8, 8), (9 * i, 0, 0)).save(path)

    table = {
        "seed": 0, "steps": 2, "data": {"name": "images", "path": str(tmp_path / "data"), "size": 8, "rows": 2},
        "model": {"name": "vit", "patch": 4, "width": 8, "depth": 1, "heads": 2},
        "objective": {"name": "classification"}, "run": {"save_every": 1},
    }  # fmt: skip
    add_images(range(4))
    go(table, tmp_path / "run")
    add_images(range(4, 10))
    go(table, tmp_path / "run", "steps=3", quiet=False)
    assert "changed: data had 2 steps per epoch, now 4: the files have changed" in capsys.readouterr().err


def test_a_second_ctrl_c_interrupts_at_once(tmp_path, monkeypatch, table, whole):
    def twice():
        os.kill(os.getpid(), signal.SIGINT)
        os.kill(os.getpid(), signal.SIGINT)

    with monkeypatch.context() as patch:
        at_step(patch, 5, twice)
        with pytest.raises(KeyboardInterrupt):
            go(table, tmp_path)
    assert state(tmp_path)["step"] == 4
    resumes(table, tmp_path, whole)


def test_a_signal_in_the_last_step_does_not_keep_a_run_from_finishing(tmp_path, monkeypatch, table):
    at_step(monkeypatch, 8, lambda: os.kill(os.getpid(), signal.SIGTERM))
    assert go(table, tmp_path).finished


def test_a_stopped_command_exits_with_0_and_the_same_command_resumes(tmp_path, table):
    config.write({**table, "steps": 100_000, "run": {"log_every": 5}}, tmp_path / "long.toml")
    command = [sys.executable, "-m", "clearhead", "train", str(tmp_path / "long.toml"), "--device", "cpu"]
    command += ["--out", str(tmp_path / "run")]
    process = subprocess.Popen(command, stderr=subprocess.PIPE, text=True)
    lines = tmp_path / "run" / "metrics.jsonl"
    while not (lines.exists() and lines.stat().st_size) and process.poll() is None:
        time.sleep(0.05)
    process.terminate()
    stderr = process.communicate(timeout=60)[1]
    assert process.returncode == 0, stderr
    step = int(state(tmp_path / "run")["step"])
    assert f"stopped at step {step} of 100000; the same command resumes it" in stderr
    run = go(tmp_path / "long.toml", tmp_path / "run", f"steps={step + 3}")
    assert run.metrics[-1]["step"] == step + 3


# NaN and infinity


@pytest.mark.parametrize("rate", [1e30, 1e38])  # 1e38: the first update is already infinite
@pytest.mark.parametrize("more", [{}, {"precision": "bfloat16"}, {"optim__name": "sgd", "optim__ema": 0.5}])
def test_weights_that_become_infinite_are_reported_and_never_saved(tmp_path, rate, more):
    table = recipe(
        **more, optim__lr=rate, run__save_every=1, run__log_every=100, run__valid_every=1, schedule__warmup=0
    )
    with pytest.raises(TrainingError, match=r"became .* in step \d, whose batch is that of seed 3 and"):
        go(table, tmp_path)
    finite(tmp_path)


@pytest.mark.parametrize(("step", "last"), [(1, None), (6, 4)])
def test_a_nan_loss_is_reported_with_step_seed_and_checkpoint(tmp_path, monkeypatch, table, whole, step, last):
    real, left = NextToken.loss, [step]

    def sometimes(self, batch):
        left[0] -= torch.is_grad_enabled()  # not when FLOPs are counted
        return real(self, batch) * (float("nan") if left[0] == 0 else 1.0)

    with monkeypatch.context() as patch:
        patch.setattr(NextToken, "loss", sometimes)
        with pytest.raises(TrainingError) as error:
            go(table, tmp_path)
    good = (
        f"the last good checkpoint is {tmp_path / 'checkpoints/step-00000004'}"
        if last
        else "there is no checkpoint yet"
    )
    assert str(error.value) == (
        f"{tmp_path}: the loss became nan in step {step}, whose batch is that of seed 3 and step {step - 1} counted "
        f"from 0; {good}"
    )
    assert finite(tmp_path) == ([2, 4] if last else [])
    facts = Folder(tmp_path, create=False, lock=False).facts
    assert facts()["attempts"][-1]["problem"] == f"the loss became nan in step {step}"
    resumes(table, tmp_path, whole)
    assert "problem" not in facts()["attempts"][-1]


def test_an_infinite_gradient_is_reported_and_not_saved(tmp_path, monkeypatch, table):
    real, left = optim.Optimiser.step, [3]

    def poisoned(self, *args):
        left[0] -= 1
        if left[0] == 0:
            next(iter(self.parameters.values())).grad.view(-1)[0] = float("inf")
        return real(self, *args)

    monkeypatch.setattr(optim.Optimiser, "step", poisoned)
    with pytest.raises(TrainingError, match="the gradient norm became inf in step 3"):
        go(table, tmp_path)
    assert finite(tmp_path) == [2]


# The disk


@pytest.fixture
def small_disk():
    """A function that limits the size of files once a checkpoint exists; the limit is removed afterwards."""
    resource = pytest.importorskip("resource")
    before = resource.getrlimit(resource.RLIMIT_FSIZE)

    def fill(size, after=None):
        while after is not None and not after.exists():
            time.sleep(0.01)
        resource.setrlimit(resource.RLIMIT_FSIZE, (size, before[1]))

    yield fill
    resource.setrlimit(resource.RLIMIT_FSIZE, before)


def test_a_full_disk_while_saving_leaves_the_last_checkpoint(tmp_path, monkeypatch, table, whole, small_disk):
    with monkeypatch.context() as patch:
        at_step(patch, 3, lambda: small_disk(20_000, tmp_path / "checkpoints/step-00000002"))
        with pytest.raises(CheckpointError) as error:
            go(table, tmp_path)
    small_disk(-1)
    assert str(error.value) == (
        f"step 4 could not be saved in {tmp_path / 'checkpoints'}: the disk is full; "
        f"the last intact checkpoint is {tmp_path / 'checkpoints/step-00000002'}"
    )
    assert finite(tmp_path) == [2]
    resumes(table, tmp_path, whole)


def test_a_full_disk_while_logging_is_reported_with_the_last_checkpoint(
    tmp_path, monkeypatch, table, whole, small_disk
):
    with monkeypatch.context() as patch:
        at_step(patch, 6, lambda: small_disk(500, tmp_path / "checkpoints/step-00000004"))
        with pytest.raises(TrainingError) as error:
            go(table, tmp_path)
    small_disk(-1)
    assert str(error.value).startswith(
        f"{tmp_path / 'metrics.jsonl'}: step 6 cannot be written: File too large; the last intact"
    )
    assert str(error.value).endswith("step-00000004")
    resumes(table, tmp_path, whole)


def test_a_full_disk_at_the_end_loses_nothing(tmp_path, monkeypatch, table, whole, small_disk):
    real = loop.save

    def full(*args, **options):
        small_disk(5000)
        return real(*args, **options)

    with monkeypatch.context() as patch:
        patch.setattr(loop, "save", full)
        with pytest.raises(TrainingError, match=r"cannot be written: .*; the last intact checkpoint is .*00008"):
            go(table, tmp_path)
    small_disk(-1)
    resumes(table, tmp_path, whole)


def damage(path):
    file = next(path.glob("*.safetensors"))
    data = bytearray(file.read_bytes())
    data[-3] ^= 1
    file.write_bytes(data)


def test_a_damaged_checkpoint_is_skipped_with_a_message(tmp_path, monkeypatch, capsys, table, whole):
    with monkeypatch.context() as patch:
        at_step(patch, 7, lambda: os.kill(os.getpid(), signal.SIGTERM))
        go(table, tmp_path)
    damage(tmp_path / "checkpoints" / "step-00000007")
    resumes(table, tmp_path, whole)
    message = capsys.readouterr().err
    assert "step-00000007" in message
    assert "skipping this checkpoint" in message


def test_if_no_checkpoint_is_intact_nothing_is_overwritten(tmp_path, table):
    go(table, tmp_path, "steps=4")
    for path in (tmp_path / "checkpoints").iterdir():
        damage(path)
    before = (tmp_path / "metrics.jsonl").read_bytes()
    with pytest.raises(TrainingError, match="no checkpoint is intact"):
        go(table, tmp_path)
    assert (tmp_path / "metrics.jsonl").read_bytes() == before


def test_a_damaged_best_checkpoint_is_reported(tmp_path, capsys):
    table = recipe(steps=40, optim__lr=0.5, optim__clip=0.0, run__valid_every=1, run__patience=3)
    run = go(table, tmp_path)
    _, best = min((r["valid_loss"], r["step"]) for r in run.metrics if "valid_loss" in r)
    damage(tmp_path / "checkpoints" / f"step-{best:08d}")
    assert go(table, tmp_path).best == best  # its model was saved
    shutil.rmtree(tmp_path / "model")
    again = go(table, tmp_path)
    assert again.finished
    assert "the checkpoint of the best validation is lost" in capsys.readouterr().err


# Other processes, other recipes


def contents(folder):
    """The bytes of every file of a run but those of its lock."""
    return {p: p.read_bytes() for p in folder.rglob("*") if p.is_file() and p.name not in ("lock", "holder.json")}


@contextmanager
def unchanged(folder):
    """Context after which every file of a run has to be as it was before."""
    before = contents(folder)
    yield
    assert contents(folder) == before


def test_a_folder_in_use_is_refused(tmp_path, table):
    go(table, tmp_path, "steps=3")
    message = rf"is in use by process {os.getpid()} on"
    with Folder(tmp_path), unchanged(tmp_path), pytest.raises(FolderError, match=message):
        go(table, tmp_path)


@pytest.mark.parametrize(
    ("word", "message"),
    [
        ("model.width=15", r"model\.width was 12, now 15"),
        ("model.norm=rms", r"model\.norm was not set, now 'rms'"),
        ("seed=4", "seed was 3, now 4"),
        ("optim.name=sgd", r"optim\.name was 'adamw', now 'sgd'"),
        ("data.rows=7", r"data\.rows was 6, now 7"),
        ("precision=bfloat16", "precision was 'float32', now 'bfloat16'"),
        ("optim.ema=0.5", r"optim\.ema was 0\.0, now 0\.5, and the average of a run can neither begin nor end"),
        ("optim.ema={start=0, final=1}", r"optim\.ema was 0\.0, now not set, and .*; optim\.ema\.final was not set"),
    ],
)
def test_another_recipe_is_refused_with_the_keys_that_differ(tmp_path, table, word, message):
    go(table, tmp_path, "steps=2")
    with unchanged(tmp_path), pytest.raises(FolderError, match=rf"belongs to another recipe: {message}"):
        go(table, tmp_path, word)


def test_an_average_may_change_its_decay_but_not_end(tmp_path, table):
    go(table, tmp_path, "steps=2", "optim.ema=0.5")
    go(table, tmp_path, "steps=3", "optim.ema={start=0, final=1}")
    with unchanged(tmp_path), pytest.raises(FolderError, match=r"optim\.ema was not set, now 0\.0, and the average"):
        go(table, tmp_path, "steps=4", "optim.ema=0")
    assert train(tmp_path, "steps=4", device="cpu", quiet=True).finished


def test_a_resume_past_the_last_step_changes_nothing(tmp_path, table):
    go(table, tmp_path, "steps=3")
    with unchanged(tmp_path), pytest.raises(TrainingError, match="step-00000003 is past the recipe's 2 steps"):
        go(table, tmp_path, "steps=2")


def test_options_that_change_only_rounding_may_change_when_a_run_is_resumed(tmp_path, table):
    go(table, tmp_path, "steps=2")
    words = ["accumulate=2", "recompute=true", "run.log_every=2", "spread=fsdp", "steps=4"]
    assert go(table, tmp_path, *words).metrics[-1]["step"] == 4


def test_a_checkpoint_of_another_model_is_refused_with_the_tensors_that_differ(tmp_path, table):
    go(table, tmp_path, "steps=2")
    (tmp_path / "recipe.toml").unlink()  # without it only the checkpoint can reveal the difference
    mismatch = r"step-00000002 does not match the recipe's models.*missing .*_buffer"
    with unchanged(tmp_path), pytest.raises(CheckpointError, match=mismatch):
        go(table, tmp_path, "optim.name=sgd")
    mismatch = r"is float32 \(6, 12\), but the tensor to fill is float32 \(6, 15\)"
    with unchanged(tmp_path), pytest.raises(CheckpointError, match=mismatch):
        go(table, tmp_path, "model.width=15")


# Errors come before the first step, and before the folder


def bad_data(folder):
    """Data that cannot be used, each with the message that is expected."""
    files = {"empty.txt": "", "short.txt": "abc", "bad.tsv": "a\tb\nc d\n", "empty.tsv": ""}
    for name, text in files.items():
        (folder / name).write_text(text)
    text, pairs = ({"name": name, "path": str(folder)} for name in ("text", "pairs"))
    yield {**text, "path": f"{folder}/none.txt"}, "none.txt"
    yield {**text, "path": f"{folder}/empty.txt"}, r"empty\.txt"
    yield {**text, "path": f"{folder}/short.txt", "context": 16}, r"short\.txt has 2 tokens to train on"
    yield {**pairs, "path": f"{folder}/bad.tsv"}, r"bad\.tsv:2: expected 2 columns"
    yield {**pairs, "path": f"{folder}/empty.tsv"}, r"empty\.tsv"
    yield {**pairs, "path": f"{folder}/none.tsv"}, r"none\.tsv"
    yield {"name": "images", "path": f"{folder}/no-such-folder"}, "no-such-folder"


def test_bad_data_is_reported_before_anything_is_written(tmp_path):
    for data, message in bad_data(tmp_path):
        with pytest.raises((DataError, FileNotFoundError), match=message):
            go(recipe(data=data), tmp_path / "run")
        assert not (tmp_path / "run").exists()


def test_a_folder_that_cannot_be_created_is_reported(tmp_path, table):
    (tmp_path / "file").write_text("")
    with pytest.raises(FolderError, match="cannot be created"):
        go(table, tmp_path / "file" / "run")
    with pytest.raises(FolderError, match="cannot be created"):
        go(table, tmp_path / "file")


@pytest.mark.skipif(not hasattr(os, "geteuid") or os.geteuid() == 0, reason="root may write everywhere")
def test_a_folder_without_write_permission_is_reported(tmp_path, table):
    (tmp_path / "run").mkdir(mode=0o500)
    with pytest.raises(FolderError, match="cannot be written to"):
        go(table, tmp_path / "run")


def test_a_model_that_does_not_fit_its_data_is_refused(tmp_path):
    with pytest.raises(
        ValueError, match="a deep cannot learn from data that gives ids, targets: regression reads x, y"
    ):
        go(recipe(model={"name": "deep"}), tmp_path / "run")
    with pytest.raises(ValueError, match="a gpt cannot learn from data that gives x, y: next-token reads ids, targets"):
        go(recipe(data=VECTORS["data"], model={"name": "gpt", "vocab": 5, "heads": 2, "width": 4}), tmp_path / "run")
    with pytest.raises(TrainingError, match=r"run\.patience = 2 needs validation data"):
        go(recipe(run__patience=2, run__valid_every=1, data__valid_batches=0), tmp_path / "run")
    assert not (tmp_path / "run").exists()


def test_a_recipe_that_failed_in_its_first_step_can_be_replaced(tmp_path):
    def fails(*_):
        raise InterruptedError

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(loop.Trainer, "step", fails)
        with pytest.raises(InterruptedError):
            go(recipe(), tmp_path)
    assert (tmp_path / "recipe.toml").exists()
    assert go(recipe(seed=4, steps=2), tmp_path).finished


def test_an_unknown_device_is_refused(tmp_path, table):
    with pytest.raises(ValueError, match="expected auto, cpu, cuda"):
        train(table, out=tmp_path, device="abacus")


def test_an_error_in_the_prefetch_thread_ends_the_run(tmp_path, monkeypatch, table, whole):
    from clearhead.data.generated.sequences import Reverse

    real = Reverse._train

    def fails(self, step, rows):
        if step == 5:
            raise DataError("row 5 is gone")
        return real(self, step, rows)

    with monkeypatch.context() as patch:
        patch.setattr(Reverse, "_train", fails)
        with pytest.raises(DataError, match="row 5 is gone"):
            go(table, tmp_path)
    resumes(table, tmp_path, whole)


def test_the_saved_model_equals_the_model_of_the_run(tmp_path, table):
    from clearhead import load

    run = go(table, tmp_path)
    same_bits(weights(load(tmp_path, device="cpu")), weights(run.model))
    assert torch.equal(state(tmp_path)["model/weight/embed.table"], run.model.model.embed.table)


@pytest.mark.parametrize("real", [True, False], ids=["allocated", "raised"])
def test_an_exhausted_memory_is_told_with_what_needs_less(table, tmp_path, monkeypatch, real):
    def exhaust():
        if real:  # torch's own error on a CPU, which has no class of its own
            torch.empty(1 << 60, dtype=torch.uint8)
        raise torch.OutOfMemoryError("CUDA out of memory")

    at_step(monkeypatch, 3, exhaust)
    told = r"out of memory on cpu in step 3: expected a smaller batch, or accumulate=2 or recompute=true"
    with pytest.raises(TrainingError, match=told):
        go(table, tmp_path / "run")
    assert finite(tmp_path / "run") == [2]
    assert go(table, tmp_path / "run", "accumulate=2", "recompute=true").finished
