"""Effects of heads: all in one call, and equal to silencing one head after another."""

import itertools

import numpy as np
import pytest
import torch

import clearhead as ch
from clearhead.look import HeadEffects, head_effects, silence, targets
from clearhead.look.causes import head_effects as ablation
from clearhead.tokens import Characters, Pair, Words

TEXT = "abcaab"


def wide(name, tokens, **options):
    torch.manual_seed(0)
    model = ch.build(name, width=12, heads=3, depth=2, **options).double()
    return ch.Bundle(model, tokens)


@pytest.fixture
def gpt():
    return wide("gpt", Characters("abc"), vocab=3, context=16)


@pytest.fixture
def translator():
    source, target = Words(["a", "dog", "runs"]), Words(["ein", "Hund", "rennt"])
    return wide("transformer", Pair(source, target), vocab=7, target_vocab=7, context=16)


def one_by_one(bundle, address, head, ids, targets, **inputs):
    """The log-probabilities of targets with one head silenced."""
    with torch.no_grad(), ch.edit(bundle, {address: silence([head])}):
        logits = bundle.model(ids, **inputs)[0]
    return logits.log_softmax(-1).gather(1, targets[:, None])[:, 0]


@pytest.mark.parametrize("room", [5, 1 << 12], ids=["a head at a time", "all heads of a layer"])
def test_effects_of_a_language_model_equal_silencing_one_head_after_another(gpt, monkeypatch, room):
    monkeypatch.setattr(targets, "ROW_TOKENS", room)
    monkeypatch.setattr(ablation, "LOGITS", 7)
    found = head_effects(gpt, TEXT)
    ids = torch.from_numpy(gpt.tokens.encode(TEXT))[None]
    score = ch.score(gpt, TEXT)
    assert found.tokens == list(TEXT[1:])
    assert found.logprobs.tolist() == pytest.approx(score.logprobs[1:], abs=1e-6)
    assert (found.kind, found.change.shape, found.change.dtype) == ("self", (2, 3, 5), torch.float64)
    for layer in range(2):
        for head in range(3):
            after = one_by_one(gpt, f"blocks.{layer}.attn.heads", head, ids[:, :-1], ids[0, 1:])
            torch.testing.assert_close(found.change[layer, head], after - found.logprobs, rtol=0, atol=1e-12)
    assert found.change.abs().min(-1).values.max() > 0
    torch.testing.assert_close(found.total, found.mean * 5)


@pytest.mark.parametrize(("kind", "address"), [
    (None, "decoder.blocks.{}.cross.heads"), ("encoder", "encoder.blocks.{}.attn.heads"),
    ("decoder", "decoder.blocks.{}.attn.heads"),
])  # fmt: skip
def test_effects_of_a_translator_are_those_on_its_target(translator, kind, address):
    found = head_effects(translator, "a dog runs", target="ein Hund", kind=kind)
    assert (found.kind, found.tokens) == (kind or "cross", ["ein", "Hund", "<end>"])
    source = torch.from_numpy(translator.tokens.read("a dog runs"))[None]
    written = torch.from_numpy(translator.tokens.written("ein Hund"))
    ids = torch.cat([torch.tensor([translator.tokens.target.start]), written[:-1]])[None]
    for layer in range(2):
        for head in range(3):
            after = one_by_one(translator, address.format(layer), head, ids, written, source=source)
            torch.testing.assert_close(found.change[layer, head], after - found.logprobs, rtol=0, atol=1e-12)


@pytest.mark.parametrize("answer", ["words", "sentence"])
def test_effects_of_an_encoder_are_changes_of_its_vectors(answer):
    bundle = wide("bert", Words(["a", "dog", "runs"]), vocab=8, context=8, answer=answer)
    found = head_effects(bundle, "a dog runs")
    assert found.logprobs is None
    assert found.tokens == ["<start>", "a", "dog", "runs", "<end>"]
    ids = torch.tensor([[1, 4, 5, 6, 2]])
    with torch.no_grad():
        before = bundle.model.encode(ids)[0]
        with ch.edit(bundle, {"blocks.1.attn.heads": silence([2])}):
            after = bundle.model.encode(ids)[0]
    want = (after - before).norm(dim=-1) / before.norm(dim=-1)
    torch.testing.assert_close(found.change[1, 2], want, rtol=0, atol=1e-12)
    assert (found.change > 0).all()


def test_effects_of_recurrent_networks_and_of_grouped_heads():
    rnn = head_effects(ch.load("en-de-rnn", device="cpu"), "A dog runs.", target="Ein Hund rennt.")
    assert rnn.change.shape == (1, 1, 5)
    assert rnn.mean < -1  # without its only attention it does not know the source
    grouped = wide("gpt", Characters("abc"), vocab=3, context=16, kv_heads=1)
    assert head_effects(grouped, TEXT).change.shape == (2, 3, 5)


def test_effects_on_a_class_of_images_and_of_texts(monkeypatch):
    monkeypatch.setattr(targets, "ROW_TOKENS", 10)  # two rows of 5 tokens at a time
    torch.manual_seed(0)
    vit = ch.build("vit", classes=4, size=32, patch=16, width=12, depth=2, heads=3).double()
    preprocessing = ch.load("vit-cifar10", device="cpu").preprocessing
    bundle = ch.Bundle(vit, labels=("a", "b", "c", "d"), preprocessing=preprocessing)
    picture, calls = np.random.default_rng(0).integers(0, 255, (32, 32, 3), dtype=np.uint8), []
    found = head_effects(bundle, picture, target="c", done=lambda *x: calls.append(x))
    pixels = bundle.pixels(picture)[None].double()
    before = vit(pixels)[0].log_softmax(-1)[2].detach()
    assert (found.tokens, found.change.shape, calls) == (["c"], (2, 3, 1), [(1, 2), (2, 2)])
    for layer, head in itertools.product(range(2), range(3)):
        with torch.no_grad(), ch.edit(bundle, {f"blocks.{layer}.attn.heads": silence([head])}):
            want = vit(pixels)[0].log_softmax(-1)[2] - before
        torch.testing.assert_close(found.change[layer, head, 0], want, rtol=0, atol=1e-12)
    assert head_effects(bundle, picture).tokens == [ch.classify(bundle, picture, top=1)[0][0]]
    assert found.to_dict()["mean"] == found.mean.tolist()
    assert found.__rich__().row_count == 2
    assert found.figure().axes
    bert = wide("bert", Words(["a", "dog"]), vocab=7, context=8, answer="class", classes=2)
    texts = head_effects(bert, "a dog", target="1")
    assert texts.logprobs.exp().tolist() == pytest.approx([dict(ch.classify(bert, "a dog"))["1"]], abs=1e-6)
    assert head_effects(bert, "a dog").logprobs is None  # without a class, of its vectors as before
    with pytest.raises(ValueError, match="target='e': expected one of a, b, c, d"):
        head_effects(bundle, picture, target="e")
    with pytest.raises(ValueError, match="'self'-attention only"):
        head_effects(bundle, picture, kind="cross")
    with pytest.raises(ValueError, match="this ResNet has no attention"):
        head_effects(ch.load("resnet-cifar10", device="cpu"), picture)


def test_the_model_is_unchanged_and_progress_is_reported(gpt):
    before, calls = gpt(TEXT), []
    assert isinstance(head_effects(gpt, TEXT, done=lambda *progress: calls.append(progress)), HeadEffects)
    assert torch.equal(gpt(TEXT), before)
    assert calls == [(1, 2), (2, 2)]


def test_what_cannot_be_measured_is_a_sentence(gpt, translator):
    with pytest.raises(ValueError, match="one token, whose probability depends on nothing"):
        head_effects(gpt, "a")
    with pytest.raises(ValueError, match="17 tokens: this model reads 16"):
        head_effects(gpt, "a" * 17)
    with pytest.raises(ValueError, match="no translator"):
        head_effects(gpt, "a", target="b")
    with pytest.raises(ValueError, match="kind='cros': expected one of encoder, decoder, cross; the nearest is cross"):
        head_effects(translator, "a dog", target="ein", kind="cros")
    with pytest.raises(ValueError, match="is a translator"):
        head_effects(translator, "a dog")
    with pytest.raises(ValueError, match="has no attention"):
        head_effects(ch.build("mlp", inputs=2, outputs=2), "a")
