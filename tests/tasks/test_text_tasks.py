"""embed, likelihood and fill: batches against single texts, and against the model's own outputs."""

import math

import numpy as np
import pytest
import torch
import torch.nn.functional as F

import clearhead as ch
from clearhead.data.text.labelled import mask_of, masked_ids
from clearhead.errors import InputError
from clearhead.look import Notice
from clearhead.tasks import score
from clearhead.tasks.text import embed, fill, likelihood, likelihoods
from clearhead.tokens import Characters, Subwords, Words
from clearhead.weights import Bundle

TEXTS = ["the cat sat", "a dog", "on the mat the cat and the dog sat and sat"]
WORDS = Words.of(TEXTS)
SIZES = {"width": 16, "depth": 1, "heads": 2, "context": 16}


def bert(answer: str, tokens=WORDS, **more) -> Bundle:
    torch.manual_seed(0)
    model = ch.build("bert", vocab=mask_of(tokens)[1], **SIZES, answer=answer, **more)
    with torch.no_grad():
        for p in model.parameters():
            p.mul_(4.0 if p.ndim > 1 else 1.0)
    return Bundle(model, tokens, model.config)


def gpt(tokens=WORDS, **more) -> Bundle:
    torch.manual_seed(0)
    model = ch.build("gpt", vocab=len(tokens), **{**SIZES, **more})
    return Bundle(model, tokens, model.config)


BUNDLES = {
    "sentence": lambda: bert("sentence", pool="mean", pooler=False),
    "words": lambda: bert("words"),
    "gpt": gpt,
}


@pytest.mark.parametrize("pool", [None, "mean", "first", "last"])
@pytest.mark.parametrize("kind", BUNDLES)
def test_the_vector_of_a_text_does_not_depend_on_its_batch(kind, pool):
    made = BUNDLES[kind]()
    together = embed(made, TEXTS, pool=pool)
    assert together.shape == (3, 16)
    assert together.dtype == np.float32
    np.testing.assert_allclose(np.linalg.norm(together, axis=1), 1.0, atol=1e-5)
    for text, vector in zip(TEXTS, together, strict=True):
        np.testing.assert_allclose(embed(made, text, pool=pool), vector, atol=1e-5)
    unscaled = embed(made, TEXTS, pool=pool, normalise=False)
    np.testing.assert_allclose(unscaled / np.linalg.norm(unscaled, axis=1, keepdims=True), together, atol=1e-5)


@torch.no_grad()
def test_a_sentence_model_pools_as_it_was_trained():
    made = bert("sentence", pool="mean", pooler=False)
    ids = torch.tensor([[WORDS.start, *WORDS.encode(TEXTS[0]), WORDS.end]])
    expected = F.normalize(made.model.encode(ids).mean(1), dim=-1)[0]
    np.testing.assert_allclose(embed(made, TEXTS[0]), expected.numpy(), atol=1e-6)
    np.testing.assert_allclose(embed(made, TEXTS[0], pool="mean"), expected.numpy(), atol=1e-6)


def test_a_long_text_is_cut_with_a_notice():
    made = bert("sentence")
    with pytest.warns(Notice, match="text 1 of 1 is longer than the 16 tokens that this model reads .it has 32"):
        embed(made, " ".join(["cat"] * 30))


def test_likelihoods_are_those_of_each_text_alone():
    made = gpt()
    texts = [*TEXTS, " ".join(TEXTS * 3), TEXTS[0].split()[0]]  # one is longer than the context, one is a single token
    for text, found in zip(texts, likelihoods(made, texts), strict=True):
        alone = likelihood(made, text)
        assert (found.pieces, found.counted) == (alone.pieces, alone.counted)
        assert found.logprobs[1:] == pytest.approx(alone.logprobs[1:], abs=1e-5)


def test_the_likelihood_of_a_list_is_refused(unchecked):
    with pytest.raises(InputError, match="text is a list: expected a string; `likelihoods` reads several"):
        likelihood(gpt(), TEXTS)


@torch.no_grad()
def test_the_likelihood_of_a_text_is_the_sum_over_its_tokens():
    made = gpt()
    found = likelihood(made, TEXTS[2])
    ids = torch.from_numpy(WORDS.encode(TEXTS[2]))
    logp = made.model(ids[None])[0].log_softmax(-1)
    wanted = [float(logp[i, ids[i + 1]]) for i in range(len(ids) - 1)]
    assert found.logprobs[0] is None
    assert found.logprobs[1:] == pytest.approx(wanted, abs=1e-5)
    assert found.logprob == pytest.approx(sum(wanted), abs=1e-4)
    assert found.perplexity == pytest.approx(math.exp(-sum(wanted) / len(wanted)), rel=1e-5)
    assert found.pieces == WORDS.pieces(ids)
    assert found.to_dict()["perplexity"] == found.perplexity


@pytest.mark.parametrize("stride", [None, 1, 3, 16])
@torch.no_grad()
def test_a_text_beyond_the_context_is_read_in_windows(stride):
    tokens = Characters.of("abcdef")
    made = gpt(tokens)
    text = "".join("abcdef"[(i * i) % 6] for i in range(50))
    found = likelihood(made, text, stride=stride)
    assert found.counted == 49
    ids, step = torch.from_numpy(tokens.encode(text)), stride or 8
    begin = 0
    for i in range(1, 50):
        while i > begin + 16:
            begin += step
        logp = made.model(ids[None, begin:i])[0, -1].log_softmax(-1)
        assert found.logprobs[i] == pytest.approx(float(logp[ids[i]]), abs=1e-5), i


def test_a_model_without_a_context_limit_reads_a_text_at_once_with_any_stride():
    made = gpt(Characters.of("abcdef"), positions="rotary", window=4)
    assert made.max_tokens is None
    text = "abcdef" * 5
    assert likelihood(made, text, stride=100).logprobs == likelihood(made, text).logprobs
    with pytest.raises(ValueError, match="stride=0: expected 1 or more"):
        likelihood(made, text, stride=0)


@torch.no_grad()
def test_masks_are_filled_with_the_likeliest_tokens():
    made = bert("words")
    found = fill(made, "the [MASK] sat on <mask>", top=4)
    mask = len(WORDS)
    ids = [WORDS.start, *WORDS.encode("the"), mask, *WORDS.encode("sat on"), mask, WORDS.end]
    p = made.model(torch.tensor([ids]))[0].softmax(-1)
    for answers, place in zip(found, (2, 5), strict=True):
        assert len(answers) == 4
        for word, share in answers:
            token = WORDS.pieces(np.arange(len(WORDS))).index(word)
            assert share == pytest.approx(float(p[place, token]), abs=1e-6)
        assert [share for _, share in answers] == sorted((s for _, s in answers), reverse=True)
        assert answers[0][1] == pytest.approx(float(p[place, : len(WORDS)].max()), abs=1e-6)
    with pytest.raises(ValueError, match="has no gap"):
        fill(made, "the cat")


@pytest.mark.parametrize(
    ("text", "masked"),
    [("a cat sleeps on it", "a cat [MASK] on it"), ("a cat sleeps.", "a cat [MASK]."), ("cats sleep", "[MASK] sleep")],
)
def test_a_mask_stands_for_a_word_and_the_space_before_it(text, masked):
    tokens = Subwords.of([text, "sleeps cats"] * 9, size=400)
    whole, (ids, (place,)) = [tokens.start, *tokens.encode(text).tolist(), tokens.end], masked_ids(tokens, masked)
    assert [*ids[:place], *ids[place + 1 :]] == [*whole[:place], *whole[place + 1 :]]


@pytest.mark.parametrize(
    ("call", "problem"),
    [
        (lambda: fill(gpt(), "[MASK]"), "this GPT cannot fill"),
        (lambda: likelihood(bert("words"), "the"), "this BERT cannot predict"),
        (lambda: likelihood(gpt(), ""), "the text is empty"),
        (lambda: likelihood(gpt(), "the", stride=0), "stride=0: expected 1 to 16"),
        (lambda: embed(gpt(), ["the", ""]), "a text is empty"),
        (lambda: embed(gpt(), "the", pool="max"), "pool='max': expected one of mean, first, last"),
    ],
)
def test_wrong_models_and_inputs_raise(unchecked, call, problem):
    with pytest.raises(ValueError, match=problem):
        call()


def test_the_mask_token_of_a_tokenizer_is_used():
    tokenizers = pytest.importorskip("tokenizers")
    made = tokenizers.Tokenizer.from_str(Subwords.of(TEXTS, size=290).to_str())
    made.add_special_tokens(["[MASK]"])
    found = fill(bert("words", Subwords(made.to_str())), "the [MASK] sat", top=3)
    assert len(found) == 1
    assert all("[MASK]" not in word or share < 1.0 for word, share in found[0])


def test_score_takes_a_text_or_a_translation():
    assert score(gpt(), TEXTS[2]).logprobs == likelihood(gpt(), TEXTS[2]).logprobs
    with pytest.raises(ValueError, match="this is no translator: expected a text alone"):
        score(gpt(), TEXTS[2], TEXTS[1])
    with pytest.raises(ValueError, match="this is a translator: expected a text and its translation"):
        score(ch.load("fr-en", device="cpu"), "Je la mange.")
    assert score(ch.load("fr-en", device="cpu"), "Je la mange.", "I eat it.").text == "I eat it."
