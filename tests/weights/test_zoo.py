"""The models that ship: small, complete, documented, and able to do what their cards say."""

import json
import os
import random
import resource
import shlex
import time
from pathlib import Path

import numpy as np
import pytest
import torch

import clearhead as ch
from clearhead.training import read_recipe
from clearhead.weights import WeightsError, shipped
from clearhead.weights.folder import ZOO, in_zoo
from support.command_line import output

NAMES = sorted(shipped())
UNSEEN = """
My sister wants to learn how to cook Italian food.
We waited for the bus in the rain for half an hour.
An old woman is selling flowers at the corner of the street.
He forgot where he had put his glasses again.
Could you tell me when the next train leaves?
The children are playing football behind the school.
"""  # in neither Tatoeba nor Multi30k
MOST = {
    "transformer": 6_000_000,
    "rnn-seq2seq": 6_000_000,
    "gpt": 4_000_000,
    "bert": 4_200_000,
    "resnet": 4_000_000,
    "vit": 6_000_000,
    "captioner": 7_600_000,
}  # most bytes of a folder, by family
IMAGES = {  # of the models of images: most bytes, the data they are measured on, and the least accuracy
    "vit-cifar10": (4_000_000, "cifar10", 0.93),
    "resnet-cifar10": (4_000_000, "cifar10", 0.94),
    "vit-imagenette": (6_000_000, "imagenette", 0.86),
}
CAPTIONERS = ("captioner", "captioner-rnn")
TOGETHER = 12_000_000  # most bytes of both captioners
ROOT = Path(__file__).parents[2]
EXAMPLES = Path(ch.__file__).parent / "explore" / "example_images"


def test_the_zoo_has_its_models_and_is_small():
    assert {"en-de", "fr-en", "en-de-rnn", "everyday", "cloze", *IMAGES, *CAPTIONERS} <= set(NAMES)
    assert sum(p.stat().st_size for p in ZOO.rglob("*") if p.is_file()) < 52_000_000


@pytest.mark.parametrize("name", NAMES)
def test_a_shipped_model_is_small_complete_and_documented(name):
    folder, card = in_zoo(name), shipped()[name]
    assert folder is not None
    kind = json.loads((folder / "config.json").read_text())["model"]
    assert sum(p.stat().st_size for p in folder.iterdir()) <= MOST[kind]
    assert not [p.name for p in folder.iterdir() if p.suffix in (".bin", ".pt", ".pkl")]
    recipe = read_recipe(folder / "recipe.toml")
    assert recipe == read_recipe(ROOT / card.command.split()[-1])
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
def test_translations_of_everyday_sentences(name, text, answer):
    translation = ch.translate(ch.load(name), text, beams=5)
    assert translation.text == answer
    np.testing.assert_allclose(translation.alignment.sum(1), 1.0, atol=1e-5)


def test_the_alignment_of_a_pronoun_crosses_that_of_its_verb():
    """French puts a pronoun before the verb, English after it: "it" aligns with "la", "eat" with "mange"."""
    best = ch.translate(ch.load("fr-en"), "Je la mange.", beams=5, best=2)
    assert best.text == "I eat it."
    assert best.others[0].text == "I'm eating it."
    aligned = {word.strip(): best.source[int(row.argmax())].strip() for word, row in zip(best.target, best.alignment)}  # noqa: B905
    assert (aligned["I"], aligned["eat"], aligned["it"]) == ("Je", "mange", "la")


@pytest.mark.parametrize(
    ("text", "word"),
    [
        ("She [MASK] to the store to buy some milk.", "went"),
        ("He is reading a [MASK].", "book"),
        ("A dog is playing [MASK] the park.", "in"),
    ],
)
def test_gaps_of_everyday_sentences_are_filled(text, word):
    assert ch.fill(ch.load("cloze"), text)[0][0][0] == word


def test_similar_sentences_have_similar_vectors():
    texts = ["She is reading a book.", "He reads a novel.", "The train was late again."]
    vectors = ch.embed(ch.load("cloze"), texts)
    similar = vectors @ vectors.T / np.linalg.norm(vectors, axis=1) / np.linalg.norm(vectors, axis=1)[:, None]
    assert similar[0, 1] > similar[0, 2] + 0.2


@pytest.mark.parametrize("name", IMAGES)
def test_a_model_of_images_is_small_and_accurate(name):
    most, data, least = IMAGES[name]
    assert sum(p.stat().st_size for p in in_zoo(name).iterdir()) <= most
    ((score, accuracy),) = shipped()[name].scores.items()
    assert score.startswith(f"{data} ")
    assert accuracy >= least


@pytest.mark.slow
@pytest.mark.parametrize("name", IMAGES)
def test_the_accuracy_on_a_card_is_measured_again(name):
    data, root = IMAGES[name][1], os.environ.get("CLEARHEAD_DATA")
    if not root:
        pytest.skip("needs CLEARHEAD_DATA")
    scores = ch.evaluate(ch.load(name, device="cpu"), data)
    ((score, accuracy),) = shipped()[name].scores.items()
    assert f"{scores.data} accuracy" == score
    assert scores.accuracy == pytest.approx(accuracy, abs=2e-4)  # another processor may round otherwise


@pytest.mark.parametrize(
    ("name", "images"),
    [
        ("vit-cifar10", ["airplane", "cat", "ship"]),
        ("resnet-cifar10", ["airplane", "cat", "ship"]),
        ("vit-imagenette", ["church", "golf ball", "parachute"]),
    ],
)
def test_example_images_are_recognised(name, images):
    files = [EXAMPLES / f"{image.replace(' ', '-')}.webp" for image in images]
    found = ch.classify(ch.load(name, device="cpu"), files, top=1)
    assert [classes[0][0] for classes in found] == images
    assert min(classes[0][1] for classes in found) > 0.7


def test_the_captioners_are_small_together_and_reach_the_paper():
    """Show, Attend and Tell reports BLEU-4 19.5 on Flickr8k with soft attention."""
    assert sum(p.stat().st_size for name in CAPTIONERS for p in in_zoo(name).iterdir()) <= TOGETHER
    for name in CAPTIONERS:
        assert shipped()[name].scores["flickr8k test BLEU-4"] >= 19.5
        assert "for research only" in shipped()[name].licence


def test_the_captioners_have_one_encoder_and_are_saved_whole(tmp_path):
    first, second = (ch.load(name, device="cpu") for name in CAPTIONERS)
    encoders = [bundle.model.encoder.state_dict() for bundle in (first, second)]
    assert all(torch.equal(x, encoders[1][name]) for name, x in encoders[0].items())
    again = ch.load(ch.save(second, tmp_path / "whole"), device="cpu")
    photograph = EXAMPLES / "church.webp"
    assert ch.caption(again, photograph).text == ch.caption(second, photograph).text


@pytest.mark.slow
@pytest.mark.parametrize("name", CAPTIONERS)
def test_the_scores_on_the_card_of_a_captioner_are_measured_again(name):
    if not os.environ.get("CLEARHEAD_DATA"):
        pytest.skip("needs CLEARHEAD_DATA")
    found = ch.evaluate(ch.load(name, device="cpu"), "flickr8k")
    for score, value in shipped()[name].scores.items():  # another processor may write another word here and there
        assert found[score.removeprefix("flickr8k test ")] == pytest.approx(value, abs=0.15)


@pytest.fixture(scope="module")
def everyday():
    return ch.load("everyday")


@pytest.fixture(scope="module")
def long(everyday):
    """10,000 tokens and a few more."""
    text = UNSEEN * (10_000 // len(everyday.tokens.encode(UNSEEN)) + 1)
    assert 10_000 <= len(everyday.tokens.encode(text)) < 10_200
    return text


def peak_memory():
    """Peak resident memory of this process so far, in kB."""
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss


@pytest.mark.parametrize("name", NAMES)
def test_the_example_on_a_card_works(name, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)  # as for a user of the wheel: examples name no file of the checkout
    assert f" {name} " in shipped()[name].example
    assert output(*shlex.split(shipped()[name].example)[1:]).strip()
    assert f"{name} " in output("models")


def test_greedy_generation_is_deterministic(everyday):
    first = ch.generate(everyday, "The man", max_new=40)
    assert first.text.startswith(" is standing in front of a building.\n")
    again = ch.generate(everyday, ["She looked at", "The man"], max_new=40)[1]
    assert (again.text, again.pieces) == (first.text, first.pieces)
    assert output("generate", "everyday", "The man", "max_new=40") == f"{first.text}\n"
    assert ch.generate(everyday, "The man", max_new=40, temperature=0.7, seed=1).text != first.text


def test_perplexity_of_unseen_sentences_is_low(everyday):
    """Token frequencies alone give a perplexity of 523 here, a uniform distribution 2,000."""
    ordered = ch.likelihood(everyday, UNSEEN)
    assert ordered.perplexity < 14
    words = UNSEEN.split()
    random.Random(0).shuffle(words)
    assert ch.likelihood(everyday, "\n" + " ".join(words)).perplexity > 50 * ordered.perplexity


def test_a_text_of_ten_thousand_tokens_is_continued(everyday, long):
    """Attention reaches back depth x window tokens: text before that changes nothing."""
    began, before = time.perf_counter(), peak_memory()
    continued = ch.generate(everyday, long, max_new=10)
    assert time.perf_counter() - began < 60
    assert peak_memory() - before < 1_000_000
    reach = everyday.config.depth * everyday.config.window
    near = everyday.tokens.decode(everyday.tokens.encode(long)[-reach - 200 :])
    assert continued.text == ch.generate(everyday, near, max_new=10).text
    assert output("generate", "everyday", "-", "max_new=10", stdin=long) == f"{continued.text}\n"


def test_a_text_of_ten_thousand_tokens_is_scored_and_watched(everyday, long):
    began, before = time.perf_counter(), peak_memory()
    scored = ch.likelihood(everyday, long)
    assert scored.counted == len(scored.pieces) - 1 >= 9_999
    assert scored.perplexity < 14
    with torch.no_grad(), ch.watch(everyday, "blocks.*.attn.weights") as tape:
        everyday.model.states(torch.from_numpy(everyday.tokens.encode(long))[None])
    for name in tape.names:
        attention = tape[name]
        assert attention.shape == (1, everyday.config.heads, len(scored.pieces), len(scored.pieces))
        assert float(attention.distance().max()) < everyday.config.window
        np.testing.assert_allclose(
            attention.row(9_000)[0, :, 9_001 - everyday.config.window : 9_001].sum(1), 1.0, rtol=1e-4
        )
    assert time.perf_counter() - began < 60
    assert peak_memory() - before < 1_000_000  # the attention map of one layer alone would be 2 GB


def test_a_path_is_not_the_name_of_a_shipped_model():
    for wrong in ("../zoo/en-de", "", ".", "..", "/en-de", "en-de/.."):
        assert in_zoo(wrong) is None


def test_a_local_folder_takes_precedence_over_a_shipped_model(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "en-de").mkdir()
    with pytest.raises(WeightsError, match=r"there is no config.json"):
        ch.load("en-de")
