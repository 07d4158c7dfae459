"""Continuations: what was written already, texts longer than the context, and reshaped probabilities."""

import pytest
import torch
from starlette.testclient import TestClient

import clearhead as ch
from clearhead.decode import Choice
from clearhead.explore.app import make_app
from clearhead.explore.candidates import candidates, choice_of, entropies
from clearhead.explore.inspections.attention_groups import spaces_before
from clearhead.tokens import Characters, Subwords, Symbols, Words
from support.api_shapes import schemas

SAMPLED = {"model": "tiny", "text": "The cat", "temperature": 0.9, "top_k": 20, "seed": 5}


def tokens(events):
    return [one["token"] for one in events if "token" in one]


def test_a_text_that_was_stopped_continues_as_if_it_had_not_been(ask):
    whole = [one["id"] for one in tokens(ask("/api/write", SAMPLED | {"max_new": 9}))]
    rest = ask("/api/write", SAMPLED | {"max_new": 5, "written": whole[:4]})
    assert [one["id"] for one in tokens(rest)] == whole[4:]
    names = rest[-1]["look"]["groups"][0]["rows"]["names"]
    assert len(names) == len("The cat") + 9


def test_what_was_written_can_be_inspected_without_more(ask, tiny):
    ids = ch.load(tiny, device="cpu").tokens.encode(" sat").tolist()
    found = ask("/api/write", {"model": "tiny", "text": "The cat", "written": ids, "max_new": 0})
    assert not tokens(found)
    assert found[-1]["look"]["groups"][0]["rows"]["names"] == list("The cat sat")


@pytest.mark.parametrize(("body", "sentence"), [
    ({"written": [70]}, "written has the id 70: expected ids of tokens, 0 to"),
])  # fmt: skip
def test_an_id_that_is_no_token_is_a_sentence(ask, body, sentence):
    assert sentence in ask("/api/write", {"model": "tiny", "text": "The", "max_new": 1} | body)[-1]["error"]


@pytest.mark.parametrize("body", [
    {"written": [-1]}, {"written": [0] * 501}, {"written": ["a"]}, {"temperature": -1.0}, {"temperature": "NaN"},
    {"top_p": 0.0}, {"top_k": 0}, {"max_new": 501},
])  # fmt: skip
def test_a_wrong_number_is_refused(client, body):
    answer = client.post("/api/write", json={"model": "tiny", "text": "The"} | body)
    assert answer.status_code == 422
    assert next(iter(body)) in answer.json()["error"]


@pytest.fixture(scope="module")
def short(tmp_path_factory):
    """A client of a model that reads 8 tokens."""
    torch.manual_seed(0)
    letters = Characters("abc ")
    model = ch.build("gpt", vocab=4, context=8, width=8, depth=1, heads=2)
    folder = ch.save(ch.Bundle(model, letters), tmp_path_factory.mktemp("short") / "short")
    with TestClient(make_app([folder], device="cpu"), base_url="http://127.0.0.1:8000") as client:
        yield client, ch.load(folder, device="cpu")


def lines(client, body):
    return [schemas.Event.model_validate_json(line) for line in client.post("/api/write", json=body).text.splitlines()]


def test_a_text_longer_than_the_context_is_cut_and_says_so(short):
    client, bundle = short
    text = "abcabcabcab"
    found = lines(client, {"model": "short", "text": text, "max_new": 3})
    assert found[0].cut == schemas.CutShape(read=7, of=11, first=4, most=8)  # from half the context on
    written = [one.token.id for one in found if one.token is not None]
    want = ch.generate(bundle, text, max_new=3, slide=True)
    assert bundle.tokens.decode(written) == want.text
    last = [one.cut for one in found if one.cut is not None][-1]
    whole = text + want.text
    assert last == schemas.CutShape(read=5, of=14, first=8, most=8)  # what was read to write the last token
    assert found[-1].look.groups[0].rows.names == list(whole[8:13])


def test_a_text_that_fits_is_not_cut(short):
    client, _ = short
    assert not any(one.cut for one in lines(client, {"model": "short", "text": "abcab", "max_new": 3}))
    (cut,) = [one.cut for one in lines(client, {"model": "short", "text": "abcab", "max_new": 4}) if one.cut]
    assert cut == schemas.CutShape(read=8, of=9, first=0, most=8)  # the last token is written, but not read
    (cut,) = [one.cut for one in lines(client, {"model": "short", "text": "abc" * 3, "max_new": 0}) if one.cut]
    assert cut == schemas.CutShape(read=5, of=9, first=4, most=8)


# Conversations, and tokens that are words


def test_a_chat_model_answers_a_message(client):
    found = lines(client, {"model": "talker", "text": "a dog runs.", "chat": True, "max_new": 9})
    assert found[0].prompt.names == ["<start>", "a", "dog", "runs", ".", "<end>"]
    assert found[0].prompt.special == [0, 5]
    assert "".join(one.token.text for one in found if one.token is not None) == " a dog runs."
    assert [one.ended for one in found if one.ended is not None] == ["<end>"]
    text = found[-1].look.text
    assert (text.names[:6], text.names[6:]) == (found[0].prompt.names, ["a", "dog", "runs", "."])
    assert text.special == [0, 5]


def test_a_text_that_the_model_ends_at_once_says_so(client):
    found = lines(client, {"model": "talker", "text": "a dog runs.", "max_new": 9})
    assert not [one for one in found if one.token is not None or one.prompt is not None]
    assert [one.ended for one in found if one.ended is not None] == ["<end>"]
    assert (
        "no chat template" in lines(client, {"model": "tiny", "text": "Who?", "chat": True})[-1].model_dump()["error"]
    )


def test_the_spaces_between_words_are_those_of_the_decoded_text(client):
    found = lines(client, {"model": "talker", "text": "a", "max_new": 3})
    assert [one.token.piece for one in found if one.token is not None] == ["dog", "runs", "."]
    assert [one.token.text for one in found if one.token is not None] == [" dog", " runs", "."]
    assert found[-1].look.text.spaces == [1, 2]
    words = Words(["the", "'d", '"', "(", ")"])
    text = 'the \'d " the " ( the )'
    ids, names = words.encode(text).tolist(), words.pieces(words.encode(text))
    spaces = spaces_before(words, [1, *ids, 2])
    assert "".join(" " * (i + 1 in spaces) + name for i, name in enumerate(names)) == words.decode(ids)
    assert spaces_before(Symbols(40, "|"), [0, 1, 40]) == [1, 2]
    for whole in (Characters("ab "), Subwords.of(["a dog é 🙂"] * 3, size=300)):
        assert spaces_before(whole, whole.encode("a b").tolist()) == []


# Candidates


@pytest.fixture
def look(ask):
    return ask("/api/write", {"model": "tiny", "text": "The cat sat", "max_new": 0})[-1]["look"]["id"]


def test_candidates_are_reshaped_by_the_code_of_generation(client, look, tiny):
    asked = {"look": look, "first": 3, "last": 6, "temperature": 0.5, "top_k": 4, "top_p": 0.7, "top": 10}
    found = schemas.CandidatesShape(**client.get("/api/looks/candidates", params=asked).json())
    bundle = ch.load(tiny, device="cpu")
    logp = bundle("The cat sat")[2:5].log_softmax(-1)
    after = Choice(sample=True, temperature=0.5, top_k=4, top_p=0.7).narrowed(logp).softmax(-1)
    for row, listed in enumerate(found.candidates):
        ids = [int(bundle.tokens.encode(piece)[0]) for piece, _, _ in listed]
        assert ids == logp[row].topk(10).indices.tolist()
        assert [p for _, p, _ in listed] == pytest.approx(logp[row, ids].exp().tolist(), rel=1e-3)
        assert [p for _, _, p in listed] == pytest.approx(after[row, ids].tolist(), rel=1e-3)
        assert sum(p for _, _, p in listed) == pytest.approx(1.0, abs=1e-3)
        assert sum(p == 0 for _, _, p in listed) >= 6
    chosen = bundle.tokens.encode("The cat sat")[3:6]
    assert found.logprobs == pytest.approx([float(logp[i, c]) for i, c in enumerate(chosen)], rel=1e-3)


def test_temperature_0_puts_everything_on_the_likeliest(client, look):
    asked = {"look": look, "first": 1, "last": 2, "temperature": 0}
    (listed,) = client.get("/api/looks/candidates", params=asked).json()["candidates"]
    assert [p for _, _, p in listed] == [1.0] + [0.0] * 7
    asked.pop("temperature")
    (listed,) = client.get("/api/looks/candidates", params=asked).json()["candidates"]
    assert [p for _, p, _ in listed] == [p for _, _, p in listed]  # unchanged without options


def test_a_small_probability_is_not_0():
    logits = torch.tensor([[0.0, -20.0, -30.0]])
    ((likely, small, smaller),) = candidates(Characters("abc"), logits, choice_of(1.0, None, None), 3)
    assert (likely[1], small[1] > 0, smaller[2] > 0) == (1.0, True, True)
    assert entropies(torch.zeros(1, 4))[0] == pytest.approx(1.3863)
    assert entropies(torch.tensor([[0.0, float("-inf")]])) == [0.0]


def test_new_tokens_have_both_probabilities(ask):
    for one in tokens(ask("/api/write", SAMPLED | {"max_new": 3, "top_k": 2})):
        assert len(one["candidates"]) == 8
        assert [p > 0 for _, _, p in one["candidates"]] == [True, True] + [False] * 6
        assert one["piece"] in [piece for piece, _, _ in one["candidates"][:2]]


def test_the_lens_has_the_entropy_of_each_layer(client, look, tiny):
    found = schemas.LensShape(**client.get("/api/looks/lens", params={"look": look, "at": 4}).json())
    p = ch.load(tiny, device="cpu")("The cat sat")[4].softmax(-1)
    assert len(found.entropy) == len(found.layers) == 3
    assert found.entropy[-1] == pytest.approx(float(-(p * p.log()).sum()), rel=1e-3)
    assert len(found.layers[0][0]) == 2


@pytest.mark.parametrize("asked", [
    {"temperature": "nan"}, {"temperature": -0.1}, {"top": 0}, {"top": 51}, {"top_k": 0}, {"top_p": 1.5}, {"first": 0},
])  # fmt: skip
def test_a_wrong_option_is_refused(client, look, asked):
    answer = client.get("/api/looks/candidates", params={"look": look, "first": 1, "last": 2} | asked)
    assert answer.status_code == 422
    assert next(iter(asked)) in answer.json()["error"]


def test_similar_tokens_of_a_text(client, look, tiny):
    found = schemas.SimilarShape(**client.get("/api/looks/similar", params={"look": look, "at": 4}).json())
    bundle = ch.load(tiny, device="cpu")
    with torch.no_grad():
        x = bundle.model.states(torch.from_numpy(bundle.tokens.encode("The cat sat"))[None])[0]
    want = torch.nn.functional.cosine_similarity(x, x[4:5])
    assert found.similarity == pytest.approx(want.tolist(), abs=1e-4)
    assert client.get("/api/looks/similar", params={"look": look, "at": 11}).status_code == 400
