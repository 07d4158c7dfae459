"""Saliency, patching and comparison over HTTP: the library's own results, within bounds, and errors as sentences."""

import numpy as np
import pytest
import torch
from starlette.testclient import TestClient

import clearhead as ch
from clearhead.data import Preprocessing
from clearhead.explore import comparison
from clearhead.explore.app import make_app
from clearhead.explore.comparison import CELLS, photograph_views, photographs, pooled
from clearhead.explore.examples import NAMES, example_file
from clearhead.explore.writing import MOST_TOKENS, patch_prompts
from clearhead.tokens import Subwords
from support.api_shapes import schemas

HOME = "http://127.0.0.1:8000"
CHILDREN = {"model": "everyday", "clean": "The children in the garden", "corrupted": "The child in the garden"}


@pytest.fixture(scope="module")
def small(tmp_path_factory):
    """Folders of small models of images: a vision transformer, a convolutional network, and one without classes."""
    torch.manual_seed(1)
    root = tmp_path_factory.mktemp("small")
    vit = {"size": 28, "patch": 7, "width": 16, "depth": 2, "heads": 2}
    models = {
        "vit": ch.build("vit", classes=3, **vit),
        "cnn": ch.build("resnet", classes=3, width=8, depths=(1, 1), stem="small"),
        "embedder": ch.build("vit", classes=0, pool="mean", **vit),
    }
    for name, model in models.items():
        labels = ("cat", "dog", "ship") if name != "embedder" else None
        bundle = ch.Bundle(model.eval(), labels=labels, preprocessing=Preprocessing(resize=(28, 28)))
        ch.save(bundle, root / name)
    return root


@pytest.fixture
def client(small, tiny):
    names = [str(small / name) for name in ("vit", "cnn", "embedder")]
    with TestClient(make_app([*names, str(tiny)], device="cpu"), base_url=HOME) as found:
        yield found


# Compare


def compared(ask, model, other):
    lines = ask("/api/compare", {"model": model, "other": other})
    for line in lines:
        schemas.Event.model_validate(line)
    studies = [(line["model"], line["study"]) for line in lines if "study" in line]
    return lines, studies, lines[-1].get("similarity")


def test_a_comparison_has_the_librarys_cka_over_all_views(ask, small):
    lines, studies, found = compared(ask, "vit", "cnn")
    assert [name for name, _ in studies] == ["vit", "cnn"]
    assert any("progress" in line and line["model"] == "vit" for line in lines)
    assert (found["photographs"], found["views"]) == (len(NAMES), 5 * len(NAMES))
    vit, cnn = ch.load(small / "vit"), ch.load(small / "cnn")
    expected = ch.look.cka(vit, cnn, data=list(photograph_views()), estimator="debiased")
    assert (found["rows"], found["columns"]) == (expected.rows, expected.columns)
    np.testing.assert_allclose(found["between"]["cka"], expected.matrix, atol=1e-4)
    np.testing.assert_allclose(found["first"]["cka"], expected.within[0], atol=1e-4)
    np.testing.assert_allclose(np.diagonal(found["second"]["cka"]), 1.0, atol=1e-4)


def test_the_standard_error_is_the_jackknife_over_photographs(ask, small):
    _, _, found = compared(ask, "vit", "cnn")
    vit, cnn, views = ch.load(small / "vit"), ch.load(small / "cnn"), list(photograph_views())
    without = [
        ch.look.cka(vit, cnn, data=views[: 5 * i] + views[5 * (i + 1) :]).matrix[0, -1] for i in range(len(NAMES))
    ]
    expected = np.sqrt((len(NAMES) - 1) / len(NAMES) * np.square(np.array(without) - np.mean(without)).sum())
    assert found["between"]["error"][0][-1] == pytest.approx(expected, abs=2e-4)
    assert expected > 0.001
    np.testing.assert_allclose(np.diagonal(found["first"]["error"]), 0.0, atol=1e-4)


def test_distances_and_fields_of_both_kinds(ask, small):
    _, studies, _ = compared(ask, "vit", "cnn")
    (_, vit), (_, cnn) = studies
    assert cnn["distances"] is None
    assert np.array(vit["distances"]).shape == (2, 2)
    # Random weights attend almost evenly: the mean distance of two places of a 4 x 4 grid, in widths.
    y, x = np.mgrid[:4, :4].reshape(2, -1)
    even = np.hypot(y[:, None] - y, x[:, None] - x).mean() / 4
    np.testing.assert_allclose(vit["distances"], even, rtol=0.1)
    assert (vit["theoretical"], cnn["theoretical"][0]) == ([None, None], 3)
    assert all(np.array(one).shape == (28, 28) and np.sum(one) == pytest.approx(1, abs=1e-3) for one in cnn["fields"])
    assert cnn["sides"][0] < 5 < vit["sides"][0]
    assert vit["width"] == cnn["width"] == 28


def test_a_model_is_measured_once(ask, monkeypatch):
    compared(ask, "vit", "cnn")
    monkeypatch.setattr("clearhead.explore.routes.interpretation.study", None)  # a call would fail
    lines, studies, found = compared(ask, "cnn", "vit")
    assert [name for name, _ in studies] == ["cnn", "vit"]
    assert not any("progress" in line for line in lines)
    assert found["rows"] == studies[0][1]["layers"]


def test_a_model_beside_itself(ask):
    _, _, found = compared(ask, "embedder", "embedder")
    np.testing.assert_allclose(found["between"]["cka"], found["first"]["cka"], atol=1e-5)


def test_what_cannot_be_compared_is_said(ask, client):
    assert "reads no images" in ask("/api/compare", {"model": "vit", "other": "tiny"})[-1]["error"]
    answer = client.post("/api/compare", json={"model": "vit", "other": "nothing"})
    assert (answer.status_code, "there is no model 'nothing'" in answer.json()["error"]) == (404, True)


def test_photographs_are_squares_and_views_are_their_quarters():
    photos, views = photographs(), photograph_views()
    assert {one.width - one.height for one in (*photos, *views)} == {0}
    assert np.array_equal(np.asarray(views[6]), np.asarray(photos[1])[: views[6].height, : views[6].width])
    assert np.array_equal(np.asarray(views[9])[-1, -1], np.asarray(photos[1])[2 * views[9].height - 1, -1])


def test_pooling_keeps_the_sum():
    x = np.random.default_rng(0).random((100, 70))
    small = pooled(x)
    assert small.shape == (CELLS, CELLS)
    assert small.sum() == pytest.approx(x.sum())
    assert np.array_equal(pooled(x[:5, :7]), x[:5, :7])


def test_a_study_stops_when_it_is_cancelled(small):
    class StopError(Exception):
        pass

    def done(n, of):
        assert of == 3 * len(NAMES)
        if n == 2:
            raise StopError

    with pytest.raises(StopError):
        comparison.study(ch.load(small / "cnn"), done)


# Saliency


def explained(ask, **given):
    lines = ask("/api/saliency", {"model": "vit", "image": "church", **given})
    for line in lines:
        schemas.Event.model_validate(line)
    return lines, lines[-1].get("saliency") or lines[-1]["error"]


@pytest.mark.parametrize("method", ["gradient", "grad-cam", "integrated", "smoothgrad", "occlusion"])
def test_saliency_is_the_librarys(ask, small, method):
    _, found = explained(ask, method=method, target="dog")
    expected = ch.look.saliency(
        ch.load(small / "vit"), example_file("church"), method=method, target="dog", **found["options"]
    )
    np.testing.assert_allclose(found["values"], expected.values, rtol=1e-3, atol=1e-7)
    assert (found["target"], found["signed"], found["layer"]) == ("dog", expected.signed, expected.layer)
    assert found["probability"] == pytest.approx(expected.probability)


def test_integrated_gradients_sum_to_the_change_of_the_score(ask, small):
    _, found = explained(ask, method="integrated", target="ship")
    bundle = ch.load(small / "vit")
    with torch.no_grad():
        pixels = bundle.pixels(example_file("church"))[None]
        change = bundle.model(pixels)[0, 2] - bundle.model(torch.zeros_like(pixels))[0, 2]
    assert found["change"] == pytest.approx(float(change), abs=1e-4)
    assert np.sum(found["values"]) == pytest.approx(found["change"] + found["completeness"], abs=1e-3)
    assert abs(found["completeness"]) < 0.1 * abs(found["change"]) + 1e-3


def test_without_a_target_the_likeliest_class_is_explained(ask):
    _, found = explained(ask)
    classes = ask("/api/classify", {"model": "vit", "image": "church"})[-1]["classes"]
    assert found["target"] == classes[0][0]
    assert found["method"] == "grad-cam"


def test_occlusion_covers_an_eighth_of_the_image_at_a_time(ask):
    lines, found = explained(ask, model="vit-imagenette", method="occlusion", target="church")
    assert found["options"] == {"patch": 16, "stride": 16}
    assert len({tuple(row) for row in found["values"]}) == 8
    assert max(line["progress"][1] for line in lines if "progress" in line) == 64


@pytest.mark.parametrize(
    ("given", "said"),
    [
        ({"target": "dgo"}, "no class 'dgo': expected one of cat, dog, ship; the nearest is dog"),
        ({"method": "magic"}, "method='magic': expected"),
        ({"model": "cnn", "method": "gradient-rollout"}, "no self-attention was seen in this ResNet"),
        ({"model": "embedder"}, "has no classes of images"),
        ({"model": "tiny"}, "has no classes of images"),
    ],
)
def test_what_cannot_be_explained_is_said(ask, given, said):
    _, found = explained(ask, **given)
    assert said in found


def test_unknown_images_and_long_names_are_refused(client):
    body = {"model": "vit", "image": "church"}
    assert client.post("/api/saliency", json=body | {"image": "nothing"}).status_code == 404
    assert client.post("/api/saliency", json=body | {"target": "x" * 500}).status_code == 422
    assert client.post("/api/saliency", json=body | {"region": [0, 0, 1, 1]}).status_code == 422


# Patching


def patched(ask, **given):
    lines = ask("/api/patching", CHILDREN | given)
    for line in lines:
        schemas.Event.model_validate(line)
    return lines[-1].get("patching") or lines[-1]["error"]


def test_the_number_of_the_subject_moves_to_the_last_token(ask):
    found = patched(ask, answers=["are", "is"])
    expected = ch.look.patching(ch.load("everyday"), CHILDREN["clean"], CHILDREN["corrupted"], target=(" are", " is"))
    np.testing.assert_allclose(found["effects"], expected.matrix, atol=1e-4)
    effects = np.array(found["effects"])
    assert found["tokens"] == ["The", " children", " in", " the", " garden"]
    assert found["clean"] > 0 > found["corrupted"]
    assert (effects[:3, 1] > 0.9).all()  # in the first blocks the subject carries it
    assert effects[4, 4] == pytest.approx(1, abs=1e-3)  # and after the last block the last token
    assert 0.1 < effects[3, 4] < 0.5 < effects[3, 1]


def test_heads_and_likeliest_answers(ask):
    found = patched(ask, what="heads")
    assert (found["columns"], np.array(found["effects"]).shape) == (["0", "1", "2", "3", "4"], (5, 5))
    assert np.max(found["effects"]) < 0.9


def test_answers_that_are_bytes_have_the_names_of_tokens(tmp_path):
    torch.manual_seed(0)
    tokens = Subwords.of(["a dog"] * 3, size=300)
    bundle = ch.Bundle(ch.build("gpt", vocab=len(tokens), context=8, width=8, depth=1, heads=2, tied=False), tokens)
    byte = next(i for i in range(len(tokens)) if tokens.pieces([i]) == ["<ca>"])
    with torch.no_grad():
        bundle.model.head.weight[byte] = bundle.model.states(torch.tensor([bundle.prompt("a b")]))[0, -1]
    found = patch_prompts(bundle, "a b", "a c", [], "residual", lambda *_: None)
    assert "⟨CA⟩" in found["answers"]


def test_answers_are_found_with_and_without_a_space(ask):
    assert patched(ask, answers=[" are"])["answers"] == patched(ask, answers=["are"])["answers"] == [" are"]
    tiny = {"model": "tiny", "clean": "ab", "corrupted": "cb"}
    assert patched(ask, **tiny, answers=["x"])["answers"] == ["x"]  # of characters: no token has a space before it


@pytest.mark.parametrize(
    ("given", "said"),
    [
        ({"corrupted": "John lives in the garden"}, "the clean text has 5 tokens and the corrupted one"),
        ({"corrupted": CHILDREN["clean"], "answers": ["are"]}, "expected another corrupted input"),
        ({"answers": ["xylophone"]}, "the answer 'xylophone' is 6 tokens (␣, x, y, l, op, hone)"),
        ({"clean": "", "corrupted": ""}, "the text is empty"),
        ({"clean": "the " * 70, "corrupted": "a " * 70}, f"expected at most {MOST_TOKENS}"),
        ({"model": "vit"}, "GPT"),
    ],
)
def test_what_cannot_be_exchanged_is_said(ask, given, said):
    assert said in patched(ask, **given)


def test_patching_requests_have_bounds(client):
    for wrong in ({"what": "cross"}, {"answers": ["a", "b", "c"]}, {"answers": [""]}, {"clean": "x" * 3000}):
        assert client.post("/api/patching", json=CHILDREN | wrong).status_code == 422


def test_tokens_of_prompts(client):
    found = client.post("/api/tokens", json={"model": "everyday", "texts": ["The children", "John", ""]})
    assert found.json() == {"tokens": [["The", " children"], ["J", "ohn"], []]}
    assert client.post("/api/tokens", json={"model": "everyday", "texts": ["a"] * 5}).status_code == 422
    assert client.post("/api/tokens", json={"model": "vit", "texts": ["a"]}).status_code == 400
