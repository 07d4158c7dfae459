"""The loop: an interrupted and resumed run equals an uninterrupted one to the bit, and probes change nothing."""

import json
import os
import random
import signal
import struct
import threading
from itertools import pairwise
from pathlib import Path

import pytest
import torch
from trainings import VECTORS, go, metrics, near, pictures, recipe, same_bits, state, weights

from clearhead import config, load
from clearhead.training import logs, loop
from clearhead.training.optim import optimisers as optim
from clearhead.training.recipe import Recipe
from clearhead.training.train import train
from support.marks import one_in

pytestmark = pytest.mark.usefixtures("own_models")

TEXT = "one two three\n\nfour five six\n\nseven\n\n" * 20


def parameters(run):
    return {name: p.detach() for name, p in run.model.model.named_parameters()}


class BrokenError(Exception):
    """A crash at a chosen step."""


def broken_at(monkeypatch, step, how):
    """Make the run crash in the middle of a step, or receive SIGTERM during it."""
    real = optim.Optimiser.step

    def interrupted(self, *args):
        interrupted.left -= 1
        if interrupted.left == 0:
            if how == "crash":
                raise BrokenError
            os.kill(os.getpid(), signal.SIGTERM)
        return real(self, *args)

    interrupted.left = step
    monkeypatch.setattr(optim.Optimiser, "step", interrupted)


def go_broken(table, out, monkeypatch, steps=((3, "crash"), (1, "crash"), (3, "stop"), (2, "crash"))):
    """Train with interruptions, each after a number of steps since the last start, and then to the end."""
    for step, how in steps:
        with monkeypatch.context() as patch:
            broken_at(patch, step, how)
            try:
                if (run := go(table, out)).finished:  # patience ran out before the interruption
                    return run
            except BrokenError:
                assert how == "crash"
    return go(table, out)


CASES = {
    "adamw": {},
    "sgd": {"optim__name": "sgd"},
    "muon": {"optim__name": "muon", "optim__ema": 0.9},
    "ema, dropout": {"optim__ema": 0.8, "model__dropout": 0.3},
    "accumulate, dropout": {"accumulate": 4, "model__dropout": 0.3},
    "masters": {"precision": "bfloat16", "accumulate": 2, "optim__ema": 0.9},
    "recompute": {"recompute": True, "model__dropout": 0.3, "initial": "normal"},
    "patience": {"run__patience": 4, "run__valid_every": 1, "optim__lr": 0.3, "run__keep": 1},
    "rare saves": {"run__save_every": 5, "run__valid_every": 3, "run__inside_every": 4, "run__log_every": 3},
    "alone saves": {"run__save_every": 1, "run__keep": 1},
    "reader": {"model": {"name": "reader", "width": 12, "heads": 3, "mix": "attention"}, "precision": "bfloat16"},
    "smoothing, rotary": {"objective__smoothing": 0.1, "model__positions": "rotary", "schedule__shape": "constant"},
    "vectors": {**VECTORS, "optim__ema": 0.5, "accumulate": 4},
    "batch norm": {**VECTORS, "model": {"name": "normed"}, "run__patience": 3, "run__valid_every": 1},
    "batch norm, masters": {**VECTORS, "model": {"name": "normed"}, "precision": "bfloat16"},
}


@pytest.mark.parametrize("case", one_in(2, CASES))
def test_a_resumed_run_equals_an_uninterrupted_one_to_the_bit(tmp_path, monkeypatch, case):
    every = {"run__valid_every": 2, "run__save_every": 2, "run__inside_every": 3, "steps": 9}
    table = recipe(**{**every, **CASES[case]})
    whole = go(table, tmp_path / "whole")
    parts = go_broken(table, tmp_path / "parts", monkeypatch)
    same_bits(state(whole.folder), state(parts.folder))
    same_bits(weights(whole.model), weights(parts.model))
    assert metrics(whole.folder) == metrics(parts.folder)
    assert len(json.loads((parts.folder / "facts.json").read_text())["attempts"]) == (3 if case == "patience" else 5)


def test_packed_documents_resume_to_the_bit(tmp_path, monkeypatch):
    (tmp_path / "text.txt").write_text(TEXT)
    data = {
        "name": "text", "path": str(tmp_path / "text.txt"), "separator": "\n\n", "documents": True, "context": 16,
        "rows": 5, "valid_rows": 3, "valid_most": 2,
    }  # fmt: skip
    table = recipe(data=data, model__context=16, run__save_every=3, run__valid_every=4, run__inside_every=2, steps=9)
    whole = go(table, tmp_path / "whole")
    parts = go_broken(table, tmp_path / "parts", monkeypatch)
    same_bits(state(whole.folder), state(parts.folder))
    assert metrics(whole.folder) == metrics(parts.folder)
    assert whole.model.tokens.decode(whole.model.tokens.encode("three")) == "three"


def test_a_run_that_crashed_before_its_first_checkpoint_starts_from_step_0(tmp_path, monkeypatch):
    table = recipe(run__save_every=0)
    whole = go(table, tmp_path / "whole")
    parts = go_broken(table, tmp_path / "parts", monkeypatch, [(5, "crash"), (3, "crash")])
    same_bits(state(whole.folder), state(parts.folder))
    assert metrics(whole.folder) == metrics(parts.folder)
    assert scalars(parts.folder) == scalars(whole.folder)


@pytest.mark.slow
@pytest.mark.parametrize("seed", range(4))
@pytest.mark.parametrize("case", CASES)
def test_runs_that_are_interrupted_at_random_steps_resume_to_the_bit(tmp_path, monkeypatch, case, seed):
    uniforms = random.Random(seed)
    every = {f"run__{name}_every": uniforms.randint(1, 6) for name in ("valid", "save", "inside", "log")}
    table = recipe(**{**every, **CASES[case], "steps": 16})
    whole = go(table, tmp_path / "whole")
    last = metrics(whole.folder)[-1]["step"]
    done, breaks = 0, 0
    while breaks < 5 and done < last - 1:
        step, how = uniforms.randint(1, last - done - 1) if last - done > 1 else 1, uniforms.choice(["crash", "stop"])
        with monkeypatch.context() as patch:
            broken_at(patch, step, how)
            try:
                finished = go(table, tmp_path / "parts").finished
            except BrokenError:
                finished = False
        if finished:
            break
        checkpoint = loop.latest(tmp_path / "parts" / "checkpoints")
        done, breaks = checkpoint.step if checkpoint else 0, breaks + 1
    parts = go(table, tmp_path / "parts")
    same_bits(state(whole.folder), state(parts.folder))
    same_bits(weights(whole.model), weights(parts.model))
    assert metrics(whole.folder) == metrics(parts.folder)


@pytest.mark.parametrize("case", ["ema, dropout", "masters", "batch norm"])
def test_probes_and_validations_do_not_change_the_weights(tmp_path, case):
    table = recipe(**{**CASES[case], "run__patience": 0, "run__valid_every": 0, "run__save_every": 0})
    plain = go(table, tmp_path / "plain")
    probed = go(table, tmp_path / "probed", "run.inside_every=1", "run.valid_every=1", "run.save_every=3")
    assert sum("valid_loss" in record for record in probed.metrics) == 8
    assert sum("inside" in record for record in probed.metrics) == 8
    same_bits(state(plain.folder), state(probed.folder))
    same_bits(weights(plain.model), weights(probed.model))
    losses = [[r for r in metrics(run.folder) if "loss" in r] for run in (plain, probed)]
    assert losses[0] == losses[1]


def test_probes_record_heads_blocks_and_gradients(tmp_path):
    run = go(recipe(run__inside_every=4), tmp_path)
    probes = [record["inside"] for record in run.metrics if "inside" in record]
    assert len(probes) == 2
    assert probes[0].keys() == {
        "gradient", "blocks.0", "blocks.1",
        *(f"blocks.{i}.attn.{word}" for i in (0, 1) for word in ("entropy", "distance", "sink")),
    }  # fmt: skip
    assert probes[0]["gradient"].keys() == {"blocks.0", "blocks.1", "rest"}
    assert len(probes[0]["blocks.1.attn.sink"]) == 3
    assert all(0 <= x <= 1 for x in probes[0]["blocks.1.attn.sink"])
    norms = {r["step"]: r["norm"] for r in run.metrics if "norm" in r}
    whole = sum(x**2 for x in probes[0]["gradient"].values()) ** 0.5
    assert whole == pytest.approx(norms[4], rel=1e-5)


@pytest.mark.parametrize(
    ("parts", "more"),
    [
        (2, {}), (4, {}), (8, {}),  # numbers that do not divide the rows, or exceed them
        (3, {"objective__smoothing": 0.1, "optim__ema": 0.9, "recompute": True}), (4, VECTORS),
    ],
)  # fmt: skip
def test_accumulated_micro_batches_equal_the_whole_batch(tmp_path, parts, more):
    table = recipe(**more, steps=5)
    # a bias of keys does not change attention: its gradient is rounding, which AdamW would amplify
    if more is not VECTORS:
        table["model"]["bias"] = False
    whole, pieces = (go(table, tmp_path / str(k), f"accumulate={k}") for k in (1, parts))
    near(state(pieces.folder), state(whole.folder), rtol=1e-4, atol=1e-5)
    assert [r["step"] for r in metrics(pieces.folder)] == [r["step"] for r in metrics(whole.folder)]
    for a, b in zip(metrics(pieces.folder), metrics(whole.folder), strict=True):
        assert a == pytest.approx(b, rel=1e-4)


def test_patience_stops_a_run_whose_result_is_the_best_model(tmp_path, monkeypatch):
    table = recipe(steps=60, optim__lr=0.5, optim__clip=0.0, run__valid_every=2, run__patience=2, run__keep=1)
    run = go(table, tmp_path / "a")
    valid = [(r["valid_loss"], r["step"]) for r in run.metrics if "valid_loss" in r]
    _, step = min(valid)
    assert valid[-1][1] == step + 4 < 60
    assert {p.name for p in (tmp_path / "a" / "checkpoints").iterdir()} == {
        f"step-{s:08d}" for s in (step, valid[-1][1])
    }
    best = loop.Checkpoint(tmp_path / "a" / "checkpoints" / f"step-{step:08d}")
    same_bits(
        {name: best.read(f"model/weight/{name}") for name, _ in run.model.model.named_parameters()}, parameters(run)
    )
    # Training it again changes nothing.
    before = metrics(tmp_path / "a")
    rerun = go(table, tmp_path / "a")
    same_bits(weights(run.model), weights(rerun.model))
    assert metrics(tmp_path / "a") == before
    # With more patience it continues.
    assert go(table, tmp_path / "a", "run.patience=3").metrics[-1]["step"] > before[-1]["step"]


def test_the_best_model_has_the_buffers_and_averages_of_its_step(tmp_path):
    table = recipe(
        **VECTORS, steps=40, schedule__shape="constant", optim__lr=0.5, optim__ema=0.3, run__valid_every=1,
        run__patience=3,
    )  # fmt: skip
    table["model"] = {"name": "normed"}
    run = go(table, tmp_path / "a")
    _, step = min((r["valid_loss"], r["step"]) for r in run.metrics if "valid_loss" in r)
    assert run.metrics[-1]["step"] == step + 3
    shorter = go(table, tmp_path / "b", f"steps={step}")
    same_bits(weights(shorter.model), weights(run.model))


def test_an_average_takes_in_the_weights_after_each_step(tmp_path):
    go(recipe(steps=3, run__save_every=1, run__keep=3, optim__ema=0.7, schedule={"shape": "constant"}), tmp_path)
    saved = [loop.Checkpoint(tmp_path / "checkpoints" / f"step-{step:08d}") for step in (1, 2, 3)]
    names = [name for name in saved[0].names if name.startswith("model/average/")]
    assert names
    for step, (before, after) in enumerate(pairwise(saved), start=1):
        kept = (1 + step) / (10 + step)  # the warm-up, below 0.7
        for name in names:
            weight = after.read(name.replace("/average/", "/weight/"))
            near(after.read(name), kept * before.read(name) + (1 - kept) * weight, rtol=1e-5, atol=1e-6)


def test_every_micro_batch_of_every_step_has_its_own_dropout(tmp_path, monkeypatch):
    masks = []  # random numbers in place of each mask

    def dropout(x, p=0.5, training=True, inplace=False):
        if training:
            masks.append(tuple(torch.rand(9).tolist()))
        return x

    monkeypatch.setattr(torch.nn.functional, "dropout", dropout)
    go(recipe(steps=2, accumulate=3, model__dropout=0.3), tmp_path)
    assert len(set(masks)) == len(masks) >= 2 * 3


def test_patience_that_is_set_later_ignores_validations_without_a_checkpoint(tmp_path):
    table = recipe(schedule__shape="constant", run__valid_every=1, run__keep=1, optim__lr=0.5, optim__clip=0.0)
    first = go(table, tmp_path)
    _, step = min((r["valid_loss"], r["step"]) for r in first.metrics if "valid_loss" in r)
    assert step < 8  # the best was not the last, and its checkpoint was not kept
    more = go(table, tmp_path, "steps=14", "run.patience=3")
    later = [(r["valid_loss"], r["step"]) for r in more.metrics if "valid_loss" in r and r["step"] > 8]
    best = loop.Checkpoint(tmp_path / "checkpoints" / f"step-{min(later)[1]:08d}")
    same_bits({name: best.read(f"model/weight/{name}") for name in parameters(more)}, parameters(more))


def test_a_finished_run_does_not_train_and_more_steps_continue_it(tmp_path, monkeypatch):
    table = recipe(schedule__shape="constant", model__dropout=0.2)
    first = go(table, tmp_path / "a")
    bytes_before = (tmp_path / "a/metrics.jsonl").read_bytes()
    with monkeypatch.context() as patch:
        patch.setattr(optim.Optimiser, "step", None)
        second = go(table, tmp_path / "a")
    same_bits(weights(first.model), weights(second.model))
    assert (tmp_path / "a/metrics.jsonl").read_bytes() == bytes_before
    longer = go(table, tmp_path / "a", "steps=12")
    whole = go(table, tmp_path / "b", "steps=12")
    same_bits(state(longer.folder), state(whole.folder))
    same_bits(weights(longer.model), weights(load(tmp_path / "b", device="cpu")))
    with pytest.raises(loop.TrainingError, match=r"step-00000012 is past the recipe's 8 steps"):
        go(table, tmp_path / "a")


def test_the_loss_goes_down(tmp_path):
    table = recipe(
        steps=80,
        data__rows=32,
        data__length=3,
        model__context=6,
        model__width=32,
        model__heads=4,
        run__log_every=20,
        optim__lr=5e-3,
    )
    run = go(table, tmp_path)
    losses = [record["loss"] for record in run.metrics if "loss" in record]
    assert losses[-1] < 0.5 * losses[0]
    assert run.metrics[-1]["valid_accuracy"] > 0.6
    logits = run.model.model(torch.tensor([[1, 2, 3, 5]]))
    assert logits.shape == (1, 4, 6)


READER = {"name": "reader", "width": 12, "heads": 3}
WORDS = [  # each choice of optimiser, schedule, initialisation, precision ... at least once
    {"optim__name": "adamw", "schedule__shape": "constant", "initial": "default", "precision": "float32"},
    {"optim__name": "sgd", "schedule__shape": "cosine", "initial": "xavier", "precision": "bfloat16"},
    {"optim__name": "muon", "schedule__shape": "linear", "initial": "kaiming", "precision": "tf32"},
    {"optim__name": "muon", "schedule__shape": "inverse-sqrt", "initial": "normal", "precision": "bfloat16"},
    {
        "deterministic": True,
        "objective__smoothing": 0.2,
        "optim__clip": 0.0,
        "optim__momentum": 0.0,
        "optim__name": "sgd",
    },
    {"recompute": True, "precision": "bfloat16", "model__tied": False, "model__positions": "alibi"},
    {"model__depth": 0, "data__valid_batches": 0},
    {"data__name": "copy", "model": {**READER, "mix": "sum"}},
    {"data__name": "most", "model": {**READER, "mix": "forget"}},
    {
        "data": {"name": "recall", "symbols": 4, "length": 5, "rows": 6, "valid_rows": 4, "valid_batches": 1},
        "model": {**READER, "mix": "attention"},
    },
]


@pytest.mark.parametrize("words", WORDS, ids=str)
def test_every_choice_of_a_recipe_trains(tmp_path, words):
    run = go(recipe(**words, steps=3, run__inside_every=2, run__valid_every=2), tmp_path)
    assert run.finished
    assert all(r["loss"] > 0 for r in run.metrics if "loss" in r)
    assert {p.dtype for p in run.model.model.parameters()} == {torch.float32}
    assert not run.model.model.training


def test_a_regression_of_vectors_learns(tmp_path):
    run = go(recipe(**VECTORS, steps=60, optim__lr=3e-2, run__valid_every=20), tmp_path)
    valid = [r for r in run.metrics if "valid_loss" in r]
    assert valid[-1]["valid_loss"] < 0.2 * valid[0]["valid_loss"] or valid[-1]["valid_loss"] < 0.05
    assert "valid_accuracy" not in valid[-1]


def test_a_classifier_of_images_learns_and_resumes_to_the_bit(tmp_path, monkeypatch):
    data = pictures(tmp_path / "pictures")
    table = recipe(
        steps=30, optim__lr=0.1, data=data, model={"name": "pixels"}, run__valid_every=3, run__save_every=4,
        augment=[{"name": "flip"}, {"name": "shift", "pixels": 1}],
    )  # fmt: skip
    run = go(table, tmp_path / "whole")
    assert run.metrics[-1]["valid_accuracy"] == 1.0
    parts = go_broken(table, tmp_path / "parts", monkeypatch, [(7, "crash"), (9, "stop")])
    same_bits(state(run.folder), state(parts.folder))
    assert metrics(run.folder) == metrics(parts.folder)


def test_a_batch_of_one_row_is_refused_by_batch_norm_in_a_sentence(tmp_path):
    data = pictures(tmp_path / "pictures") | {"rows": 3}
    table = recipe(data=data, model={"name": "resnet"}, accumulate=3)
    message = r"step 1 computes with one row, and a batch norm needs two or more: expected more rows .* now 3"
    with pytest.raises(loop.TrainingError, match=message):
        go(table, tmp_path / "run")


def scalars(folder):
    """The scalars that TensorBoard reads from a run, without timings: {tag: [(step, value), ...]}."""
    from tensorboard.backend.event_processing.event_accumulator import EventAccumulator

    events = EventAccumulator(str(folder / "events"), size_guidance={"scalars": 0})
    events.Reload()
    return {
        tag: [(event.step, event.value) for event in events.Scalars(tag)]
        for tag in events.Tags()["scalars"]
        if tag not in loop.TIMES
    }


@pytest.mark.filterwarnings("ignore::DeprecationWarning")
def test_tensorboard_events_equal_the_metrics(tmp_path, monkeypatch):
    table = recipe(run__inside_every=2, run__valid_every=3, run__save_every=3)
    go_broken(table, tmp_path, monkeypatch)
    expected = {}
    for record in metrics(tmp_path):
        for tag, value in logs.flat({name: x for name, x in record.items() if name != "step"}):
            (narrow,) = struct.unpack("f", struct.pack("f", value))
            expected.setdefault(tag, []).append((record["step"], narrow))
    assert scalars(tmp_path) == expected


def test_a_run_restores_global_settings_signal_handlers_and_threads(tmp_path, monkeypatch):
    torch.manual_seed(11)
    expected = torch.rand(3)
    torch.manual_seed(11)
    handlers = [signal.getsignal(s) for s in (signal.SIGTERM, signal.SIGINT)]
    threads = set(threading.enumerate())
    torch.use_deterministic_algorithms(True, warn_only=True)
    torch.set_float32_matmul_precision("medium")
    try:
        for i, (words, crash) in enumerate([({}, False), ({"precision": "tf32", "deterministic": True}, True)]):
            with monkeypatch.context() as patch:
                if crash:
                    broken_at(patch, 4, "crash")
                    with pytest.raises(BrokenError):
                        go(recipe(**words, run__save_every=1), tmp_path / str(i))
                else:
                    go(recipe(**words), tmp_path / str(i))
            assert torch.are_deterministic_algorithms_enabled()
            assert torch.is_deterministic_algorithms_warn_only_enabled()
            assert torch.get_float32_matmul_precision() == "medium"
            assert [signal.getsignal(s) for s in (signal.SIGTERM, signal.SIGINT)] == handlers
            assert set(threading.enumerate()) <= threads
            assert not torch.distributed.is_initialized()
    finally:
        torch.use_deterministic_algorithms(False)
        torch.set_float32_matmul_precision("highest")
    assert torch.equal(torch.rand(3), expected)  # the caller's random state is unchanged


def test_a_training_can_run_outside_the_main_thread(tmp_path):
    runs = []
    thread = threading.Thread(target=lambda: runs.append(go(recipe(steps=2), tmp_path)))
    thread.start()
    thread.join()
    assert runs[0].finished


def test_files_tables_and_recipes_train_the_same(tmp_path):
    table = recipe(steps=2)
    config.write(table, tmp_path / "small.toml")
    runs = [
        go(source, tmp_path / str(i))
        for i, source in enumerate((table, tmp_path / "small.toml", config.read(Recipe, config.Table(table))))
    ]
    for run in runs[1:]:
        same_bits(weights(run.model), weights(runs[0].model))
        assert (run.folder / "recipe.toml").read_text() == (runs[0].folder / "recipe.toml").read_text()
    os.chdir(tmp_path)
    assert train("small.toml", device="cpu", quiet=True).folder == Path("runs/small")


def test_progress_goes_to_stderr_and_a_quiet_run_prints_nothing(tmp_path, capsys):
    train(recipe(run__valid_every=4), out=tmp_path / "a", device="cpu")
    printed = capsys.readouterr()
    assert printed.out == ""
    assert "step 8/8" in printed.err
    assert "step 4: valid loss" in printed.err
    go(recipe(), tmp_path / "b")
    assert capsys.readouterr() == ("", "")


def test_a_warmup_longer_than_the_training_gives_a_warning(tmp_path, capsys):
    warning = "warning: the warm-up of 9 steps is longer than the training of 8 steps"
    train(recipe(schedule__warmup=9), out=tmp_path / "late", device="cpu")
    assert warning in capsys.readouterr().err
    train(recipe(schedule__warmup=8), out=tmp_path / "just", device="cpu")
    assert "warm-up" not in capsys.readouterr().err
    players = {"model": {"schedule": {"warmup": 9}}}
    train(recipe(schedule__warmup=0, players=players), out=tmp_path / "player", device="cpu")
    assert warning in capsys.readouterr().err
