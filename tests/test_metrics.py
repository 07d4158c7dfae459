"""BLEU and chrF: against the definition written out, and with the signature that makes a number worth printing."""

import math
import re
import sys
from collections import Counter

import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from clearhead import metrics
from clearhead.metrics import Score, bleu, bleu_by, chrf, moses_words, spacy_words, token_bleu

words = st.lists(st.sampled_from("abcde"), min_size=4, max_size=12)
corpus = st.lists(st.tuples(words, words), min_size=1, max_size=5)


def written_out(pairs):
    """Corpus BLEU-4, section 2 of Papineni et al. 2002; None where some precision is 0, which is smoothed."""
    told = sum(len(h) for h, _ in pairs)
    asked = sum(len(r) for _, r in pairs)
    logs = []
    for n in range(1, 5):
        grams = [[Counter(tuple(x[i : i + n]) for i in range(len(x) - n + 1)) for x in pair] for pair in pairs]
        right = sum((h & r).total() for h, r in grams)
        total = sum(h.total() for h, _ in grams)
        if not right:
            return None
        logs.append(math.log(right / total))
    return 100 * min(1.0, math.exp(1 - asked / told)) * math.exp(sum(logs) / 4)


@given(corpus)
def test_bleu_of_tokens_is_what_the_paper_says(pairs):
    found = token_bleu([h for h, _ in pairs], [r for _, r in pairs])
    wanted = written_out(pairs)
    assert 0 <= found.value <= 100 + 1e-9
    if wanted is not None:
        assert found.value == pytest.approx(wanted)
    assert token_bleu([r for _, r in pairs], [r for _, r in pairs]).value == pytest.approx(100)


def test_a_score_says_how_it_was_made():
    text = ["A dog runs over the grass."]
    found = bleu(text, text)
    assert (found.name, found.value) == ("BLEU", pytest.approx(100))
    assert "case:mixed" in found.signature
    assert "tok:13a" in found.signature
    assert "smooth:exp" in found.signature
    assert "version:" in found.signature
    assert str(found) == f"BLEU 100.00 ({found.signature})"
    assert "tok:none" in bleu(text, text, tokenize="none").signature
    assert "case:lc" in bleu(text, text, lower=True).signature
    assert chrf(text, text).name == "chrF2"
    assert chrf(text, text).value == pytest.approx(100)
    assert "nc:6" in chrf(text, text).signature
    assert Score("BLEU", 1.0, "x") == Score("BLEU", 1.0, "x")


def test_case_and_tokens_matter_where_they_should():
    said, right = ["a dog runs over the green grass today ."], ["A dog runs over the green grass today."]
    assert bleu(said, right).value < bleu(said, right, lower=True).value == pytest.approx(100)
    assert bleu(said, right, lower=True, tokenize="none").value < 100


def test_several_references_help():
    said = ["the dog runs over there now"]
    one, other = "a dog is running over there now", "the dog runs over it"
    assert bleu(said, [[one, other]]).value > max(bleu(said, [one]).value, bleu(said, [other]).value)
    two = bleu([*said, "a cat sat here today"], [[one, other], ["a cat sat here today"]])
    assert two.value > bleu([*said, "a cat sat here today"], [one, "a cat sat here today"]).value
    assert chrf(said, [[one, said[0]]]).value == pytest.approx(100)


def test_many_tokens_that_look_cut_are_no_reason_to_talk(caplog):
    bleu(["a dog runs ."] * 200, ["a dog runs ."] * 200, tokenize="none")
    assert not caplog.records


@pytest.mark.parametrize("text", ["", "👩‍👧", "\x00\x07", "日本"])
def test_odd_texts_are_scored(text):
    for score in (bleu, chrf):
        assert 0 <= score([text, "a dog runs here"], ["x", "a dog runs here"]).value < 100


@pytest.mark.parametrize(
    ("make", "words"),
    [
        (lambda: bleu(["a"], ["a", "b"]), "1 hypotheses and 2 references: expected as many"),
        (lambda: bleu([], []), "there is no hypothesis"),
        (lambda: bleu(["a"], [[]]), "sentence 0 has no reference"),
        (lambda: bleu("a", ["a"]), "the hypotheses are one text, 'a'"),
        (lambda: chrf(["a"], "a"), "the references are one text, 'a'"),
        (lambda: bleu(["a"], ["a"], tokenize="moses"), "tokenize='moses': expected one of 13a, none"),
        (lambda: token_bleu([["a b"]], [["a"]]), "sentence 0 has 'a b': expected a row of tokens"),
        (lambda: token_bleu([["a"]], [["a", ""]]), "sentence 0 has ''"),
        (lambda: token_bleu(["a b"], [["a"]]), "sentence 0 has 'a b': expected a row of tokens"),
    ],
)
def test_what_cannot_be_scored(make, words):
    with pytest.raises(ValueError, match=words):
        make()


# Protocols


@pytest.mark.parametrize(
    ("language", "text", "wanted"),  # what spaCy's own tokenizers of these languages answer
    [
        ("en", "A man doesn't see the U.S. flag.", "A man does n't see the U.S. flag ."),
        ("en", "Mr. Dow can't wait... at 11:27", "Mr. Dow ca n't wait ... at 11:27"),
        ("en", "two men's T-shirts, 3.5 miles away (left)", "two men 's T - shirts , 3.5 miles away ( left )"),
        ("de", "Ein Mann im T-Shirt, bzw. in Joe's U-Bahn.", "Ein Mann im T-Shirt , bzw. in Joe's U-Bahn ."),
        ("de", "Obst- und Gemüse: ein „rot-weißer“ Stand.", "Obst- und Gemüse : ein „ rot-weißer “ Stand ."),
        ("fr", "L'homme s'assied.", "L' homme s' assied ."),
    ],
)
def test_words_are_those_of_spacy(language, text, wanted):
    assert spacy_words(text, language) == wanted.split()


def test_words_are_those_of_moses():
    text = "Mr. Dow doesn’t see „it“ & the well-known dog, z.B…"
    assert " ".join(moses_words(text, "en")) == 'Mr. Dow doesn \'t see " it " & the well-known dog , z.B ...'
    assert " ".join(moses_words("L'homme, s'il vous plaît !", "fr")) == "L' homme , s' il vous plaît !"


@given(st.text(max_size=30), st.sampled_from(["en", "de", "fr"]))
@example("n't I can't", "en")
def test_cutting_makes_tokens_of_any_text(text, language):
    found = spacy_words(text, language)
    assert "".join(found) == re.sub(r"\s", "", text)
    for word in (*found, *moses_words(text, language)):
        assert word.split() == [word]


def test_a_protocol_says_what_it_counts():
    said, right = ["the dog doesn't see „it“ today ."], ["The dog doesn’t see “it” today."]
    moses = bleu_by("moses", "en")(said, right)
    assert moses.value == pytest.approx(100)
    assert moses.signature.startswith("nrefs:1|case:lc|eff:no|tok:none|smooth:exp|version:")
    assert re.search(r"\|cut:sacremoses-[\d.]+-en$", moses.signature)
    words = bleu_by("words", "en")(said, right)
    assert words.value < 100
    assert "|case:lc|" in words.signature
    assert words.signature.endswith("|cut:words-en")
    cut = [[w.lower() for w in spacy_words(texts[0], "en")] for texts in (said, right)]
    assert words.value == pytest.approx(token_bleu(cut[:1], cut[1:]).value)
    assert bleu_by("plain", None)(said, right) == bleu(said, right)


def test_a_protocol_is_refused_before_any_work(monkeypatch):
    with pytest.raises(ValueError, match="protocol='mose': expected one of plain, moses, words"):
        bleu_by("mose", "de")
    with pytest.raises(ValueError, match="protocol='words' has rules for each language"):
        bleu_by("words", None)
    monkeypatch.setitem(sys.modules, "sacremoses", None)
    metrics._moses.cache_clear()
    with pytest.raises(RuntimeError, match=r"needs sacremoses: pip install 'clearhead\[moses\]'"):
        bleu_by("moses", "de")
