"""Captions: words, scores and maps of every head, evidence and words of one's own, all as the library computes them."""

import json
from pathlib import Path

import numpy as np
import pytest
from PIL import Image
from starlette.testclient import TestClient
from test_images_api import UNUSUAL, WRONG, encoded, send

import clearhead as ch
from clearhead.data import make_data
from clearhead.explore import examples as example_images
from clearhead.explore.app import make_app
from clearhead.explore.inspections import captions_images, inspect_caption, own_caption
from clearhead.explore.store import views, why_no_view
from clearhead.tasks.caption import captioning, given_caption
from clearhead.weights import shipped
from support.api_shapes import schemas
from support.explorer_calls import events, numbers

HOME = "http://127.0.0.1:8000"
KINDS = ("transformer", "rnn", "bottleneck")
PHOTO = example_images.FOLDER / "cat.webp"
ZOO = [name for name in ("captioner", "captioner-rnn") if name in shipped()]


@pytest.fixture(scope="module")
def client(captioners):
    with TestClient(make_app(list(captioners.values()), device="cpu"), base_url=HOME) as found:
        yield found


def name_of(captioners, kind):
    return Path(captioners[kind]).name


def captions(client, model, image="cat", **options):
    return events(client, "caption", model=model, image=image, **options)


def test_captioners_open_in_caption_with_scenes_first(client, captioners):
    found = {one["id"]: schemas.ModelLine(**one) for one in client.get("/api/models").json()}
    for kind in KINDS:
        line = found[name_of(captioners, kind)]
        assert (line.kinds, line.why) == (["caption"], None)
        assert line.examples[: len(example_images.SCENES)] == list(example_images.SCENES)
        assert sorted(line.examples) == sorted(example_images.NAMES)
    assert found["vit-cifar10"].kinds == ["classify"]


def test_a_captioner_without_preprocessing_says_why_no_view_shows_it(captioners):
    whole = ch.load(captioners["rnn"], device="cpu")
    bare = ch.Bundle(whole.model, whole.tokens)
    assert (views(bare), captions_images(bare)) == ([], False)
    assert "without image preprocessing" in why_no_view(bare)


@pytest.mark.parametrize("kind", KINDS)
def test_the_last_line_has_the_captions_of_the_library(client, captioners, kind):
    *steps, last = captions(client, name_of(captioners, kind), beams=3)
    want = ch.caption(ch.load(captioners[kind], device="cpu"), PHOTO, beams=3, best=3)
    every = [want, *want.alternatives]
    assert [one["text"] for one in last["captions"]] == [one.text for one in every]
    assert [one["score"] for one in last["captions"]] == pytest.approx([one.score for one in every], rel=1e-4)
    assert [one["words"] for one in last["captions"]] == [one.words for one in every]
    assert [one["words"] for one in last["looks"]] == [one.words for one in every]
    assert last["looks"][0]["seen"] == [24, 24]
    # Words appear one by one.
    lengths = [max(len(one["ids"]) for one in step["captions"]) for step in steps]
    assert lengths[0] == 1
    assert sorted(lengths) == lengths
    assert lengths[-1] >= len(last["captions"][0]["ids"])


@pytest.mark.parametrize("kind", ["transformer", "rnn"])
def test_the_maps_of_words_are_those_of_the_library(client, captioners, kind):
    last = captions(client, name_of(captioners, kind), beams=2)[-1]
    caption = ch.caption(ch.load(captioners[kind], device="cpu"), PHOTO, beams=2, best=2)
    for one, look in zip([caption, *caption.alternatives], last["looks"], strict=True):
        (group,) = look["groups"]
        assert (group["name"], group["columns"]["grid"]) == ("cross", [12, 12])
        found = numbers(client, "wordmaps", look=look["id"], group="cross")
        assert found.shape == (group["layers"], group["heads"], len(one.words), 144)
        for layer in range(group["layers"]):
            for head in range(group["heads"]):
                assert np.allclose(found[layer, head].reshape(-1, 12, 12), one.attention(layer, head), atol=1e-6)
        assert np.allclose(found.mean((0, 1)).reshape(-1, 12, 12), one.maps, atol=1e-6)
        assert np.allclose(numbers(client, "evidence", look=look["id"]), one.evidence(), atol=1e-6)
    lines = client.get("/api/looks/heads", params={"look": last["looks"][0]["id"], "group": "cross"}).text.splitlines()
    for line in lines:
        schemas.HeadsOfLayer(**json.loads(line))
    assert len(lines) == last["looks"][0]["groups"][0]["layers"]


def test_a_class_token_has_no_place_in_the_grid():
    data = make_data("scenes", {"pixels": 24}, seed=0)
    encoder = {"name": "vit", "size": 24, "patch": 8, "width": 8, "depth": 1, "heads": 2}
    model = ch.build(
        "captioner", vocab=len(data.tokens), width=8, context=10, decoder="transformer", depth=1, heads=2, special=True,
        encoder=encoder,
    )  # fmt: skip
    bundle = ch.Bundle(model, data.tokens, preprocessing=data.preprocessing)
    caption = ch.caption(bundle, PHOTO, beams=1, text="a red circle")
    (group,) = inspect_caption(caption, np.zeros((24, 24, 3), np.uint8)).groups.values()
    assert (group.columns.special, group.columns.names[:2]) == ([0], ["class token", "row 0, column 0"])
    weights = group.words()[..., 1:]
    each = (weights / weights.sum(-1, keepdims=True)).reshape(2, -1, 3, 3)
    assert np.allclose(each, np.stack([caption.attention(0, head) for head in range(2)]), atol=1e-6)


def test_a_captioner_without_attention_has_evidence_only(client, captioners):
    look = captions(client, name_of(captioners, "bottleneck"))[-1]["looks"][0]
    assert look["groups"] == []
    caption = ch.caption(ch.load(captioners["bottleneck"], device="cpu"), PHOTO)
    assert np.allclose(numbers(client, "evidence", look=look["id"]), caption.evidence(), atol=1e-6)
    answer = client.get("/api/looks/wordmaps", params={"look": look["id"], "group": "cross"})
    assert (answer.status_code, "this model has no attention" in answer.json()["error"]) == (400, True)


@pytest.mark.parametrize("kind", KINDS)
def test_words_of_ones_own_come_first_with_their_score(client, captioners, kind):
    *steps, last = captions(client, name_of(captioners, kind), text="a red circle", beams=2)
    want = ch.caption(ch.load(captioners[kind], device="cpu"), PHOTO, text="a red circle")
    given, *others = last["captions"]
    assert (given["text"], given["given"], given["unknown"], given["cut"]) == ("a red circle", True, [], False)
    assert given["logprob"] == pytest.approx(want.logprob, rel=1e-4)
    assert [one["given"] for one in others] == [False, False]
    assert all(step["captions"][0] == given for step in steps)
    assert np.allclose(numbers(client, "evidence", look=last["looks"][0]["id"]), want.evidence(), atol=1e-6)


def test_words_are_read_as_captions_are_written_and_unknown_ones_are_named(captioners):
    bundle, file = ch.load(captioners["rnn"], device="cpu"), PHOTO.read_bytes()
    caption, unknown = own_caption(bundle, file, "A Red, circle!")
    assert (caption.words, unknown) == (["a", "red", "circle"], [])
    caption, unknown = own_caption(bundle, file, "A zebra in red")
    assert unknown == ["zebra", "in"]
    assert caption.words == ["a", "<unk>", "<unk>", "red"]


@pytest.mark.parametrize("kind", KINDS)
def test_an_unfinished_caption_can_be_inspected(client, captioners, kind):
    bundle = ch.load(captioners[kind], device="cpu")
    ids = bundle.tokens.encode("a red circle").tolist()[:2]
    body = {"model": name_of(captioners, kind), "image": "cat", "ids": ids}
    found = schemas.GivenShape(**client.post("/api/given-caption", json=body).json())
    assert (found.caption.text, found.caption.ids, found.caption.cut) == ("a red", ids, True)
    whole = ch.caption(bundle, PHOTO, text="a red")
    assert found.caption.logprob > whole.logprob  # that one ends here as well
    assert found.look.words == ["a", "red"]
    evidence = numbers(client, "evidence", look=found.look.id)
    assert np.allclose(evidence, whole.evidence(), atol=1e-6)


def test_every_step_of_the_search_is_a_caption_of_its_own(captioners):
    bundle = ch.load(captioners["transformer"], device="cpu")
    for beams in captioning(bundle, PHOTO, beams=2):
        one = beams[0]
        again = given_caption(bundle, PHOTO, one.forced.ids if one.cut else one.forced.ids[:-1], finished=not one.cut)
        assert (again.text, again.logprob) == (one.text, pytest.approx(one.logprob, abs=1e-4))
        assert np.allclose(again.maps, one.maps, atol=1e-6)


def test_a_caption_without_words_has_no_maps(captioners):
    bundle = ch.load(captioners["transformer"], device="cpu")
    tokens = bundle.tokens
    empty = given_caption(bundle, PHOTO, [tokens.end], finished=False)
    look = inspect_caption(empty, np.zeros((24, 24, 3), np.uint8))
    assert (look.to_dict()["words"], look.group("cross").words().shape, len(look.evidence())) == ([], (2, 2, 0, 144), 0)


@pytest.mark.parametrize("name", UNUSUAL)
def test_images_of_any_mode_are_captioned_as_by_the_library(client, captioners, tmp_path, name):
    (tmp_path / "image").write_bytes(UNUSUAL[name][0])
    found = captions(client, name_of(captioners, "rnn"), send(client, UNUSUAL[name][0]).json()["id"])[-1]
    want = ch.caption(ch.load(captioners["rnn"], device="cpu"), tmp_path / "image")
    assert found["captions"][0]["score"] == pytest.approx(want.score, rel=1e-4)


@pytest.mark.parametrize("name", WRONG)
def test_a_file_that_is_no_image_gets_no_id(client, name):
    assert set(send(client, WRONG[name][0]).json()) == {"error"}


def test_noise_black_and_one_pixel_get_a_caption(client, captioners):
    noise = Image.fromarray(np.random.default_rng(0).integers(0, 256, (40, 30, 3), np.uint8))
    for image in (noise, Image.new("RGB", (50, 50)), Image.new("RGB", (1, 1), "red")):
        for kind in KINDS:
            last = captions(client, name_of(captioners, kind), send(client, encoded(image)).json()["id"])[-1]
            assert len(last["captions"]) == len(last["looks"]) == 5
            assert all(np.isfinite(one["score"]) for one in last["captions"])


def test_wrong_requests_are_sentences(client, captioners):
    model = name_of(captioners, "rnn")
    for body, status, sentence in (
        ({"model": model, "image": "gone"}, 404, "choose an image"),
        ({"model": "gone", "image": "cat"}, 404, "no model"),
        ({"model": model, "image": "../cat"}, 422, "image"),
        ({"model": model, "image": "cat", "beams": 11}, 422, "beams"),
        ({"model": model, "image": "cat", "word": "a"}, 422, "word"),
    ):
        answer = client.post("/api/caption", json=body)
        assert (answer.status_code, sentence in answer.json()["error"]) == (status, True), answer.text
    for options, sentence in (
        ({"text": " "}, "the caption is empty"),
        ({"text": "a " * 10}, "this model writes 9 at most"),
        ({"text": "a" * 2001}, "2,001 characters: expected at most 2,000"),
    ):
        assert sentence in captions(client, model, **options)[-1]["error"]
    assert "writes no captions: expected a captioner" in captions(client, "vit-cifar10")[-1]["error"]
    for body, status, sentence in (
        ({"model": model, "image": "cat", "ids": []}, 400, "the caption is empty"),
        ({"model": model, "image": "cat", "ids": [10_000]}, 400, "10000"),
        ({"model": "vit-cifar10", "image": "cat", "ids": [5]}, 400, "writes no captions"),
    ):
        answer = client.post("/api/given-caption", json=body)
        assert (answer.status_code, sentence in answer.json()["error"]) == (status, True), answer.text
    lines = client.post("/api/classify", json={"model": "vit-cifar10", "image": "cat"}).text.splitlines()
    sight = json.loads(lines[-1])["look"]["id"]
    answer = client.get("/api/looks/evidence", params={"look": sight})
    assert (answer.status_code, "not the inspection of a caption" in answer.json()["error"]) == (400, True)
    answer = client.get("/api/looks/wordmaps", params={"look": sight, "group": "self"})
    assert (answer.status_code, "have no words" in answer.json()["error"]) == (400, True)


@pytest.mark.skipif(not ZOO, reason="no captioner ships yet")
@pytest.mark.parametrize("name", ZOO)
def test_the_shipped_captioners_see_the_camera(client, name):
    """The guided path shows this image."""
    last = captions(client, name, "photographer")[-1]
    assert "camera" in last["captions"][0]["words"]
    assert np.allclose(numbers(client, "wordmaps", look=last["looks"][0]["id"], group="cross").sum(-1), 1.0, atol=1e-4)


@pytest.mark.skipif(not ZOO, reason="no captioner ships yet")
@pytest.mark.parametrize("name", ZOO)
def test_the_evidence_for_the_camera_is_around_the_camera(client, name):
    """What the guided path says: it is in the middle of the photograph, in 12 of 36 places."""
    look = captions(client, name, "photographer", text="a man with a camera")[-1]["looks"][0]
    evidence = numbers(client, "evidence", look=look["id"])[4]
    assert evidence.shape == (6, 6)
    assert evidence[1:5, 2:5].sum() > 0.6
