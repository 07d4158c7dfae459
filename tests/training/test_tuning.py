"""Pretraining on masked tokens, then fine-tuning on labels; and what `pretrained` accepts."""

import re

import pytest
import torch
import torch.nn.functional as F

from clearhead import build
from clearhead.config import ConfigError
from clearhead.data import IGNORE, make_data
from clearhead.training import train
from clearhead.training.objectives import objective_class
from clearhead.weights import load
from clearhead.weights.checkpoints.pretrained import in_head

GOOD, BAD = ["fine", "grand", "warm"], ["dull", "cold", "flat"]
THINGS = ["film", "play", "song", "tale", "book"]
TEXTS = [f"the {a} was {b} and {c}" for a in THINGS for w in (GOOD, BAD) for b in w for c in w]
SIZES = {"width": 16, "depth": 1, "heads": 2, "context": 16, "dropout": 0.0}


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    path = tmp_path_factory.mktemp("texts")
    (path / "texts.txt").write_text("\n".join(TEXTS) + "\n")
    lines = [f"{text}\t{'good' if any(w in text for w in GOOD) else 'bad'}\n" for text in TEXTS]
    (path / "labels.tsv").write_text("".join(lines))
    return path


def recipe(name: str, steps: int = 30, **more):
    data = {"masked": {"of": "texts.txt", "valid_share": 0.1}, "labelled": {"path": "labels.tsv", "share": 0.3}}[name]
    words = {"vocabulary": "words", "minimum": 1, "batch_tokens": 256, "longest": 16}
    answer = {} if name == "masked" else {"answer": "class", "pool": "mean"}
    return {
        "data": {"name": name, **words, **data}, "model": {"name": "bert", **SIZES, **answer}, "steps": steps,
        "optim": {"lr": 0.01}, "run": {"valid_every": steps // 2}, **more,
    }  # fmt: skip


@pytest.fixture(scope="module")
def pretrained(folder):
    return train(recipe("masked", 60), out=folder / "masked", data=folder, device="cpu", quiet=True)


def tensors(arrays):
    return {name: torch.from_numpy(x) for name, x in arrays.items()}


def make(name, model, data, **options):
    kind = objective_class(name)
    return kind(kind.Config(**options), {"model": model}, data)


def test_masked_tokens_is_the_cross_entropy_of_masked_positions(folder):
    options = {k: v for k, v in recipe("masked")["data"].items() if k != "name"}
    data = make_data("masked", options, seed=0, root=folder)
    model, arrays = build("bert", vocab=data.sizes["vocab"], **SIZES), data.batch(0)
    batch, objective = tensors(arrays), make("masked-tokens", model, data)
    loss, logits = objective.loss(batch), model(batch["ids"], lengths=batch["lengths"])
    expected = F.cross_entropy(logits.flatten(0, 1), batch["targets"].flatten(), reduction="sum")
    torch.testing.assert_close(loss, expected)
    mine = torch.autograd.grad(loss, list(model.parameters()))
    torch.testing.assert_close(mine, torch.autograd.grad(expected, list(model.parameters())))
    assert objective.count(arrays) == int((batch["targets"] != IGNORE).sum())
    measured = objective.measure(batch)
    torch.testing.assert_close(measured["loss"], expected.detach())
    assert measured["accuracy"] == (logits.argmax(-1) == batch["targets"]).sum()


@pytest.mark.parametrize("parts", [1, 3])
def test_classification_of_texts_is_the_cross_entropy_of_the_class(folder, parts):
    options = {k: v for k, v in recipe("labelled")["data"].items() if k != "name"}
    data = make_data("labelled", options, seed=0, root=folder)
    model = build("bert", **data.sizes, **SIZES, answer="class")
    objective, whole = make("classification", model, data, smoothing=0.1), tensors(data.batch(0))
    logits = model(whole["ids"], lengths=whole["lengths"])
    expected = F.cross_entropy(logits, whole["labels"], reduction="sum", label_smoothing=0.1)
    pieces = [data.batch(0, part, parts) for part in range(parts)]
    torch.testing.assert_close(sum(objective.loss(tensors(piece)) for piece in pieces), expected)
    assert sum(map(objective.count, pieces)) == len(whole["labels"])
    right = sum(objective.measure(tensors(piece))["accuracy"] for piece in pieces)
    assert right == (logits.argmax(-1) == whole["labels"]).sum()


def test_masked_words_are_learned(pretrained):
    losses = [row["valid_loss"] for row in pretrained.metrics if "valid_loss" in row]
    assert losses[-1] < losses[0]
    bundle = load(pretrained.folder, device="cpu")
    assert bundle.config.vocab == len(bundle.tokens) + 1  # the mask


@pytest.mark.parametrize("learn", ["all", "head"])
def test_fine_tuning_starts_from_pretrained_weights(folder, pretrained, learn):
    table = recipe("labelled", pretrained=str(pretrained.folder), learn=learn)
    table["data"]["tokens"] = str(pretrained.folder)
    run = train(table, out=folder / learn, data=folder, device="cpu", quiet=True)
    before, after = (dict(r.model.model.named_parameters()) for r in (pretrained, run))
    body = [name for name in after if name in before and not in_head(run.model.model, name)]
    moved = {name for name in body if not torch.equal(before[name], after[name])}
    assert ("blocks.0.mlp.up.weight" in moved) == (learn == "all")
    assert not moved if learn == "head" else moved
    assert {name.split(".")[0] for name in after.keys() - set(body)} == {"head", "pooler"}
    assert run.model.labels == load(run.folder, device="cpu").labels == ("bad", "good")
    valid = [row for row in run.metrics if "valid_accuracy" in row]
    assert valid[-1]["valid_accuracy"] > 0.9 if learn == "all" else valid[-1]["valid_loss"] < valid[0]["valid_loss"]


def test_a_run_with_frozen_weights_resumes_to_the_bit(folder, pretrained):
    table = recipe("labelled", 8, pretrained=str(pretrained.folder), learn="head")
    table["data"]["tokens"] = str(pretrained.folder)
    table |= {"run": {"save_every": 3}, "schedule": {"shape": "constant"}}
    whole = train(table, out=folder / "whole", data=folder, device="cpu", quiet=True)
    train(table | {"steps": 5}, out=folder / "parts", data=folder, device="cpu", quiet=True)
    parts = train(table, out=folder / "parts", data=folder, device="cpu", quiet=True)
    for (name, a), (_, b) in zip(
        whole.model.model.named_parameters(), parts.model.model.named_parameters(), strict=True
    ):
        assert torch.equal(a, b), name


def test_a_checkpoint_of_another_model_is_refused(folder, pretrained):
    table = recipe("labelled", pretrained=str(pretrained.folder))
    table["data"]["tokens"] = str(pretrained.folder)
    with pytest.raises(ConfigError, match=r"model\.depth = 2: the checkpoint .* has 1, and its weights do not fit"):
        train(table | {"model": table["model"] | {"depth": 2}}, out=folder / "x", data=folder, device="cpu", quiet=True)
    own = table | {"data": {k: v for k, v in table["data"].items() if k != "tokens"} | {"minimum": 20}}
    message = (
        r"model\.vocab = \d+ comes from the checkpoint \S+, and the data has \d+; to .* write data\.tokens = \"(.*)\""
    )
    with pytest.raises(ConfigError, match=message) as error:
        train(own, out=folder / "y", data=folder, device="cpu", quiet=True)
    hint = f"data.tokens={re.search(message, str(error.value))[1]}"
    assert train(own, hint, "steps=1", out=folder / "y", data=folder, device="cpu", quiet=True).finished
    with pytest.raises(ConfigError, match="learn='head' leaves all other weights random"):
        train(recipe("labelled", learn="head"), out=folder / "z", data=folder, device="cpu", quiet=True)
    with pytest.raises(ConfigError, match="learn='heads': expected one of all, head"):
        train(recipe("labelled", learn="heads"), out=folder / "z", data=folder, device="cpu", quiet=True)


def test_data_with_classes_for_a_model_that_does_not_classify_says_what_to_write(folder, pretrained):
    table = recipe("labelled", pretrained=str(pretrained.folder))
    table["data"]["tokens"] = str(pretrained.folder)
    message = (
        r"model\.answer is 'words' in the checkpoint \S+, and the data has 2 classes: write model\.answer = \"class\"$"
    )
    with pytest.raises(ConfigError, match=message):
        train(table | {"model": {}}, out=folder / "x", data=folder, device="cpu", quiet=True)
    bert = {"name": "bert", **SIZES}
    for model, words in ((bert, "'words' by default"), (bert | {"answer": "sentence"}, "'sentence'")):
        with pytest.raises(ConfigError, match=rf"model\.answer is {words}, and the data has 2 classes: write"):
            train(recipe("labelled") | {"model": model}, out=folder / "x", data=folder, device="cpu", quiet=True)
