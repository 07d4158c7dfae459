"""Pairs of tokenizers: their files, shared where both sides are equal; Characters with special ids."""

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
def test_a_pair_survives_a_folder_in_the_expected_files(tmp_path, pair, files):
    tokens.save(Pair(OTHER, SUB), tmp_path)  # an earlier tokenizer, whose files must go
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


def test_source_and_target_ids_end_with_the_end_token():
    pair = Pair(WORDS, LETTERS)
    assert pair.read("a dog").tolist() == [*WORDS.encode("a dog"), 2]
    assert pair.written("go").tolist() == [*LETTERS.encode("go"), 2]
    assert pair.read("").tolist() == [2]


@pytest.mark.parametrize(
    ("values", "message"),
    [
        ({}, "source = None: expected a file beside it"),
        ({"source": "../x.json", "target": "tokenizer.json"}, r"source = '\.\./x\.json': expected a file beside it"),
        ({"source": "tokens.json", "target": "tokens.json"}, "source = 'tokens.json': expected"),
        ({"source": "tokenizer.json", "target": ["x"]}, "target = "),
        ({"source": "tokenizer.json", "target": "target.tokens.json"}, "there is no such file"),
    ],
)
def test_a_pair_with_bad_file_names_raises(tmp_path, values, message):
    tokens.save(SUB, tmp_path)
    (tmp_path / "tokens.json").write_text(json.dumps({"kind": "pair", **values}))
    with pytest.raises(ValueError, match=message):
        tokens.load(tmp_path)


@given(st.text(st.characters()), st.text(st.characters()))
def test_characters_with_special_ids(text, other):
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


def test_characters_without_special_ids():
    plain = Characters("ab c")
    assert (plain.pad, plain.start, plain.end, plain.unknown) == (None,) * 4
    assert plain.words("ab c") == [0, 0, -1, 1]
