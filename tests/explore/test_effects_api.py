"""Effects of heads on the texts of inspections."""

import json

import numpy as np
import pytest
import torch

import clearhead as ch
from clearhead.explore.inspections import text as inspections
from clearhead.look import head_effects, silence
from support.api_shapes import schemas

TEXT = "The cat sat on the mat."


def effects(client, look, group):
    answer = client.get("/api/looks/effects", params={"look": look, "group": group})
    assert answer.status_code == 200
    return [schemas.EffectsOfLayer(**json.loads(line)) for line in answer.text.splitlines()]


@pytest.fixture
def look(ask):
    return ask("/api/write", {"model": "tiny", "text": TEXT, "max_new": 0})[-1]["look"]["id"]


def test_effects_of_a_language_model_are_the_librarys(client, look, tiny):
    found = effects(client, look, "self")
    want = head_effects(ch.load(tiny, device="cpu"), TEXT).mean
    assert [one.layer for one in found] == [0, 1, 2]
    assert {(one.layers, one.measure) for one in found} == {(3, "logprob")}
    assert np.allclose([one.effect for one in found], want, atol=1e-5)
    assert effects(client, look, "self") == found


@pytest.mark.parametrize(("group", "kind"), [("cross", "cross"), ("encoder", "encoder"), ("decoder", "decoder")])
def test_effects_of_a_translator_are_the_librarys(client, ask, group, kind):
    last = ask("/api/translate", {"model": "en-de", "text": "Two dogs run.", "beams": 1})[-1]
    found = effects(client, last["looks"][0]["id"], group)
    bundle, target = ch.load("en-de", device="cpu"), last["translations"][0]["text"]
    want = head_effects(bundle, "Two dogs run.", target=target, kind=kind).mean
    assert np.allclose([one.effect for one in found], want, atol=1e-5)


def test_effects_do_not_depend_on_heads_that_were_off(client, ask, look):
    off = {"model": "tiny", "text": TEXT, "max_new": 0, "off": {"0": [1, 2]}}
    other = ask("/api/write", off)[-1]["look"]["id"]
    assert effects(client, other, "self") == effects(client, look, "self")


def test_a_long_text_is_refused_before_the_stream_begins(client, ask, monkeypatch):
    text = "a" * (inspections.EFFECT_TOKENS + 1)
    look = ask("/api/write", {"model": "tiny", "text": text, "max_new": 0})[-1]["look"]["id"]
    answer = client.get("/api/looks/effects", params={"look": look, "group": "self"})
    assert answer.status_code == 400
    assert "the text has 513 tokens" in answer.json()["error"]
    one = ask("/api/write", {"model": "tiny", "text": "a", "max_new": 0})[-1]["look"]["id"]
    answer = client.get("/api/looks/effects", params={"look": one, "group": "self"})
    assert (answer.status_code, "two tokens or more" in answer.json()["error"]) == (400, True)


def test_the_text_without_heads(client, look, tiny):
    asked = {"look": look, "off": {"0": [0, 3], "2": [1], "1": []}}
    found = schemas.WithoutShape(**client.post("/api/looks/without", json=asked).json())
    bundle = ch.load(tiny, device="cpu")
    changes = {"blocks.0.attn.heads": silence([0, 3]), "blocks.2.attn.heads": silence([1])}
    ids = torch.from_numpy(bundle.tokens.encode(TEXT))
    before = bundle(TEXT).log_softmax(-1)[:-1].gather(1, ids[1:, None])[:, 0]
    with ch.edit(bundle, changes):
        after = bundle(TEXT).log_softmax(-1)[:-1].gather(1, ids[1:, None])[:, 0]
    assert found.tokens == list(TEXT)
    assert found.before[0] is found.after[0] is None
    assert np.allclose(found.before[1:], before, rtol=1e-4)
    assert np.allclose(found.after[1:], after, rtol=1e-4)
    assert not np.allclose(before, after, rtol=1e-4)
    same = client.post("/api/looks/without", json={"look": look, "off": {}}).json()
    assert same["before"] == same["after"]


def test_before_has_all_heads_on_even_if_the_inspection_had_not(client, ask, look):
    off = {"0": [1, 2]}
    other = ask("/api/write", {"model": "tiny", "text": TEXT, "max_new": 0, "off": off})[-1]["look"]["id"]
    found = [client.post("/api/looks/without", json={"look": one, "off": off}).json() for one in (look, other)]
    assert found[0] == found[1]


@pytest.mark.parametrize(
    ("body", "status", "sentence"),
    [
        ({"off": {"0": [4]}}, 400, "there are 4"),
        ({"off": {"0": [-1]}}, 400, "heads [-1]"),
        ({"off": {"7": [0]}}, 400, "layer 7"),
        ({"off": {"x": [0]}}, 422, "off"),
        ({"off": {"0": ["a"]}}, 422, "off"),
        ({"off": {"0": [0] * 257}}, 422, "off"),
        ({}, 422, "off"),
        ({"off": {}, "look": "gone"}, 404, "no longer kept"),
        ({"off": {}, "look": "../.."}, 422, "look"),
        ({"off": {}, "more": 1}, 422, "more"),
    ],
)
def test_a_wrong_request_is_a_sentence(client, look, body, status, sentence):
    answer = client.post("/api/looks/without", json={"look": look} | body)
    assert answer.status_code == status
    assert sentence in answer.json()["error"]


def test_a_translation_has_no_text_to_compare(client, ask):
    look = ask("/api/translate", {"model": "en-de", "text": "A dog.", "beams": 1})[-1]["looks"][0]["id"]
    answer = client.post("/api/looks/without", json={"look": look, "off": {}})
    assert (answer.status_code, "expected the inspection of a GPT" in answer.json()["error"]) == (400, True)
