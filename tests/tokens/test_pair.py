"""A pair of tokens: kept whole in a folder, once where both sides share them; special characters."""

import json

import pytest
from hypothesis import given
from hypothesis import strategies as st

from clearhead import tokens
from clearhead.tokens import Characters, Pair, Subwords, Words

SUB = Subwords.of(["ein Hund", "a dog"] * 3, size=270)
WORDS, OTHER = Words.of(["a dog runs"]), Words.of(["ein Hund"])
LETTERS = Characters.of("a dog", special=True)


@pytest.mark.parametrize(
    ("pair", "files"),
    [
        (Pair(WORDS, OTHER), ["source.tokens.json", "target.tokens.json", "tokens.json"]),
        (Pair(SUB, WORDS), ["source.tokenizer.json", "target.tokens.json", "tokens.json"]),
        (Pair(LETTERS, SUB), ["source.tokens.json", "target.tokenizer.json", "tokens.json"]),
        (Pair(SUB, SUB), ["tokenizer.json", "tokens.json"]),
        (Pair(WORDS, Words.of(["a dog runs"])), ["both.tokens.json", "tokens.json"]),
    ],
)
def test_a_folder_keeps_a_pair(tmp_path, pair, files):
    tokens.save(Pair(OTHER, SUB), tmp_path)  # of another model: its files go
    assert tokens.save(pair, tmp_path).name == "tokens.json"
    assert sorted(p.name for p in tmp_path.iterdir()) == files
    again = tokens.load(tmp_path)
    assert again == pair
    assert again.joint == pair.joint == (len(files) == 2)
    assert (again.source is again.target) == again.joint
    tokens.save(WORDS, tmp_path)
    assert [p.name for p in tmp_path.iterdir()] == ["tokens.json"]
    tokens.save(SUB, tmp_path)
    assert [p.name for p in tmp_path.iterdir()] == ["tokenizer.json"]
    tokens.remove(tmp_path)
    assert not tokens.saved(tmp_path)


def test_what_is_read_and_written_ends():
    pair = Pair(WORDS, LETTERS)
    assert pair.read("a dog").tolist() == [*WORDS.encode("a dog"), 2]
    assert pair.written("go").tolist() == [*LETTERS.encode("go"), 2]
    assert pair.read("").tolist() == [2]


def test_tokens_without_an_end_make_no_pair():
    with pytest.raises(ValueError, match=r"the target tokens, Characters\('ab'\), have no <pad> and <end>"):
        Pair(WORDS, Characters("ab"))


@pytest.mark.parametrize(
    ("values", "words"),
    [
        ({}, "source = None: expected a file beside it"),
        ({"source": "../x.json", "target": "tokenizer.json"}, r"source = '\.\./x\.json': expected a file beside it"),
        ({"source": "tokens.json", "target": "tokens.json"}, "source = 'tokens.json': expected"),
        ({"source": "tokenizer.json", "target": ["x"]}, "target = "),
        ({"source": "tokenizer.json", "target": "target.tokens.json"}, "there is no such file"),
    ],
)
def test_a_pair_that_names_no_good_files(tmp_path, values, words):
    tokens.save(SUB, tmp_path)
    (tmp_path / "tokens.json").write_text(json.dumps({"kind": "pair", **values}))
    with pytest.raises(ValueError, match=words):
        tokens.load(tmp_path)


@given(st.text(st.characters()), st.text(st.characters()))
def test_characters_may_have_special_ids(text, other):
    letters = Characters.of(text, special=True)
    ids = letters.encode(text)
    assert letters.decode([1, *ids, 2, 0]) == text
    assert len(letters) == 4 + len(set(text))
    assert letters.decode(letters.encode(other)) == "".join(c if c in text else "\ufffd" for c in other)
    again = Characters.from_dict(json.loads(json.dumps(letters.to_dict())))
    assert again == letters
    assert letters != Characters.of(text)
    assert letters.words([1, *ids]) == [-1, *Characters.of(text).words(text)]
    assert letters.pieces([0, *ids]) == ["<pad>", *text]


def test_plain_characters_have_no_special_ids():
    plain = Characters("ab c")
    assert (plain.pad, plain.start, plain.end, plain.unknown) == (None,) * 4
    assert plain.words("ab c") == [0, 0, -1, 1]
    with pytest.raises(ValueError, match="special = 1"):
        Characters.from_dict({"kind": "characters", "symbols": ["a"], "special": 1})
