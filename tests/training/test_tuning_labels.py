"""Classifiers that start from classifiers: outputs keep the meaning of their labels, or the head is new."""

import json
import shutil

import numpy as np
import pytest
import torch
from PIL import Image

import clearhead as ch
from clearhead import tokens
from clearhead.data import understand
from clearhead.errors import Notice
from clearhead.training import finetune, finetune_recipe
from clearhead.training.own_data.new_recipe import as_file, new_recipe

TEXTS = [f"the {a} was {b}" for a in ("film", "play", "song", "tale") for b in ("fine", "grand", "dull", "flat")]
FEW = ("steps=2", "optim.lr=1e-9", "run.save_every=1")
methods = pytest.mark.parametrize("method", ["full", "lora", "head"])


def bundle(labels, classes=2):
    torch.manual_seed(0)
    own = tokens.Words.of(TEXTS, minimum=1)
    sizes = {"width": 16, "depth": 1, "heads": 2, "context": 16, "dropout": 0.0}
    model = ch.build("bert", vocab=len(own) + 1, **sizes, answer="class", classes=classes)
    torch.nn.init.normal_(model.head.weight)
    return ch.Bundle(model, own, labels=labels)


@pytest.fixture
def table(tmp_path):
    lines = [f"{text},{'positive' if text.endswith(('fine', 'grand')) else 'negative'}\n" for text in TEXTS]
    (tmp_path / "labels.csv").write_text("text,label\n" + "".join(lines))
    return tmp_path / "labels.csv"


def tuned(model, table, out, method, **more):
    return finetune(model, table, *FEW, method=method, out=out, device="cpu", quiet=True, **more)


@methods
def test_the_same_labels_in_another_order_keep_that_of_the_checkpoint(method, table, tmp_path):
    base = ch.save(bundle(("positive", "negative")), tmp_path / "base")
    run = tuned(base, table, tmp_path / "run", method)
    assert run.model.labels == ("positive", "negative")
    for text in TEXTS[:3]:
        before, after = (dict(ch.classify(ch.load(one, device="cpu"), text)) for one in (base, run.folder))
        assert after == pytest.approx(before, abs=1e-5)


def test_such_a_classifier_learns_its_own_labels(table, tmp_path):
    base = ch.save(bundle(("positive", "negative")), tmp_path / "base")
    words = ("steps=40", "optim.lr=1e-2", "data.share=0.2")
    run = finetune(base, table, *words, out=tmp_path / "run", device="cpu", quiet=True)
    right = [ch.classify(run.model, text, top=1)[0][0] == label for text, label in _rows(table)]
    assert np.mean(right) > 0.9


class Na:
    """A missing value as pandas has it for texts: whether it is equal to anything is not known."""

    def __ne__(self, other):
        return self

    def __bool__(self):
        raise TypeError("boolean value of NA is ambiguous")


class Nat:
    """A missing time as pandas has it."""

    def __ne__(self, other):
        return True


MISSING = (None, float("nan"), np.float32("nan"), np.float64("nan"), Na(), Nat())


@pytest.mark.parametrize("column", ["text", "label"])
def test_rows_in_memory_without_a_value_are_left_out_and_counted(column, table, tmp_path, capsys):
    rows = [{"text": text, "label": label} for text, label in _rows(table)]
    gaps = [rows[0] | {column: value} for value in MISSING]
    finetune(ch.save(bundle(("a", "b")), tmp_path / "base"), [*gaps, *rows], *FEW, out=tmp_path / "run", device="cpu")
    assert "; 6 rows without a text or a label left out" in capsys.readouterr().err


def test_missing_texts_and_numbers_beside_missing_labels_tell_the_kind_of_rows(tmp_path):
    rows = [{"v1": label, "v2": text} for text in TEXTS for label in (1.0, 2.0)]
    path = as_file([{"v1": float("nan"), "v2": TEXTS[0]}, {"v1": 1.0, "v2": None}, *rows], tmp_path / "rows.jsonl")
    found = understand(path)
    assert (found.options["text"], found.options["label"]) == ("v2", "v1")
    assert (found.empty, found.labels) == (2, {"1": 16, "2": 16})
    texts = understand(as_file([None, *TEXTS, float("nan")], tmp_path / "texts.jsonl"))
    assert (texts.kind, texts.empty, texts.rows) == ("text", 2, len(TEXTS) + 2)


def test_the_columns_that_are_read_and_the_other_candidates_are_said_and_kept(tmp_path, capsys):
    lines = [f"{text} {i},{i % 3},{'ab'[i % 2]},{i}" for i, text in enumerate(TEXTS)]
    (tmp_path / "tickets.csv").write_text("message,stars,team,id\n" + "\n".join(lines))
    words = "the columns text = message, label = stars are read; there is also label = team: data.label=team chooses it"
    with pytest.warns(Notice, match=words):
        finetune_recipe("cloze", tmp_path / "tickets.csv", out=tmp_path / "x")
    with pytest.warns(Notice, match=words):
        new_recipe(tmp_path / "tickets.csv")
    base = ch.save(bundle(("a", "b")), tmp_path / "base")
    finetune(base, tmp_path / "tickets.csv", *FEW, "data.label=team", out=tmp_path / "run", device="cpu")
    assert "columns text = message, label = team\n" in capsys.readouterr().err
    facts = json.loads((tmp_path / "run" / "facts.json").read_text())
    assert facts["attempts"][0]["data"].endswith("columns text = message, label = team")


def _rows(table):
    return [line.split(",") for line in table.read_text().splitlines()[1:]]


@methods
def test_other_labels_get_a_new_head_that_is_trained(method, table, tmp_path, capsys):
    base = ch.save(bundle(("spam", "ham")), tmp_path / "base")
    run = finetune(base, table, *FEW, method=method, out=tmp_path / "run", device="cpu")
    assert run.model.labels == ("negative", "positive")
    before, after = ch.load(base).model, run.model.model
    assert not torch.allclose(before.head.weight, after.head.weight, atol=0.1)
    assert torch.allclose(before.embed.table, after.embed.table, atol=1e-6)
    said = "the head is new: the labels of the checkpoint are spam, ham, and those of the data negative, positive"
    assert said in " ".join(capsys.readouterr().err.split())


def test_a_new_head_is_trained_with_lora(table, tmp_path):
    base = ch.save(bundle(("spam", "ham")), tmp_path / "base")
    runs = [
        finetune(base, table, f"steps={n}", "optim.lr=1e-2", method="lora", out=tmp_path / str(n), device="cpu",
                 quiet=True)
        for n in (1, 20)
    ]  # fmt: skip
    one, many = (run.model.model.head.weight for run in runs)
    assert (one - many).abs().max() > 0.01


def test_a_checkpoint_without_names_gets_a_new_head(table, tmp_path):
    base = ch.save(bundle(None), tmp_path / "base")
    run = tuned(base, table, tmp_path / "run", "full")
    assert not torch.allclose(ch.load(base).model.head.weight, run.model.model.head.weight, atol=0.1)


def test_a_resumed_run_keeps_the_order_without_its_checkpoint(table, tmp_path):
    base = ch.save(bundle(("positive", "negative")), tmp_path / "base")
    recipe = ch.training.finetune_recipe(base, table, "steps=2", "run.save_every=1", out=tmp_path / "run", device="cpu")
    ch.train(recipe, out=tmp_path / "run", device="cpu", quiet=True)
    setup = json.loads((tmp_path / "run" / "setup.json").read_text())
    assert setup["players"]["model"]["labels"] == ["positive", "negative"]
    shutil.rmtree(base)
    run = ch.train(recipe, "steps=3", out=tmp_path / "run", device="cpu", quiet=True)
    assert run.model.labels == ("positive", "negative")


def test_classes_of_images_are_matched_by_name(tmp_path):
    dice = np.random.default_rng(0)
    for name in ("cat", "dog"):
        for i in range(6):
            path = tmp_path / "photos" / name / f"{i}.png"
            path.parent.mkdir(parents=True, exist_ok=True)
            Image.fromarray(dice.integers(0, 256, (16, 16, 3), np.uint8)).save(path)
    torch.manual_seed(0)
    model = ch.build("vit", classes=2, size=16, patch=8, width=16, depth=1, heads=2)
    torch.nn.init.normal_(model.head.weight)
    given = ch.data.Preprocessing(resize=16, crop=(16, 16), mean=(0.5,) * 3, deviation=(0.5,) * 3)
    base = ch.save(ch.Bundle(model, labels=("dog", "cat"), preprocessing=given), tmp_path / "base")
    run = tuned(base, tmp_path / "photos", tmp_path / "run", "full")
    assert run.model.labels == ("dog", "cat")
    image = tmp_path / "photos" / "cat" / "0.png"
    before, after = (dict(ch.classify(ch.load(one, device="cpu"), image)) for one in (base, run.folder))
    assert after == pytest.approx(before, abs=1e-5)
