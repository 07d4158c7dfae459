"""Attention against effect: removing a key equals a mask without it, and the correlations are scipy's definitions."""

import numpy as np
import pytest
import torch
from transformers import BertConfig, BertForSequenceClassification

import clearhead as ch
from clearhead.errors import Notice
from clearhead.look import attention_effects, targets
from clearhead.look.causes.attention_effects import correlation, ranks
from support import foreign_models

IDS = torch.tensor([[1, 2, 3, 4, 0]])


def masked(model, address, head, query, key, ids, target):
    """The change of the answer if one query of one head has no such key, by its scores."""

    def without(scores):
        scores = scores.clone()
        scores[:, head, query, key] = float("-inf")
        return scores

    with torch.no_grad():
        before = model(ids)[0, -1].log_softmax(-1)[target]
        with pytest.warns(Notice, match="explicitly"), ch.edit(model, {address: without}):
            return model(ids)[0, -1].log_softmax(-1)[target] - before


@pytest.mark.parametrize("options", [{}, {"kv_heads": 1, "positions": "rotary"}], ids=["plain", "grouped"])
def test_removing_a_key_equals_a_mask_without_it(options, monkeypatch):
    monkeypatch.setattr(targets, "ROW_TOKENS", 35)  # seven rows at a time
    torch.manual_seed(0)
    model = ch.build("gpt", vocab=5, context=8, width=12, depth=2, heads=3, **options).double().eval()
    for p in model.parameters():
        torch.nn.init.normal_(p, std=0.4)
    calls = []
    for query in (4, 2):
        result = attention_effects(model, IDS, target=3, query=query, done=lambda *x: calls.append(x))
        assert result.allowed.tolist() == list(range(query + 1))
        for layer, head, key in [(0, 0, 0), (0, 2, 1), (1, 1, 2), (1, 2, 0)]:
            want = masked(model, f"blocks.{layer}.attn.scores", head, query, key, IDS, 3)
            assert result.change[layer, head, key] == pytest.approx(float(want), abs=1e-6)
        assert (result.change[..., query + 1 :] == 0).all()
    assert attention_effects(model, IDS, target=3).query == 4  # the position of the answer
    assert sum(new for new, _ in calls) == 2 * 3 * 5 + 2 * 3 * 3


def test_a_key_that_a_window_hides_in_the_first_layer_alone_is_removed_from_the_others():
    torch.manual_seed(0)
    options = {"width": 12, "depth": 2, "heads": 3, "window": 2, "full_every": 2, "positions": "rotary"}
    model = ch.build("gpt", vocab=5, context=8, **options).double().eval()
    for p in model.parameters():
        torch.nn.init.normal_(p, std=0.4)
    result = attention_effects(model, IDS, target=3)
    assert result.allowed.tolist() == [0, 1, 2, 3, 4]
    assert result.change[0, :, :3].abs().max() < 1e-12  # block 0 attends to two keys
    want = masked(model, "blocks.1.attn.scores", 1, 4, 0, IDS, 3)
    assert result.change[1, 1, 0] == pytest.approx(float(want), abs=1e-6)


def test_a_head_that_loses_its_only_key_has_no_output():
    torch.manual_seed(0)
    model = ch.build("gpt", vocab=5, context=8, width=12, depth=1, heads=3).double().eval()
    result = attention_effects(model, IDS[:, :1], target=3)
    with torch.no_grad(), ch.edit(model, {"blocks.0.attn.heads": ch.look.silence([1])}):
        want = model(IDS[:, :1])[0, -1].log_softmax(-1)[3]
    with torch.no_grad():
        want = want - model(IDS[:, :1])[0, -1].log_softmax(-1)[3]
    assert result.change[0, 1, 0] == pytest.approx(float(want), abs=1e-6)
    assert (result.pearson == 0).all()  # one key has no correlation


def test_models_without_a_query_of_the_answer_lose_the_key_in_all_queries():
    torch.manual_seed(0)
    model = ch.build("vit", classes=4, size=8, patch=4, width=12, depth=1, heads=3, pool="mean").double().eval()
    image = torch.randn(1, 3, 8, 8, dtype=torch.float64)
    result = attention_effects(model, image, target=1)
    assert result.query is None

    def without(scores):
        scores = scores.clone()
        scores[:, 2, :, 3] = float("-inf")
        return scores

    with torch.no_grad():
        before = model(image)[0].log_softmax(-1)[1]
        with pytest.warns(Notice, match="explicitly"), ch.edit(model, {"blocks.0.attn.scores": without}):
            want = model(image)[0].log_softmax(-1)[1] - before
    assert result.change[0, 2, 3] == pytest.approx(float(want), abs=1e-6)
    model = ch.build("vit", classes=4, size=8, patch=4, width=12, depth=1, heads=3).double().eval()
    assert attention_effects(model, image, target=1).query == 0  # the class token


@pytest.mark.parametrize("name", ["gpt2", "llama"])
def test_models_of_transformers(name):
    model, ids = foreign_models.build(name).double(), foreign_models.inputs(name)["input_ids"][:1]
    result = attention_effects(model, {"input_ids": ids}, target=9)
    assert result.weights.sum(-1) == pytest.approx(torch.ones(result.pearson.shape), abs=1e-5)
    assert result.change.abs().amax(-1).min() > 0


def test_correlations_are_those_of_numpy_and_ties_share_their_ranks():
    x, y = torch.randn(2, 3, 9, dtype=torch.float64)
    want = [np.corrcoef(a, b)[0, 1] for a, b in zip(x.numpy(), y.numpy(), strict=True)]
    assert correlation(x, y).tolist() == pytest.approx(want, abs=1e-6)
    assert ranks(torch.tensor([3.0, 1.0, 3.0, 2.0])).tolist() == [3.5, 1.0, 3.5, 2.0]
    assert correlation(torch.ones(4), torch.arange(4.0)) == 0


def test_the_correlations_of_heads_are_those_of_scipy():
    result = attention_effects(ch.load("everyday", device="cpu"), "A man is standing in the", target=" street")
    from scipy import stats

    for layer, head in [(0, 1), (4, 4)]:
        w, c = result.weights[layer, head].numpy(), result.change[layer, head].abs().numpy()
        assert result.pearson[layer, head] == pytest.approx(stats.pearsonr(w, c)[0], abs=1e-5)
        assert result.spearman[layer, head] == pytest.approx(stats.spearmanr(w, c)[0], abs=1e-5)
    assert result.to_dict()["tokens"] == result.tokens
    assert result.__rich__().row_count == 5
    assert result.figure().axes


def test_a_foreign_classifier_of_texts_is_asked_at_all_queries():
    """Its answer is read from a token that is not known: at the last one nothing would change in the last layer."""
    torch.manual_seed(0)
    sizes = {"hidden_size": 16, "num_hidden_layers": 2, "num_attention_heads": 2, "intermediate_size": 20}
    bert = BertForSequenceClassification(BertConfig(**sizes, vocab_size=30, max_position_embeddings=8)).eval()
    result = attention_effects(bert, {"input_ids": torch.tensor([[5, 9, 2, 7]])}, target=1)
    assert result.query is None
    assert (result.change[-1].abs() > 0).all()
    with pytest.raises(ValueError, match="counted from 0"):
        attention_effects(bert, {"input_ids": torch.tensor([[5, 9, 2, 7]])}, target=1, query=4)
