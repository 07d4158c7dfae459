"""Training of translators, from files to a folder with model and tokens."""

import pytest
import torch

from clearhead.config import ConfigError
from clearhead.models import FAMILIES
from clearhead.tokens import Pair
from clearhead.training import train
from clearhead.weights import load

TABLE = {"one": "eins", "two": "zwei", "three": "drei"}
MODELS = {
    "transformer": {"width": 16, "depth": 1, "heads": 2, "dropout": 0.0},
    "rnn-seq2seq": {"width": 16, "dropout": 0.0},
}


@pytest.fixture
def folder(tmp_path):
    numbers = [f"{a} {b} {c}" for a in TABLE for b in TABLE for c in TABLE]
    lines = [f"{text}\t{' '.join(TABLE[word] for word in text.split())}\n" for text in numbers]
    (tmp_path / "p.tsv").write_text("".join(lines), encoding="utf-8")
    return tmp_path


def recipe(name, **data):
    return {
        "data": {
            "name": "pairs",
            "path": "p.tsv",
            "join": False,
            "vocabulary": "words",
            "batch_tokens": 256,
            "share": 0.2,
            **data,
        },
        "model": {"name": name, **MODELS[name]},
        "steps": 6,
        "optim": {"lr": 0.02},
        "run": {"valid_every": 3, "inside_every": 3},
    }


@pytest.mark.parametrize("joint", [False, True])
@pytest.mark.parametrize("name", [name for name in MODELS if name in FAMILIES])
def test_a_translator_learns_and_saves_both_vocabularies(folder, name, joint):
    run = train(recipe(name, joint=joint), out=folder / "run", data=folder, device="cpu", quiet=True)
    losses = [row["valid_loss"] for row in run.metrics if "valid_loss" in row]
    assert losses[-1] < losses[0]
    bundle = load(folder / "run", device="cpu")
    assert isinstance(bundle.tokens, Pair)
    assert bundle.tokens.joint == joint
    assert bundle.config.vocab == len(bundle.tokens.source)
    assert bundle.config.target_vocab == (None if joint else len(bundle.tokens.target))
    for weight, again in zip(run.model.model.parameters(), bundle.model.parameters(), strict=True):
        assert torch.equal(weight, again)


def test_a_vocabulary_of_another_size_is_refused(folder):
    wrong = recipe("transformer")
    wrong["model"]["target_vocab"] = 5
    with pytest.raises(ConfigError, match=r"model\.target_vocab = 5: the data has 7"):
        train(wrong, out=folder / "run", data=folder, device="cpu", quiet=True)
