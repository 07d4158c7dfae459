"""Bundle: a model with its tokenizer or image preprocessing, called with a text or an image."""

import numpy as np
import pytest
import torch

import clearhead as ch
from clearhead.data.images.preprocessing import Preprocessing
from clearhead.tokens import Pair, Words
from clearhead.weights import Bundle, Special
from support.image_models import pixels_model
from support.letters import TEXT, TOKENS, build


def test_calling_a_bundle_with_a_text_returns_the_logits_after_each_token():
    bundle, model = Bundle(build(), TOKENS), build().eval()
    logits = bundle(TEXT)
    assert logits.shape == (len(TEXT), len(TOKENS))
    assert not logits.requires_grad
    assert torch.equal(logits, model(torch.from_numpy(TOKENS.encode(TEXT))[None])[0])
    with ch.watch(bundle, "blocks.*.attn.weights") as tape:
        assert torch.equal(bundle(TEXT), logits)
    assert tape["blocks.0.attn.weights"].shape == (1, 3, len(TEXT), len(TEXT))


def test_texts_that_cannot_be_read_are_refused():
    bundle = Bundle(build(), TOKENS)
    with pytest.raises(ValueError, match="the text is empty"):
        bundle("")
    with pytest.raises(ValueError, match="the text has 21 tokens: this model reads 20 at once"):
        bundle("o" * 21)
    with pytest.raises(ValueError, match="'x' at 1"):
        bundle("oxo")
    with pytest.raises(ValueError, match="this GPT reads text: expected a string, got int"):
        bundle(3)
    with pytest.raises(ValueError, match="this GPT reads no images: expected a model with image preprocessing"):
        bundle.pixels("cat.png")


def test_a_window_without_a_table_of_positions_reads_texts_of_any_length():
    bundle = Bundle(build(positions="rotary", window=5), TOKENS)
    assert bundle.max_tokens is None
    assert bundle("o" * 50).shape == (50, len(TOKENS))


def test_models_without_one_tokenizer_read_no_text():
    with pytest.raises(ValueError, match="this Deep reads vectors: expected a model that reads text"):
        Bundle(ch.build("deep", width=3))("a")
    with pytest.raises(ValueError, match="this Pictured reads images: expected a model that reads text"):
        Bundle(pixels_model(), preprocessing=Preprocessing(resize=8)).tokenizer()
    with pytest.raises(ValueError, match="this GPT has no tokenizer: expected a model that reads text"):
        Bundle(build())("a")
    words = Words.of(["a dog"])
    with pytest.raises(ValueError, match="this Reader reads pairs of texts: expected a model with one tokenizer"):
        Bundle(ch.build("reader", vocab=9), Pair(words, words))("a dog")


def test_dropout_is_off():
    bundle = Bundle(build(dropout=0.5).train(), TOKENS)
    assert torch.equal(bundle(TEXT), bundle(TEXT))


def test_config_and_special_ids_default_to_those_of_model_and_tokenizer(tmp_path):
    words = Words.of(["a dog", "the cat"])
    model = ch.build("gpt", vocab=len(words), width=6, depth=1, heads=3, context=20)
    bundle = Bundle(model, words, None)
    assert bundle.config == model.config
    assert bundle.special == Special(pad=words.pad, start=words.start, ends=(words.end,))
    loaded = ch.load(ch.save(bundle, tmp_path), device="cpu")
    assert (loaded.config, loaded.special, loaded.tokens) == (bundle.config, bundle.special, bundle.tokens)
    assert Special.of(Pair(Words.of(["a"]), words)) == bundle.special
    assert Special.of(None) == Special()


def test_an_empty_prompt_becomes_bos_or_eos():
    assert Bundle(build(), TOKENS, special=Special(start=1, ends=(2, 3))).prompt("") == [1]
    assert Bundle(build(), TOKENS, special=Special(ends=(2, 3))).prompt("") == [2]
    assert Bundle(build(), TOKENS).prompt("to") == TOKENS.encode("to").tolist()
    with pytest.raises(ValueError, match="the prompt is empty, and the model has no BOS or EOS token"):
        Bundle(build(), TOKENS).prompt("")


def test_a_missing_capability_is_named():
    bundle = Bundle(build(), TOKENS)
    bundle.require("generate", "a language model")
    with pytest.raises(ValueError, match="this GPT cannot translate: expected a translator"):
        bundle.require("translate", "a translator")


def test_calling_a_bundle_with_an_image_preprocesses_it():
    bundle = Bundle(pixels_model(), preprocessing=Preprocessing(resize=8, crop=(6, 7)))
    image = np.random.default_rng(0).integers(0, 256, (10, 14, 3), dtype=np.uint8)
    pixels = bundle.pixels(image)
    assert pixels.shape == (3, 6, 7)
    assert torch.equal(bundle(image), bundle.model(pixels[None])[0])
    half = Bundle(pixels_model().bfloat16(), preprocessing=bundle.preprocessing)
    assert half(image).dtype == torch.bfloat16


def test_a_bundle_without_preprocessing_or_file_says_what_an_image_model_reads():
    with pytest.raises(ValueError, match="this Pictured has no image preprocessing: expected a model with image"):
        Bundle(pixels_model())(np.zeros((8, 8, 3), np.uint8))
    bundle = Bundle(pixels_model(), preprocessing=Preprocessing(resize=8))
    for text in ("a good film", "x" * 5000):
        with pytest.raises(FileNotFoundError, match="no such file, and this Pictured reads images: expected a path"):
            bundle(text)


def test_a_bundle_is_shown_in_one_line(tmp_path):
    model = ch.build("gpt", vocab=3, context=8, width=8, depth=1, heads=2)
    size = sum(p.numel() for p in model.parameters())
    assert repr(ch.Bundle(model)) == f"Bundle(GPT, {size:,} parameters, can {', '.join(sorted(model.can))})"
    ch.save(model, tmp_path, tokens=ch.tokens.Characters("abc"))
    assert repr(ch.load(tmp_path)).endswith(f", from {str(tmp_path)!r})")
