"""The measurements of validation: BLEU and chrF, F1 and perplexity, equal to those of their references."""

import json
import math

import pytest
import torch
from sklearn.metrics import f1_score
from test_translating import recipe as translator
from trainings import go, metrics, recipe

import clearhead as ch
from clearhead.config import ConfigError
from clearhead.data import make_data
from clearhead.errors import InputError
from clearhead.training import trainer as decoding
from clearhead.training.objectives import objective_class
from clearhead.training.objectives.tokens import perplexity
from clearhead.training.run_folder import Folder

WORDS = {"one": "eins", "two": "zwei", "three": "drei", "four": "vier"}


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    """Pairs whose validation part has a word that no training pair has."""
    path = tmp_path_factory.mktemp("pairs")
    numbers = [f"{a} {b} {c} {d} {a}" for a in WORDS for b in WORDS for c in WORDS for d in WORDS]
    pairs = [f"{text}\t{' '.join(WORDS[word] for word in text.split())}\n" for text in numbers]
    (path / "p.tsv").write_text("".join(pairs[0::2]))
    (path / "v.tsv").write_text("".join(pairs[1:42:2]) + "four two two one five\tvier zwei zwei eins fünf\n")
    return path


def table(**run):
    made = translator("transformer", valid_path="v.tsv")
    del made["data"]["share"]
    return made | {"steps": 60, "run": {"valid_every": 20, **run}}


@pytest.fixture(scope="module")
def translated(folder):
    return go(table(best="valid_bleu"), folder / "best", data=folder)


def test_bleu_and_chrf_are_those_of_evaluate_on_the_same_sentences(folder, translated):
    """The vocabulary is of words, so that a reference made of ids would have <unk> instead of the unknown word."""
    record = next(r for r in translated.metrics if r["step"] == translated.best and "valid_bleu" in r)
    scores = ch.evaluate(ch.load(translated.folder, device="cpu"), folder / "v.tsv", beams=1)
    assert record["valid_bleu"] == scores.bleu.value > 5
    assert record["valid_chrf"] == scores.chrf.value > 5
    assert "tok:13a" in scores.bleu.signature
    assert any("fünf" in text for text in scores.references)


def test_the_best_bleu_is_the_highest_and_is_in_the_setup(translated):
    found = {r["step"]: r["valid_bleu"] for r in translated.metrics if "valid_bleu" in r}
    assert len(found) == 3
    assert found[translated.best] == max(found.values()) > min(found.values())
    about = json.loads((translated.folder / "setup.json").read_text())["measurements"]
    assert about["valid_bleu"] == about["valid_chrf"] == {"unit": "score from 0 to 100", "better": "higher"}


def test_rows_are_decoded_only_on_request_and_decoding_changes_no_weight(folder, tmp_path):
    plain = go(table() | {"steps": 4}, tmp_path / "plain", "run.valid_every=2", data=folder)
    decoded = go(table() | {"steps": 4}, tmp_path / "decoded", "run.valid_every=2", "run.decode=5", data=folder)
    assert "valid_bleu" not in plain.metrics[-1]
    assert "valid_bleu" not in json.loads((plain.folder / "setup.json").read_text())["measurements"]
    names = ("valid_bleu", "valid_chrf")
    assert all(name in decoded.metrics[-1] for name in names)
    without = [{n: x for n, x in r.items() if n not in names} for r in metrics(decoded.folder)]
    assert without == metrics(plain.folder)
    for a, b in zip(plain.model.model.parameters(), decoded.model.model.parameters(), strict=True):
        assert torch.equal(a, b)


def test_decoded_rows_are_spread_over_the_validation_data(folder):
    assert decoding.evenly(range(10), 4) == [0, 2, 5, 7]
    assert decoding.evenly(range(3), 3) == [0, 1, 2]
    options = {"path": "p.tsv", "valid_path": "v.tsv", "join": False, "vocabulary": "words", "longest": 6}
    (folder / "v2.tsv").write_text("one two\teins zwei\none one one one one one\teins\nfive\tfünf\n")
    data = make_data("pairs", options | {"valid_path": "v2.tsv"}, seed=0, root=folder)
    assert data.valid_texts == [("one two", "eins zwei"), ("five", "fünf")]  # without the row that is too long


@pytest.mark.parametrize(
    ("run", "words"),
    [
        ({"best": "valid_belu"}, r"run.best = 'valid_belu': expected one of valid_loss, valid_accuracy, "
         r"valid_perplexity, valid_bleu, valid_chrf; the nearest is valid_bleu"),
        ({"best": "valid_chrf", "decode": 0}, r"'valid_chrf' is measured on decoded rows: expected run.decode of 1"),
    ],
)  # fmt: skip
def test_a_best_that_is_not_measured_is_refused(folder, tmp_path, run, words):
    with pytest.raises(InputError, match=words):
        go(table(**run), tmp_path, data=folder)


def test_decoding_needs_an_objective_that_writes(tmp_path):
    with pytest.raises(InputError, match=r"run.decode = 3: this objective has no measurements of decoded text"):
        go(recipe(run__decode=3), tmp_path)
    with pytest.raises(ConfigError, match="decode"):
        go(recipe(run__decode=-1), tmp_path)


def test_patience_counts_validations_by_bleu(folder, tmp_path):
    """With such a learning rate no weight changes: the second and the third validation are waits."""
    run = go(table(best="valid_bleu", patience=2), tmp_path, "optim.lr=1e-30", "run.valid_every=1", data=folder)
    assert (run.step, run.best, run.finished) == (3, 1, True)
    assert Folder(run.folder, create=False, lock=False).facts()["model"]["best"] == 1


# F1


@pytest.mark.parametrize("classes", [2, 5])
def test_f1_is_that_of_scikit_learn_over_batches_with_filled_rows(classes):
    draw = torch.Generator().manual_seed(classes)
    labels = torch.randint(0, classes - 1, (23,), generator=draw)  # the last class is never a label
    logits = torch.randn(23, classes, generator=draw) + torch.nn.functional.one_hot(labels, classes)
    logits[:, -1] -= 9 if classes == 5 else 0  # and, of five, never predicted
    kind = objective_class("classification")
    objective = kind(kind.Config(), {"model": torch.nn.Identity()}, make_data("gaussians", {}, seed=0))
    objective._logits = lambda batch: batch["x"]
    fill = torch.tensor([1.0] * 7 + [0.0])  # the last row of the last batch only fills it up
    parts = [
        {"x": logits[:16], "labels": labels[:16]},
        {"x": torch.cat([logits[16:], logits[:1]]), "labels": torch.cat([labels[16:], labels[:1]]), "weight": fill},
    ]
    measured = [objective.measure(part) for part in parts]
    means = {name: float(measured[0][name] + measured[1][name]) / 23 for name in measured[0]}
    found, predicted = objective.summarise(means), logits.argmax(-1)
    assert found.keys() == {"loss", "accuracy", "f1"}
    assert found["f1"] == pytest.approx(f1_score(labels, predicted, average="macro", zero_division=0.0), abs=1e-7)
    assert 0.2 < found["f1"] < 0.95


def test_the_best_f1_becomes_the_model(tmp_path):
    lines = [f"{'good' if i % 3 else 'bad'} {i % 7}\t{'yes' if i % 3 else 'no'}\n" for i in range(60)]
    (tmp_path / "l.tsv").write_text("".join(lines))
    run = go(
        {
            "steps": 12, "data": {"name": "labelled", "path": "l.tsv", "vocabulary": "words", "share": 0.3},
            "model": {"name": "bert", "width": 12, "depth": 1, "heads": 2, "answer": "class"},
            "optim": {"lr": 0.02}, "run": {"valid_every": 2, "best": "valid_f1", "keep": 1},
        },
        tmp_path / "run", data=tmp_path,
    )  # fmt: skip
    found = {r["step"]: r["valid_f1"] for r in run.metrics if "valid_f1" in r}
    assert found[run.best] == max(found.values()) > found[2]


# Perplexity


def test_perplexity_is_the_exponential_of_the_loss_and_can_be_the_best(tmp_path):
    run = go(recipe(run__valid_every=2, run__best="valid_perplexity", run__keep=1), tmp_path)
    found = {r["step"]: (r["valid_loss"], r["valid_perplexity"]) for r in run.metrics if "valid_loss" in r}
    for loss, value in found.values():
        assert value == math.exp(loss)
    assert run.best == min(found, key=lambda step: found[step][1])


def test_perplexity_of_a_huge_loss_is_infinite():
    assert perplexity(1e6) == math.inf
    assert math.isnan(perplexity(math.nan))
