"""The logit lens against the norm and the output layer applied by hand to every layer."""

import numpy as np
import pytest
import torch

import clearhead as ch
from clearhead.look import logit_lens
from clearhead.look.causes import logit_lens as lens
from clearhead.tokens import Characters, Words
from support import foreign_models

TEXT = "abcaab"


@pytest.fixture
def gpt():
    torch.manual_seed(0)
    model = ch.build("gpt", vocab=3, context=16, width=12, heads=3, depth=3).double()
    return ch.Bundle(model, Characters("abc"))


@pytest.mark.parametrize("most", [1, 1 << 24], ids=["a position at a time", "all at once"])
def test_every_layer_and_position_of_a_language_model(gpt, monkeypatch, most):
    monkeypatch.setattr(lens, "LOGITS", most)
    result = logit_lens(gpt, TEXT, top=2)
    model, ids = gpt.model, torch.from_numpy(gpt.tokens.encode(TEXT))[None]
    x = model.positions.add(model.embed(ids), torch.arange(6))
    final = model(ids)[0].log_softmax(-1).detach()
    assert result.tokens == list(TEXT)
    for i, block in enumerate(model.blocks):
        x = block(x, mask=ch.layers.Mask(causal=True), positions=model.positions, at=torch.arange(6))
        logp = model.head(model.norm(x))[0].log_softmax(-1).detach()
        for t in range(6):
            p, order = logp[t].exp().sort(descending=True)
            assert [name for name, _ in result.top[i][t]] == ["abc"[k] for k in order[:2].tolist()]
            assert [share for _, share in result.top[i][t]] == pytest.approx(p[:2].tolist(), abs=1e-9)
            assert result.rank[i, t] == order.tolist().index(int(final[t].argmax()))
        kl = torch.nn.functional.kl_div(logp, final, reduction="none", log_target=True).sum(-1)
        torch.testing.assert_close(result.divergence[i], kl, rtol=0, atol=1e-9)
        torch.testing.assert_close(result.entropy[i], -(logp.exp() * logp).sum(-1), rtol=0, atol=1e-9)
    assert (result.rank[-1] == 0).all()


def test_one_position_by_replacing_the_last_layer_equals_all_positions(gpt):
    one, whole = logit_lens(gpt, TEXT, at=2), logit_lens(gpt, TEXT)
    torch.testing.assert_close(one.divergence[:, 0], whole.divergence[:, 2], rtol=0, atol=1e-9)
    assert one.tokens == ["c"]


def test_the_figure_shows_the_likeliest_answer_of_every_cell(gpt, monkeypatch):
    result = logit_lens(gpt, TEXT)
    axes, bar = result.figure().axes
    assert [text.get_text() for text in axes.texts] == [cell[0][0] for row in result.top for cell in row]
    assert axes.get_title().startswith("Logit lens")
    assert [label.get_text() for label in axes.get_yticklabels()] == ["0", "1", "2 (model)"]
    assert "KL" in bar.get_ylabel()
    monkeypatch.setattr(lens, "MOST_WORDS", 5)
    assert not result.figure().axes[0].texts


def test_classifiers_encoders_translators_and_foreign_models():
    picture = np.random.default_rng(0).integers(0, 255, (32, 32, 3), dtype=np.uint8)
    vit = ch.load("vit-cifar10", device="cpu")
    result = logit_lens(vit, picture, top=1)
    assert (result.tokens, result.rank.shape) == (["class"], (9, 1))
    assert result.top[-1][0][0][0] == ch.classify(vit, picture, top=1)[0][0]
    with torch.no_grad(), ch.watch(vit, "blocks.3") as tape:
        vit(picture)
    want = vit.model.head(vit.model.norm(tape["blocks.3"])[:, 0]).softmax(-1).max()
    assert result.top[3][0][0][1] == pytest.approx(float(want.detach()), abs=1e-5)
    torch.manual_seed(0)
    bert = ch.Bundle(ch.build("bert", vocab=8, width=12, depth=2, heads=3, context=8), Words(["a", "dog", "runs"]))
    assert logit_lens(bert, "a [MASK] runs").tokens == ["[MASK]"]
    translated = logit_lens(ch.load("fr-en", device="cpu"), "Un chien noir court.", written="A black", top=1)
    assert translated.top[-1][0][0][0] == " dog"
    model = foreign_models.build("llama")
    found = logit_lens(model, {"input_ids": foreign_models.inputs("llama")["input_ids"][:1]})
    assert found.rank.shape == (2, len(found.tokens))
    assert found.divergence[-1].abs().max() < 1e-6


def test_results_are_plain_values_and_a_figure_and_bad_options_sentences(gpt):
    result = logit_lens(gpt, TEXT)
    assert result.to_dict()["rank"] == result.rank.tolist()
    assert result.figure().axes
    with pytest.raises(ValueError, match="top=0: expected 1 or more"):
        logit_lens(gpt, TEXT, top=0)
