"""The models that ship: small, whole, documented, and able to do what their cards say."""

import json
from pathlib import Path

import numpy as np
import pytest
import torch

import clearhead as ch
from clearhead.train import read_recipe
from clearhead.weights import WeightsError, shipped
from clearhead.weights.zoo import ZOO, in_zoo

NAMES = sorted(shipped())
MOST = {"transformer": 6_000_000, "rnn-seq2seq": 6_000_000}  # bytes of a folder, by family


def test_the_zoo_is_what_it_was_meant_to_be():
    assert {"en-de", "fr-en", "en-de-rnn"} <= set(NAMES)
    assert sum(p.stat().st_size for p in ZOO.rglob("*") if p.is_file()) < 48_000_000


@pytest.mark.parametrize("name", NAMES)
def test_a_shipped_model_is_small_whole_and_documented(name):
    folder, card = in_zoo(name), shipped()[name]
    assert folder is not None
    kind = json.loads((folder / "config.json").read_text())["model"]
    assert sum(p.stat().st_size for p in folder.iterdir()) <= MOST[kind]
    assert not [p.name for p in folder.iterdir() if p.suffix in (".bin", ".pt", ".pkl")]
    recipe = read_recipe(folder / "recipe.toml")
    assert recipe == read_recipe(Path(__file__).parents[2] / "configs" / f"{name}.toml")
    ready = ch.load(name)
    assert sum(p.numel() for p in ready.model.parameters()) == card.parameters
    assert {p.dtype for p in ready.model.parameters()} == {torch.float32}
    assert {p.dtype for p in ch.load(name, dtype="float16").model.parameters()} == {torch.float16}
    assert card.scores
    assert card.minutes > 0


@pytest.mark.parametrize(
    ("name", "text", "answer"),
    [
        ("en-de", "A dog runs.", "Ein Hund rennt."),
        ("en-de", "My mother bought a new car last week.", "Meine Mutter hat letzte Woche ein neues Auto gekauft."),
        ("en-de-rnn", "My mother bought a new car last week.", "Meine Mutter hat letzte Woche ein neues Auto gekauft."),
        ("fr-en", "Je mange la pomme.", "I eat the apple."),
    ],
)
def test_everyday_sentences(name, text, answer):
    found = ch.translate(ch.load(name), text, beams=5)
    assert found.text == answer
    np.testing.assert_allclose(found.alignment.sum(1), 1.0, atol=1e-5)


def test_a_pronoun_crosses_its_verb():
    """French puts the object before the verb: the look of "it" and that of "eat" cross."""
    found = ch.translate(ch.load("fr-en"), "Je la mange.", beams=5, best=2)
    assert found.text == "I eat it."
    assert found.others[0].text == "I'm eating it."
    looks = {word.strip(): found.source[int(row.argmax())].strip() for word, row in zip(found.target, found.alignment)}  # noqa: B905
    assert (looks["I"], looks["eat"], looks["it"]) == ("Je", "mange", "la")


def test_a_name_is_never_a_path(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    for wrong in ("../zoo/en-de", "", ".", "..", "/en-de", "en-de/.."):
        assert in_zoo(wrong) is None
    with pytest.raises(WeightsError, match=r"en-dee: there is no such folder; the nearest is en-de"):
        ch.load("en-dee")


def test_a_folder_here_goes_before_a_shipped_one(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "en-de").mkdir()
    with pytest.raises(WeightsError, match=r"there is no config.json"):
        ch.load("en-de")
