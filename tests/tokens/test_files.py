"""Tokenizers in folders: each class names its own file."""

import pytest

from clearhead import tokens
from clearhead.tokens import Characters, Pair, Subwords, Words


class Elsewhere(Characters):
    """A tokenizer that is kept in another file than its parent."""

    file = "tokenizer.json"


@pytest.mark.parametrize(
    ("tokenizer", "files"),
    [
        (Elsewhere("ab"), ["tokenizer.json"]),
        (
            Pair(Elsewhere("ab", special=True), Words(["a"])),
            ["source.tokenizer.json", "target.tokens.json", "tokens.json"],
        ),
        (Pair(*[Elsewhere("ab", special=True)] * 2), ["tokenizer.json", "tokens.json"]),
    ],
)
def test_the_class_of_a_tokenizer_names_the_file_that_it_is_saved_in(tokenizer, files, tmp_path):
    assert tokens.save(tokenizer, tmp_path).name == files[-1]
    assert sorted(path.name for path in tmp_path.iterdir()) == files
    assert list(tokenizer.files()) == files


def test_only_subwords_have_a_tokenizer_json():
    assert (Characters.file, Words.file, tokens.Pieces.file, Pair.file) == ("tokens.json",) * 4
    assert Subwords.file == "tokenizer.json"
