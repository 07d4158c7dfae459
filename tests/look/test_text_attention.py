"""look.attention: the maps of one text with the pieces that name their rows and columns."""

import dataclasses

import numpy as np
import pytest
import torch

import clearhead
from clearhead import Bundle, watch
from clearhead.data.text.labelled import masked_ids
from clearhead.look import AttentionMap, attention
from clearhead.tokens import Characters, Pair, Words


@pytest.fixture(scope="module")
def everyday():
    return clearhead.load("everyday", device="cpu")


@pytest.fixture(scope="module")
def en_de():
    return clearhead.load("en-de", device="cpu")


def bert(tokens=None, **options) -> Bundle:
    torch.manual_seed(0)
    tokens = Words(["a", "cat", "sleeps"]) if tokens is None else tokens
    sizes = {"vocab": len(tokens), "context": 8, "width": 12, "depth": 2, "heads": 3}
    return Bundle(clearhead.build("bert", **{**sizes, **options}), tokens)


def test_a_language_model_has_a_map_of_self_attention_per_layer(everyday):
    text = "A dog runs over the field."
    result = attention(everyday, text)
    n = len(everyday.tokens.encode(text))
    assert "".join(result.pieces) == text
    assert list(result.maps) == ["self"]
    assert [map.shape for map in result.maps["self"]] == [(1, 5, n, n)] * 5
    assert result.labels("self") == (result.pieces, result.pieces)
    assert result.target is None
    with watch(everyday, "blocks.3.attn.weights") as tape:
        everyday(text)
    weights = result.maps["self"][3].dense()
    assert torch.equal(weights, tape["blocks.3.attn.weights"].dense())
    assert not weights.triu(1).any()  # causal


def test_an_encoder_sees_its_special_tokens_and_both_directions():
    bundle = bert()
    result = attention(bundle, "a cat sleeps")
    ids = bundle.tokens.encode("a cat sleeps")
    assert len(result.pieces) == len(ids) + 2
    assert [piece for piece in result.pieces if piece.strip() in ("a", "cat", "sleeps")] == result.pieces[1:-1]
    (first, second) = result.maps["self"]
    assert first.shape == second.shape == (1, 3, 5, 5)
    assert first.dense().triu(1).any()


def test_a_translator_has_maps_of_its_encoder_its_decoder_and_between_them(en_de):
    translation = clearhead.translate(en_de, "A dog runs.")
    result = attention(en_de, "A dog runs.", target=translation.text)
    assert result.pieces == translation.source
    assert result.target == translation.target
    source, target = len(translation.source), len(translation.target)
    shapes = {kind: {map.shape for map in maps} for kind, maps in result.maps.items()}
    assert shapes == {
        "encoder": {(1, 5, source, source)}, "decoder": {(1, 5, target, target)}, "cross": {(1, 5, target, source)},
    }  # fmt: skip
    cross = torch.stack([map.dense()[0] for map in result.maps["cross"]]).mean((0, 1)).numpy()
    np.testing.assert_allclose(cross, translation.alignment, atol=1e-5)
    assert result.labels("encoder") == (result.pieces, result.pieces)
    assert result.labels("decoder") == (result.target, ["<start>", *result.target[:-1]])
    assert result.labels("cross") == (result.target, result.pieces)


def test_a_recurrent_translator_has_cross_attention_only():
    bundle = clearhead.load("en-de-rnn", device="cpu")
    translation = clearhead.translate(bundle, "A dog runs.")
    result = attention(bundle, "A dog runs.", target=translation.text)
    assert list(result.maps) == ["cross"]
    (map,) = result.maps["cross"]
    np.testing.assert_allclose(map.dense()[0, 0].numpy(), translation.alignment, atol=1e-5)


def image(figure) -> np.ndarray:
    return np.asarray(figure.axes[0].get_images()[0].get_array())


def texts(labels) -> list[str]:
    return [label.get_text() for label in labels]


def test_a_figure_shows_one_layer_and_head_with_the_pieces_as_labels(everyday):
    result = attention(everyday, "A dog runs.")
    figure = result.figure(2, 1)
    axes = figure.axes[0]
    np.testing.assert_array_equal(image(figure), result.maps["self"][2].dense()[0, 1].numpy())
    assert texts(axes.get_yticklabels()) == texts(axes.get_xticklabels()) == result.pieces
    assert axes.get_title() == "self-attention, layer 2, head 1"
    mean = result.figure(2)
    np.testing.assert_allclose(image(mean), result.maps["self"][2].dense()[0].mean(0).numpy(), atol=1e-6)
    assert mean.axes[0].get_title() == "self-attention, layer 2, mean over heads"


def test_a_figure_of_a_translator_shows_cross_attention_unless_a_kind_is_named(en_de):
    result = attention(en_de, "A dog runs.", target="Ein Hund rennt.")
    axes = result.figure(0, 0).axes[0]
    assert axes.get_title() == "cross-attention, layer 0, head 0"
    assert texts(axes.get_yticklabels()) == result.target
    assert texts(axes.get_xticklabels()) == result.pieces
    decoder = result.figure(0, 0, kind="decoder").axes[0]
    assert decoder.get_title() == "self-attention of the decoder, layer 0, head 0"
    assert texts(decoder.get_xticklabels())[0] == "<start>"


def test_a_figure_of_what_is_not_there_says_what_is(en_de):
    result = attention(en_de, "A dog runs.", target="Ein Hund rennt.")
    layers = len(result.maps["cross"])
    with pytest.raises(ValueError, match="kind='cros': expected one of encoder, decoder, cross; the nearest is cross"):
        result.figure(0, kind="cros")
    with pytest.raises(IndexError, match=f"layer {layers}: there are {layers}, counted from 0"):
        result.figure(layers)
    with pytest.raises(IndexError, match="head 5: there are 5, counted from 0"):
        result.figure(0, 5)


def test_it_changes_nothing_and_is_itself_watched(everyday):
    before = everyday("A dog runs.")
    with watch(everyday, "blocks.0.attn.weights") as tape:
        result = attention(everyday, "A dog runs.")
    assert torch.equal(tape["blocks.0.attn.weights"].dense(), result.maps["self"][0].dense())
    assert torch.equal(everyday("A dog runs."), before)
    assert isinstance(result.maps["self"][0], AttentionMap)
    with pytest.raises(dataclasses.FrozenInstanceError):
        result.pieces = []


def rnn(attention: str) -> Bundle:
    pair = Pair(Words(["a"]), Words(["b"]))
    options = {"width": 8, "hidden": 8, "depth": 1, "attention": attention}
    model = clearhead.build("rnn-seq2seq", vocab=len(pair.source), target_vocab=len(pair.target), **options)
    return Bundle(model, pair)


def gpt(tokens=None) -> Bundle:
    return Bundle(clearhead.build("gpt", vocab=3, context=4, width=8, depth=1, heads=2), tokens)


WRONG = {
    "no attention": (
        lambda: attention(rnn("none"), "a", target="b"),
        "this RNNSeq2Seq has no attention to show: expected a gpt, a bert, a transformer, or an rnn-seq2seq whose",
    ),
    "no attention and no tokens": (
        lambda: attention(clearhead.build("mlp", inputs=2, outputs=2), "a"), "has no attention to show",
    ),
    "no tokens": (
        lambda: attention(gpt(), "a"), r"this GPT has no tokens: expected a Bundle with tokens, .* watch\(model, 'bl",
    ),
    "a model without a bundle": (lambda: attention(gpt().model, "a"), "this GPT has no tokens"),
    "no target": (lambda: attention(rnn("additive"), "a"), "is a translator: expected a text and its translation"),
    "a target too much": (lambda: attention(gpt(Characters("abc")), "a", target="b"), "this GPT is no translator"),
    "an empty text": (lambda: attention(gpt(Characters("abc")), ""), "the text is empty"),
    "a long text": (lambda: attention(gpt(Characters("abc")), "abcab"), "the text has 5 tokens: this model reads 4"),
}  # fmt: skip


@pytest.mark.parametrize("what", WRONG)
def test_an_error_says_what_was_expected(what):
    run, message = WRONG[what]
    with pytest.raises(ValueError, match=message):
        run()


@pytest.mark.parametrize("text", ["The capital of France is [MASK].", "The capital of France is <mask>."])
def test_a_mask_is_read_as_fill_reads_it(text):
    cloze = clearhead.load("cloze", device="cpu")
    result = attention(cloze, text)
    assert result.pieces == ["<start>", "The", " capital", " of", " France", " is", "[MASK]", ".", "<end>"]
    ids = torch.from_numpy(masked_ids(cloze.tokens, text)[0])[None]
    with torch.no_grad(), watch(cloze, "blocks.3.attn.weights") as tape:
        cloze.model(ids)
    torch.testing.assert_close(result.maps["self"][3].dense(), tape["blocks.3.attn.weights"].dense())
