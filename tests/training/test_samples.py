"""Samples while training: continuations of validation texts, which do not change the training."""

import pytest
from trainings import go, metrics, same_bits, state

import clearhead as ch
from clearhead.training import TrainingError
from clearhead.training import logs as progress
from clearhead.training.objectives.tokens import NextToken
from clearhead.training.optim import optimisers as optim

LINES = "".join(f"line {i} says {'abcdefg'[i % 7]}\n" for i in range(120))
PAIRS = {f"{a} {b}": f"{x} {y}" for a, x in (("one", "eins"), ("two", "zwei"), ("six", "sechs"))
         for b, y in (("dogs", "Hunde"), ("cats", "Katzen"), ("men", "Männer"))}  # fmt: skip


@pytest.fixture(autouse=True)
def at_once(monkeypatch):
    monkeypatch.setattr(progress, "peak", lambda *_: 1e12)


@pytest.fixture
def text(tmp_path):
    (tmp_path / "lines.txt").write_text(LINES)
    return {
        "steps": 8, "seed": 3,
        "data": {"name": "text", "path": str(tmp_path / "lines.txt"), "context": 24, "rows": 4, "valid_rows": 4},
        "model": {"name": "gpt", "context": 40, "width": 12, "depth": 2, "heads": 2, "positions": "rotary",
                  "dropout": 0.1},
        "optim": {"lr": 1e-2, "ema": 0.9},
        "run": {"log_every": 1, "valid_every": 4},
    }  # fmt: skip


def of(run):
    return {record["step"]: record["samples"] for record in run.metrics if "samples" in record}


def test_samples_continue_the_same_prompts_every_time(text, tmp_path):
    run = go(text, tmp_path / "run", "run.sample_every=3")
    found = of(run)
    assert list(found) == [3, 6, 8]
    for some in found.values():
        assert len(some) == 3
        assert [one["given"] for one in some] == [one["given"] for one in found[8]]
        assert all(one["given"] + one["wanted"] in LINES[len(LINES) * 8 // 10 :] for one in some)
    last = found[8]
    again = ch.generate(run.model, [one["given"] for one in last], max_new=28, temperature=0.7, seed=(0, 1, 2))
    assert [one["written"] for one in last] == [one.text for one in again]  # of the averaged weights, which are saved
    assert found[3] != last


def test_sampling_does_not_change_the_training(text, tmp_path):
    for name, every in (("with", 1), ("without", 0)):
        go(text, tmp_path / name, f"run.sample_every={every}")
    same_bits(state(tmp_path / "with"), state(tmp_path / "without"))
    assert [one for one in metrics(tmp_path / "with") if "samples" not in one] == metrics(tmp_path / "without")


def test_a_resumed_training_has_the_same_samples(text, tmp_path, monkeypatch):
    words = ("steps=9", "run.sample_every=2", "run.save_every=4")
    whole = go(text, tmp_path / "whole", *words)
    for owner, name, call in ((optim.Optimiser, "step", 7), (NextToken, "samples", 2)):  # in a step, and while sampling
        real, left = getattr(owner, name), [call]

        def breaks(*given, real=real, left=left):
            left[0] -= 1
            if not left[0]:
                raise KeyboardInterrupt
            return real(*given)

        with monkeypatch.context() as patch:
            patch.setattr(owner, name, breaks)
            with pytest.raises(KeyboardInterrupt):
                go(text, tmp_path / "parts", *words)
    parts = go(text, tmp_path / "parts", *words)
    assert list(of(parts)) == [2, 4, 6, 8, 9]
    assert metrics(parts.folder) == metrics(whole.folder)
    same_bits(state(parts.folder), state(whole.folder))


@pytest.mark.parametrize("name", ["transformer", "rnn-seq2seq"])
def test_translators_sample_from_validation_sentences(name, tmp_path):
    (tmp_path / "p.tsv").write_text("".join(f"{a}\t{b}\n" for a, b in PAIRS.items()), encoding="utf-8")
    table = {
        "steps": 4,
        "data": {
            "name": "pairs",
            "path": str(tmp_path / "p.tsv"),
            "join": False,
            "vocabulary": "characters",
            "share": 0.4,
        },
        "model": {"name": name, "width": 8, "dropout": 0.1} | ({"heads": 2} if name == "transformer" else {}),
        "run": {"sample_every": 4},
    }
    run = go(table, tmp_path / "run")
    (some,) = of(run).values()
    assert some
    for one in some:
        assert PAIRS[one["given"]] == one["wanted"]
        assert one["written"] == ch.translate(run.model, one["given"], beams=1).text


def test_samples_of_a_generated_task_answer_its_questions(text, tmp_path):
    symbols = {"name": "reverse", "symbols": 5, "length": [2, 4], "rows": 8, "valid_rows": 4, "valid_batches": 1}
    run = go(text | {"data": symbols}, tmp_path / "run", "run.sample_every=8")
    (some,) = of(run).values()
    assert len(some) == 3
    for one in some:
        assert one["given"] == one["wanted"][::-1] + "|"
        assert len(one["written"]) == len(one["wanted"])


def test_sampling_without_text_is_refused_before_training(text, tmp_path):
    vectors = {"steps": 2, "data": {"name": "identity"}, "model": {"name": "mlp", "hidden": 8}}
    with pytest.raises(TrainingError, match=r"run\.sample_every = 2: this training has no text to sample"):
        go(vectors, tmp_path / "run", "run.sample_every=2")
    (tmp_path / "p.tsv").write_text("one\teins\ntwo\tzwei\n")
    joined = {"name": "pairs", "path": str(tmp_path / "p.tsv"), "share": 0.0}
    with pytest.raises(TrainingError, match=r"expected 0, or a dataset of text or translations"):
        go(text | {"data": joined}, tmp_path / "run", "run.sample_every=2")
    assert not (tmp_path / "run" / "metrics.jsonl").exists()
