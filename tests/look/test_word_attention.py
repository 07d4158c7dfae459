"""Attention from word to word: a head built to attend one token back, and sentences that are well formed."""

import pytest
import torch

import clearhead as ch
from clearhead.look import Sentence, read_sentences, word_attention
from clearhead.look.examples.word_attention import SETS, word_tokens
from clearhead.tokens import Words

WORDS = Words(["the", "cat", "dog", "saw", "it", "slept", "then"])


def bundle(kind="gpt", **options):
    torch.manual_seed(0)
    model = ch.build(kind, vocab=len(WORDS) + 1, context=16, width=12, heads=3, depth=2, **options)
    return ch.Bundle(model, WORDS)


def test_share_weight_and_chance_equal_those_counted_by_hand():
    lines = ["then the [cat] saw {it}", "then the [dog] slept then the cat saw {it}", "the cat [saw] the {dog}"]
    sentences, model, calls = [Sentence.parse(line) for line in lines], bundle(), []
    result = word_attention(model, sentences, done=lambda *x: calls.append(x))
    places = [(4, 2), (8, 2), (4, 2)]  # of query and answer
    for n, (sentence, (query, answer)) in enumerate(zip(sentences, places, strict=True)):
        maps = ch.look.attention(model, sentence.text).maps["self"]
        assert result.chances[n] == pytest.approx(1 / query)  # keys 1 to query
        for layer in range(2):
            for head in range(3):
                row = maps[layer].dense()[0, head, query, 1 : query + 1]
                assert result.hits[n, layer, head] == (int(row.argmax()) + 1 == answer)
                assert result.weights[n, layer, head] == pytest.approx(float(row[answer - 1] / row.sum()), abs=1e-6)
    assert calls == [(1, 3)] * 3
    torch.testing.assert_close(result.share, result.hits.float().mean(0))
    layer, head = result.best
    assert result.share[layer, head] == result.share.max()


def test_the_best_head_of_one_half_is_scored_on_the_other():
    hits = torch.zeros(4, 1, 2, dtype=torch.bool)
    hits[:2, 0, 0], hits[2:, 0, 1] = True, True  # either head is right in one half only
    result = ch.look.WordAttention(kind="self", hits=hits, weights=hits.float(), chances=torch.full((4,), 0.2))
    assert (result.held_out, float(result.share.max())) == (0.0, 0.5)
    hits[:] = torch.tensor([True, False])
    result = ch.look.WordAttention(kind="self", hits=hits, weights=hits.float(), chances=torch.full((4,), 0.2))
    assert (result.held_out, result.best) == (1.0, (0, 0))
    assert result.to_dict()["held_out"] == 1.0
    assert result.__rich__().row_count == 1
    assert result.figure().axes


def test_sinks_and_special_tokens_count_only_if_asked():
    first = Sentence.parse("the [cat] saw {it}")
    assert word_attention(bundle(), [first], sinks=True).chance == pytest.approx(1 / 4)
    encoder = bundle("bert")
    assert word_attention(encoder, [first]).chance == pytest.approx(1 / 4)  # without <start> and <end>
    assert word_attention(encoder, [first], sinks=True).chance == pytest.approx(1 / 6)
    with pytest.raises(ValueError, match="the answer is the first token"):
        word_attention(bundle(), [Sentence.parse("[the] cat saw {it}")])
    with pytest.raises(ValueError, match="comes after the query"):
        word_attention(bundle(), [Sentence.parse("the {cat} saw [it]")])


def test_translators_attend_from_the_target_to_the_source():
    translator = ch.load("fr-en", device="cpu")
    result = word_attention(translator, read_sentences("order"))
    assert (result.kind, result.hits.shape) == ("cross", (52, 3, 5))
    assert result.share.max() == 1.0
    assert result.held_out > 0.8 > 4 * result.chance
    assert word_attention(translator, read_sentences("adjectives")[:3], kind="encoder").kind == "encoder"
    with pytest.raises(ValueError, match="expected a translation for 'cross' only"):
        word_attention(translator, read_sentences("adjectives")[:1], kind="cross")


@pytest.mark.parametrize("name", list(SETS))
def test_sets_have_fifty_different_sentences_with_a_word_each(name):
    sentences = read_sentences(name)
    assert len(sentences) == len(set(sentences)) >= 50
    for one in sentences:
        assert one.text[slice(*one.answer)].isalpha()
        assert (one.target or one.text)[slice(*one.query)].isalpha()


def test_tokens_of_words_whatever_the_tokenizer_does_to_spaces_capitals_and_accents():
    text = "La zone économique dort."
    span = (8, 18)
    assert text[slice(*span)] == "économique"
    assert word_tokens(["La", " zone", " éc", "onom", "ique", " dort", "."], [False] * 7, text, span) == [2, 3, 4]
    pieces = ["[CLS]", "la", "zone", "econ", "##omique", "dort", ".", "[SEP]"]
    assert word_tokens(pieces, [True, *[False] * 6, True], text, span) == [3, 4]
    with pytest.raises(ValueError, match="the token 'x' is not in"):
        word_tokens(["La", "x"], [False] * 2, text, span)


def test_bad_sentences_are_told():
    for line in ("no marks", "one {mark}", "[a] b [c] {d}"):
        with pytest.raises(ValueError, match="expected one word between"):
            Sentence.parse(line)
    with pytest.raises(ValueError, match="no sentences 'nams': expected a file or one of names"):
        read_sentences("nams")
    with pytest.raises(ValueError, match="there are no sentences"):
        word_attention(bundle(), [])
