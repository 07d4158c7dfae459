"""Two workers equal one worker to rounding: real processes over gloo, started by torchrun."""

import json
import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest
import torch
import torch.distributed as dist
from torch import nn
from trainings import GAN, STUDENT, VECTORS, go, metrics, near, recipe, state

from clearhead import load
from clearhead.errors import Notice
from clearhead.training.distributed import SyncedBatchNorm

pytestmark = pytest.mark.usefixtures("own_models")
SCRIPT = Path(__file__).with_name("train_workers.py")
# A bias of keys does not change attention: its gradient is rounding, which AdamW and Muon would amplify.
PLAIN = {"model__bias": False, "run__valid_every": 2, "steps": 6}
UNEVEN = {"data__length": [1, 12], "data__rows": 4, "model__context": 24}  # a mean per worker would give another loss

CASES = {
    "ddp": PLAIN | UNEVEN,
    "fsdp": PLAIN | UNEVEN | {"spread": "fsdp", "run__inside_every": 2},
    "ddp, odd rows": PLAIN | {"data__rows": 5, "data__valid_rows": 3, "run__inside_every": 2},
    "fsdp, odd rows, parts": PLAIN | {"data__rows": 5, "accumulate": 3, "spread": "fsdp"},
    "ddp, parts, averages": PLAIN | UNEVEN | {"accumulate": 2, "optim__ema": 0.7, "objective__smoothing": 0.2},
    "fsdp, averages": PLAIN | {"optim__ema": 0.7, "spread": "fsdp", "objective__smoothing": 0.2, "recompute": True},
    "ddp, muon": PLAIN | {"optim__name": "muon", "recompute": True},
    "fsdp, muon": PLAIN | {"optim__name": "muon", "spread": "fsdp", "optim__ema": 0.9},
    "fsdp, sgd": PLAIN | {"optim__name": "sgd", "spread": "fsdp", "optim__lr": 0.1},
    "ddp, masters, parts": PLAIN | UNEVEN | {"precision": "bfloat16", "accumulate": 2, "optim__name": "sgd"},
    "ddp, masters": PLAIN | {"precision": "bfloat16", "optim__ema": 0.9},
    "fsdp, bfloat16": PLAIN | {"precision": "bfloat16", "spread": "fsdp", "accumulate": 2},
    "ddp, vectors": {**VECTORS, "data__rows": 5},
    "ddp, batch norm": {**VECTORS, "data__rows": 5, "model": {"name": "normed"}, "run__valid_every": 2},
    "fsdp, batch norm": {**VECTORS, "model": {"name": "normed"}, "spread": "fsdp", "run__valid_every": 3},
    "fsdp, batch norm, bfloat16": {
        **VECTORS, "model": {"name": "normed"}, "spread": "fsdp", "precision": "bfloat16", "run__valid_every": 3,
    },
    "ddp, mean": PLAIN | {"run__save_every": 2, "run__average": 3},
    "fsdp, mean": PLAIN | {"run__save_every": 2, "run__average": 3, "spread": "fsdp", "optim__ema": 0.5},
    "ddp, reader": {"model": {"name": "reader", "width": 12, "heads": 3, "mix": "attention"}, "optim__name": "sgd"},
    "ddp, gan": {"whole": GAN},
    "fsdp, gan, parts": {"whole": {**GAN, "spread": "fsdp", "accumulate": 2}},
    "ddp, student, parts": {"whole": {**STUDENT, "accumulate": 2}},
    "fsdp, student": {"whole": {**STUDENT, "spread": "fsdp"}},
}  # fmt: skip
QUICK = {
    "ddp", "fsdp", "ddp, odd rows", "ddp, parts, averages", "fsdp, muon", "ddp, masters", "ddp, batch norm",
    "fsdp, mean", "ddp, gan", "fsdp, student",
}  # fmt: skip
LOOSE = {name for name in CASES if "bfloat16" in name or "masters" in name}
TRANSLATOR = {
    "steps": 24, "data": {"name": "pairs", "join": False, "vocabulary": "words", "batch_tokens": 128, "share": 0.3},
    "model": {"name": "transformer", "width": 16, "depth": 1, "heads": 2, "dropout": 0.0, "bias": False},
    "optim": {"name": "sgd", "lr": 1.0}, "run": {"valid_every": 12, "decode": 7},
}  # fmt: skip
RESUMED = {"fsdp on one": "fsdp", "one on fsdp": "fsdp", "one on ddp": "ddp"}


def environment():
    path = os.pathsep.join([str(SCRIPT.parent), os.environ.get("PYTHONPATH", "")])
    return {**os.environ, "OMP_NUM_THREADS": "1", "PYTHONPATH": path}


def torchrun(entries, folder):
    """Start torchrun with two workers that run these trainings."""
    folder.mkdir(exist_ok=True)
    (folder / "list.json").write_text(json.dumps(entries))
    command = [
        sys.executable, "-m", "torch.distributed.run", "--standalone", "--nproc-per-node", "2",
        str(SCRIPT), str(folder / "list.json"),
    ]  # fmt: skip
    with open(folder / "log", "wb") as log:
        return subprocess.Popen(command, stdout=log, stderr=log, env=environment())


def finish(process, folder):
    try:
        code = process.wait(100)
    finally:
        if process.poll() is None:
            process.kill()  # its workers end with it
            process.wait()
    assert code == 0, (folder / "log").read_text()


def table(**changes):
    changes.setdefault("run__log_every", 1)
    return changes.pop("whole", None) or recipe(**changes)


@pytest.fixture
def world(request, once, own_models):
    """The quick or the slow cases trained by two workers, in one torchrun, and meanwhile by one worker."""
    slow = request.node.get_closest_marker("slow") is not None
    cases = {name: case for name, case in CASES.items() if (name in QUICK) != slow}
    top = once("slow-world" if slow else "world", lambda folder: train_all(folder, cases))
    return top, {name: top / "one" / name for name in [*cases, "long", "translator"]}


def train_all(top, cases):
    entries = [{"recipe": table(**case), "out": str(top / name)} for name, case in cases.items()]
    words = ["ein", "zwei", "drei"]
    (top / "pairs.tsv").write_text("".join(f"{a} {b} {c}\t{a} {b} {c}\n" for a in words for b in words for c in words))
    translator = {**TRANSLATOR, "data": {**TRANSLATOR["data"], "path": str(top / "pairs.tsv")}}
    entries.append({"recipe": translator, "out": str(top / "translator")})
    long = table(**PLAIN, run__save_every=3, schedule__shape="constant", optim__ema=0.5)
    for spread in ("ddp", "fsdp"):  # stopped by a signal to one worker, and resumed by both
        out = str(top / f"stopped {spread}")
        entries += [{"recipe": {**long, "spread": spread}, "out": out, **stop} for stop in ({"stop": 3}, {})]
    always = {**long["run"], "save_minutes": 1e-9, "keep": 9}  # every step has a checkpoint
    entries.append({"recipe": {**long, "spread": "fsdp", "run": always}, "out": str(top / "half"), "stop": 3})
    for name, spread in RESUMED.items():
        if name.startswith("one on"):
            go(long, top / name, "steps=4")
        words = [f"spread={spread}", *([] if name.startswith("one on") else ["steps=4"])]
        entries.append({"recipe": long, "out": str(top / name), "words": words})
    process = torchrun(entries, top / "run")
    for name, case in cases.items():
        go(table(**case), top / "one" / name)
    go(translator, top / "one" / "translator")
    go(long, top / "one" / "long")
    finish(process, top / "run")
    for name in RESUMED:
        if name.endswith("on one"):
            go(long, top / name)


def compare(a, b, **tolerance):
    """Compare two runs; of the probes only gradient norms, because activations are those of one worker's rows."""
    near(state(a), state(b), **tolerance)
    for mine, theirs in zip(metrics(a), metrics(b), strict=True):
        if "inside" in mine:
            mine, theirs = (_gradients(record["inside"]) for record in (mine, theirs))
        assert mine == pytest.approx(theirs, rel=10 * tolerance["rtol"], abs=tolerance["atol"])


def _gradients(inside):
    """The gradient norms of a run, or of each of its players."""
    return inside.get("gradient") or {
        f"{player}.{block}": norm for player, found in inside.items() for block, norm in found["gradient"].items()
    }


def marked(names):
    return [name if name in QUICK else pytest.param(name, marks=pytest.mark.slow) for name in names]


@pytest.mark.parametrize("name", marked(CASES))
def test_two_workers_equal_one_worker(world, name):
    top, ones = world
    # In bfloat16 each worker rounds its own part of the gradient.
    compare(top / name, ones[name], **({"rtol": 0.1, "atol": 2e-2} if name in LOOSE else {"rtol": 1e-4, "atol": 2e-5}))


@pytest.mark.parametrize("name", marked(name for name in CASES if "mean" in name))
def test_two_workers_average_the_same_checkpoints(world, name):
    top, ones = world
    models = [load(folder, device="cpu").model for folder in (top / name, ones[name])]
    near(*(dict(model.named_parameters()) for model in models), rtol=1e-4, atol=2e-5)


def test_two_workers_decode_the_rows_of_one(world):
    """Seven rows for two workers; words are learned in part, so that a row that is lost or counted twice matters."""
    top, ones = world
    compare(top / "translator", ones["translator"], rtol=1e-4, atol=2e-5)
    found = [record["valid_chrf"] for record in metrics(top / "translator") if "valid_chrf" in record]
    assert len(found) == 2
    assert 0 < found[-1] < 100


@pytest.mark.parametrize("name", RESUMED)
def test_a_run_is_resumed_by_another_number_of_workers(world, name):
    top, ones = world
    compare(top / name, ones["long"], rtol=1e-4, atol=2e-5)


@pytest.mark.parametrize("spread", ["ddp", "fsdp"])
def test_a_signal_to_one_worker_stops_all_at_the_same_step(world, spread):
    top, ones = world
    compare(top / f"stopped {spread}", ones["long"], rtol=1e-4, atol=2e-5)
    attempts = json.loads((top / f"stopped {spread}" / "facts.json").read_text())["attempts"]
    assert [attempt["step"] for attempt in attempts] == [0, 4]  # the flag is shared at the start of the next step


def test_workers_save_by_time_together_and_their_shards_open_as_one_model(world):
    top, _ = world
    assert sorted(path.name[-1] for path in (top / "half" / "checkpoints").glob("step-*")) == ["1", "2", "3", "4"]
    with pytest.warns(Notice, match="that of step 4 of 6"):
        model = load(top / "half", device="cpu").model
    saved = state(top / "half")
    assert all(torch.equal(x, saved[f"model/average/{name}"]) for name, x in model.named_parameters())


def test_the_cases_would_reveal_a_mean_per_worker(world):
    """The workers' numbers of tokens differ so much that the tests above would reveal a wrong normalisation."""
    from clearhead.data import IGNORE, make_data

    given = table(**CASES["ddp"])
    name = given["data"].pop("name")
    data = make_data(name, given["data"], seed=given["seed"])
    counts = [[int((data.batch(step, part, 2)["targets"] != IGNORE).sum()) for part in (0, 1)] for step in range(4)]
    assert max(max(pair) / min(pair) for pair in counts) > 1.5, counts


@pytest.fixture
def alone():
    """A process group of one worker, created outside of the training."""
    dist.init_process_group("gloo", store=dist.HashStore(), rank=0, world_size=1)
    yield
    dist.destroy_process_group()


def test_an_existing_process_group_is_not_destroyed(tmp_path, alone):
    assert go(recipe(steps=1), tmp_path).finished
    assert dist.is_initialized()


@pytest.mark.parametrize("mean", [0.0, 1e3])  # 1e3: E[x^2] - E[x]^2 would lose all digits
@pytest.mark.parametrize("options", [{}, {"momentum": None}, {"affine": False}, {"track_running_stats": False}])
def test_a_synced_batch_norm_equals_a_batch_norm(alone, mean, options):
    torch.manual_seed(0)
    ours, theirs = (nn.ModuleList([nn.BatchNorm2d(3, **options)]) for _ in range(2))
    SyncedBatchNorm.convert(ours)
    for training in (True, True, False):
        x = (torch.randn(4, 3, 5, 2) * torch.tensor([1.0, 0.1, 3.0]).view(3, 1, 1) + mean).requires_grad_()
        grad, answers = torch.randn(4, 3, 5, 2), []
        for norm in (ours, theirs):
            norm.train(training)
            y = norm[0](x)
            answers.append((y, *torch.autograd.grad(y, [x, *norm.parameters()], grad), *norm.buffers()))
        near(*answers, rtol=1e-4, atol=1e-2 if mean else 1e-5)


@pytest.mark.slow
@pytest.mark.skipif(not Path("/proc/self/task").exists(), reason="finds its workers in /proc")
def test_sigterm_to_the_workers_saves_and_the_same_command_resumes(tmp_path):
    given = recipe(**PLAIN | {"steps": 100_000}, run__log_every=20)
    entry = {"recipe": given, "out": str(tmp_path / "run")}
    process = torchrun([entry | {"stop": 10**9}], tmp_path / "first")
    lines = tmp_path / "run" / "metrics.jsonl"
    deadline = time.monotonic() + 120
    while not (lines.exists() and lines.stat().st_size):
        assert process.poll() is None, (tmp_path / "first" / "log").read_text()
        assert time.monotonic() < deadline
        time.sleep(0.05)
    workers = Path(f"/proc/{process.pid}/task/{process.pid}/children").read_text().split()
    assert len(workers) == 2
    for pid in workers:
        os.kill(int(pid), signal.SIGTERM)
    finish(process, tmp_path / "first")
    step = int(state(tmp_path / "run")["step"])
    assert 2 <= step < 100_000
    finish(torchrun([entry | {"words": [f"steps={step + 5}"]}], tmp_path / "second"), tmp_path / "second")
    found = state(tmp_path / "run")
    assert found["step"] == step + 5
    assert all(x.isfinite().all() for x in found.values() if isinstance(x, torch.Tensor))


@pytest.mark.slow
def test_two_workers_train_adapters_as_one(tmp_path):
    go(table(**PLAIN), tmp_path / "base")
    lora = table(**PLAIN, pretrained=str(tmp_path / "base"), lora={"rank": 2})
    lora["model"] = {}
    spreads = {"ddp": {}, "fsdp": {"spread": "fsdp", "recompute": True}}
    entries = [{"recipe": {**lora, **more}, "out": str(tmp_path / name)} for name, more in spreads.items()]
    process = torchrun(entries, tmp_path / "run")
    go(lora, tmp_path / "one")
    finish(process, tmp_path / "run")
    for name in spreads:
        compare(tmp_path / name, tmp_path / "one", rtol=1e-4, atol=1e-6)
