"""What tokenizers refuse: each call, and the sentence that it raises."""

import numpy as np
import pytest

from clearhead.tokens import Characters, Pair, Subwords, Symbols, Words

LEARNED = Subwords.of(["low lower lowest"] * 3, size=266)
LETTERS, NUMBERS = Symbols(3, "|"), Symbols(30)
WORDS = {"kind": "words", "symbols": [], "counts": [], "lower": False}
CHARACTERS = {"kind": "characters", "symbols": ["a"]}
MISTAKES = [
    (lambda: Characters("abca"), "the symbol 'a' is given twice"),
    (lambda: Characters(["a", "bc"]), "symbol 1 is 'bc': expected one character"),
    (lambda: Characters(["a", ""]), "symbol 1 is '': expected one character"),
    (lambda: Characters("abc").decode(np.array([0, 3])), "id 3 at 1: expected 0 to 2"),
    (lambda: Characters("abc").decode([1, 0, -1]), "id -1 at 2: expected 0 to 2"),
    (lambda: Characters("abc").decode(np.array([2**63], dtype=np.uint64)), "id 9223372036854775808 at 0: expected 0"),
    (lambda: Characters("abc").decode(np.array([[0, 1]])), r"ids of shape \(1, 2\): expected one row"),
    (lambda: Characters("abc").decode(np.array([0.5])), "ids of type float64: expected whole numbers"),
    (lambda: Characters.from_dict({}), "expected kind = 'characters' and symbols"),
    (lambda: Characters.from_dict({"kind": "characters"}), "expected kind = 'characters' and symbols"),
    (lambda: Characters.from_dict(CHARACTERS | {"kind": "words"}), "expected kind = 'characters' and symbols"),
    (lambda: Characters.from_dict(CHARACTERS | {"extra": 1}), "expected kind = 'characters' and symbols"),
    (lambda: Characters.from_dict(CHARACTERS | {"symbols": "abc"}), "symbols = 'abc': expected a list"),
    (lambda: Characters.from_dict(CHARACTERS | {"symbols": [1]}), r"symbols = \[1\]: expected a list"),
    (lambda: Characters.from_dict(CHARACTERS | {"special": 1}), "special = 1"),
    (lambda: Words.of("a dog"), "expected several texts, got one: 'a dog'"),
    (lambda: Words.of(["a"], minimum=0), "minimum=0: expected 1 or more"),
    (lambda: Words.of(["a"], most=-1), "most=-1"),
    (lambda: Words(["a", "a"]), "the word 'a' is given twice"),
    (lambda: Words(["<unk>"]), "the word '<unk>' is given twice"),
    (lambda: Words(["a dog"]), "'a dog' is not one word"),
    (lambda: Words([""]), "'' is not one word"),
    (lambda: Words(["a"], [1, 2]), "2 counts for 1 words"),
    (lambda: Words(["a"]).decode([5]), "id 5 at 0: expected 0 to 4"),
    (lambda: Words.from_dict({"kind": "words"}), "expected kind = 'words'"),
    (lambda: Words.from_dict(WORDS | {"symbols": 1}), "symbols = 1"),
    (lambda: Words.from_dict(WORDS | {"counts": ["x"]}), "counts = "),
    (lambda: Words.from_dict(WORDS | {"lower": 1}), "lower = 1"),
    (lambda: LETTERS.encode("abd"), r"symbol 2 is 'd': expected a to c, \|"),
    (lambda: Symbols(3, "*?").encode("aB"), r"symbol 1 is 'B': expected a to c, \*, \?"),
    (lambda: NUMBERS.encode("3 30"), "symbol 1 is '30': expected 0 to 29"),
    (lambda: NUMBERS.encode("a"), "symbol 0 is 'a'"),
    (lambda: Symbols(0), "count=0"),
    (lambda: Symbols(3, "||"), "each once"),
    (lambda: Symbols(3, "a"), "no letter"),
    (lambda: Symbols(3, ["ab"]), "one character"),
    (lambda: Subwords.of(["a"], size=100), "size=100: expected 260 or more"),
    (lambda: Subwords.of(["a"], kind="wordpiece"), "kind='wordpiece': expected bpe or unigram"),
    (lambda: Subwords.of("a dog"), "expected several texts, got one"),
    (lambda: Subwords.of(["a"], minimum=0), "minimum=0"),
    (lambda: Subwords.of([" "], kind="unigram"), "the texts are empty"),
    (lambda: Subwords.of(["a\ud800"]), r"'\\ud800' at 1 is half a character"),
    (lambda: LEARNED.encode("é\udfff"), r"'\\udfff' at 1 is half a character"),
    (lambda: LEARNED.encode_all(["a", "\udfff"]), "half a character"),
    (lambda: LEARNED.decode([10**6]), "id 1000000 at 0: expected 0 to"),
    (lambda: LEARNED.decode(np.array([0.5])), "expected whole numbers"),
    (lambda: Subwords("{}"), "not a tokenizer"),
    (lambda: Subwords("no"), "not a tokenizer"),
    (lambda: Pair(Words(["a"]), Characters("ab")), r"the target tokens, Characters\('ab'\), have no <pad> and <end>"),
]  # fmt: skip


@pytest.mark.parametrize(("call", "message"), MISTAKES, ids=[message for _, message in MISTAKES])
def test_a_mistake_is_a_sentence(call, message):
    with pytest.raises(ValueError, match=message):
        call()
