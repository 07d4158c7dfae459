"""Rollout and its gradient-weighted form against references written out in float64, for our models and foreign ones."""

import sys

import pytest
import torch
from torch import nn
from transformers import ViTConfig, ViTForImageClassification

import clearhead as ch
from clearhead.look import gradient_rollout, rollout, saliency, watch
from support.class_tokens import ours, pixels

CLOSE = {"rtol": 1e-9, "atol": 1e-12}
EAGER = {"rtol": 1e-6, "atol": 1e-7}  # the softmax of eager attention in transformers is of float32


def theirs():
    torch.manual_seed(0)
    config = ViTConfig(
        hidden_size=24, num_hidden_layers=3, num_attention_heads=3, intermediate_size=30, image_size=16, patch_size=4,
        num_labels=4, attn_implementation="sdpa",
    )  # fmt: skip
    return ViTForImageClassification(config).double().eval()


def attentions(model, x):
    """The weights of a model of transformers from its eager attention, which keep gradients."""
    model.set_attn_implementation("eager")
    out = model(x, output_attentions=True)
    return out.attentions, out.logits


def rolled(maps, residual, fusion):
    """Abnar and Zuidema 2020, section 3, with loops."""
    result = None
    for weights in maps:
        fused = {"mean": weights.mean(1), "max": weights.amax(1), "min": weights.amin(1)}[fusion]
        fused = fused / fused.sum(-1, keepdim=True)
        mixed = torch.zeros_like(fused)
        for i in range(fused.shape[-1]):
            mixed[:, i] = (1 - residual) * fused[:, i]
            mixed[:, i, i] += residual
            mixed[:, i] /= mixed[:, i].sum(-1, keepdim=True)
        result = mixed if result is None else torch.bmm(mixed, result)
    return result


def chefer(maps, gradients):
    """Chefer et al. 2021 (ICCV), Eq. 5 and 6, with loops."""
    n = maps[0].shape[-1]
    relevance = torch.eye(n, dtype=torch.float64)
    for weights, slope in zip(maps, gradients, strict=True):
        mean = torch.zeros(n, n, dtype=torch.float64)
        for head in range(weights.shape[1]):
            mean += (weights[0, head] * slope[0, head]).clamp(min=0) / weights.shape[1]
        relevance = relevance + mean @ relevance
    return relevance


@pytest.mark.parametrize("fusion", ["mean", "max", "min"])
@pytest.mark.parametrize("residual", [0.5, 0.0, 0.8])
def test_rollout_is_the_product_of_mixed_maps(fusion, residual):
    model, x = ours(registers=1), pixels().repeat(2, 1, 1, 1) * torch.tensor([1.0, -0.5])[:, None, None, None]
    with torch.no_grad(), watch(model, "blocks.*.attn.weights") as tape:
        model(x)
    dense = [tape[f"blocks.{i}.attn.weights"].dense() for i in range(3)]
    found = rollout(tape, residual=residual, fusion=fusion)
    torch.testing.assert_close(found, rolled(dense, residual, fusion), **CLOSE)
    torch.testing.assert_close(found.sum(-1), torch.ones(2, 18, dtype=torch.float64))
    some = [tape["blocks.1.attn.weights"], tape["blocks.2.attn.weights"]]
    found = rollout(some, residual=residual, fusion=fusion)
    torch.testing.assert_close(found, rolled(dense[1:], residual, fusion), **CLOSE)


@pytest.mark.filterwarnings("ignore:rollout leaves out the maps that are not square. pool")
@pytest.mark.parametrize("pool", ["cls", "mean", "both", "attention", "distilled"])
def test_the_saliency_of_rollout_is_the_row_that_the_answer_is_read_from(pool):
    model, x = ours(registers=1, pool=pool), pixels(16, 24)
    with torch.no_grad(), watch(model, "blocks.*.attn.weights") as tape:
        model(x)
    matrix = rolled([tape[f"blocks.{i}.attn.weights"].dense() for i in range(3)], 0.5, "mean")[0]
    special = 1 if pool in ("mean", "attention") else 2
    rows = {
        "cls": matrix[0], "mean": matrix[special:].mean(0), "distilled": matrix[:2].mean(0),
        "both": torch.cat([matrix[:1], matrix[special:]]).mean(0), "attention": matrix.mean(0),
    }  # fmt: skip
    found = saliency(model, x, method="rollout")
    assert found.values.shape == (16, 24)
    cells = rows[pool][special:].reshape(1, 1, 4, 6)
    want = nn.functional.interpolate(cells, size=(16, 24), mode="bilinear")[0, 0]
    torch.testing.assert_close(found.values, want, **CLOSE)


@pytest.mark.filterwarnings("ignore:gradients of scores")
def test_gradient_rollout_equals_the_reference():
    model, x = ours(), pixels()
    with watch(model, "blocks.*.attn.weights", grad=True) as tape:
        model(x)[0, 2].backward()
    names = [f"blocks.{i}.attn.weights" for i in range(3)]
    want = chefer([tape[name].dense().detach() for name in names], [tape.gradient(name) for name in names])
    torch.testing.assert_close(gradient_rollout(tape)[0], want, **CLOSE)
    assert not torch.allclose(want, torch.eye(17, dtype=torch.float64))
    model.zero_grad()
    found = saliency(model, x, method="gradient-rollout", target=2)
    torch.testing.assert_close(found.whole, want, **CLOSE)
    cells = want[0, 1:].reshape(1, 1, 4, 4)
    large = nn.functional.interpolate(cells, size=(16, 16), mode="bilinear")[0, 0]
    torch.testing.assert_close(found.values, large, **CLOSE)
    assert all(parameter.grad is None for parameter in model.parameters())


@pytest.mark.filterwarnings("ignore:gradients of scores")
def test_both_are_the_same_for_a_vision_transformer_of_transformers():
    model, x = theirs(), pixels()
    plain, weighted = (saliency(model, x, method=name, target=3) for name in ("rollout", "gradient-rollout"))
    maps, logits = attentions(model, x)
    gradients = torch.autograd.grad(logits[0, 3], maps)
    want = rolled([weights.detach() for weights in maps], 0.5, "mean")[0]
    torch.testing.assert_close(plain.whole, want, **EAGER)
    torch.testing.assert_close(weighted.whole, chefer([w.detach() for w in maps], gradients), **EAGER)
    large = nn.functional.interpolate(want[0, 1:].reshape(1, 1, 4, 4), size=(16, 16), mode="bilinear")[0, 0]
    torch.testing.assert_close(plain.values, large, **EAGER)


@pytest.mark.filterwarnings("ignore:gradients of scores")
def test_rollout_of_a_text_is_the_row_of_the_position_that_is_explained():
    torch.manual_seed(0)
    model = ch.build("gpt", vocab=3, context=16, width=12, heads=3, depth=2).double()
    bundle = ch.Bundle(model, ch.tokens.Characters("abc"))
    found = saliency(bundle, "abcab", method="rollout", at=2)
    maps = ch.look.attention(bundle, "abcab").maps["self"]
    torch.testing.assert_close(found.values, rollout(maps)[0, 2], **CLOSE)
    assert found.values[3:].abs().max() == 0  # a causal model has not read them
    weighted = saliency(bundle, "abcab", method="gradient-rollout", at=2)
    assert weighted.values[3:].abs().max() == 0
    assert weighted.values[2] > 1


class Encoder(nn.Module):
    """Classes of texts, by torch's own layers."""

    def __init__(self, pool):
        super().__init__()
        self.embed, self.pool = nn.Embedding(20, 24), pool
        self.layers = nn.TransformerEncoder(nn.TransformerEncoderLayer(24, 4, 30, batch_first=True), 2)
        self.head = nn.Linear(24, 3)

    def forward(self, ids):
        return self.head(self.pool(self.layers(self.embed(ids))))


@pytest.mark.filterwarnings("ignore::clearhead.errors.Notice")
@pytest.mark.parametrize(
    ("pool", "rows"),
    [(lambda x: x.mean(1), [0, 1, 2, 3]), (lambda x: x[:, 0], [0]), (lambda x: x[:, 1:3].sum(1), [1, 2])],
)
def test_the_tokens_that_a_foreign_model_answers_from_are_found(pool, rows):
    torch.manual_seed(0)
    model, ids = Encoder(pool).double().eval(), torch.tensor([3, 1, 4, 1])
    for method in ("rollout", "gradient-rollout"):
        found = saliency(model, ids, method=method)
        torch.testing.assert_close(found.values, found.whole[rows].mean(0), **CLOSE)


def test_what_rollout_cannot_multiply_is_a_sentence(monkeypatch):
    model = ours()
    with torch.no_grad(), watch(model, "blocks.*.attn.weights", "blocks.0") as tape:
        model(pixels())
    with pytest.raises(ValueError, match="residual=2"):
        rollout(tape, residual=2.0)
    with torch.no_grad(), watch(model, "blocks.0") as other:
        model(pixels())
    with pytest.raises(ValueError, match="no self-attention maps: watch"):
        rollout(other)
    with torch.no_grad(), watch(model, "blocks.0.attn.weights") as small:
        model(pixels(8, 8))
    with pytest.raises(ValueError, match="1 x 5, 1 x 17 are not layers of one stack"):
        rollout([small["blocks.0.attn.weights"], tape["blocks.0.attn.weights"]])
    monkeypatch.setattr(sys.modules["clearhead.look.maps.rollout"], "DENSE_LIMIT", 100)
    with pytest.raises(ValueError, match=r"1 x 17 x 17 are over the limit of 100 weights: .* cls_maps"):
        rollout(tape)


def test_a_fully_masked_row_without_a_residual_is_zero_and_not_nan():
    layer = ch.layers.Attention(12, heads=3).double().eval()
    allow = torch.ones(5, 5, dtype=torch.bool)
    allow[2] = False
    with watch(layer, "weights") as tape:
        layer(torch.randn(1, 5, 12, dtype=torch.float64), mask=ch.layers.Mask(allow=allow))
    rows = rollout([tape["weights"]], residual=0.0)[0].sum(-1)
    torch.testing.assert_close(rows, torch.tensor([1.0, 1, 0, 1, 1], dtype=torch.float64))
