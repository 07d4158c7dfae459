"""Encoders: masked tokens, classes, similarities, and maps in both directions."""

import json

import numpy as np
import pytest
import torch
from starlette.testclient import TestClient

import clearhead as ch
from clearhead.explore.app import make_app
from clearhead.explore.reading import principal_plane
from clearhead.look import head_effects, silence
from clearhead.tokens import Words
from support.api_shapes import schemas
from support.explorer_calls import events

WORDS = Words(["the", "capital", "of", "France", "is", "Paris", "a", "dog", "good", "bad", "film", "."])
ANSWERS = {"words": {}, "class": {"classes": 3}, "sentence": {"pool": "mean"}}


@pytest.fixture(scope="module")
def berts(tmp_path_factory):
    """The folders of small encoders with random weights, one for each answer."""
    torch.manual_seed(1)
    root = tmp_path_factory.mktemp("berts")
    for answer, options in ANSWERS.items():
        model = ch.build(
            "bert", vocab=len(WORDS) + 1, context=12, width=16, depth=2, heads=4, answer=answer, **options
        )  # fmt: skip
        labels = ("negative", "neutral", "positive") if answer == "class" else None
        ch.save(ch.Bundle(model, WORDS, labels=labels), root / answer)
    return root


@pytest.fixture(scope="module")
def reader(berts):
    folders = [berts / answer for answer in ANSWERS]
    with TestClient(make_app(folders, device="cpu"), base_url="http://127.0.0.1:8000") as client:
        yield client


def read(client, model, text, **body):
    return events(client, "read", model=model, text=text, **body)


def test_encoders_are_for_the_view_of_reading(reader):
    found = {one["id"]: schemas.ModelLine(**one) for one in reader.get("/api/models").json()}
    assert [found[answer].kinds for answer in ANSWERS] == [["read"]] * 3
    assert [found[answer].mask for answer in ANSWERS] == ["[MASK]", None, None]
    assert found["everyday"].kinds == ["write"]
    assert found["words"].examples == ["the capital of France is Paris a dog [MASK]"]  # no default has only its words


def test_masked_tokens_are_filled_as_by_the_library(reader, berts):
    text = "the [MASK] of France is [MASK] ."
    last = read(reader, "words", text)[-1]
    want = ch.fill(ch.load(berts / "words", device="cpu"), text, top=8)
    assert last["masks"] == [2, 6]
    assert [[piece for piece, _ in row] for row in last["fill"]] == [[piece for piece, _ in row] for row in want]
    assert np.allclose([[p for _, p in row] for row in last["fill"]], [[p for _, p in row] for row in want], rtol=1e-3)
    assert last["classes"] is None
    (group,) = last["look"]["groups"]
    assert group["about"] == "each token attends to every token"
    assert group["rows"]["names"] == ["<start>", "the", "[MASK]", "of", "France", "is", "[MASK]", ".", "<end>"]
    assert group["rows"]["special"] == [0, 2, 6, 8]
    assert not last["look"]["lens"]


def test_a_text_without_masks_is_read_too(reader):
    last = read(reader, "words", "a good film")[-1]
    assert (last["fill"], last["masks"]) == ([], [])


def test_classes_are_those_of_the_library(reader, berts):
    last = read(reader, "class", "a good film")[-1]
    want = ch.classify(ch.load(berts / "class", device="cpu"), "a good film")
    assert [label for label, _ in last["classes"]] == [label for label, _ in want]
    assert [p for _, p in last["classes"]] == pytest.approx([p for _, p in want], rel=1e-3)
    assert last["fill"] is None


def test_silenced_heads_change_what_is_read(reader, berts):
    plain, off = (read(reader, "class", "a good film", **body)[-1] for body in ({}, {"off": {"1": [0, 2]}}))
    bundle = ch.load(berts / "class", device="cpu")
    with ch.edit(bundle, {"blocks.1.attn.heads": silence([0, 2])}):
        want = ch.classify(bundle, "a good film")
    assert [p for _, p in off["classes"]] == pytest.approx([p for _, p in want], rel=1e-3)
    assert off["classes"] != plain["classes"]


def test_maps_effects_and_similar_tokens_of_an_encoder(reader, berts):
    look = read(reader, "sentence", "a good dog is a film")[-1]["look"]["id"]
    bundle = ch.load(berts / "sentence", device="cpu")
    weights = ch.look.attention(bundle, "a good dog is a film").maps["self"]
    asked = {"look": look, "group": "self"}
    found = reader.get("/api/looks/map", params=asked | {"layer": 1, "head": 3}).json()["weights"]
    assert np.allclose(found, weights[1].dense()[0, 3], atol=2e-5)
    assert np.triu(found, 1).max() > 0  # also towards later tokens
    effects = [json.loads(line) for line in reader.get("/api/looks/effects", params=asked).text.splitlines()]
    want = head_effects(bundle, "a good dog is a film").mean
    assert np.allclose([one["effect"] for one in effects], want, rtol=1e-3)
    assert {one["measure"] for one in effects} == {"vector"}
    similar = reader.get("/api/looks/similar", params={"look": look, "at": 1}).json()["similarity"]
    ids = torch.tensor([[1, *bundle.tokens.encode("a good dog is a film").tolist(), 2]])
    with torch.no_grad():
        x = bundle.model.encode(ids)[0]
    assert similar == pytest.approx(torch.nn.functional.cosine_similarity(x, x[1:2]).tolist(), abs=1e-4)
    for path in ("lens?at=0", "candidates?first=1&last=2"):
        path, _, query = path.partition("?")
        answer = reader.get(f"/api/looks/{path}?look={look}&{query}")
        assert (answer.status_code, "expected a GPT" in answer.json()["error"]) == (400, True)


def test_a_long_text_is_cut_and_says_so(reader):
    found = read(reader, "words", "a [MASK] dog . " * 5)
    assert found[0] == {"cut": {"read": 12, "of": 22, "first": 0, "most": 12}}
    last = found[-1]
    assert last["masks"] == [2, 6, 10]
    names = last["look"]["groups"][0]["rows"]["names"]
    assert (len(names), names[-1], names[10]) == (12, "<end>", "[MASK]")
    assert len(last["fill"]) == 3


def test_texts_are_compared_by_their_embeddings(reader, berts):
    texts = ["a good dog", "a bad dog", "the capital of France"]
    answer = reader.post("/api/neighbours", json={"model": "sentence", "texts": texts}).json()
    found = schemas.NeighboursShape(**answer)
    vectors = ch.embed(ch.load(berts / "sentence", device="cpu"), texts)
    assert np.allclose(found.similarity, vectors @ vectors.T, atol=1e-4)
    between = np.linalg.norm(np.array(found.places)[:, None] - np.array(found.places), axis=-1)
    assert np.allclose(between, np.linalg.norm(vectors[:, None] - vectors, axis=-1), atol=1e-3)  # 3 points are a plane
    one = reader.post("/api/neighbours", json={"model": "everyday", "texts": ["A dog."]}).json()
    assert (one["similarity"], one["places"]) == ([[1.0]], [[0.0, 0.0]])


def test_the_plane_of_principal_components_does_not_depend_on_signs():
    x = np.random.default_rng(0).normal(size=(6, 4)) * [5.0, 2.0, 0.1, 0.1]
    places = principal_plane(x)
    assert np.allclose(places, principal_plane(x @ np.diag([-1, 1, 1, -1])))
    assert places.var(0)[0] > places.var(0)[1]
    assert (places[np.abs(places).argmax(0), [0, 1]] > 0).all()


@pytest.mark.parametrize(
    ("path", "body", "status", "sentence"),
    [
        ("neighbours", {"model": "sentence", "texts": []}, 422, "texts"),
        ("neighbours", {"model": "sentence", "texts": ["a"] * 65}, 422, "texts"),
        ("neighbours", {"model": "sentence", "texts": ["a" * 4001]}, 422, "texts"),
        ("neighbours", {"model": "sentence"}, 422, "texts"),
        ("neighbours", {"model": "en-de", "texts": ["a"]}, 400, "pairs of texts"),
        ("neighbours", {"model": "everyday", "texts": [""]}, 400, "empty"),
        ("neighbours", {"model": "gone", "texts": ["a"]}, 404, "no model"),
        ("read", {"model": "gone", "text": "a"}, 404, "no model"),
        ("read", {"model": "words", "text": "a", "off": {"x": [1]}}, 422, "off"),
        ("read", {"model": "words"}, 422, "text"),
        ("read", {"model": "words", "text": "a" * 120_001}, 422, "text"),
    ],
)
def test_a_wrong_request_is_a_sentence(reader, path, body, status, sentence):
    answer = reader.post(f"/api/{path}", json=body)
    assert answer.status_code == status
    assert sentence in answer.json()["error"]


def test_an_error_while_reading_is_a_sentence(reader):
    assert "no encoder of texts" in read(reader, "everyday", "a dog")[-1]["error"]
    assert "no encoder of texts" in read(reader, "en-de", "a dog")[-1]["error"]
    assert "there are 4" in read(reader, "words", "a dog", off={"0": [4]})[-1]["error"]
    assert "cannot generate" in reader.post("/api/write", json={"model": "words", "text": "a"}).text
