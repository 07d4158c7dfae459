"""Symbols: letters or numbers for the ids of generated sequences."""

import pickle

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

import clearhead as ch
from clearhead import tokens
from clearhead.tokens import Symbols


@given(st.integers(1, 60), st.data())
def test_decoding_and_encoding_give_the_same_ids(count, data):
    symbols = Symbols(count, "|*")
    ids = data.draw(st.lists(st.integers(0, count + 1), max_size=20))
    assert symbols.encode(symbols.decode(ids)).tolist() == ids
    assert symbols.encode(" ".join(symbols.pieces(ids))).tolist() == ids
    assert symbols.words(ids) == list(range(len(ids)))


def test_letters_need_no_spaces_and_numbers_do():
    letters, numbers = Symbols(26, "|"), Symbols(27, "|")
    assert (letters.letters, numbers.letters) == (True, False)
    assert letters.encode("a b|z").tolist() == letters.encode("ab | z").tolist() == [0, 1, 26, 25]
    assert numbers.encode("0 26|7").tolist() == [0, 26, 27, 7]
    assert numbers.decode([0, 26, 27]) == "0 26 |"
    assert letters.encode("").tolist() == []
    assert len(letters) == 27


def test_they_are_saved_and_loaded(tmp_path):
    symbols = Symbols(30, "*?")
    assert tokens.save(symbols, tmp_path).name == "tokens.json"
    found = tokens.load(tmp_path)
    assert found == symbols
    assert found != Symbols(30, "|")
    assert hash(found) == hash(pickle.loads(pickle.dumps(symbols)))
    assert repr(found) == "Symbols(30, '*?')"
    for wrong in ('"count": "3", "marks": []', '"count": 3, "marks": "|"', '"count": 3'):
        (tmp_path / "tokens.json").write_text(f'{{"kind": "symbols", {wrong}}}')
        with pytest.raises(ValueError, match=r"tokens\.json"):
            tokens.load(tmp_path)


def test_a_model_of_a_generated_task_is_saved_with_its_symbols(tmp_path):
    data = {"name": "reverse", "symbols": 4, "length": 3, "rows": 64, "valid_rows": 8, "valid_batches": 1}
    model = {"name": "gpt", "width": 32, "depth": 2, "heads": 2}
    recipe = {"steps": 150, "data": data, "model": model, "optim": {"lr": 1e-2}}
    run = ch.train(recipe, out=tmp_path / "run", device="cpu", quiet=True)
    bundle = ch.load(tmp_path / "run" / "model")
    assert bundle.tokens == run.model.tokens == Symbols(4, "|")
    assert [one.text for one in ch.generate(bundle, ["abc|", "dba|"], max_new=3)] == ["cba", "abd"]
    assert ch.look.attention(bundle, "abc|cb").pieces == list("abc|cb")


@pytest.mark.parametrize(("name", "marks"), [("copy", "|"), ("reverse", "|"), ("most", "|"), ("recall", "*?")])
def test_generated_tasks_declare_their_symbols(name, marks):
    data = ch.data.make_data(name, {"symbols": 5, "length": (2, 4), "rows": 3}, seed=0)
    assert data.tokens == Symbols(5, marks)
    assert data.sizes == {"vocab": len(data.tokens)}
    batch = data.batch(0)
    texts = [data.tokens.decode(row) for row in batch["ids"]]
    assert all(set(text) <= set("abcde" + marks) for text in texts)
    assert np.array_equal([data.tokens.encode(text) for text in texts], batch["ids"])
