"""Direct logit attribution: parts that sum to the logit, each equal to a product written out by hand."""

import os
from pathlib import Path

import numpy as np
import pytest
import torch
from torch import nn

import clearhead as ch
from clearhead.look import logit_attribution, patching
from clearhead.tokens import Characters, Words
from support import foreign_models

IDS = torch.tensor([[1, 2, 3, 4]])
OPTIONS = {
    "GPT-2": {}, "Llama": {"norm": "rms", "mlp": "swiglu", "bias": False, "positions": "rotary", "kv_heads": 1},
    "Qwen": {"bias": "qkv", "norm": "rms"}, "sinusoids": {"positions": "sinusoid"}, "no norm": {"norm": "none"},
    "untied": {"tied": False},
}  # fmt: skip


def gpt(**options):
    torch.manual_seed(0)
    model = ch.build("gpt", vocab=7, context=8, width=12, depth=2, heads=3, **options).double().eval()
    for p in model.parameters():
        torch.nn.init.normal_(p, std=0.3)  # biases and gains of norms too
    return model


@pytest.mark.parametrize("options", list(OPTIONS.values()), ids=list(OPTIONS))
@pytest.mark.parametrize("target", [2, (2, 5)], ids=["logit", "difference"])
def test_parts_sum_to_the_logit(options, target):
    model = gpt(**options)
    result = logit_attribution(model, IDS, target=target)
    logits = model(IDS)[0, -1].detach()
    want = logits[2] if target == 2 else logits[2] - logits[5]
    assert result.logit == pytest.approx(float(want), abs=1e-12)
    assert result.total == pytest.approx(result.logit, abs=1e-10)


def test_every_part_is_the_product_written_out_by_hand():
    model = gpt()
    result = logit_attribution(model, IDS, target=2, at=1)
    with torch.no_grad(), ch.watch(model, "embed", "norm.input", "blocks.*.attn.heads", "blocks.*.mlp") as tape:
        model(IDS)
    x = tape["norm.input"][0, 1]
    scale = (x.var(unbiased=False) + model.norm.eps).rsqrt()
    row = model.head.weight[2].detach()

    def share(part):
        return float((((part - part.mean()) * scale * model.norm.weight) @ row).detach())

    values = {(p.kind, p.layer, p.head): p.value for p in result.parts}
    assert values.pop(("embedding", None, None)) == pytest.approx(share(tape["embed"][0, 1]), abs=1e-12)
    assert values.pop(("positions", None, None)) == pytest.approx(share(model.positions.table[1]), abs=1e-12)
    assert values.pop(("bias", None, None)) == pytest.approx(float(model.norm.bias.detach() @ row), abs=1e-12)
    for i, block in enumerate(model.blocks):
        matrix = block.attn.out.weight.unflatten(1, (3, 4))  # (d, h, e)
        for h in range(3):
            part = matrix[:, h] @ tape[f"blocks.{i}.attn.heads"][0, h, 1]
            assert values.pop(("head", i, h)) == pytest.approx(share(part), abs=1e-12)
            assert result.heads[i, h] == pytest.approx(share(part), abs=1e-6)
        assert values.pop(("attention bias", i, None)) == pytest.approx(share(block.attn.out.bias), abs=1e-12)
        assert values.pop(("mlp", i, None)) == pytest.approx(share(tape[f"blocks.{i}.mlp"][0, 1]), abs=1e-12)
    assert not values


VITS = {
    "class token": {}, "mean": {"pool": "mean"}, "both": {"pool": "both", "registers": 2},
    "layer scale": {"layer_scale": 0.3}, "concatenated": {"join": "concatenate", "pool": "mean"},
    "convolutions": {"stem": "conv", "positions": "sincos2d"},
}  # fmt: skip


@pytest.mark.parametrize("options", list(VITS.values()), ids=list(VITS))
def test_a_class_logit_of_a_vision_transformer(options):
    torch.manual_seed(0)
    model = ch.build("vit", classes=5, size=8, patch=4, width=12, depth=2, heads=3, **options).double().eval()
    for p in model.parameters():
        torch.nn.init.normal_(p, std=0.3)
    image = torch.randn(1, 3, 8, 8, dtype=torch.float64)
    result = logit_attribution(model, image, target=3)
    assert result.logit == pytest.approx(float(model(image)[0, 3].detach()), abs=1e-12)
    assert result.total == pytest.approx(result.logit, abs=1e-10)
    assert {"embedding", "positions", "head", "mlp", "attention bias", "bias"} == {part.kind for part in result.parts}
    if options == {}:  # the class token alone, with its position
        x = model.blocks[0](model.embed(image))
        x = model.blocks[1](x)[0, 0]
        scale = (x.var(unbiased=False) + model.norm.eps).rsqrt()
        part = model.embed.cls_place[0]
        want = ((part - part.mean()) * scale * model.norm.weight) @ model.head.weight[3]
        assert result.of("positions") == pytest.approx(float(want.detach()), abs=1e-10)


def test_models_in_float32_from_texts_and_images():
    result = logit_attribution(ch.load("everyday", device="cpu"), "A man is standing in the", target=" street")
    assert abs(result.total - result.logit) < 1e-4
    picture = np.random.default_rng(0).integers(0, 255, (32, 32, 3), dtype=np.uint8)
    vit = ch.load("vit-cifar10", device="cpu")
    result = logit_attribution(vit, picture)
    assert abs(result.total - result.logit) < 1e-4
    assert result.answer == ch.classify(vit, picture, top=1)[0][0]
    result = logit_attribution(ch.load("fr-en", device="cpu"), "Un chien noir court.", written="A black")
    assert abs(result.total - result.logit) < 1e-4
    assert {"cross head", "cross bias"} <= {part.kind for part in result.parts}


@pytest.mark.parametrize("name", ["gpt2", "llama", "mistral", "qwen2", "phi", "gpt-neox", "falcon", "opt"])
def test_models_of_transformers(name):
    model, ids = foreign_models.build(name), foreign_models.inputs(name)["input_ids"][:1]
    result = logit_attribution(model, {"input_ids": ids}, target=9)
    assert result.logit == pytest.approx(float(model(input_ids=ids).logits[0, -1, 9].detach()), abs=1e-6)
    assert abs(result.total - result.logit) < 1e-4
    assert sum(part.kind == "head" for part in result.parts) == 2 * (
        4 if name in ("llama", "mistral", "qwen2", "falcon") else 3
    )


class Encoder(nn.Module):
    """A classifier of torch.nn's own layers."""

    def __init__(self, first):
        super().__init__()
        torch.manual_seed(0)
        self.embed_ids = nn.Embedding(9, 12)
        layer = nn.TransformerEncoderLayer(12, 3, 20, batch_first=True, norm_first=first, dropout=0.0)
        self.encoder = nn.TransformerEncoder(layer, 2, norm=nn.LayerNorm(12), enable_nested_tensor=False)
        self.out = nn.Linear(12, 4)

    def forward(self, ids):
        return self.out(self.encoder(self.embed_ids(ids)).mean(1))


def test_layers_of_torch():
    model = Encoder(True).double().eval()
    result = logit_attribution(model, IDS, target=1)
    assert result.logit == pytest.approx(float(model(IDS)[0, 1].detach()), abs=1e-10)
    assert result.total == pytest.approx(result.logit, abs=1e-10)
    corrupted = (IDS + 1) % 9  # not the same tokens in another order, for which this model's mean gives the same logit
    assert patching(model, IDS, corrupted, target=1, what="mlp").layers[1] == "encoder.layers.1.linear2"
    with pytest.raises(ValueError, match="do not just add the output of self_attn and linear2"):
        logit_attribution(Encoder(False).double().eval(), IDS, target=1)


def test_a_real_language_model():
    root = os.environ.get("CLEARHEAD_CHECKPOINTS")
    if root is None or not (Path(root) / "smollm2").is_dir():
        pytest.skip("CLEARHEAD_CHECKPOINTS has no smollm2: see benchmarks/fetch_checkpoints.py")
    result = logit_attribution(
        ch.load(Path(root) / "smollm2", device="cpu"), "The capital of France is", target=" Paris"
    )
    assert abs(result.total - result.logit) < 1e-4


def test_results_are_plain_values_a_table_and_a_figure():
    result = logit_attribution(gpt(), IDS, target=2)
    assert sum(part["value"] for part in result.to_dict()["parts"]) == pytest.approx(result.logit)
    assert abs(result.top(1)[0].value) == max(abs(part.value) for part in result.parts)
    assert result.__rich__().row_count == 10
    assert result.figure().axes


def test_models_whose_parts_do_not_add_up_are_refused():
    with pytest.raises(ValueError, match=r"a norm comes after each addition .* it rescales all that came before"):
        logit_attribution(gpt(order="post"), IDS)
    with pytest.raises(ValueError, match="do not just add the output of self_attn and mlp"):
        logit_attribution(foreign_models.build("olmo2"), {"input_ids": foreign_models.inputs("olmo2")["input_ids"][:1]})
    vit = ch.build("vit", classes=5, size=8, patch=4, width=12, depth=2, heads=3, head="mlp").double().eval()
    with pytest.raises(ValueError, match="what follows 'norm' in this ViT is not linear"):
        logit_attribution(vit, torch.randn(1, 3, 8, 8).double() * 9)
    bert = ch.Bundle(ch.build("bert", vocab=9, width=12, depth=1, heads=3, order="pre"), Words(["a", "b"]))
    with pytest.raises(ValueError, match="is not linear"):
        logit_attribution(bert, "a [MASK]")
    with pytest.raises(ValueError, match="target='x': expected one of"):
        logit_attribution(ch.load("vit-cifar10"), np.zeros((32, 32, 3), np.uint8), target="x")
    assert logit_attribution(ch.Bundle(gpt(), Characters("abcdefg")), "abc", target="g").answer == "g"
