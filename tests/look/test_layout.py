"""Which axes of a layer's output are channels and which are places, in models that are not ours."""

import numpy as np
import pytest
import torch
from torch import nn

import clearhead as ch
from clearhead.errors import InputError, Notice
from clearhead.look import cka, cka_of_features, cls_maps, feature_maps, features, receptive_fields, rollout, saliency
from clearhead.look.structure import record_layout
from support.layered_models import ChannelsLast, ClassPyramid, Mixer, Reduced, TalkingHeads

CLOSE = {"rtol": 1e-4, "atol": 1e-5}


def built(kind, **options):
    torch.manual_seed(0)
    return kind(**options).eval()


def images(n=4, height=12, width=20):
    return torch.randn(n, 3, height, width, generator=torch.Generator().manual_seed(1))


def output(model, layer, x):
    """What a layer returns, by a plain hook."""
    kept = {}
    hook = model.get_submodule(layer).register_forward_hook(lambda _, __, out: kept.update(out=out))
    answer = model(x)
    hook.remove()
    return kept["out"], answer


# A layer of each model, and its output as (b, c, y, x); images have 12 x 20 pixels.
LAYERS = {
    "channels last": (ChannelsLast, "stages.1", lambda x: x.permute(0, 3, 1, 2)),
    "inside of a block": (ChannelsLast, "stages.0.mlp.1", lambda x: x.permute(0, 3, 1, 2)),
    "a convolution inside": (ChannelsLast, "stages.0.mix", lambda x: x),
    "a norm": (ChannelsLast, "norm", lambda x: x.permute(0, 3, 1, 2)),
    "tokens": (TalkingHeads, "blocks.1", lambda x: x.mT.unflatten(2, (3, 5))),
    "tokens and a class token": (TalkingHeads, "last.0", lambda x: x[:, 1:].mT.unflatten(2, (3, 5))),
    "the second stage of a pyramid": (ClassPyramid, "second.0", lambda x: x[:, 1:].mT.unflatten(2, (3, 5))),
    "tokens of a pyramid": (Reduced, "stages.1.blocks.0", lambda x: x.mT.unflatten(2, (3, 5))),
    "a map of tokens": (Reduced, "stages.1", lambda x: x),
}


@pytest.mark.parametrize("case", LAYERS)
def test_features_maps_and_grad_cam_are_those_of_a_plain_hook(case):
    kind, layer, as_map = LAYERS[case]
    model, x = built(kind), images()
    out, answer = output(model, layer, x)
    wanted = as_map(out).detach()
    np.testing.assert_allclose(features(model, x, layer), wanted.mean((2, 3)), **CLOSE)
    np.testing.assert_allclose(feature_maps(model, x[:1], layer, channels=[4, 1]).pictures, wanted[0, [4, 1]], **CLOSE)
    out, answer = output(model, layer, x[:1])
    (slope,) = torch.autograd.grad(answer[0, 2], out)
    weighted = (as_map(out)[0] * as_map(slope)[0].mean((1, 2), keepdim=True)).sum(0).detach()
    if not weighted.any():  # the patches beside a class token that has read them
        with pytest.raises(InputError, match="have no gradient"):
            saliency(model, x[:1], method="grad-cam", target=2, layer=layer)
        return
    found = saliency(model, x[:1], method="grad-cam", target=2, layer=layer)
    torch.testing.assert_close(found.whole, weighted, **CLOSE)


def test_cka_of_channels_last_layers_is_that_of_their_pooled_channels():
    model, x, layers = built(ChannelsLast), images(9), ["stages.0", "stages.1", "norm"]
    pooled = {layer: output(model, layer, x)[0].detach().mean((1, 2)).numpy() for layer in layers}
    np.testing.assert_allclose(cka(model, data=x, layers=layers).matrix, cka_of_features(pooled).matrix, **CLOSE)


def test_as_many_channels_as_rows_and_columns_are_told_apart_by_the_layers_inside():
    model, x = built(ChannelsLast, width=6, wider=3), images(4, 12, 12)
    for layer in ("stages.0", "stages.1"):
        out = output(model, layer, x)[0].detach()
        assert len({*out.shape[1:]}) == 1
        np.testing.assert_allclose(features(model, x, layer), out.mean((1, 2)), **CLOSE)
    convolutions = ch.build("convnext", classes=3, patch=2, width=6, depths=(1, 1)).eval()
    out = output(convolutions, "stages.0.0", x)[0].detach()
    assert out.shape == (4, 6, 6, 6)
    np.testing.assert_allclose(features(convolutions, x, "stages.0.0"), out.mean((2, 3)), **CLOSE)


def test_what_nothing_decides_is_assumed_with_a_notice():
    class Cube(nn.Module):
        def forward(self, x):
            return (x * 2).reshape(len(x), 6, 6, 6)

    model, x = nn.Sequential(Cube(), nn.Flatten()), torch.randn(3, 1, 12, 18)
    with pytest.warns(
        Notice, match=r"'0' gave a tensor \(3, 6, 6, 6\): nothing says .* \(b, channels, y, x\) is assumed"
    ):
        found = features(model, x, "0")
    np.testing.assert_allclose(found, 2 * x.reshape(3, 6, 6, 6).mean((2, 3)), **CLOSE)


def test_a_shape_that_contradicts_the_parameters_is_refused():
    class Odd(nn.Module):
        def __init__(self):
            super().__init__()
            self.scale = nn.Parameter(torch.ones(8))

        def forward(self, x):
            return x[:, :1].expand(-1, 5, -1, -1) * self.scale

    with pytest.raises(InputError, match=r"\(2, 5, 8, 8\), whose shape is that of \(b, channels, y, x\) and does not"):
        features(nn.Sequential(Odd(), nn.Flatten()), images(2, 8, 8), "0")


def test_the_field_of_a_channels_last_layer_is_around_its_centre():
    fields = receptive_fields(built(ChannelsLast), images(2, 24, 24), ["stages.0", "stages.1"])
    assert fields.theoretical == [(6, 6), (14, 14)]  # patches of 2, a kernel of 3; every second place, a kernel of 3
    inside = np.zeros((24, 24), bool)
    inside[10:16, 10:16] = True  # places 5 to 7 of 12
    assert fields.maps[0][inside].sum() == pytest.approx(1)


def test_layers_that_mix_tokens_keep_their_channels():
    model, x = built(Mixer), images()
    out = output(model, "blocks.0.tokens", x)[0].detach()
    np.testing.assert_allclose(features(model, x, "blocks.0.tokens"), out.mean(2), **CLOSE)
    np.testing.assert_allclose(
        features(model, x, "blocks.0"), output(model, "blocks.0", x)[0].detach().mean(1), **CLOSE
    )


def test_a_convolution_over_time_has_its_channels_first():
    model, x = nn.Sequential(nn.Conv1d(3, 7, 2), nn.Flatten()), torch.randn(4, 3, 9)
    np.testing.assert_allclose(features(model, x, "0"), model[0](x).detach().mean(2), **CLOSE)


@pytest.mark.parametrize("talking", [True, False])
@pytest.mark.parametrize("layer", ["blocks.1.attn.drop", "blocks.1.attn.talk", "last.0.attn.drop"])
def test_attention_weights_are_neither_features_nor_feature_maps(talking, layer):
    model, x = built(TalkingHeads, talking=talking), images()
    with record_layout(model) as layout:
        model(x)
    assert not any(".attn.drop" in path or ".attn.talk" in path for path in layout.gridded())
    found = saliency(model, x[:1], method="grad-cam", target=1)
    assert (found.layer, found.whole.shape) == ("blocks.2", (3, 5))
    if talking and layer.startswith("blocks"):
        with pytest.raises(
            InputError, match=r"of attention weights, which has no channels: .* such as 'blocks'|'blocks.1"
        ):
            features(model, x, layer)
        with pytest.raises(InputError, match=r"does not fit: expected one of blocks.0, blocks.1"):
            saliency(model, x[:1], method="grad-cam", layer=layer)


def test_grad_cam_of_a_pyramid_of_tokens_takes_its_last_stage():
    assert saliency(built(Reduced), images(1), method="grad-cam").layer == "stages.1"
    found = saliency(built(ClassPyramid), images(1), method="grad-cam")
    assert (found.layer, found.whole.shape) == ("second.0", (3, 5))  # the patches of second.1 have no gradient


def test_tokens_in_another_order_than_rows_are_not_put_on_a_grid():
    class Windows(nn.Module):
        """Tokens in windows of rows and columns, as Hiera has them."""

        def forward(self, x):
            b, c, rows, columns = x.shape
            return x.view(b, c, 2, rows // 2, 4, columns // 4).permute(0, 3, 5, 2, 4, 1).reshape(b, -1, c)

    torch.manual_seed(0)
    block = nn.Sequential(nn.LayerNorm(8), nn.Linear(8, 8))
    model = nn.Sequential(nn.Conv2d(3, 8, 2, stride=2), Windows(), nn.Sequential(block), nn.Flatten()).eval()
    x = images(2, 16, 16)
    assert features(model, x, "2.0").shape == (2, 8)  # a mean over tokens needs no order
    for look in (feature_maps, receptive_fields):
        with pytest.raises(InputError, match=r"tokens of '2.0' are not in the order of the image's rows"):
            look(model, x[:1], "2.0")
    with pytest.raises(InputError, match="not in the order"):
        saliency(model, x[:1], method="grad-cam")


def test_the_last_map_of_a_class_token_is_that_of_the_last_stage():
    model, x = built(ClassPyramid), images(1)
    with torch.no_grad(), ch.watch(model, "**.weights") as tape:
        model(x)
    for layer, name, grid in ((-1, "second.1.attn", (3, 5)), (0, "first.0.attn", (6, 10))):
        found = cls_maps(model, x, layer=layer)
        row = tape[f"{name}.weights"].dense()[0, :, 0]
        assert (found.layer, found.layers) == (name, 4)
        torch.testing.assert_close(found.maps, row[:, 1:].unflatten(1, grid))


def test_rollout_refuses_a_pyramid_with_fewer_keys_than_queries():
    with pytest.raises(
        InputError, match=r"can multiply 1 of the 2 .* \(stages.0.blocks.0.attn \(60 queries, 15 keys\)\)"
    ):
        saliency(built(Reduced), images(1), method="rollout")
    with pytest.raises(InputError, match="are not layers of one stack"):
        saliency(built(ClassPyramid), images(1), method="rollout")


def test_rollout_says_which_layers_it_multiplied_and_which_not():
    model, x = built(TalkingHeads, talking=False), images(1)
    with pytest.warns(Notice, match=r"leaves out the maps that are not square: last.0.attn \(1 queries, 16 keys\)"):
        found = saliency(model, x, method="rollout")
    assert found.layers == [f"blocks.{i}.attn" for i in range(3)]
    assert found.to_dict()["layers"] == found.layers
    with torch.no_grad(), ch.watch(model, "**.weights") as tape:
        model(x)
    with pytest.warns(Notice, match="last.0.attn"):
        torch.testing.assert_close(found.whole, rollout(tape)[0])


SWIN = {"depths": (1, 1, 1, 1), "embed_dim": 16, "num_heads": (1, 2, 4, 8), "window_size": 4, "img_size": 64}


def test_layers_of_a_swin_of_timm():
    timm = pytest.importorskip("timm")
    torch.manual_seed(0)
    model = timm.create_model("swin_tiny_patch4_window7_224", num_classes=5, **SWIN).eval()
    x = images(3, 64, 64)
    for i in range(4):
        out = output(model, f"layers.{i}", x)[0].detach()
        np.testing.assert_allclose(features(model, x, f"layers.{i}"), out.mean((1, 2)), **CLOSE)
    assert saliency(model, x[:1], method="grad-cam").whole.shape == (2, 2)


def test_a_text_beside_an_image_has_no_patches():
    class Both(nn.Module):
        def __init__(self):
            super().__init__()
            self.patches, self.read = nn.Conv2d(3, 6, 4, stride=4), nn.Sequential(nn.Embedding(9, 6), nn.Linear(6, 6))

        def forward(self, x, ids):
            return self.patches(x).mean((2, 3)) + self.read(ids).mean(1)

    model, x, ids = built(Both), images(2), torch.arange(38).reshape(2, 19) % 9  # 3 x 5 patches and 4 others
    wanted = model.read(ids).detach().mean(1)
    np.testing.assert_allclose(features(model, {"x": x, "ids": ids}, "read.1"), wanted, **CLOSE)
