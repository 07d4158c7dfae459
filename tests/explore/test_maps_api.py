"""Attention maps: the tokens beside them, and their weights as exact numbers."""

import numpy as np
import pytest
import torch

import clearhead as ch
from clearhead.explore.inspections import Group, attention_groups, inspect_text
from clearhead.explore.inspections.attention_groups import special_token_ids, text_axis, token_names
from clearhead.look.maps.attention_map import AttentionMap
from clearhead.look.maps.call import DenseCall
from clearhead.tokens import Characters, Subwords, Symbols, Words
from support.api_shapes import schemas
from support.explorer_calls import floats

TEXT = "The cat sat on the mat."


@pytest.fixture
def written(client, ask, tiny):
    """The id of an inspection of a text, and the maps that it should have."""
    look = ask("/api/write", {"model": "tiny", "text": TEXT, "max_new": 0})[-1]["look"]["id"]
    bundle = ch.load(tiny, device="cpu")
    with torch.no_grad(), ch.watch(bundle, "blocks.*.attn.weights") as tape:
        bundle(TEXT)
    return look, [tape[name].dense()[0].numpy() for name in tape.names]


@pytest.fixture
def translated(ask):
    asked = {"model": "en-de", "text": "Two dogs sleep outside. It rains 🙂.", "beams": 1}
    return [one["looks"][0] for one in ask("/api/translate", asked) if "looks" in one]


# Names of tokens


def test_a_byte_that_is_no_character_and_invisible_characters_have_readable_names():
    tokens = Subwords.of(["a dog <dd> <dd>"] * 3, size=300)
    names = token_names(tokens, tokens.encode("a 🙂 \u200b\x00 é\n").tolist())
    assert "\ufffd" not in "".join(names)
    assert [name for name in names if "⟨" in name][:4] == ["⟨F0⟩", "⟨9F⟩", "⟨99⟩", "⟨82⟩"]
    assert names[-1] == "\n"
    assert token_names(tokens, tokens.encode("<dd>").tolist()) == tokens.pieces(tokens.encode("<dd>"))
    assert "⟨U+0000⟩" in names
    assert token_names(Characters("a\u0301\u200b"), [0, 1, 2]) == ["a", "◌\u0301", "⟨U+200B⟩"]
    assert token_names(Characters("ab"), [1, 2]) == ["b", "⟨id 2⟩"]


def test_special_tokens_are_those_around_the_text_and_not_what_is_unknown():
    words = Words(["dog"])
    assert special_token_ids(words) == {0, 1, 2}
    assert text_axis(words, [1, 4, 3, 2, 0]).special == [0, 3, 4]
    assert special_token_ids(Characters("ab")) == special_token_ids(Symbols(3, "|")) == frozenset()


def test_a_mask_beyond_the_vocabulary_is_a_special_token_of_its_own():
    axis = text_axis(Words(["dog"]), [1, 5, 4, 2], mask=5)
    assert axis.names == ["<start>", "[MASK]", "dog", "<end>"]
    assert axis.special == [0, 1, 3]


def test_groups_say_how_their_tokens_are_arranged(translated):
    groups = {one["name"]: schemas.GroupShape(**one) for one in translated[0]["groups"]}
    cross, writing = groups["cross"], groups["decoder"]
    assert cross.columns.names == ["Two", " dogs", " sleep", " outside", ".", "<end>"]
    assert (cross.columns.special, cross.columns.grid) == ([5], None)
    assert cross.rows.special == [len(cross.rows.names) - 1]
    assert (writing.columns.names[0], writing.columns.special) == ("<start>", [0])
    assert groups["encoder"].rows == cross.columns


def test_words_name_maps_between_words(client, translated, written):
    found = [
        client.get("/api/looks/words", params={"look": one["id"], "group": name}).json()
        for one, name in ((translated[0], "cross"), (translated[1], "encoder"), (translated[0], "decoder"))
    ]
    no_words = client.get("/api/looks/words", params={"look": written[0], "group": "self"}).json()
    assert no_words == {"rows": None, "columns": None}
    assert schemas.WordsShape(**found[0]).columns == ["Two", "dogs", "sleep", "outside", ".", "<end>"]
    assert found[1]["rows"] == ["It", "rains", "🙂", ".", "<end>"]  # four tokens, each a byte
    assert found[2]["columns"] == ["<start>", *found[2]["rows"][:-1]]
    tile = {"look": translated[1]["id"], "group": "encoder", "by": "words"}
    assert floats(client.get("/api/looks/map", params=tile | {"format": "float32"})).shape == (5, 5)
    assert client.get("/api/looks/map", params=tile).json()["key_names"] == found[1]["rows"]


# Weights


@pytest.mark.parametrize(("layer", "head"), [(None, None), (1, None), (2, 3), (None, 2)])
def test_float32_maps_are_not_rounded(client, written, layer, head):
    look, maps = written
    chosen = maps if layer is None else [maps[layer]]
    want = np.mean([x.mean(0) if head is None else x[head] for x in chosen], axis=0)
    given = {name: n for name, n in (("layer", layer), ("head", head)) if n is not None}
    asked = {"look": look, "group": "self", **given}
    answer = client.get("/api/looks/map", params=asked | {"format": "float32"})
    assert np.allclose(floats(answer), want, rtol=1e-4, atol=1e-9)
    assert float(answer.headers["x-most"]) == pytest.approx(want.max(), rel=1e-5)
    plain = client.get("/api/looks/map", params=asked).json()
    assert np.allclose(plain["weights"], floats(answer), atol=1e-5)
    for at in (0, 7, len(TEXT) - 1):
        row = floats(client.get("/api/looks/row", params=asked | {"at": at}))
        assert row.shape == (len(TEXT),)
        assert np.allclose(row, want[at], rtol=1e-4, atol=1e-9)
        assert not row[at + 1 :].any()


def test_a_row_of_a_long_text_is_complete(client, ask):
    look = ask("/api/write", {"model": "tiny", "text": "The cat. " * 300, "max_new": 0})[-1]["look"]["id"]
    row = floats(
        client.get("/api/looks/row", params={"look": look, "group": "self", "layer": 0, "head": 1, "at": 2400})
    )
    assert row.shape == (2700,)
    assert row.sum() == pytest.approx(1.0, abs=1e-4)


def test_thumbnails_are_every_map_pooled(client, written):
    look, maps = written
    small = floats(client.get("/api/looks/thumbnails", params={"look": look, "group": "self", "cells": 64}))
    assert np.allclose(small, np.stack(maps), atol=1e-6)
    pooled = floats(client.get("/api/looks/thumbnails", params={"look": look, "group": "self", "cells": 4}))
    cells = [range(6), range(6, 12), range(12, 18), range(18, 23)]  # of 23 tokens
    assert np.allclose(pooled, [[[[x[np.ix_(r, k)].mean() for k in cells] for r in cells] for x in m] for m in maps])


def test_thumbnails_of_a_long_text_use_some_queries_of_each_cell(tiny, monkeypatch):
    bundle = ch.load(tiny, device="cpu")
    ids = bundle.tokens.encode("The cat sat on the mat, and the dog looked at it. " * 14).tolist()
    group = inspect_text(bundle, ids).group("self")
    exact = group.thumbnails(24)
    monkeypatch.setattr(attention_groups, "THUMBNAIL_SCORES", 1)
    fresh = Group("self", group.rows, group.columns, group.layers)
    rough = fresh.thumbnails(24)
    assert rough.shape == exact.shape
    assert np.allclose(rough @ attention_groups.keys_per_cell(len(ids), 24), 1.0, atol=1e-5)
    assert 0 < np.abs(rough - exact).mean() < 0.02 / len(ids) * 24
    assert fresh.thumbnails(24) is rough  # kept
    for cells in (5, 6, 7):
        fresh.thumbnails(cells)
    assert len(fresh._thumbnails) == 2
    assert fresh.size() > sum(x.nbytes for x in fresh._thumbnails.values())


def test_cells_of_a_pooled_map_with_one_key_more_are_not_darker(tiny):
    bundle = ch.load(tiny, device="cpu")
    group = inspect_text(bundle, bundle.tokens.encode(TEXT).tolist()).group("self")
    weights = AttentionMap([DenseCall(weights=torch.full((1, 2, 23, 23), 1 / 23))])  # the same for all keys
    even = Group("self", group.rows, group.columns, {"blocks.0.attn.weights": weights})
    assert np.ptp(even.thumbnails(10)) < 1e-6
    assert np.ptp(even.tile(None, None, (0, 23), (0, 23), 10).weights) < 1e-6
    assert np.ptp(even.tile(0, 1, (0, 22), (1, 23), 10).weights) < 1e-6
    assert even.tile(0, 1, (0, 23), (0, 23), 10).weights.sum(-1) == pytest.approx(1.0)


@pytest.mark.parametrize(
    ("path", "asked", "status", "sentence"),
    [
        ("map", {"format": "png"}, 422, "format"),
        ("map", {"by": "words", "format": "float32"}, 400, "no words"),
        ("map", {"layer": 3, "format": "float32"}, 400, "layer 3: there are 3"),
        ("map", {"row": -1}, 422, "row"),
        ("row", {"at": 23}, 400, "query 23: there are 23"),
        ("row", {"at": -1}, 422, "at"),
        ("row", {}, 422, "at"),
        ("row", {"at": "NaN"}, 422, "at"),
        ("row", {"at": 0, "head": 4}, 400, "head 4: there are 4"),
        ("thumbnails", {"cells": 0}, 422, "cells"),
        ("thumbnails", {"cells": 65}, 422, "cells"),
        ("thumbnails", {"group": "cross"}, 400, "expected one of self"),
        ("words", {"look": "gone"}, 404, "no longer kept"),
        ("thumbnails", {"look": "gone"}, 404, "no longer kept"),
    ],
)
def test_a_wrong_request_of_a_map_is_a_sentence(client, written, path, asked, status, sentence):
    answer = client.get(f"/api/looks/{path}", params={"look": written[0], "group": "self"} | asked)
    assert answer.status_code == status
    assert sentence in answer.json()["error"]
