"""The API returns the library's own results, in the form that its OpenAPI description says."""

import json
import shutil

import numpy as np
import pytest
from starlette.testclient import TestClient

import clearhead as ch
from clearhead.explore import responses
from clearhead.explore.app import make_app
from clearhead.explore.build import WK, WQ, WV, X
from clearhead.explore.inspections import inspect_text
from clearhead.explore.routes import build as routes
from support.api_shapes import schemas


@pytest.fixture(scope="module")
def en_de():
    return ch.load("en-de", device="cpu")


def test_models_are_listed_by_id_with_the_views_that_can_use_them(client):
    found = {one["id"]: schemas.ModelLine(**one) for one in client.get("/api/models").json()}
    assert found["en-de"].kinds == ["translate"]
    assert found["en-de-rnn"].family == "RNNSeq2Seq"
    assert found["tiny"].kinds == ["write"]
    assert "/" not in "".join(found)


def test_the_shipped_language_model_is_there_without_any_folder():
    with TestClient(make_app(device="cpu"), base_url="http://127.0.0.1:8000") as client:
        found = [one["id"] for one in client.get("/api/models").json() if one["kinds"] == ["write"]]
    assert found == ["everyday"]


def test_a_translation_is_streamed_and_equals_the_librarys(ask, en_de):
    found = ask("/api/translate", {"model": "en-de", "text": "A dog runs.", "beams": 3})
    for one in found:
        schemas.Event(**one)
    best = [one["beams"][0]["text"] for one in found if "beams" in one]
    assert best[0] == "Ein"
    assert len(set(best)) >= 4
    last = found[-1]
    want = ch.translate(en_de, "A dog runs.", beams=3, best=3)
    assert [one["text"] for one in last["translations"]] == [want.text, *(other.text for other in want.others)]
    assert last["translations"][0]["score"] == pytest.approx(want.score, abs=1e-5)
    assert len(last["looks"]) == len(last["translations"])
    assert {group["name"] for group in last["looks"][0]["groups"]} == {"cross", "encoder", "decoder"}


@pytest.mark.parametrize(("layer", "head"), [(None, None), (1, None), (2, 3), (None, 2)])
def test_maps_equal_those_of_the_translation(client, ask, en_de, layer, head):
    look = ask("/api/translate", {"model": "en-de", "text": "Two dogs run.", "beams": 2})[-1]["looks"][0]["id"]
    want = ch.translate(en_de, "Two dogs run.", beams=2)
    given = {name: value for name, value in (("layer", layer), ("head", head)) if value is not None}
    asked = {"look": look, "group": "cross", **given}
    found = schemas.Tile(**client.get("/api/looks/map", params=asked).json())
    assert np.allclose(found.weights, want.attention(layer, head), atol=2e-5)
    words = schemas.Tile(**client.get("/api/looks/map", params=asked | {"by": "words"}).json())
    source, target, weights = want.by_word(layer, head)
    assert (words.key_names, words.row_names) == (source, target)
    assert np.allclose(words.weights, weights, atol=5e-5)


def test_head_statistics_are_streamed_layer_by_layer(client, ask, en_de):
    look = ask("/api/translate", {"model": "en-de", "text": "Two dogs run.", "beams": 1})[-1]["looks"][0]["id"]
    answer = client.get("/api/looks/heads", params={"look": look, "group": "cross"})
    layers = [schemas.HeadsOfLayer.model_validate_json(line) for line in answer.text.splitlines()]
    assert [one.layer for one in layers] == [0, 1, 2]
    tape = ch.translate(en_de, "Two dogs run.", beams=1).tape("decoder.blocks.1.cross.weights")
    want = tape["decoder.blocks.1.cross.weights"].entropy()[0].mean(-1)
    assert np.allclose(layers[1].entropy, want, atol=1e-5)


def test_a_translator_without_attention_has_no_groups(tmp_path):
    like = ch.load("en-de-rnn", device="cpu")
    model = ch.build("rnn-seq2seq", vocab=like.config.vocab, width=8, hidden=8, attention="none")
    ch.save(ch.Bundle(model, like.tokens, model.config), tmp_path / "vector")
    client = TestClient(make_app([tmp_path / "vector"], device="cpu"), base_url="http://127.0.0.1:8000")
    answer = client.post("/api/translate", json={"model": "vector", "text": "A dog.", "beams": 2})
    assert json.loads(answer.text.splitlines()[-1])["looks"][0]["groups"] == []


def test_a_continuation_is_streamed_token_by_token_with_candidates(client, ask, tiny):
    asked = {"model": "tiny", "text": "The cat", "max_new": 6}
    found = ask("/api/write", asked)
    tokens = [one["token"] for one in found if "token" in one]
    bundle = ch.load(tiny, device="cpu")
    assert len(tokens) == 6
    logits = bundle("The cat")[-1].softmax(-1)
    assert tokens[0]["id"] == int(logits.argmax())
    assert tokens[0]["share"] == pytest.approx(float(logits.max()), abs=1e-4)
    assert tokens[0]["candidates"][0] == [tokens[0]["piece"], pytest.approx(tokens[0]["share"], abs=1e-4), 1.0]
    inspection = schemas.InspectionShape(**found[-1]["look"])
    assert inspection.lens
    assert inspection.groups[0].rows.names == [*"The cat", *(token["piece"] for token in tokens)]
    assert (inspection.groups[0].layers, inspection.groups[0].heads) == (3, 4)


def test_sampling_depends_on_the_seed(ask):
    asked = {"model": "tiny", "text": "The", "max_new": 12, "temperature": 1.0, "top_k": 20}
    texts = [
        "".join(one["token"]["piece"] for one in ask("/api/write", asked | {"seed": seed}) if "token" in one)
        for seed in (1, 1, 2)
    ]
    assert texts[0] == texts[1] != texts[2]


def test_silenced_heads_change_the_text_of_their_request_only(ask, tiny):
    asked = {"model": "tiny", "text": "The cat sat", "max_new": 1}
    plain = ask("/api/write", asked)[0]["token"]
    without = ask("/api/write", asked | {"off": {"0": [0, 1, 2, 3], "2": [1]}})[0]["token"]
    assert plain["share"] != without["share"]
    assert ask("/api/write", asked)[0]["token"] == plain
    bundle = ch.load(tiny, device="cpu")
    changes = {"blocks.0.attn.heads": ch.look.silence([0, 1, 2, 3]), "blocks.2.attn.heads": ch.look.silence([1])}
    with ch.edit(bundle, changes):
        want = bundle("The cat sat")[-1].softmax(-1)
    assert without["share"] == pytest.approx(float(want.max()), abs=1e-4)


def test_the_last_layer_of_the_lens_and_the_candidates_are_the_models_predictions(client, ask, tiny):
    look = ask("/api/write", {"model": "tiny", "text": "The cat sat", "max_new": 0})[-1]["look"]["id"]
    bundle = ch.load(tiny, device="cpu")
    logits = bundle("The cat sat").softmax(-1)
    lens = schemas.LensShape(**client.get("/api/looks/lens", params={"look": look, "at": 4}).json())
    assert len(lens.layers) == 3
    piece, share = lens.layers[-1][0]
    assert share == pytest.approx(float(logits[4].max()), abs=1e-4)
    assert bundle.tokens.encode(piece)[0] == int(logits[4].argmax())
    asked = {"look": look, "first": 5, "last": 7}
    found = schemas.CandidatesShape(**client.get("/api/looks/candidates", params=asked).json())
    ids = bundle.tokens.encode("The cat sat")
    assert found.shares == pytest.approx([float(logits[4, ids[5]]), float(logits[5, ids[6]])], abs=1e-4)
    assert found.candidates[0][0][0] == piece


def test_a_long_text_has_an_overview_and_tiles(client, ask, tiny):
    text = ("The cat sat on the mat, and the dog looked at it. " * 30)[:1200]
    found = ask("/api/write", {"model": "tiny", "text": text, "max_new": 0})
    look, asked = found[-1]["look"]["id"], {"group": "self", "layer": 1, "head": 2}
    assert any("progress" in one for one in found) or len(found) == 1
    bundle = ch.load(tiny, device="cpu")
    with ch.watch(bundle, "blocks.1.attn.weights") as tape:
        bundle(text)
    want = tape["blocks.1.attn.weights"]
    whole = client.get("/api/looks/map", params={"look": look, "cells": 60, **asked}).json()
    assert np.allclose(whole["weights"], want.pool(60)[0, 2], atol=2e-5)
    part = {"row": 700, "rows": 50, "key": 650, "keys": 60}
    tile = client.get("/api/looks/map", params={"look": look, "cells": 128, **asked, **part}).json()
    assert np.allclose(tile["weights"], want.tile((700, 750), (650, 710))[0, 2], atol=2e-5)
    pooled = client.get("/api/looks/map", params={"look": look, "cells": 10, **asked, **part}).json()
    cells = want.tile((700, 750), (650, 710))[0, 2].reshape(10, 5, 10, 6).mean(1).sum(-1)
    assert np.allclose(pooled["weights"], cells, atol=5e-5)


def test_tiles_of_a_text_longer_than_the_attention_window_are_exact():
    bundle = ch.load("everyday", device="cpu")
    ids = (bundle.tokens.encode("The man saw two dogs in the snow, and they saw him.\n").tolist() * 60)[:720]
    group = inspect_text(bundle, ids).group("self")
    want = group.maps[3].dense()[0, 1].numpy()
    for (r0, r1), (k0, k1) in (((480, 720), (240, 720)), ((0, 720), (0, 240)), ((600, 720), (0, 120))):
        cells = want[r0:r1, k0:k1].reshape(12, (r1 - r0) // 12, 12, (k1 - k0) // 12).mean(1).sum(-1)
        assert np.allclose(group.tile(3, 1, (r0, r1), (k0, k1), cells=12).weights, cells, atol=2e-5)
    assert not cells.any()  # the keys of the last part are outside the window of its queries


def test_attention_by_hand_has_the_lectures_numbers(client):
    asked = {"x": X.tolist(), "wq": WQ.tolist(), "wk": WK.tolist(), "wv": WV.tolist()}
    found = schemas.ByHandShape(**client.post("/api/build", json=asked).json())
    assert found.scores[0] == [[2, 4, 4], [4, 16, 12], [4, 12, 10]]
    assert np.allclose(found.weights[0][0], [0.0634, 0.4683, 0.4683], atol=1e-4)
    assert np.allclose(found.out[0], [1.9366, 6.6831, 1.5951], atol=1e-4)


def test_positions_and_the_memory_with_forgetting(client):
    places = schemas.PositionsShape(**client.get("/api/positions", params={"width": 8, "length": 5}).json())
    assert np.array(places.vectors).shape == (5, 8)
    assert np.allclose(np.diag(places.similarity), 1.0)
    grid = client.get("/api/positions", params={"kind": "sincos2d", "width": 16, "length": 4}).json()
    assert np.array(grid["similarity"]).shape == (16, 16)
    fading = schemas.MemoryShape(**client.get("/api/memory", params={"gamma": 0.5, "length": 4}).json())
    assert fading.left[3] == pytest.approx([0.125, 0.25, 0.5, 1.0])
    assert fading.attention[0] == pytest.approx(1.0)
    assert fading.attention[3] == pytest.approx(np.exp(6) / (np.exp(6) + 3))


def test_runs_are_read_while_they_are_being_written(client, runs):
    listed = {one["id"]: schemas.RunLine(**one) for one in client.get("/api/runs").json()}
    assert set(listed) == {"first", "deep-second", "adversarial"}
    assert (listed["first"].step, listed["first"].steps, listed["first"].finished) == (8, 20, False)
    whole = schemas.RunShape(**client.get("/api/runs/one", params={"run": "deep-second"}).json())
    assert whole.total == len(whole.records) == 10
    rest = client.get("/api/runs/one", params={"run": "deep-second", "since": 7}).json()
    assert [one["step"] for one in rest["records"]] == [7, 8, 8]
    cut = client.get("/api/runs/one", params={"run": "deep-second", "since": 60}).json()
    assert (cut["since"], len(cut["records"])) == (0, 10)


def test_a_run_with_several_losses_names_them_and_its_measurements(client):
    listed = {one["id"]: schemas.RunLine(**one) for one in client.get("/api/runs").json()}
    run = listed["adversarial"]
    assert run.losses == ["discriminator_loss", "generator_loss"]
    assert run.loss == pytest.approx(1.2)  # the last value of the first loss
    assert run.measurements["valid_near"] == schemas.MeasurementShape(unit="share", better="higher")
    whole = schemas.RunShape(**client.get("/api/runs/one", params={"run": "adversarial"}).json())
    assert (whole.losses, whole.measurements) == (run.losses, run.measurements)
    assert listed["first"].losses == ["loss"]  # a folder that does not name its losses
    assert listed["first"].measurements == {}


@pytest.mark.parametrize(
    ("recipe", "losses"),
    [
        ({"data": {"name": "reverse", "symbols": 5, "length": 4, "rows": 4, "valid_rows": 4, "valid_batches": 1},
          "model": {"name": "gpt", "context": 8, "width": 8, "depth": 1, "heads": 2}}, ["loss"]),
        ({"data": {"name": "gaussians", "rows": 6, "valid_rows": 6, "valid_batches": 1}, "objective": {"name": "gan"},
          "players": {name: {"model": {"name": "mlp", "hidden": 8}} for name in ("generator", "discriminator")}},
         ["discriminator_loss", "generator_loss"]),
    ],
    ids=["language model", "gan"],
)  # fmt: skip
def test_a_real_run_has_its_losses_and_measurements(tmp_path, recipe, losses):
    ch.train({"steps": 2, **recipe}, out=tmp_path / "run", device="cpu", quiet=True)
    client = TestClient(make_app(runs=tmp_path, device="cpu"), base_url="http://127.0.0.1:8000")
    (listed,) = (schemas.RunLine(**one) for one in client.get("/api/runs").json())
    assert listed.error is None
    assert listed.losses == losses
    records = client.get("/api/runs/one", params={"run": "run"}).json()["records"]
    measured = set().union(*records)
    assert {*losses, *listed.measurements} <= measured
    assert {name for name in measured if name.startswith("valid_")} == set(listed.measurements)
    assert listed.loss == pytest.approx([one[losses[0]] for one in records if losses[0] in one][-1])


def test_a_run_that_cannot_be_read_is_listed_with_its_error(tmp_path):
    for name, lines in (("good", '{"step": 3, "loss": 2.0}\n'), ("torn", 'no JSON\n{"step": 1}\n'), ("other", "[1]\n")):
        (tmp_path / name).mkdir()
        (tmp_path / name / "metrics.jsonl").write_text(lines)
    client = TestClient(make_app(runs=tmp_path, device="cpu"), base_url="http://127.0.0.1:8000")
    listed = {one["id"]: schemas.RunLine(**one) for one in client.get("/api/runs").json()}
    assert (listed["good"].step, listed["good"].error) == (3, None)
    assert "metrics.jsonl:1: this is not a line of JSON" in (listed["torn"].error or "")
    assert "expected an object with a step" in (listed["other"].error or "")
    answer = client.get("/api/runs/one", params={"run": "torn"})
    assert (answer.status_code, "not a line of JSON" in answer.json()["error"]) == (400, True)


def test_the_model_of_a_finished_run_can_be_used(tiny, tmp_path):
    run = tmp_path / "done"
    shutil.copytree(tiny, run / "model")
    (run / "metrics.jsonl").write_text('{"step": 1, "loss": 2.0}\n')
    client = TestClient(make_app(runs=tmp_path, device="cpu"), base_url="http://127.0.0.1:8000")
    assert client.get("/api/runs").json()[0]["finished"]
    assert client.get("/api/models/one", params={"model": "run-done"}).json()["kinds"] == ["write"]
    assert client.get("/api/models/one", params={"model": "run-gone"}).status_code == 404


def test_the_description_has_every_route_and_the_lines_of_streams(client):
    found = client.get("/api/openapi.json").json()
    assert {"/api/translate", "/api/write", "/api/looks/map", "/api/build", "/api/runs"} <= set(found["paths"])
    lines = {"Event", "HeadsOfLayer", "EffectsOfLayer"}
    assert lines | {"InspectionShape", "Tile", "Problem"} <= set(found["components"]["schemas"])
    refs = [word for word in str(found).split("'") if word.startswith("#/components/schemas/")]
    assert {ref.rpartition("/")[2] for ref in refs} <= set(found["components"]["schemas"])


@pytest.mark.parametrize(
    ("path", "body", "status", "sentence"),
    [
        ("/api/translate", {"model": "nope", "text": "x"}, 404, "there is no model 'nope' here: expected one of"),
        ("/api/translate", {"model": "en-de", "text": "x", "beams": 99}, 422, "beams"),
        ("/api/translate", {"model": "en-de", "text": "x", "wrong": 1}, 422, "wrong"),
        ("/api/build", {"x": [[1, 2], [3]], "wq": [[1]], "wk": [[1]], "wv": [[1]]}, 400, "X is no matrix"),
        ("/api/build", {"x": [[1]], "wq": [[1], [2]], "wk": [[1]], "wv": [[1]]}, 400, "Wq has 2 rows: expected 1"),
        ("/api/build", {"x": [[1]], "wq": [[1]], "wk": [[1]], "wv": [[1]], "positions": "rotary"}, 400, "even"),
        ("/api/build", {"x": [[1]], "wq": [[1]], "wk": [[1]], "wv": [[1]], "order": [3]}, 400, "order=[3]"),
    ],
)
def test_a_wrong_request_is_a_sentence(client, path, body, status, sentence):
    answer = client.post(path, json=body)
    assert answer.status_code == status
    assert sentence in answer.json()["error"]


def test_an_error_in_a_stream_is_a_sentence(ask):
    assert "GPT" in ask("/api/translate", {"model": "tiny", "text": "x"})[-1]["error"]
    assert "Transformer" in ask("/api/write", {"model": "en-de", "text": "x"})[-1]["error"]
    assert "'ü' at 0" in ask("/api/write", {"model": "tiny", "text": "ü"})[-1]["error"]
    assert "there are 4" in ask("/api/write", {"model": "tiny", "text": "x", "off": {"0": [9]}})[-1]["error"]
    assert "layer 9" in ask("/api/write", {"model": "tiny", "text": "x", "off": {"9": [0]}})[-1]["error"]


def test_a_bug_is_a_sentence_without_its_details(app, monkeypatch):
    def fails(*_, **__):
        raise RuntimeError("secret")

    monkeypatch.setattr(routes, "position_vectors", fails)
    monkeypatch.setattr(ch.Bundle, "prompt", fails)
    client = TestClient(app, base_url="http://127.0.0.1:8000", raise_server_exceptions=False)
    answer = client.get("/api/positions")
    assert (answer.status_code, answer.json()) == (500, {"error": responses.BUG})
    assert "default-src 'none'" in answer.headers["content-security-policy"]
    streamed = client.post("/api/write", json={"model": "tiny", "text": "x"})
    assert streamed.json() == {"error": responses.BUG}


@pytest.mark.parametrize(
    ("path", "status"),
    [
        ("/api/looks/map?look=gone&group=cross", 404),
        ("/api/looks/map?look=../../etc&group=cross", 422),
        ("/api/runs/one?run=nope", 404),
        ("/api/runs/one?run=..%2F..%2Fetc", 422),
        ("/page/../server.py", 404),
        ("/page/%2e%2e/server.py", 404),
        ("/page/views/../../server.py", 404),
        ("/page//etc/passwd", 404),
        ("/nothing", 404),
    ],
)
def test_an_unknown_id_or_page_is_an_error(client, path, status):
    answer = client.get(path)
    assert answer.status_code == status
    assert answer.json()["error"]


def test_an_unknown_group_layer_or_range_is_a_sentence(client, ask):
    look = ask("/api/translate", {"model": "en-de-rnn", "text": "A dog.", "beams": 1})[-1]["looks"][0]["id"]
    for asked, words in (({"group": "self"}, "expected one of cross"), ({"group": "cross", "layer": 3}, "layer 3"),
                         ({"group": "cross", "row": 40, "rows": 2}, "expected a range within")):  # fmt: skip
        answer = client.get("/api/looks/map", params={"look": look, **asked})
        assert answer.status_code == 400
        assert words in answer.json()["error"]
    assert client.get("/api/looks/lens", params={"look": look, "at": 0}).status_code == 400
