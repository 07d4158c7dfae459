"""BLEU and chrF: equal to their definitions, with the signature that makes a score reproducible."""

import math
import re
import sys
from collections import Counter

import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from clearhead.errors import MissingPackageError
from clearhead.metrics import Score, bleu, bleu_by, chrf, moses_words, spacy_words, token_bleu, translation

words = st.lists(st.sampled_from("abcde"), min_size=4, max_size=12)
corpus = st.lists(st.tuples(words, words), min_size=1, max_size=5)


def bleu_by_definition(pairs):
    """Corpus BLEU-4, section 2 of Papineni et al. 2002; None if a precision is 0, which sacreBLEU smooths."""
    hypothesis_length = sum(len(h) for h, _ in pairs)
    reference_length = sum(len(r) for _, r in pairs)
    logs = []
    for n in range(1, 5):
        grams = [[Counter(tuple(x[i : i + n]) for i in range(len(x) - n + 1)) for x in pair] for pair in pairs]
        right = sum((h & r).total() for h, r in grams)
        total = sum(h.total() for h, _ in grams)
        if not right:
            return None
        logs.append(math.log(right / total))
    return 100 * min(1.0, math.exp(1 - reference_length / hypothesis_length)) * math.exp(sum(logs) / 4)


@given(corpus)
def test_token_bleu_equals_the_definition_in_the_paper(pairs):
    score = token_bleu([h for h, _ in pairs], [r for _, r in pairs])
    expected = bleu_by_definition(pairs)
    assert 0 <= score.value <= 100 + 1e-9
    if expected is not None:
        assert score.value == pytest.approx(expected)
    assert token_bleu([r for _, r in pairs], [r for _, r in pairs]).value == pytest.approx(100)


def test_a_score_has_the_signature_of_its_settings():
    text = ["A dog runs over the grass."]
    score = bleu(text, text)
    assert (score.name, score.value) == ("BLEU", pytest.approx(100))
    assert "case:mixed" in score.signature
    assert "tok:13a" in score.signature
    assert "smooth:exp" in score.signature
    assert "version:" in score.signature
    assert str(score) == f"BLEU 100.00 ({score.signature})"
    assert "tok:none" in bleu(text, text, tokenize="none").signature
    assert "case:lc" in bleu(text, text, lower=True).signature
    assert chrf(text, text).name == "chrF2"
    assert chrf(text, text).value == pytest.approx(100)
    assert "nc:6" in chrf(text, text).signature
    assert Score("BLEU", 1.0, "x") == Score("BLEU", 1.0, "x")


def test_lower_ignores_case_and_none_does_not_separate_punctuation():
    hypothesis, reference = ["a dog runs over the green grass today ."], ["A dog runs over the green grass today."]
    assert bleu(hypothesis, reference).value < bleu(hypothesis, reference, lower=True).value == pytest.approx(100)
    assert bleu(hypothesis, reference, lower=True, tokenize="none").value < 100


def test_several_references_raise_the_score():
    hypothesis = ["the dog runs over there now"]
    one, other = "a dog is running over there now", "the dog runs over it"
    assert bleu(hypothesis, [[one, other]]).value > max(bleu(hypothesis, [one]).value, bleu(hypothesis, [other]).value)
    two = bleu([*hypothesis, "a cat sat here today"], [[one, other], ["a cat sat here today"]])
    assert two.value > bleu([*hypothesis, "a cat sat here today"], [one, "a cat sat here today"]).value
    assert chrf(hypothesis, [[one, hypothesis[0]]]).value == pytest.approx(100)


def test_tokenised_text_gives_no_warning_with_tokenize_none(caplog):
    bleu(["a dog runs ."] * 200, ["a dog runs ."] * 200, tokenize="none")
    assert not caplog.records


@pytest.mark.parametrize("text", ["", "👩‍👧", "\x00\x07", "日本"])
def test_odd_texts_are_scored(text):
    for score in (bleu, chrf):
        assert 0 <= score([text, "a dog runs here"], ["x", "a dog runs here"]).value < 100


@pytest.mark.parametrize(
    ("make", "message"),
    [
        (lambda: bleu(["a"], ["a", "b"]), "1 hypotheses and 2 references: expected the same number"),
        (lambda: bleu([], []), "there is no hypothesis"),
        (lambda: bleu(["a"], [[]]), "hypothesis 0 has no reference"),
        (lambda: bleu("a", ["a"]), "the hypotheses are one text, 'a'"),
        (lambda: chrf(["a"], "a"), "the references are one text, 'a'"),
        (lambda: bleu(["a"], ["a"], tokenize="moses"), "tokenize='moses': expected one of 13a, none"),
        (lambda: token_bleu([["a b"]], [["a"]]), "sentence 0 has 'a b': expected a row of tokens"),
        (lambda: token_bleu([["a"]], [["a", ""]]), "sentence 0 has ''"),
        (lambda: token_bleu(["a b"], [["a"]]), "sentence 0 has 'a b': expected a row of tokens"),
    ],
)
def test_bad_arguments_raise(make, message):
    with pytest.raises(ValueError, match=message):
        make()


# Protocols


@pytest.mark.parametrize(
    ("language", "text", "expected"),  # the words of spaCy's own tokenizers for these languages
    [
        ("en", "A man doesn't see the U.S. flag.", "A man does n't see the U.S. flag ."),
        ("en", "Mr. Dow can't wait... at 11:27", "Mr. Dow ca n't wait ... at 11:27"),
        ("en", "two men's T-shirts, 3.5 miles away (left)", "two men 's T - shirts , 3.5 miles away ( left )"),
        ("de", "Ein Mann im T-Shirt, bzw. in Joe's U-Bahn.", "Ein Mann im T-Shirt , bzw. in Joe's U-Bahn ."),
        ("de", "Obst- und Gemüse: ein „rot-weißer“ Stand.", "Obst- und Gemüse : ein „ rot-weißer “ Stand ."),
        ("fr", "L'homme s'assied.", "L' homme s' assied ."),
    ],
)
def test_spacy_words_equal_those_of_spacy(language, text, expected):
    assert spacy_words(text, language) == expected.split()


def test_moses_words():
    text = "Mr. Dow doesn’t see „it“ & the well-known dog, z.B…"
    assert " ".join(moses_words(text, "en")) == 'Mr. Dow doesn \'t see " it " & the well-known dog , z.B ...'
    assert " ".join(moses_words("L'homme, s'il vous plaît !", "fr")) == "L' homme , s' il vous plaît !"


@given(st.text(max_size=30), st.sampled_from(["en", "de", "fr"]))
@example("n't I can't", "en")
def test_words_of_any_text_have_no_white_space(text, language):
    words = spacy_words(text, language)
    assert "".join(words) == re.sub(r"\s", "", text)
    for word in (*words, *moses_words(text, language)):
        assert word.split() == [word]


def test_the_signature_names_the_protocol():
    hypothesis, reference = ["the dog doesn't see „it“ today ."], ["The dog doesn’t see “it” today."]
    moses = bleu_by("moses", "en")(hypothesis, reference)
    assert moses.value == pytest.approx(100)
    assert moses.signature.startswith("nrefs:1|case:lc|eff:no|tok:none|smooth:exp|version:")
    assert re.search(r"\|cut:sacremoses-[\d.]+-en$", moses.signature)
    words = bleu_by("words", "en")(hypothesis, reference)
    assert words.value < 100
    assert "|case:lc|" in words.signature
    assert words.signature.endswith("|cut:words-en")
    tokens = [[w.lower() for w in spacy_words(texts[0], "en")] for texts in (hypothesis, reference)]
    assert words.value == pytest.approx(token_bleu(tokens[:1], tokens[1:]).value)
    assert bleu_by("plain", None)(hypothesis, reference) == bleu(hypothesis, reference)


def test_a_bad_protocol_raises_before_any_text_is_translated(monkeypatch):
    with pytest.raises(ValueError, match="protocol='mose': expected one of plain, moses, words; the nearest is moses"):
        bleu_by("mose", "de")
    with pytest.raises(ValueError, match="protocol='words' has rules for each language"):
        bleu_by("words", None)
    monkeypatch.setitem(sys.modules, "sacremoses", None)
    translation._moses.cache_clear()
    with pytest.raises(MissingPackageError, match=r"needs sacremoses: pip install 'clearhead\[moses\]'"):
        bleu_by("moses", "de")
