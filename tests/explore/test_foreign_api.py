"""Models that transformers has opened, in the views Write and Read: the same requests as for our own models."""

import numpy as np
import pytest
import torch
from starlette.testclient import TestClient

from clearhead.explore.app import make_app
from support.foreign_folders import foreign, foreign_folder

pytest.importorskip("transformers")
pytestmark = pytest.mark.filterwarnings("ignore:.*opened with transformers:clearhead.errors.Notice")
KINDS = ("neox", "opt", "vaultgemma", "mamba", "electra", "albert", "mpnet", "classes", "umt5")
TEXT = "the cat sat on a mat"
IDS = [5, 6, 7, 8, 10, 9]


@pytest.fixture(scope="module")
def foreigners(tmp_path_factory):
    root = tmp_path_factory.mktemp("foreigners")
    folders = [foreign_folder(kind, root / kind) for kind in KINDS]
    with TestClient(make_app(folders, device="cpu"), base_url="http://127.0.0.1:8000") as client:
        yield client


def test_the_list_says_how_models_were_opened_and_why_one_was_not(foreigners):
    lines = {one["id"]: one for one in foreigners.get("/api/models").json()}
    assert [lines[kind]["kinds"] for kind in KINDS] == [["write"]] * 4 + [["read"]] * 4 + [[]]
    assert lines["neox"]["about"] == "the folder neox"
    assert lines["neox"]["note"] == "opened with transformers, watched by interception"
    without = "read as ElectraModel, without the head of ElectraForPreTraining; 4 tensors are not used, such as "
    assert without in lines["electra"]["note"]
    assert lines["neox"]["family"] == "GPTNeoXForCausalLM"
    assert "reads a text and writes another" in lines["umt5"]["error"]


@pytest.mark.parametrize("kind", ["neox", "opt", "vaultgemma"])
def test_a_text_is_written_and_inspected(foreigners, stream, kind):
    *_, end = found = stream(
        foreigners, "/api/write", {"model": kind, "text": TEXT, "temperature": 0, "max_new": 4}
    )  # fmt: skip
    written = [one["token"]["id"] for one in found if "token" in one]
    with torch.no_grad():
        ids = foreign(kind).generate(torch.tensor([IDS]), max_new_tokens=4, do_sample=False)[0, len(IDS) :].tolist()
        assert written == ids[: ids.index(2)] if 2 in ids else written == ids
        eager = foreign(kind)
        eager.set_attn_implementation("eager")
        out = eager(torch.tensor([[*IDS, *written]]), output_attentions=True)
    look, (group,) = end["look"]["id"], end["look"]["groups"]
    assert (group["layers"], group["heads"]) == (2, out.attentions[0].shape[1])
    at = {"look": look, "group": "self", "layer": 1, "head": 2}
    row = np.frombuffer(foreigners.get("/api/looks/row", params={**at, "at": 4}).content, "<f4")
    np.testing.assert_allclose(row, out.attentions[1][0, 2, 4], atol=1e-4)
    assert end["look"]["lens"] == (kind != "vaultgemma")  # whose logits are more than a product
    if end["look"]["lens"]:
        lens = foreigners.get("/api/looks/lens", params={"look": look, "at": 3}).json()
        best = out.logits[0, 3].softmax(-1).max()
        assert lens["layers"][-1][0][1] == pytest.approx(float(best), rel=1e-3)
        assert len(lens["layers"]) == 2
    else:
        answer = foreigners.get("/api/looks/lens", params={"look": look, "at": 3})
        assert (answer.status_code, "no logit lens" in answer.json()["error"]) == (400, True)


@pytest.mark.filterwarnings("ignore:no attention call:clearhead.errors.Notice")
def test_a_text_of_a_model_without_attention_has_candidates_and_a_reason(foreigners, stream):
    *_, end = found = stream(foreigners, "/api/write", {"model": "mamba", "text": TEXT, "max_new": 2})
    look, written = end["look"], [one["token"]["piece"] for one in found if "token" in one]
    assert (look["groups"], look["lens"]) == ([], True)
    assert look["text"] == {
        "names": [*TEXT.split(), *written],
        "special": [],
        "spaces": list(range(1, 6 + len(written))),
    }
    assert look["reason"].startswith("this MambaForCausalLM has no attention")
    answer = foreigners.get("/api/looks/candidates", params={"look": look["id"], "first": 2, "last": 3})
    assert answer.json()["candidates"][0]


@pytest.mark.parametrize("kind", ["neox", "vaultgemma"])
def test_silenced_heads_change_what_is_written_and_their_effect_is_measured(foreigners, stream, kind):
    body = {"model": kind, "text": "a dog runs", "temperature": 1, "seed": 2, "max_new": 4}
    *_, end = stream(foreigners, "/api/write", body)
    shares = [
        [one["token"]["share"] for one in stream(foreigners, "/api/write", body | {"off": off}) if "token" in one]
        for off in ({}, {"0": [0, 1], "1": [2]})
    ]
    assert shares[0] != shares[1]
    lines = foreigners.get("/api/looks/effects", params={"look": end["look"]["id"], "group": "self"}).text.splitlines()
    assert len(lines) == 2


@pytest.mark.parametrize("kind", ["electra", "albert", "mpnet", "classes"])
def test_a_text_is_read(foreigners, stream, kind):
    text = "the <mask> sat" if kind == "mpnet" else TEXT
    *_, end = stream(foreigners, "/api/read", {"model": kind, "text": text, "off": {"1": [0]}})
    (group,) = end["look"]["groups"]
    assert (group["layers"], group["heads"], group["about"]) == (2, 3, "each token attends to every token")
    assert group["rows"]["names"][0] == "<s>"
    assert bool(end["fill"]) == (kind == "mpnet")
    assert (len(end["classes"] or ()) == 3) == (kind == "classes")
    near = foreigners.get("/api/looks/similar", params={"look": end["look"]["id"], "at": 1}).json()["similarity"]
    assert near[1] == pytest.approx(1.0)
    texts = {"model": kind, "texts": [TEXT, "a dog runs"]}
    similarity = foreigners.post("/api/neighbours", json=texts).json()["similarity"]
    assert similarity[0][0] == pytest.approx(1.0)
