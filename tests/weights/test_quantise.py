"""8-bit weights: by load(dtype="int8") or by quantise; for a CPU only, and not for saving."""

import pytest
import torch

import clearhead as ch
from clearhead.tokens import Characters
from clearhead.weights import Bundle

TOKENS = Characters.of("abcdef ")


def bundle() -> Bundle:
    torch.manual_seed(0)
    model = ch.build("gpt", vocab=len(TOKENS), width=32, depth=1, heads=4, context=32)
    return Bundle(model, TOKENS, model.config)


def test_loading_as_int8_equals_quantising_after_loading(tmp_path):
    original = bundle()
    ch.save(original, tmp_path / "x")
    loaded, rounded = ch.load(tmp_path / "x", dtype="int8"), ch.quantise(original)
    assert torch.equal(loaded("abc"), rounded("abc"))
    assert 0 < float((loaded("abc") - original("abc")).abs().max()) < 0.05
    assert (loaded.config, loaded.tokens) == (original.config, original.tokens)
    assert loaded.device.type == "cpu"
    assert len(ch.generate(loaded, "ab", max_new=5).pieces) == 5
    assert ch.likelihood(loaded, "abcdef").perplexity == pytest.approx(
        ch.likelihood(original, "abcdef").perplexity, rel=0.01
    )


def test_8_bit_weights_are_for_a_cpu_and_cannot_be_saved(tmp_path):
    rounded = ch.quantise(bundle())
    with pytest.raises(ValueError, match="rounded weights is not saved"):
        ch.save(rounded, tmp_path / "y")
    elsewhere = bundle()
    elsewhere.model.to("meta")
    with pytest.raises(ValueError, match="8-bit weights are for a CPU, and this model is on meta"):
        ch.quantise(elsewhere)
