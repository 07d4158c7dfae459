"""doctor: the self-test of a classifier or captioner gives it what it reads."""

from importlib import import_module
from types import SimpleNamespace

import torch

from clearhead import Bundle, build, save
from clearhead.data import make_data
from clearhead.data.images.preprocessing import Preprocessing
from clearhead.tokens import Words
from support.image_models import patched_model, registered

doctors = import_module("clearhead.report.doctor")  # the file; clearhead.report.doctor is its function


def shipped(monkeypatch, folder):
    """Let this folder be the only model that ships."""
    monkeypatch.setattr(doctors, "shipped", lambda: {str(folder): None})


def test_a_classifier_of_images_gets_a_grey_image(tmp_path, monkeypatch):
    bundle = Bundle(patched_model(), preprocessing=Preprocessing(resize=(8, 8)), labels=("cat", "cat"))
    with registered():
        shipped(monkeypatch, save(bundle, tmp_path))
        health = doctors.doctor(device="cpu")
        assert health.problems == []
        assert health.zoo[str(tmp_path)].startswith("a grey image of 8 x 8 -> cat (")
        with torch.no_grad():
            bundle.model.head.weight.fill_(torch.nan)
        save(bundle, tmp_path)
        (problem,) = doctors.doctor(device="cpu").problems
    assert "a grey image of 8 x 8: the probabilities of its classes are not finite" in problem


def test_a_classifier_of_texts_gets_a_text(tmp_path, monkeypatch):
    words = Words.of(["A dog runs ."])
    model = build("bert", vocab=len(words), width=8, depth=1, heads=2, context=16, answer="class", classes=2)
    shipped(monkeypatch, save(Bundle(model, words, labels=("good", "good")), tmp_path))
    health = doctors.doctor(device="cpu")
    assert health.problems == []
    assert health.zoo[str(tmp_path)].startswith("A dog runs. -> good (")


def test_a_captioner_gets_a_grey_image(tmp_path, monkeypatch):
    data = make_data("scenes", {"pixels": 24}, seed=0)
    torch.manual_seed(0)
    encoder = {"name": "resnet", "width": 4, "depths": [1]}
    model = build("captioner", vocab=len(data.tokens), width=8, encoder=encoder, decoder="rnn")
    shipped(monkeypatch, save(Bundle(model, data.tokens, preprocessing=data.preprocessing), tmp_path))
    health = doctors.doctor(device="cpu")
    assert health.problems == []
    assert health.zoo[str(tmp_path)].startswith("a grey image of 24 x 24 -> ")
    written = SimpleNamespace(text="a red dog", cut=False)
    monkeypatch.setattr(
        doctors, "caption", lambda *_, text="", **__: SimpleNamespace(logprob=1.0 - len(text), **vars(written))
    )
    (problem,) = doctors.doctor(device="cpu").problems
    assert "'a red dog' is 1.000 by the search, and -8.000 by a forward pass" in problem
