"""One input and many: the arguments of a model for texts, pairs, images and tensors, and the names of their tokens."""

import subprocess
import sys

import numpy as np
import pytest
import torch

import clearhead as ch
from clearhead.data.images.preprocessing import Preprocessing
from clearhead.errors import CutNotice, InputError
from clearhead.inputs import Inputs, read_input
from clearhead.inputs.batching import by_length, padded
from clearhead.inputs.pairs import decoder_ids
from clearhead.inputs.read import reader_of
from clearhead.tokens import Pair, Words

WORDS = Words(["a", "dog", "runs", "ein", "Hund"])


def text_model(family: str = "gpt", **options) -> ch.Bundle:
    torch.manual_seed(0)
    vocab = len(WORDS) + (family == "bert")  # with a mask token
    sizes = {"vocab": vocab, "context": 7, "width": 12, "depth": 1, "heads": 3}
    tokens = Pair(WORDS, WORDS) if family == "transformer" else WORDS
    return ch.Bundle(ch.build(family, **sizes, **options), tokens)


def image_model() -> ch.Bundle:
    torch.manual_seed(0)
    sizes = {"classes": 3, "size": 8, "patch": 4, "width": 12, "depth": 1, "heads": 3, "registers": 1}
    return ch.Bundle(ch.build("vit", **sizes), preprocessing=Preprocessing(resize=(8, 8)))


def picture(height: int = 8, seed: int = 0) -> np.ndarray:
    return np.random.default_rng(seed).integers(0, 256, (height, 8, 3)).astype(np.uint8)


CASES = {
    "gpt": (text_model, ["a dog runs", "a", "dog runs"]),
    "bert": (lambda: text_model("bert"), ["a [MASK] runs", "a"]),
    "transformer": (lambda: text_model("transformer"), [("a dog", "ein Hund"), ("dog", "ein")]),
    "vit": (image_model, [picture(seed=1), picture(seed=2), picture(12, seed=3)]),
    "mlp": (lambda: ch.Bundle(ch.build("mlp", inputs=3, outputs=2)), torch.randn(5, 3)),
}


@pytest.mark.parametrize("case", CASES)
def test_many_inputs_are_read_as_one_by_one(case):
    make, data = CASES[case]
    bundle = make()
    inputs = Inputs(bundle, data)
    many = [batch.run(bundle.model) for batch in inputs.batches(0, len(inputs))]
    assert len(inputs) == len(data) == sum(map(len, many))
    rows = [row for out in many for row in out]
    for given, row in zip(data, rows, strict=True):
        one = read_input(bundle, given[None] if case == "mlp" else given)
        out = one.run(bundle.model)[0]
        # a padded row is longer
        torch.testing.assert_close(row[: len(out)], out, atol=1e-5, rtol=1e-4)


@pytest.mark.parametrize("case", CASES)
def test_grouped_inputs_are_all_there_with_their_numbers(case):
    make, data = CASES[case]
    bundle = make()
    reader = reader_of(bundle)
    items, single = reader.items(bundle, data)
    numbers = [i for some, batch in reader.grouped(bundle, items) for i in some if batch.rows == len(some)]
    assert sorted(numbers) == list(range(len(data)))
    assert not single


def test_tokens_and_patches_have_names():
    gpt, bert, pair = text_model(), text_model("bert"), text_model("transformer")
    assert read_input(gpt, "a dog").pieces == ["a", "dog"]
    masked = read_input(bert, "a [MASK] runs")
    assert masked.pieces == ["<start>", "a", "[MASK]", "runs", "<end>"]
    assert masked.masks == (2,)
    translated = read_input(pair, "a dog", target="ein Hund")
    assert translated.pieces == ["a", "dog", "<end>"]
    assert translated.decoder_input == ["<start>", "ein", "Hund"]
    assert translated.target == ["ein", "Hund", "<end>"]
    image = read_input(image_model(), picture())
    assert (image.grid, image.special, image.tokens) == ((2, 2), 2, 6)
    assert image.names(6) == ["<class>", "<register 1>", "0,0", "0,1", "1,0", "1,1"]
    assert image.picture.shape == (8, 8, 3)


def test_without_a_target_the_decoder_reads_its_prompt():
    bundle = text_model("transformer")
    assert read_input(bundle, "a dog").decoder_input == ["<start>"]
    reads, writes = decoder_ids(bundle, [3, 4])
    assert reads.tolist() == [*bundle.decoder_prompt(), 3]
    assert writes.tolist() == [3, 4]


def test_a_batch_of_equal_rows_shares_memory():
    given = read_input(text_model(), "a dog runs")
    repeated = given.repeated(5)
    assert repeated.rows == 5
    assert repeated.args[0].data_ptr() == given.args[0].data_ptr()


def test_rows_are_padded_at_the_end():
    ids, lengths = padded([[1, 2, 3], [4]], None, torch.device("cpu"))
    assert ids.tolist() == [[1, 2, 3], [4, 0, 0]]
    assert lengths.tolist() == [3, 1]


def test_a_long_text_alone_is_refused_and_among_many_is_cut():
    bundle, text = text_model(), "a dog runs " * 4
    with pytest.raises(InputError, match="the text has 12 tokens: this model reads 7 at once"):
        read_input(bundle, text)
    with pytest.warns(CutNotice, match="text 2 of 2 is longer than the 7 tokens"):
        inputs = Inputs(bundle, ["a", text])
    assert [len(ids) for ids in inputs.items] == [1, 7]


CALLER = """
import warnings
import clearhead as ch
from clearhead.inputs import Inputs
from clearhead.tokens import Pair, Words

words = Words(["a", "dog"])
sizes = {"vocab": 6, "context": 7, "width": 12, "depth": 1, "heads": 3}
bert = ch.Bundle(ch.build("bert", **sizes, answer="sentence"), words)
classes = ch.Bundle(ch.build("bert", **sizes, answer="class", classes=2), words)
pairs = ch.Bundle(ch.build("transformer", **sizes), Pair(words, words))
long = "a dog " * 9

with warnings.catch_warnings(record=True) as caught:
    warnings.simplefilter("always")
    ch.embed(bert, long)
    ch.classify(classes, long)
    ch.translate(pairs, long)
    Inputs(pairs, [long])
for one in caught:
    print(one.category.__name__, one.filename, one.lineno)
"""


def test_the_notice_of_a_cut_names_the_line_of_the_caller(tmp_path):
    """In a process of its own: here the checks of signatures are between a function and its caller."""
    script = tmp_path / "caller.py"
    script.write_text(CALLER)
    first = CALLER.splitlines().index("    ch.embed(bert, long)") + 1
    out = subprocess.run([sys.executable, script], capture_output=True, text=True, check=True).stdout
    assert out.splitlines() == [f"CutNotice {script} {first + i}" for i in range(4)]


BARE = text_model().model.eval()


@pytest.mark.parametrize(
    ("call", "message"),
    [
        (lambda: read_input(text_model(), 3), "this GPT reads text: expected a string, got int"),
        (lambda: read_input(text_model(), ""), "the text is empty"),
        (lambda: read_input(text_model(), "a", target="b"), "no translator: expected a text without a target"),
        (lambda: read_input(text_model(), "a", tokenizer=str), "a Bundle has tokens of its own"),
        (lambda: read_input(BARE, "a"), "a bare GPT was given a str: expected a tensor with one row"),
        (lambda: read_input(BARE, torch.zeros(2, 3)), r"shapes \[\(2, 3\)\]: expected one row"),
        (lambda: read_input(BARE, {"ids": "a"}), "a str for this GPT: expected tensors by the names"),
        (lambda: Inputs(text_model(), []), "there is no data"),
        (lambda: Inputs(BARE, ["a"]), "a bare GPT reads tensors"),
        (lambda: Inputs(BARE, {"a": torch.zeros(2, 1), "b": torch.zeros(3, 1)}), r"tensors of \[2, 3\] rows"),
        (lambda: by_length([1], BARE, 0), "batch_tokens=0: expected 1 or more"),
    ],
)
def test_what_does_not_fit_is_a_sentence(call, message):
    with pytest.raises(InputError, match=message):
        call()
