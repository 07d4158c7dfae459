"""A model with weights in 8 bits: loaded so, or made so; for a CPU, and not to be saved."""

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


def test_loaded_in_8_bits_is_rounded_after_loading(tmp_path):
    made = bundle()
    ch.save(made, tmp_path / "x")
    loaded, rounded = ch.load(tmp_path / "x", dtype="int8"), ch.quantise(made)
    assert torch.equal(loaded("abc"), rounded("abc"))
    assert 0 < float((loaded("abc") - made("abc")).abs().max()) < 0.05
    assert (loaded.config, loaded.tokens) == (made.config, made.tokens)
    assert loaded.device.type == "cpu"
    assert len(ch.generate(loaded, "ab", max_new=5).pieces) == 5
    assert ch.likelihood(loaded, "abcdef").perplexity == pytest.approx(
        ch.likelihood(made, "abcdef").perplexity, rel=0.01
    )


def test_it_is_for_a_cpu_and_is_not_saved(tmp_path):
    rounded = ch.quantise(bundle())
    with pytest.raises(ValueError, match="rounded weights is not saved"):
        ch.save(rounded, tmp_path / "y")
    elsewhere = bundle()
    elsewhere.model.to("meta")
    with pytest.raises(ValueError, match="for a CPU, and this model is on meta"):
        ch.quantise(elsewhere)
