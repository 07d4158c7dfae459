"""Likelihood and evaluation hold the logits of few tokens at a time, and the result does not depend on how many."""

import pytest
import torch

from clearhead import Bundle, build
from clearhead.tasks import evaluate, likelihood, text
from clearhead.tokens import Characters

TEXT = "the cat sat on the mat and looked at the dog. " * 8


@pytest.fixture
def bundle():
    torch.manual_seed(0)
    tokens = Characters.of(TEXT)
    model = build("gpt", vocab=len(tokens), context=128, width=12, depth=1, heads=3)
    return Bundle(model, tokens, model.config)


@pytest.mark.parametrize("verb", ["likelihood", "evaluate"])
def test_logits_of_few_tokens_are_held_at_a_time(bundle, verb, monkeypatch, tmp_path):
    (tmp_path / "text.txt").write_text(TEXT)

    def value():
        return (
            likelihood(bundle, TEXT).logprob if verb == "likelihood" else evaluate(bundle, tmp_path / "text.txt").loss
        )

    most = []
    bundle.model.head.register_forward_hook(lambda module, x, out: most.append(out.numel()))
    whole = value()
    assert max(most) > 100 * len(bundle.tokens)
    most.clear()
    monkeypatch.setattr(text, "LOGITS", 10 * len(bundle.tokens))
    assert value() == pytest.approx(whole, rel=1e-6)
    assert max(most) <= 10 * len(bundle.tokens)
