"""Scores of captions: equal to those of pycocoevalcap, and sound at their limits."""

import gzip
import hashlib
import json
import math
import os
import re
import time
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from clearhead.errors import InputError
from clearhead.metrics import CAPTION_METRICS, CaptionScore, caption_scores, caption_words

# By coco_caption_scores.py, with pycocoevalcap and Java.
COCO = json.loads(Path(__file__).with_name("coco_caption_scores.json").read_text(encoding="utf-8"))
DATA = Path(os.environ.get("CLEARHEAD_DATA", "")) / "flickr8k" / "Flickr8k.token.txt.gz"
NAMES = ("BLEU-1", "BLEU-2", "BLEU-3", "BLEU-4", "ROUGE-L", "CIDEr-D")
candidates = pytest.mark.parametrize("kind", ["people", "changed"])

word = st.sampled_from(["a", "the", "dog", "dogs", "runs", "running", "red", "on", "grass", "one's", "t-shirt"])
caption = st.lists(word, max_size=10).map(" ".join)
corpora = st.lists(st.tuples(caption, st.lists(caption, min_size=1, max_size=3)), min_size=1, max_size=4)
whole_captions = st.lists(st.lists(word, min_size=4, max_size=10).map(" ".join), min_size=2, max_size=4)


def scores(pairs):
    return caption_scores([text for text, _ in pairs], [row for _, row in pairs])


@candidates
def test_every_score_equals_pycocoevalcap(kind, unchecked):
    found = caption_scores(COCO[kind]["candidates"], COCO["references"])
    assert tuple(found) == NAMES
    for name, (value, each) in COCO[kind]["scores"].items():
        assert found[name].value / 100 == pytest.approx(value, abs=1e-6), name
        assert [one / 100 for one in found[name].each] == pytest.approx(each, abs=1e-6), name


def test_a_thousand_captions_take_a_second_or_two(unchecked):
    texts, references = COCO["people"]["candidates"], [[*row, row[0]] for row in COCO["references"]]
    start = time.process_time()
    caption_scores((4 * texts)[:1000], (4 * references)[:1000])
    assert time.process_time() - start < 4


@given(corpora)
def test_scores_are_within_their_limits_and_ignore_the_order_of_the_references(pairs):
    found, other = scores(pairs), scores([(text, row[::-1]) for text, row in pairs])
    for name in NAMES:
        highest = 1000 if name == "CIDEr-D" else 100
        assert all(0 <= one <= highest + 1e-6 for one in (found[name].value, *found[name].each))
        assert len(found[name].each) == len(pairs)
        assert other[name].each == pytest.approx(found[name].each)
        assert other[name].value == pytest.approx(found[name].value)


@given(corpora)
def test_the_order_of_the_images_does_not_matter(pairs):
    found, other = scores(pairs), scores(pairs[::-1])
    for name in NAMES:
        assert other[name].value == pytest.approx(found[name].value)
        assert other[name].each[::-1] == pytest.approx(found[name].each)


@given(whole_captions, st.integers(1, 3))
def test_a_caption_that_is_its_references_has_the_highest_scores(texts, number):
    found = scores([(text, [text] * number) for text in texts])
    for name in NAMES[:-1]:
        assert found[name].each == pytest.approx([100] * len(texts)), name
        assert found[name].value == pytest.approx(100), name


def test_cider_of_a_caption_that_is_its_references_is_1000_where_all_words_are_rare():
    texts = ["a black dog runs now", "two old men sit there"]
    found = scores([(text, [text, text]) for text in texts])["CIDEr-D"]
    assert found.each == pytest.approx([1000, 1000])
    assert scores([(texts[0], [texts[0]])])["CIDEr-D"].value == 0  # one image has no idf


@pytest.mark.parametrize("text", ["", " ", ".", "?", "…", '"'])
def test_an_empty_caption_scores_0(text):
    found = scores([(text, ["a dog runs", "a cat"]), ("two men sit there", ["two men sit there"])])
    assert [found[name].each[0] for name in NAMES] == pytest.approx([0] * 6, abs=1e-4)
    alone = scores([(text, ["a dog"])])
    assert [alone[name].value for name in NAMES] == pytest.approx([0] * 6, abs=1e-4)


@pytest.mark.parametrize("text", ["", "a dog"])
def test_an_empty_reference_matches_nothing(text):
    found = scores([(text, [""]), ("two men sit there", ["two men sit there"])])
    assert [found[name].each[0] for name in NAMES] == pytest.approx([0] * 6, abs=1e-4)


def test_bleu_takes_the_closest_length_and_the_highest_count():
    text, references = "the the the cat", ["the the cat", "a cat sat on the mat over there"]
    found = scores([(text, references)])
    assert found["BLEU-1"].value == pytest.approx(75)  # two "the" and one "cat"; 4 words are closest to 3
    assert found["BLEU-2"].value == pytest.approx(100 * math.sqrt(3 / 4 * 2 / 3))
    short = scores([("the cat", ["the cat sat", "the cat sat on it"])])
    assert short["BLEU-1"].value == pytest.approx(100 * math.exp(1 - 3 / 2))


def test_rouge_l_takes_precision_and_recall_from_the_references_that_have_the_best():
    found = scores([("a dog runs over grass", ["a dog", "a big dog runs over green grass today"])])["ROUGE-L"]
    precision, recall = 5 / 5, 2 / 2
    assert found.value == pytest.approx(100 * 2.44 * precision * recall / (recall + 1.44 * precision))


def test_cider_d_by_hand():
    pairs = [("a dog", ["a dog"]), ("a dog", ["a cat"])]
    # "a" is in both images and weighs 0; of the bigrams and unigrams of the first image all others match.
    found = scores(pairs)["CIDEr-D"]
    assert found.each == pytest.approx([500, 0])
    longer = scores([("a dog", ["a dog in green grass"]), *pairs[1:]])["CIDEr-D"]
    each = [1 / math.sqrt(4), 1 / math.sqrt(4)]  # "dog" of four rare words, "a dog" of four rare bigrams
    assert longer.each[0] == pytest.approx(1000 * sum(each) / 4 * math.exp(-9 / 72))


INITIALS = [
    ("a man named J.", "a man named j."), ("J. R. Smith, by J.", "j. r. smith by j."), ("J.-Y. is J.?", "j.-y. is j."),
    ("plan B. He runs", "plan b he runs"), ("plan B. It.", "plan b. it"), ("(J.) 'J.'", "-lrb- j. -rrb- j."),
    ("J.5 x.", "j. 5 x."), ("a_J. b.", "a_j b."), ("T-shirt J...", "t-shirt j."),
]  # fmt: skip


@pytest.mark.parametrize(("text", "tokens"), [*COCO["tokens"], *INITIALS])
def test_words_equal_those_of_the_penn_treebank_tokeniser(text, tokens):
    assert caption_words(text) == tokens.split()


@pytest.mark.skipif(not DATA.is_file(), reason="needs Flickr8k in CLEARHEAD_DATA")
def test_the_words_of_all_captions_of_flickr8k_equal_those_of_the_penn_treebank_tokeniser(unchecked):
    with gzip.open(DATA, "rt", encoding="utf-8", newline="\n") as file:
        lines = [" ".join(caption_words(line.rstrip("\n").split("\t")[1])) for line in file]
    assert len(lines) == 40460
    digest = hashlib.sha256("\n".join(lines).encode()).hexdigest()
    assert digest == COCO["sha256 of the tokens of all captions"]


@given(st.text(max_size=40))
def test_any_text_has_words_in_lower_case_without_white_space(text):
    words = caption_words(text)
    assert all(word.split() == [word] for word in words)
    assert not {".", ",", "?", "!", ":", ";", "-", "--", "...", "'", '"'} & set(words)
    scores([(text, [text, "a dog"])])


@pytest.mark.parametrize(
    ("captions", "references", "fault"),
    [
        ([], [], "there is no caption: expected one or more"),
        (["a", "b"], [["a"]], "2 captions and 1 references: expected the same number"),
        (["a", "b"], [["a"], []], "caption 1 has no reference: expected one or more"),
        ("a dog", [["a dog"]], "the captions are one text, 'a dog': expected a list of them"),
        (["a dog"], "a dog", "the references are one text, 'a dog': expected a list of them"),
        ({"1.jpg": "a dog"}, [["a dog"]], "the captions are of type dict: expected a list of them"),
        (["a", None], [["a"], ["b"]], "caption 1 is of type NoneType: expected a text"),
        (["a"], [["a", 3]], "a reference of caption 0 is of type int: expected a text"),
        (["a"], [None], "the references of caption 0 are of type NoneType: expected a list of them"),
    ],
)
def test_bad_input_is_named(captions, references, fault, unchecked):
    with pytest.raises(InputError, match=re.escape(fault)):
        caption_scores(captions, references)


def test_an_unknown_metric_is_named():
    with pytest.raises(InputError, match=r"metrics has 'CIDEr': expected one of BLEU, ROUGE-L, CIDEr-D; the nea"):
        caption_scores(["a"], [["a"]], ["CIDEr"])
    with pytest.raises(InputError, match="metrics has 'B': expected"):
        caption_scores(["a"], [["a"]], "B")


def test_a_score_says_how_it_was_computed():
    found = caption_scores(["A dog."], ["a dog"], ["BLEU"])
    assert tuple(found) == NAMES[:4]
    assert isinstance(found["BLEU-4"], CaptionScore)
    assert found["BLEU-1"].signature.startswith("nrefs:1|case:lc|tok:ptb|punct:no|eff:closest|version:clearhead-")
    assert str(found["BLEU-1"]) == f"BLEU-1 100.00 ({found['BLEU-1'].signature})"
    assert "each" not in repr(found["BLEU-1"])
    assert caption_scores(["A dog."], ["a dog"], "BLEU") == {name: found[name] for name in NAMES[:4]}
    several = caption_scores(["a", "b"], [["a", "b"], ["b"]], ["ROUGE-L"])["ROUGE-L"]
    assert several.signature.startswith("nrefs:var|")
    assert CAPTION_METRICS == ("BLEU", "ROUGE-L", "CIDEr-D")
