"""The models that ship: small, whole, documented, and able to do what their cards say."""

import json
import random
import resource
import shlex
import time
from pathlib import Path

import numpy as np
import pytest
import torch
from typer.testing import CliRunner

import clearhead as ch
from clearhead.cli import app
from clearhead.training import read_recipe
from clearhead.weights import WeightsError, shipped
from clearhead.weights.zoo import ZOO, in_zoo

NAMES = sorted(shipped())
UNSEEN = """
My sister wants to learn how to cook Italian food.
We waited for the bus in the rain for half an hour.
An old woman is selling flowers at the corner of the street.
He forgot where he had put his glasses again.
Could you tell me when the next train leaves?
The children are playing football behind the school.
"""  # in neither Tatoeba nor Multi30k
MOST = {"transformer": 6_000_000, "rnn-seq2seq": 6_000_000, "gpt": 4_000_000}  # bytes of a folder, by family


def test_the_zoo_is_what_it_was_meant_to_be():
    assert {"en-de", "fr-en", "en-de-rnn", "everyday"} <= set(NAMES)
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
    bundle = ch.load(name)
    assert sum(p.numel() for p in bundle.model.parameters()) == card.parameters
    assert {p.dtype for p in bundle.model.parameters()} == {torch.float32}
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


@pytest.fixture(scope="module")
def everyday():
    return ch.load("everyday")


@pytest.fixture(scope="module")
def long(everyday):
    """10,000 tokens and a few more."""
    text = UNSEEN * (10_000 // len(everyday.tokens.encode(UNSEEN)) + 1)
    assert 10_000 <= len(everyday.tokens.encode(text)) < 10_200
    return text


def call(*words, stdin=None):
    found = CliRunner().invoke(app, [str(word) for word in words], input=stdin)
    assert found.exit_code == 0, found.output
    return found.stdout


def peak():
    """The most memory that this process ever had, in kB."""
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss


@pytest.mark.parametrize("name", NAMES)
def test_the_example_on_a_card_works(name):
    assert f" {name} " in shipped()[name].example
    assert call(*shlex.split(shipped()[name].example)[1:]).strip()
    assert f"{name} " in call("models")


def test_the_likeliest_text_is_always_the_same(everyday):
    first = ch.generate(everyday, "The man", max_new=40)
    assert first.text.startswith(" is standing in front of a building.\n")
    again = ch.generate(everyday, ["She looked at", "The man"], max_new=40)[1]
    assert (again.text, again.pieces) == (first.text, first.pieces)
    assert call("generate", "everyday", "The man", "max_new=40") == f"{first.text}\n"
    assert ch.generate(everyday, "The man", max_new=40, temperature=0.7, seed=1).text != first.text


def test_sentences_nobody_wrote_before_surprise_it_little(everyday):
    """A guess that knows how often each token occurs has a perplexity of 523 here, one that knows nothing 2,000."""
    found = ch.likelihood(everyday, UNSEEN)
    assert found.perplexity < 14
    words = UNSEEN.split()
    random.Random(0).shuffle(words)
    assert ch.likelihood(everyday, "\n" + " ".join(words)).perplexity > 50 * found.perplexity


def test_a_text_of_ten_thousand_tokens_is_gone_on_with(everyday, long):
    """Its window is all that it looks at: what stands far before changes nothing."""
    began, before = time.perf_counter(), peak()
    found = ch.generate(everyday, long, max_new=10)
    assert time.perf_counter() - began < 60
    assert peak() - before < 1_000_000
    reach = everyday.config.depth * everyday.config.window
    near = everyday.tokens.decode(everyday.tokens.encode(long)[-reach - 200 :])
    assert found.text == ch.generate(everyday, near, max_new=10).text
    assert call("generate", "everyday", "-", "max_new=10", stdin=long) == f"{found.text}\n"


def test_a_text_of_ten_thousand_tokens_is_read_and_watched(everyday, long):
    began, before = time.perf_counter(), peak()
    found = ch.likelihood(everyday, long)
    assert found.counted == len(found.pieces) - 1 >= 9_999
    assert found.perplexity < 14
    with torch.no_grad(), ch.watch(everyday, "blocks.*.attn.weights") as tape:
        everyday.model.states(torch.from_numpy(everyday.tokens.encode(long))[None])
    for name in tape.names:
        attention = tape[name]
        assert attention.shape == (1, everyday.config.heads, len(found.pieces), len(found.pieces))
        assert float(attention.distance().max()) < everyday.config.window
        np.testing.assert_allclose(
            attention.row(9_000)[0, :, 9_001 - everyday.config.window : 9_001].sum(1), 1.0, rtol=1e-4
        )
    assert time.perf_counter() - began < 60
    assert peak() - before < 1_000_000  # one layer's map alone would be 2 GB


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
