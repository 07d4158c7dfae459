"""Characters: lossless, strict about unknown characters, and fast."""

import json
import pickle
import time

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from clearhead import tokens
from clearhead.tokens import Characters

anything = st.text(st.characters())  # surrogates, nulls and emoji too


@given(anything)
def test_decode_undoes_encode(text):
    alphabet = Characters.of(text)
    ids = alphabet.encode(text)
    assert ids.dtype == np.int64
    assert len(ids) == len(text)
    assert alphabet.decode(ids) == text
    assert alphabet.decode(ids.tolist()) == text


@given(anything, anything)
def test_the_id_of_a_character_is_its_index_in_the_alphabet(text, other):
    alphabet = Characters.of(text + other)
    assert alphabet.symbols == tuple(sorted(set(text + other)))
    assert alphabet.encode(text).tolist() == [alphabet.symbols.index(c) for c in text]
    joined = np.concatenate([alphabet.encode(text), alphabet.encode(other)])
    assert alphabet.encode(text + other).tolist() == joined.tolist()


@given(anything)
def test_an_alphabet_survives_json_and_pickle(text):
    alphabet = Characters.of(text)
    again = Characters.from_dict(json.loads(json.dumps(alphabet.to_dict())))
    assert again == alphabet
    assert hash(again) == hash(alphabet)
    assert len(again) == len(set(text))
    assert pickle.loads(pickle.dumps(alphabet)) == alphabet


@given(st.text(min_size=1), st.characters())
def test_the_error_names_an_unknown_character_and_its_position(text, stranger):
    alphabet = Characters.of(text.replace(stranger, ""))
    with pytest.raises(ValueError, match="is not in the alphabet of") as caught:
        alphabet.encode(text.replace(stranger, "") + stranger)
    assert f"the character {stranger!r} at {len(text.replace(stranger, ''))} " in str(caught.value)


def test_symbols_keep_their_order():
    alphabet = Characters("bca")
    assert alphabet.encode("abc").tolist() == [2, 0, 1]
    assert alphabet.decode([2, 0, 1]) == "abc"
    assert alphabet != Characters("abc")
    assert alphabet != "bca"
    assert repr(alphabet) == "Characters('bca')"


def test_the_error_for_an_unknown_character_has_line_and_column():
    with pytest.raises(ValueError, match=r"^the character 'é' at 4 \(line 2, column 2\) is not in the alphabet of 3 "):
        Characters("ab\n").encode("ab\nbéa")


def test_an_empty_text_has_no_ids():
    empty = Characters.of("")
    assert (len(empty), empty.encode("").tolist(), empty.decode([])) == (0, [], "")
    with pytest.raises(ValueError, match="the character 'a' at 0"):
        empty.encode("a")


def test_encoding_a_megabyte_is_fast():
    """Twenty round trips in less time than a Python loop over the characters needs for a few."""
    text = ("To be, or not to be: that is the question.\n" * 25_000)[: 1 << 20]
    alphabet = Characters.of(text)
    started = time.perf_counter()
    for _ in range(20):
        back = alphabet.decode(alphabet.encode(text))
    assert time.perf_counter() - started < 2
    assert back == text


@given(st.text(st.characters()))
def test_characters_survive_a_folder(tmp_path_factory, text):
    folder = tmp_path_factory.mktemp("tokens") / "new"
    path = tokens.save(Characters.of(text), folder)
    assert tokens.load(folder) == Characters.of(text)
    assert [p.name for p in folder.iterdir()] == [path.name] == ["tokens.json"]


@pytest.mark.parametrize(
    ("content", "expected"),
    [
        (None, "there is no tokens.json in this folder"),
        ("{", r"tokens\.json: not a JSON file"),
        ("[]", r"tokens\.json: kind = None: expected one of characters"),
        ('{"kind": ["x"]}', r"tokens\.json: kind = \['x'\]: expected one of characters"),
        ('{"kind": "runes"}', r"tokens\.json: kind = 'runes': expected one of characters"),
        ('{"kind": "characters", "symbols": ["a", "a"]}', r"tokens\.json: the symbol 'a' is given twice"),
    ],
)
def test_a_folder_with_missing_or_damaged_tokens_raises(tmp_path, content, expected):
    if content is not None:
        (tmp_path / "tokens.json").write_text(content)
    with pytest.raises(ValueError, match=expected):
        tokens.load(tmp_path)
