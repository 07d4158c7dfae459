"""Words: how a text is split, which words get an id, and how ids are decoded."""

import json
import pickle
from collections import Counter

import pytest
from hypothesis import given
from hypothesis import strategies as st

from clearhead import tokens
from clearhead.tokens import Words, split
from clearhead.tokens.ids import words_of

anything = st.text(st.characters())


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("A dog runs.", "A dog runs ."),
        ("Don't! The dog's and we're I'M", "Don 't ! The dog 's and we 're I 'M"),
        ("l'homme qu'il aujourd’hui O'Brien", "l' homme qu' il aujourd’ hui O' Brien"),
        ("'dog' rock'", "' dog ' rock '"),
        ("3.5 1,000. 3D x2", "3.5 1,000 . 3D x2"),
        ("T-shirt foo_bar", "T - shirt foo _ bar"),
        ("e\u0301te\u0301 हिन्दी 日本 größe", "e\u0301te\u0301 हिन्दी 日本 größe"),
        ("👩‍👩‍👧👍🏽 🇩🇪🇫🇷", "👩‍👩‍👧 👍🏽 🇩🇪 🇫🇷"),
        ("a\x00b\x07", "a \x00 b \x07"),
        ("<unk> <pad>", "< unk > < pad >"),
    ],
)
def test_split_gives_the_words(text, words):
    assert split(text) == words.split(" ")


@given(anything)
def test_split_loses_only_white_space(text):
    assert "".join(split(text)) == "".join(text.split())
    assert all(word.split() == [word] for word in split(text))


@given(anything, anything)
def test_a_space_always_separates_words(one, other):
    assert split(f"{one} {other}") == split(one) + split(other)


def test_a_very_long_word_takes_linear_time():
    assert split("a" * 100_000 + "'") == ["a" * 100_000, "'"]


def test_words_of_gives_the_word_of_each_span():
    assert words_of("a dog's", [(0, 1), (1, 2), (1, 4), (3, 6), (5, 7), (3, 3)]) == [0, -1, 1, 1, 2, -1]


def test_ids_are_sorted_by_falling_count_then_alphabetically():
    words = Words.of(["b a b c", "a b d."])
    assert words.symbols == ("<pad>", "<start>", "<end>", "<unk>", "b", "a", ".", "c", "d")
    assert words.counts == (0, 0, 0, 0, 3, 2, 1, 1, 1)
    assert (words.pad, words.start, words.end, words.unknown) == (0, 1, 2, 3)
    assert Words.of(["b a b c", "a b d."], minimum=2).symbols[4:] == ("b", "a")
    assert Words.of(["b a b c", "a b d."], most=3).symbols[4:] == ("b", "a", ".")
    assert len(Words.of([])) == 4
    assert repr(words) == "Words(9: b a . c d)"


@given(st.lists(st.text("ab cé.'")), st.integers(1, 3), st.none() | st.integers(0, 4))
def test_only_frequent_words_get_an_id(texts, minimum, most):
    counts = Counter(word for text in texts for word in split(text))
    words = Words.of(texts, minimum=minimum, most=most)
    assert len(words) == 4 + min(sum(n >= minimum for n in counts.values()), 10**9 if most is None else most)
    for text in texts:
        ids = words.encode(text)
        assert [words.symbols[i] if i != 3 else None for i in ids] == [
            word if word in words.symbols else None for word in split(text)
        ]
    assert list(words.counts[4:]) == [counts[word] for word in words.symbols[4:]]


@given(anything)
def test_decode_undoes_encode_up_to_white_space(text):
    words = Words.of([text])
    back = words.decode(words.encode(text))
    assert "".join(back.split()) == "".join(text.split())
    assert words.encode(text).tolist() == words.encode_all([text])[0].tolist()
    assert words.pieces(words.encode(text)) == split(text)
    assert words.words(text) == list(range(len(split(text))))


@pytest.mark.parametrize(
    "text",
    [
        "A dog runs, and doesn't stop.",
        "L'homme (qu'il voit) porte un T-shirt!",
        'He said "come here" to the dog\'s owner.',
        "¿Qué? «Oui» 3.5%",
    ],
)
def test_decode_puts_no_space_around_punctuation(text):
    words = Words.of([text])
    assert words.decode(words.encode(text)) == text


def test_decode_shows_unknown_words_and_no_other_special_ids():
    words = Words.of(["a dog runs"])
    assert words.encode("a cat runs").tolist() == [words.encode("a")[0], 3, words.encode("runs")[0]]
    assert words.decode([1, *words.encode("a cat runs"), 2, 0, 0]) == "a <unk> runs"
    assert words.words([1, *words.encode("a cat runs"), 2]) == [-1, 0, 1, 2, -1]
    assert words.pieces([1, 3]) == ["<start>", "<unk>"]


def test_lower_drops_case():
    words = Words.of(["A Dog a dog"], lower=True)
    assert words.symbols[4:] == ("a", "dog")
    assert words.decode(words.encode("A DOG")) == "a dog"
    assert words != Words.of(["a dog a dog"])


@given(st.lists(anything), st.booleans())
def test_words_survive_json_and_pickle(texts, lower):
    words = Words.of(texts, lower=lower)
    again = Words.from_dict(json.loads(json.dumps(words.to_dict())))
    assert again == words == pickle.loads(pickle.dumps(words))
    assert hash(again) == hash(words)


def test_words_survive_a_folder(tmp_path):
    words = Words.of(["Ein Hund, l'été 👍🏽"])
    assert tokens.save(words, tmp_path).name == "tokens.json"
    assert tokens.load(tmp_path) == words
