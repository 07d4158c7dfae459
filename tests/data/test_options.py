"""Options of data sets that cannot be: each is refused, with its value, before any file is read."""

import pytest

from clearhead.config import ConfigError
from clearhead.data import make_data

# By data set: options, and words of the message.
BAD = {
    "copy": [
        ({"symbols": 0}, "symbols=0: expected 1 or more"), ({"length": 0}, "length=0"),
        ({"length": [4, 2]}, r"length=\(4, 2\).*shortest, longest"), ({"valid_length": 0}, "valid_length=0"),
        ({"rows": 0}, "rows=0"), ({"valid_batches": -1}, "valid_batches=-1"),
    ],
    "recall": [
        ({"age": 10}, "age=10: expected 0 to 9"), ({"age": 8, "valid_length": 5}, "valid_age=8: expected 0 to 4"),
    ],
    "identity": [({"width": 0}, "width=0")],
    "gaussians": [
        ({"modes": 0}, "modes=0"), ({"radius": 0.0}, r"radius=0.0, deviation=0.1: expected numbers above 0"),
        ({"deviation": -1.0}, "deviation=-1.0"),
    ],
    "text": [
        ({"context": 0}, "context=0"), ({"share": 1.0}, "share=1.0"), ({"valid_most": -1}, "valid_most=-1"),
        ({"path": ""}, "path is empty"), ({"separator": ""}, "separator is empty"), ({"contxt": 3}, "context"),
        ({"tokens": "bpe", "size": 100}, "size=100: expected 260 or more"),
        ({"tokens": "words", "size": 4}, "size=4: expected 5 or more for words"),
        ({"tokens": "characters", "lower": True}, "lower=true is for words and subwords"),
        ({"tokens": "bpe", "minimum": 0}, "minimum=0"),
    ],
    "masked": [
        ({"share": 0.0}, "share=0.0"), ({"longest": 2}, "longest=2: expected 3 or more"),
        ({"valid_share": 1.0}, "valid_share"),
    ],
    "pairs": [({"batch_tokens": 0}, "batch_tokens=0"), ({"share": -1}, "share"), ({"rows": 3}, "rows")],
    "multi30k": [
        ({"source": "de"}, "both 'de'"), ({"source": "es"}, "es"), ({"vocabulary": "word"}, "vocabulary"),
        ({"size": 100}, "size=100: expected 260 or more for subwords"),
        ({"vocabulary": "words", "size": 4}, "size=4: expected 5 or more for words"),
        ({"vocabulary": "characters", "lower": True}, "lower=true is for words and subwords"),
        ({"minimum": 0}, "minimum=0"), ({"longest": 1}, "longest=1: expected 2 or more"),
        ({"batch_tokens": 0}, "batch_tokens=0"), ({"join_sentences": [3, 2]}, r"join_sentences=\[3, 2\]"),
        ({"join_sentences": [0, 2]}, r"join_sentences=\[0, 2\]"), ({"valid_most": -1}, "valid_most=-1"),
        ({"rows": 3}, "rows"),
    ],
    "images": [
        ({"size": 0}, "size=0"), ({"workers": -1}, "workers=-1"), ({"least": 0.0}, "least=0.0"),
        ({"share": 1.5}, "share=1.5"), ({"deviation": [1.0, 0.0, 1.0]}, "deviation"),
        ({"valid_most": -2}, "valid_most=-2"), ({"crop": "centre"}, "crop"),
    ],
}  # fmt: skip
FILES = {"text": {"path": "a.txt"}, "masked": {"of": "a.txt"}, "pairs": {"path": "a.tsv"}, "images": {"path": "set"}}


@pytest.mark.parametrize(("name", "options", "words"), [(name, *row) for name, rows in BAD.items() for row in rows])
def test_bad_options_are_refused(name, options, words):
    with pytest.raises(ConfigError, match=words):
        make_data(name, FILES.get(name, {}) | options, seed=0)
