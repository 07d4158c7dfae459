"""Translations sentence by sentence, and given translations."""

import pytest

import clearhead as ch
from support.api_shapes import schemas

TEXT = "A dog runs. Mr. Smith sleeps!\n\nIt rains"
SENTENCES = ["A dog runs.", "Mr. Smith sleeps!", "It rains"]


@pytest.fixture(scope="module")
def en_de():
    return ch.load("en-de", device="cpu")


def align(client, **body):
    return client.post("/api/align", json={"model": "en-de", "text": "Two dogs run."} | body)


def test_sentences_are_translated_one_after_another(ask, en_de):
    found = ask("/api/translate", {"model": "en-de", "text": TEXT, "beams": 2})
    for one in found:
        schemas.Event(**one)
    assert found[0] == {"sentences": SENTENCES}
    numbers = [one["sentence"] for one in found[1:]]
    assert numbers == sorted(numbers)
    assert set(numbers) == {0, 1, 2}
    results = [one for one in found if "translations" in one]
    want = ch.translate(en_de, SENTENCES, beams=2)
    assert [one["translations"][0]["text"] for one in results] == [one.text for one in want]
    for one, translation in zip(results, want, strict=True):
        best = one["translations"][0]
        assert best["cut"] is None
        assert best["ids"] == translation.forced.target
        assert best["target"] == translation.target
        assert one["looks"][0]["groups"][0]["rows"]["names"] == best["target"]
    beams = [one["beams"] for one in found if one.get("sentence") == 1 and "beams" in one]
    assert len(beams) > 3
    assert beams[0][0]["cut"] == {"source": None, "target": True}


@pytest.mark.parametrize("text", ["", "  \n \t"])
def test_nothing_to_translate_has_no_sentences(ask, text):
    assert ask("/api/translate", {"model": "en-de", "text": text}) == [{"sentences": []}]


def test_a_source_that_is_too_long_says_how_much_was_read(client, en_de):
    text = "dog " * 600
    with pytest.warns(ch.look.Notice, match="the rest was left out"):
        found = align(client, text=text, target="Hund").json()["translation"]
    assert found["cut"] == {"source": [256, len(en_de.tokens.read(text))], "target": False}
    assert len(found["source"]) == 256


@pytest.mark.parametrize(
    ("text", "numbers"),
    [
        ("A dog.\n" * 65, "65 sentences: expected at most 64"),
        ("a" * 20_001, "20,001 characters: expected at most 20,000"),
    ],
)
def test_too_much_text_is_a_sentence_with_both_numbers(client, text, numbers):
    answer = client.post("/api/translate", json={"model": "en-de", "text": text})
    assert answer.status_code == 400
    assert numbers in answer.json()["error"]


def test_an_unfinished_translation_can_be_inspected(client, ask):
    found = ask("/api/translate", {"model": "en-de", "text": "Two dogs run.", "beams": 2})
    beam = [one["beams"][0] for one in found if "beams" in one][1]
    answer = align(client, ids=beam["ids"])
    schemas.AlignShape(**answer.json())
    translation, look = answer.json()["translation"], answer.json()["look"]
    assert translation["text"] == beam["text"]
    assert translation["cut"] == {"source": None, "target": True}
    assert translation["logprob"] == pytest.approx(beam["logprob"], abs=1e-4)
    assert {group["name"] for group in look["groups"]} == {"cross", "encoder", "decoder"}
    asked = {"look": look["id"], "group": "cross"}
    assert len(client.get("/api/looks/map", params=asked).json()["weights"]) == len(beam["ids"])


def test_a_translation_of_ones_own_is_scored(client, en_de):
    translation = align(client, target="Zwei Hunde schlafen.").json()["translation"]
    want = ch.score(en_de, "Two dogs run.", "Zwei Hunde schlafen.")
    assert translation["logprob"] == pytest.approx(want.logprob, abs=1e-4)
    assert (translation["cut"], translation["target"]) == (None, want.target)
    again = align(client, ids=translation["ids"]).json()["translation"]
    assert again == translation
    empty = align(client, target="").json()["translation"]
    assert empty["target"] == ["<end>"]


@pytest.mark.parametrize(
    ("body", "status", "sentence"),
    [
        ({}, 400, "as a text (target) or as ids, and not both"),
        ({"target": "Hund", "ids": [5]}, 400, "and not both"),
        ({"ids": []}, 400, "no tokens"),
        ({"ids": [6000]}, 400, "id 6000 at 0: expected 0 to 5999"),
        ({"ids": [-1]}, 422, "ids"),
        ({"ids": [5] * 257}, 400, "257 tokens: this model writes at most 256"),
        ({"target": "Hund " * 300}, 400, "this model writes at most 256"),
        ({"model": "tiny", "target": "x"}, 400, "GPT"),
        ({"model": "gone", "target": "x"}, 404, "no model 'gone'"),
        ({"target": 5}, 422, "target"),
    ],
)
def test_a_wrong_alignment_is_a_sentence(client, body, status, sentence):
    answer = align(client, **body)
    assert answer.status_code == status
    assert sentence in answer.json()["error"]
