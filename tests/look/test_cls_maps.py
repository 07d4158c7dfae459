"""Maps of the class token at any size, and views of maps without sinks or with the norms of values."""

import pytest
import torch
from transformers import Dinov2WithRegistersConfig, Dinov2WithRegistersModel, ViTConfig, ViTForImageClassification

import clearhead as ch
from clearhead.look import attention_view, cls_maps, watch
from support.class_tokens import ours, pixels

NAME = "blocks.0.attn.weights"
THEIRS = {"hidden_size": 24, "num_hidden_layers": 3, "num_attention_heads": 3, "image_size": 16, "patch_size": 4}


def cnn(**options):
    return ch.build("resnet", classes=3, stem="small", width=8, depths=(1,), **options).double().eval()


@pytest.mark.parametrize(("layer", "number"), [(0, 0), (-1, 2), ("blocks.1.attn", 1)])
def test_the_figure_says_which_layer_it_is_and_what_the_colours_mean(layer, number):
    figure = cls_maps(ours(), pixels(), layer=layer).figure(keep=0.5)
    assert figure.get_suptitle() == f"Attention of the class token, layer {number} of 0 to 2"
    note = figure.legends[0].get_title().get_text()
    assert "colour: the strongest head" in note
    assert "largest 50%" in note


@pytest.mark.parametrize("size", [(16, 16), (12, 24)])
@pytest.mark.parametrize("registers", [0, 3])
@pytest.mark.parametrize("layer", [0, -1, "blocks.1.attn"])
def test_the_row_of_the_class_token_lies_on_the_grid_without_registers(size, registers, layer):
    model, x = ours(registers=registers), pixels(*size)
    found = cls_maps(model, x, layer=layer)
    address = {0: "blocks.0.attn", -1: "blocks.2.attn"}.get(layer, layer)
    with torch.no_grad(), watch(model, f"{address}.weights") as tape:
        model(x)
    row = tape[f"{address}.weights"].dense()[0, :, 0]
    assert (found.layer, found.special) == (address, 1 + registers)
    torch.testing.assert_close(found.maps, row[:, 1 + registers :].reshape(3, size[0] // 4, size[1] // 4))
    torch.testing.assert_close(found.removed, row[:, : 1 + registers].sum(1))
    assert found.to_dict()["maps"] == found.maps.tolist()


def test_watching_the_map_does_not_change_the_answer_nor_compute_the_whole_map(monkeypatch):
    model, x = ours(), pixels()
    plain = model(x)
    monkeypatch.setattr(ch.look.AttentionMap, "dense", lambda *_: pytest.fail("the whole map was computed"))
    cls_maps(model, x)
    assert torch.equal(model(x), plain)


def test_class_token_maps_of_models_of_transformers():
    torch.manual_seed(0)
    vit = ViTForImageClassification(ViTConfig(**THEIRS, intermediate_size=30)).double().eval()
    dino = Dinov2WithRegistersModel(Dinov2WithRegistersConfig(**THEIRS, num_register_tokens=2, mlp_ratio=1))
    for model, special in ((vit, 1), (dino.double().eval(), 3)):
        found = cls_maps(model, pixels(), layer=-1)
        model.set_attn_implementation("eager")
        with torch.no_grad():
            row = model(pixels(), output_attentions=True).attentions[-1][0, :, 0]
        assert found.special == special
        torch.testing.assert_close(found.maps, row[:, special:].reshape(3, 4, 4))
        with pytest.raises(IndexError, match="layer 3: there are 3"):
            cls_maps(model, pixels(), layer=3)


def sinking():
    """A model whose second head puts most of its weight on key 0, and a tape of it."""
    torch.manual_seed(0)
    model = ch.build("gpt", vocab=7, context=16, width=12, heads=4, kv_heads=2, depth=1).double().eval()
    scores = {"blocks.0.attn.scores": lambda s: s + 6 * (torch.arange(s.shape[-1]) == 0) * one_head(s)}
    ids = torch.tensor([[1, 2, 3, 4, 5]])
    with torch.no_grad(), ch.edit(model, scores), watch(model, "**.weights", "**.v") as tape:
        model(ids)
    return tape


def one_head(scores):
    return (torch.arange(scores.shape[1]) == 1)[:, None, None]


@pytest.mark.filterwarnings("ignore:.*is edited")
def test_sinks_are_found_and_removed():
    tape = sinking()
    weights = tape["blocks.0.attn.weights"].dense()
    raw = attention_view(tape[NAME], "raw")
    assert torch.equal(raw.weights, weights)
    assert torch.equal(raw.sinks, weights.mean(2) > 0.3)
    assert raw.sinks[0, 1].tolist() == [True, False, False, False, False]
    found = attention_view(tape[NAME], "without-sink", sinks=[0])
    torch.testing.assert_close(found.removed, weights[..., 0])
    assert (found.removed[0, 1] > 0.9).all()
    assert (found.weights[..., 0] == 0).all()
    assert (found.weights[:, :, 0] == 0).all()  # the first query attends to key 0 only
    torch.testing.assert_close(found.weights[:, :, 1:].sum(-1), torch.ones(1, 4, 4, dtype=torch.float64))
    torch.testing.assert_close(found.weights[0, 2, 3, 1:], weights[0, 2, 3, 1:] / weights[0, 2, 3, 1:].sum())
    assert "on sinks" in repr(found)


@pytest.mark.filterwarnings("ignore:.*is edited")
def test_weights_are_multiplied_by_the_norms_of_the_values_of_their_group():
    tape = sinking()
    weights, v = tape["blocks.0.attn.weights"].dense(), tape["blocks.0.attn.v"]
    found = attention_view(tape[NAME], "value-norm", values=tape["blocks.0.attn.v"]).weights
    for head in range(4):
        for query in range(5):
            for key in range(5):
                want = weights[0, head, query, key] * v[0, head // 2, key].pow(2).sum().sqrt()
                assert found[0, head, query, key].item() == pytest.approx(want.item(), abs=1e-12)


@pytest.mark.filterwarnings("ignore:.*is edited")
def test_wrong_views_are_refused(unchecked):
    tape = sinking()
    with pytest.raises(ValueError, match=r"view='raww'.*raw, without-sink, value-norm"):
        attention_view(tape[NAME], "raww")
    with pytest.raises(IndexError, match=r"sinks \[5\]: there are 5 keys"):
        attention_view(tape[NAME], sinks=[5])
    for values, got in ((None, "got none"), (torch.zeros(1, 2, 4, 3), r"got values of shape \(1, 2, 4, 3\)")):
        with pytest.raises(ValueError, match=rf"{got} for 4 heads and 5 keys: expected .* '...attn.v'"):
            attention_view(tape[NAME], "value-norm", values=values)
    with pytest.raises(IndexError, match="head 4: there are 4"):
        attention_view(tape[NAME]).figure(head=4)
    assert "% on sinks" in attention_view(tape[NAME]).figure(head=1, tokens=list("abcde")).axes[0].get_title()
