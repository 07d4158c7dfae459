"""Saliency against captum: the same gradients, paths, maps and windows, for images and for tokens."""

import warnings

import captum.attr
import numpy as np
import pytest
import torch
from torch import nn
from transformers import (
    BertConfig,
    BertForSequenceClassification,
    GPT2Config,
    GPT2LMHeadModel,
    ViTConfig,
    ViTForImageClassification,
)

import clearhead as ch
from clearhead.errors import InputError, Notice
from clearhead.look import SALIENCY_METHODS, saliency
from clearhead.look.saliency_methods import saliency as saliency_module
from clearhead.look.saliency_methods.float_input import float_input
from clearhead.look.saliency_methods.gradients import IncompleteError
from clearhead.tokens import Characters, Pair, Words

CLOSE = {"rtol": 1e-6, "atol": 1e-9}  # all in float64
SINGLE = {"rtol": 1e-5, "atol": 1e-6, "check_dtype": False}  # captum adds up windows in float32
VIT = {"classes": 5, "size": 16, "patch": 4, "width": 24, "depth": 3, "heads": 3, "registers": 2}


def image_model(name):
    torch.manual_seed(1)
    options = {
        "vit": VIT,
        "resnet": {"classes": 5, "stem": "small", "width": 6, "depths": (1, 1, 1)},
        "convnext": {"classes": 5, "patch": 2, "width": 6, "depths": (1, 2)},
        "mobilenet": {"classes": 5, "width": 6, "widths": (4, 6), "depths": (1, 2), "strides": (1, 2), "hidden": 12},
    }[name]
    model = ch.build(name, **options).double().eval()
    with torch.no_grad():
        for parameter in model.parameters():
            parameter.add_(0.2 * torch.randn_like(parameter))
    return model


def image():
    return torch.randn(1, 3, 16, 16, generator=torch.Generator().manual_seed(0), dtype=torch.float64)


FAMILIES = ["vit", "resnet", "convnext", "mobilenet"]


@pytest.fixture(params=FAMILIES)
def vision(request):
    return image_model(request.param)


def test_gradients_of_images_are_those_of_captum(vision):
    x = image()
    want = captum.attr.Saliency(vision).attribute(x.clone().requires_grad_(), target=2, abs=False)[0]
    found = saliency(vision, x, method="gradient", target=2)
    torch.testing.assert_close(found.whole, want, **CLOSE)
    torch.testing.assert_close(found.values, want.abs().amax(0), **CLOSE)
    want = captum.attr.InputXGradient(vision).attribute(x.clone().requires_grad_(), target=2)[0]
    found = saliency(vision, x, method="input-gradient", target=2)
    torch.testing.assert_close(found.whole, want, **CLOSE)
    torch.testing.assert_close(found.values, want.sum(0), **CLOSE)
    assert all(parameter.grad is None for parameter in vision.parameters())


@pytest.mark.filterwarnings("ignore:integrated gradients")  # 20 steps are few
@pytest.mark.parametrize("baseline", [0.0, "zero", "image"])
def test_integrated_gradients_are_those_of_captum(vision, baseline):
    x = image()
    other = torch.full_like(x, 0.3) if baseline == "image" else torch.zeros_like(x)
    want, error = captum.attr.IntegratedGradients(vision).attribute(
        x, other, target=1, n_steps=20, return_convergence_delta=True
    )
    given = other[0] if baseline == "image" else baseline
    found = saliency(vision, x[0], method="integrated", target=1, baseline=given, steps=20)
    torch.testing.assert_close(found.whole, want[0], **CLOSE)
    assert found.completeness == pytest.approx(error.item(), abs=1e-6)  # captum's is of float32
    assert abs(saliency(vision, x, target=1, steps=300).completeness) < max(2e-3, abs(error.item()))


def test_smoothgrad_is_the_noise_tunnel_of_captum_with_the_same_noise(vision, monkeypatch):
    x = image()
    generator = torch.Generator().manual_seed(3)
    noise = torch.stack([torch.randn(x.shape[1:], generator=generator) for _ in range(6)]).double()
    monkeypatch.setattr(torch, "normal", lambda mean, std: noise * std)
    tunnel = captum.attr.NoiseTunnel(captum.attr.Saliency(vision))
    scale = 0.2 * (x.max() - x.min()).item()
    want = tunnel.attribute(x.clone().requires_grad_(), nt_samples=6, stdevs=scale, target=0, abs=False)[0]
    found = saliency(vision, x, method="smoothgrad", target=0, samples=6, noise=0.2, seed=3)
    torch.testing.assert_close(found.whole, want, **CLOSE)
    assert (found.values >= 0).all()


@pytest.mark.parametrize(("patch", "stride"), [(5, 3), (4, 4), (6, 1)])
def test_occlusion_of_images_is_that_of_captum(vision, patch, stride):
    x = image()
    want = captum.attr.Occlusion(vision).attribute(
        x, sliding_window_shapes=(3, patch, patch), strides=(3, stride, stride), baselines=0.5, target=3
    )
    found = saliency(vision, x, method="occlusion", target=3, patch=patch, stride=stride, baseline=0.5)
    torch.testing.assert_close(found.values, want[0, 0], **SINGLE)


@pytest.mark.parametrize(
    ("name", "layer", "module"),
    [
        ("resnet", None, lambda model: model.stages[2][0]),
        ("resnet", "stages.1", lambda model: model.stages[1][0]),
        ("resnet", 0, lambda model: model.stages[0][0]),
        ("convnext", None, lambda model: model.stages[1][-1]),
        ("convnext", 0, lambda model: model.stages[0][-1]),
        ("mobilenet", None, lambda model: model.last),
        ("mobilenet", "stages.1", lambda model: model.stages[1][-1]),
    ],
)
def test_grad_cam_of_a_feature_map_is_that_of_captum(name, layer, module):
    model, x = image_model(name), image()
    want = captum.attr.LayerGradCam(model, module(model)).attribute(x, target=4)
    found = saliency(model, x, method="grad-cam", layer=layer, target=4)
    torch.testing.assert_close(found.whole, want[0, 0], **CLOSE)
    large = captum.attr.LayerAttribution.interpolate(want.relu(), (16, 16), interpolate_mode="bilinear")
    torch.testing.assert_close(found.values, large[0, 0], **CLOSE)
    assert (found.values >= 0).all()


class OnGrid(nn.Module):
    """A block of a vision transformer whose patches pass through a feature map, which captum can be given."""

    def __init__(self, block, special, grid):
        super().__init__()
        self.block, self.special, self.grid, self.map = block, special, grid, nn.Identity()

    def forward(self, x, **options):
        y = self.block(x, **options)
        cells = self.map(y[:, self.special :].mT.unflatten(2, self.grid))
        return torch.cat([y[:, : self.special], cells.flatten(2).mT], dim=1)


@pytest.mark.parametrize("size", [(16, 16), (12, 20)])
def test_grad_cam_of_a_vision_transformer_puts_patches_on_their_grid(size):
    model = image_model("vit")
    x = torch.randn(1, 3, *size, dtype=torch.float64)
    found = saliency(model, x, method="grad-cam", target=4)
    assert found.layer == "blocks.1"  # after the last block, patches have no gradient
    model.blocks[1] = OnGrid(model.blocks[1], 3, (size[0] // 4, size[1] // 4))
    want = captum.attr.LayerGradCam(model, model.blocks[1].map).attribute(x, target=4)[0, 0]
    torch.testing.assert_close(found.whole, want, **CLOSE)
    assert found.values.shape == size


def test_grad_cam_of_a_mean_pooled_transformer_takes_the_last_block():
    torch.manual_seed(0)
    model = ch.build("vit", **VIT, pool="mean").eval()
    assert saliency(model, image().float(), method="grad-cam").layer == "blocks.2"


@pytest.mark.parametrize("layer", ["blocks.2", -1])
def test_a_layer_whose_patches_have_no_gradient_is_refused(layer):
    with pytest.raises(ValueError, match=r"patches of 'blocks.2' have no gradient.* such as blocks.1"):
        saliency(image_model("vit"), image(), method="grad-cam", layer=layer)


def text_model(name):
    torch.manual_seed(2)
    if name == "gpt":
        model = ch.build("gpt", vocab=3, context=16, width=12, heads=3, depth=2).double()
        return ch.Bundle(model, Characters("abc")), "abcab", torch.tensor([[0, 1, 2, 0, 1]]), -1
    words = Words(["a", "dog", "runs"])
    model = ch.build("bert", vocab=8, context=16, width=12, heads=3, depth=2).double()
    return ch.Bundle(model, words), "a [MASK] runs", torch.tensor([[1, 4, 7, 6, 2]]), 2


class FromEmbeddings(nn.Module):
    """The logits of one position as a function of the embeddings."""

    def __init__(self, bundle, ids, at):
        super().__init__()
        self.bundle, self.ids, self.at = bundle, ids, at

    def forward(self, x):
        with ch.edit(self.bundle.model, {"embed": lambda _: x}):
            return self.bundle.model(self.ids.expand(len(x), -1))[:, self.at]


@pytest.mark.parametrize("name", ["gpt", "bert"])
def test_saliency_of_tokens_is_that_of_captum_on_embeddings(name):
    bundle, text, ids, at = text_model(name)
    forward = FromEmbeddings(bundle, ids, at)
    x = bundle.model.embed(ids).detach()
    found = saliency(bundle, text, method="gradient", target=1)
    want = captum.attr.Saliency(forward).attribute(x.clone().requires_grad_(), target=1, abs=False)[0]
    torch.testing.assert_close(found.whole, want, **CLOSE)
    found = saliency(bundle, text, method="input-gradient", target=1)
    want = captum.attr.InputXGradient(forward).attribute(x.clone().requires_grad_(), target=1)[0]
    torch.testing.assert_close(found.values, want.sum(1), **CLOSE)
    found = saliency(bundle, text, method="integrated", target=1, steps=20, baseline="zero")
    want = captum.attr.IntegratedGradients(forward).attribute(x, target=1, n_steps=20)[0]
    torch.testing.assert_close(found.values, want.sum(1), **CLOSE)
    found = saliency(bundle, text, method="occlusion", target=1)
    want = captum.attr.Occlusion(forward).attribute(x, sliding_window_shapes=(1, 12), target=1)[0, :, 0]
    torch.testing.assert_close(found.values, want, **SINGLE)
    assert found.at == at % ids.shape[1]
    logits = bundle.model(ids)[0, at]
    assert found.score == pytest.approx(logits[1].item())
    assert found.probability == pytest.approx(logits.softmax(-1)[1].item())


def test_the_target_is_a_name_a_number_a_function_or_the_likeliest():
    model = image_model("vit")
    bundle = ch.Bundle(model, labels=("ant", "bee", "cat", "dog", "Emu"), preprocessing=PREPROCESSING)
    x = image()
    logits = model(x)[0]
    found = saliency(bundle, x, method="gradient")
    assert (found.index, found.target) == (int(logits.argmax()), bundle.labels[int(logits.argmax())])
    by_name, by_number = (saliency(bundle, x, method="gradient", target=t) for t in ("emu", 4))
    assert (by_name.target, by_name.index) == (by_number.target, by_number.index) == ("Emu", 4)
    torch.testing.assert_close(by_name.values, by_number.values)

    def margin(logits):
        return logits[:, 4] - logits[:, 0]

    found = saliency(bundle, x, method="integrated", target=margin, steps=200)
    assert (found.target, found.index, found.probability) == ("margin", None, None)
    assert found.score == pytest.approx((logits[4] - logits[0]).item())
    assert abs(found.completeness) < 1e-3


PREPROCESSING = ch.data.Preprocessing(resize=(16, 16))


def test_an_image_becomes_what_the_model_saw():
    bundle = ch.Bundle(image_model("resnet").float(), preprocessing=PREPROCESSING)
    picture = np.random.default_rng(0).integers(0, 256, (20, 31, 3), np.uint8)
    for given in (picture, torch.from_numpy(picture).permute(2, 0, 1)):
        found = saliency(bundle, given, method="gradient")
        assert found.picture.shape == (16, 16, 3)
        assert found.picture.dtype == np.uint8
        want = saliency(bundle, bundle.pixels(picture), method="gradient")
        torch.testing.assert_close(found.values, want.values)


def test_black_white_and_blurred_baselines():
    bundle = ch.Bundle(image_model("resnet").float(), preprocessing=PREPROCESSING)
    picture = np.full((16, 16, 3), 255, np.uint8)
    assert not saliency(bundle, picture, baseline="white").values.any()
    assert not saliency(bundle, picture, baseline="blur").values.abs().max() > 1e-5  # a plain colour blurred
    black = saliency(bundle, picture, baseline="black", steps=10)
    want = saliency(bundle, picture, baseline=torch.full((3, 16, 16), -1.0), steps=10)
    torch.testing.assert_close(black.values, want.values)


def test_saliency_of_a_translator_is_of_its_source_and_of_what_it_has_written():
    torch.manual_seed(0)
    pair = Pair(Words(["a", "dog", "runs"]), Words(["ein", "Hund", "rennt"]))
    for name, options in (("transformer", {"heads": 3}), ("rnn-seq2seq", {"hidden": 12, "attention": "none"})):
        for other in ({"target_vocab": 7}, {}):  # with one embedding for both sides, too
            model = ch.build(name, width=12, vocab=7, context=16, depth=2, **options, **other).double()
            bundle = ch.Bundle(model, pair)
            found = saliency(bundle, ("a dog runs", "ein Hund"), target="rennt", steps=300)
            assert found.tokens == ["a", "dog", "runs", "<end>", "<start>", "ein", "Hund"]
            assert (found.target, found.index) == ("rennt", 6)
            assert abs(found.completeness) < 0.02 * max(1, found.values.abs().sum())
            assert found.values[:3].abs().min() > 0
            first = saliency(bundle, "a dog runs", method="occlusion")
            assert first.tokens == ["a", "dog", "runs", "<end>", "<start>"]


def test_a_class_of_texts_is_explained():
    torch.manual_seed(0)
    words = Words(["good", "bad", "film"])
    options = {"width": 12, "depth": 1, "heads": 3, "answer": "class", "classes": 2}
    bert = ch.Bundle(ch.build("bert", vocab=len(words), context=8, **options), words, labels=("down", "up"))
    found = saliency(bert, "good film", target="up", method="occlusion")
    assert found.tokens == ["<start>", "good", "film", "<end>"]
    assert (found.target, found.at) == ("up", None)


@pytest.mark.filterwarnings("ignore::clearhead.errors.Notice")
def test_models_of_transformers_and_of_torch_are_explained_by_all_methods():
    torch.manual_seed(0)
    sizes = {"hidden_size": 24, "num_hidden_layers": 3, "num_attention_heads": 3, "intermediate_size": 30}
    vit = ViTForImageClassification(ViTConfig(**sizes, image_size=16, patch_size=4, num_labels=4)).double().eval()
    x = image()
    for method in SALIENCY_METHODS:
        found = saliency(vit, x, method=method, target=1)
        assert found.values.shape == (16, 16)
        named = saliency(vit, {"pixel_values": x}, method=method, target="LABEL_1")
        torch.testing.assert_close(found.values, named.values)
    want = captum.attr.IntegratedGradients(lambda x: vit(x).logits).attribute(x, target=1, n_steps=64)[0]
    torch.testing.assert_close(saliency(vit, x, target=1).whole, want, **CLOSE)
    blocks = [name for name, part in vit.named_modules() if type(part).__name__ == "ViTLayer"]
    assert saliency(vit, x, target=1, method="grad-cam").layer == blocks[1]

    gpt = GPT2LMHeadModel(GPT2Config(n_embd=24, n_layer=2, n_head=3, vocab_size=50, n_positions=16)).double().eval()
    bert = BertForSequenceClassification(BertConfig(**sizes, vocab_size=50, max_position_embeddings=16)).double().eval()
    ids = torch.tensor([[5, 9, 2, 40, 41]])
    for model, table in ((gpt, gpt.transformer.wte), (bert, bert.bert.embeddings.word_embeddings)):

        def logits(x, model=model):
            out = model(inputs_embeds=x).logits
            return out[:, -1] if out.ndim == 3 else out

        want = captum.attr.IntegratedGradients(logits).attribute(table(ids).detach(), target=1, n_steps=64)[0].sum(1)
        torch.testing.assert_close(saliency(model, ids, target=1, baseline="zero", steps=64).values, want, **CLOSE)
        for method in set(SALIENCY_METHODS) - {"grad-cam"}:
            assert saliency(model, {"input_ids": ids}, method=method).values.shape == (5,)

    plain = nn.Sequential(nn.Conv2d(3, 4, 3), nn.ReLU(), nn.Conv2d(4, 5, 3), nn.AdaptiveAvgPool2d(1), nn.Flatten())
    found = saliency(plain.double().eval(), x, method="grad-cam", target=2)
    assert found.layer == "2"
    want = captum.attr.LayerGradCam(plain, plain[2]).attribute(x, target=2)[0, 0]
    torch.testing.assert_close(found.whole, want, **CLOSE)


def test_shares_of_boxes_masks_and_tokens():
    model, x = image_model("resnet"), image()
    found = saliency(model, x, method="input-gradient", target=0)
    size = found.values.abs()
    box = (2, 3, 9, 7)  # left, top, right, bottom
    mask = torch.zeros(16, 16, dtype=torch.bool)
    mask[3:7, 2:9] = True
    assert found.share(box) == pytest.approx((size[3:7, 2:9].sum() / size.sum()).item())
    assert found.share(mask) == found.share(mask.numpy()) == found.share(box)
    up = found.values.clamp(min=0)
    assert found.share(box, positive=True) == pytest.approx((up[mask].sum() / up.sum()).item())
    assert found.share((0, 0, 16, 16)) == 1
    for wrong in ((2, 3, 20, 7), (2, 3, 2, 7), (1, 2), mask[:3], 0.5, [0.1, 0.2]):
        with pytest.raises(ValueError, match=r"box|region"):
            found.share(wrong)
    bundle, text, *_ = text_model("gpt")
    found = saliency(bundle, text)
    assert found.share([0, 1]) + found.share([2, 3, 4]) == pytest.approx(1)
    with pytest.raises(ValueError, match=r"tokens \[5\]: there are 5"):
        found.share([5])


def test_results_are_plain_values_and_progress_is_reported():
    import json

    model, x = image_model("resnet").float(), image().float()
    calls = []
    for method in ("integrated", "occlusion", "smoothgrad"):
        calls.clear()
        found = saliency(model, x, method=method, done=lambda n, every: calls.append((n, every)))
        assert sum(n for n, _ in calls) == calls[0][1]
        assert json.loads(json.dumps(found.to_dict()))["values"] == found.values.tolist()
        assert len(found.figure().axes) == 2
    with torch.inference_mode():
        torch.testing.assert_close(
            saliency(model, x, method="gradient").values, saliency(model, x, method="gradient").values
        )
    assert "method='gradient'" in repr(saliency(model, x, method="gradient"))


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"method": "gradcam"}, "expected one of gradient, .*the nearest is grad-cam"),
        ({"method": "gradient", "steps": 3}, "steps is an option of integrated: of method='gradient' expected none"),
        ({"method": "occlusion", "patch": 17}, "patch=17, stride=8: expected a window of at most 16"),
        ({"method": "occlusion", "patch": 2, "stride": 3}, "no larger stride"),
        ({"method": "grad-cam", "layer": "stages.7"}, "layer='stages.7' does not fit: expected one of stages.0, "),
        ({"method": "grad-cam", "layer": 3}, "layer 3: there are 3, counted from 0: stages.0, stages.1, stages.2"),
        ({"method": "rollout"}, "no self-attention .* rollout does not fit; gradient, .* grad-cam do"),
        ({"baseline": "grey"}, "expected zero, black, white, blur, a number or a tensor for this image"),
        ({"baseline": "black"}, "black and white need a Bundle"),
        ({"baseline": torch.zeros(2)}, r"baseline of shape \(2,\): expected \(3, 16, 16\)"),
        ({"target": 5}, "target=5: there are 5 outputs"),
        ({"target": "cat"}, "this model's classes have no names"),
        ({"target": lambda x: x}, r"returned \(1, 5\) for logits \(1, 5\): expected shape \(1,\)"),
        ({"steps": 0}, "steps=0: expected 1 or more"),
        ({"method": "smoothgrad", "noise": -1.0}, "noise=-1.0"),
    ],
)  # fmt: skip
def test_what_does_not_fit_an_image_is_a_sentence(options, message, unchecked):
    with pytest.raises((ValueError, IndexError), match=message):
        saliency(image_model("resnet"), image(), **options)


def test_what_does_not_fit_a_model_is_a_sentence(unchecked):
    bundle, text, *_ = text_model("gpt")
    bert = text_model("bert")[0]
    vit = image_model("vit")
    for model, given, options, message in (
        (bundle, text, {"method": "grad-cam"}, "grad-cam' is not for a text: expected one of gradient, input-gradient"),
        (bundle, text, {"target": "ab"}, r"target='ab' is 2 tokens, \['a', 'b'\]: expected one token"),
        (bundle, text, {"at": 7}, "at=7: there are 5 tokens"),
        (bundle, 3, {}, "reads text: expected a string"),
        (bert, "a dog", {}, r"has no gap: expected one or more \[MASK\], or at="),
        (vit.train(), image(), {}, "in training mode"),
        (image_model("vit"), "a text", {}, "a text needs its tokenizer, tokenizer="),
        (image_model("vit"), [1], {}, "a bare ViT was given a list: expected a tensor with one row"),
        (image_model("vit"), torch.zeros(2, 3, 16, 16), {}, "a single image"),
        (ch.Bundle(ch.build("vit", **(VIT | {"classes": 0}))), image().float(), {}, "neither classes nor tokens"),
        (ch.Bundle(ch.build("mlp", inputs=2, outputs=2)), "a", {}, "reads vectors"),
    ):  # fmt: skip
        with pytest.raises((ValueError, IndexError), match=message):
            saliency(model, given, **options)


def test_a_vector_is_explained_by_a_function_of_it():
    bundle = ch.Bundle(ch.build("vit", **(VIT | {"classes": 0})))
    found = saliency(bundle, image().float(), method="gradient", target=lambda x: x.norm(dim=-1))
    assert found.values.any()


def test_the_gradient_rollout_is_announced():
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        saliency(image_model("vit"), image(), method="gradient-rollout")
    assert ["explicitly" in str(one.message) for one in caught] == [True]


def test_integrated_gradients_of_a_shipped_language_model_are_complete_by_default():
    """From an empty embedding, at which norms are singular, they are not: values that say nothing are not drawn."""
    bundle = ch.load("everyday", device="cpu")
    found = saliency(bundle, "A man is standing in the")
    assert found.method == "integrated"
    assert abs(found.completeness) < 0.01
    with pytest.warns(Notice, match="expected more steps, or another baseline"):
        found = saliency(bundle, "A man is", baseline="zero", steps=64)
    for show in (found.figure, found.table):
        with pytest.raises(InputError, match=r"the values add up to .*: expected more steps, another baseline"):
            show()


class Cliff(nn.Module):
    """Two classes of an image's mean; the score of class 1 rises by 10 within 1 / steepness of the path from 0 to 1."""

    def __init__(self, steepness):
        super().__init__()
        self.steepness = steepness
        self.weight = nn.Parameter(torch.ones(1))

    def forward(self, x):
        mean = x.mean((1, 2, 3))
        rise = 10 * torch.sigmoid(4 * self.steepness * (mean * self.weight - 0.3123)) + mean
        return torch.stack([torch.zeros_like(rise), rise], dim=1)


def test_a_path_with_a_cliff_is_refined_until_the_values_add_up():
    x = torch.ones(1, 1, 4, 4, dtype=torch.float64)
    steep = Cliff(500.0).double().eval()
    with pytest.warns(Notice, match="add up to"):
        assert not saliency(steep, x, target=1, steps=64).complete
    found = saliency(steep, x, target=1, method="integrated")
    assert found.complete
    torch.testing.assert_close(found.values.sum(), torch.tensor(11.0).double(), rtol=0.1, atol=0)
    torch.testing.assert_close(found.values, found.values.mean().expand(4, 4))
    with pytest.raises(
        InputError, match=r"score changes by 11, even with .* points of the path: expected method='occl"
    ):
        saliency(Cliff(1e9).double().eval(), x, target=1, method="integrated")


def test_the_default_is_occlusion_where_the_path_has_a_cliff():
    x, steep = torch.ones(1, 1, 4, 4, dtype=torch.float64), Cliff(500.0).double().eval()
    with pytest.warns(
        Notice,
        match="score changes by 11; this is occlusion instead, which puts "
        "baseline='zero' in the place of what it covers, and method='integrated'",
    ):
        found = saliency(steep, x, target=1)
    assert found.method == "occlusion"
    torch.testing.assert_close(found.values, saliency(steep, x, target=1, method="occlusion").values)
    found.figure()


def test_the_notice_of_occlusion_names_the_replacement_that_gives_its_values(monkeypatch):
    def incomplete(*_):
        raise IncompleteError("the values add up to 1, and the score changes by 11, even with 64 points")

    monkeypatch.setattr(saliency_module, "integrated_gradients", incomplete)
    bundle, text = ch.load("everyday", device="cpu"), "A man is standing in the"
    with pytest.warns(Notice, match=r"puts baseline='mean' \(the mean embedding of the vocabulary\) in the place"):
        found = saliency(bundle, text)
    same = saliency(bundle, text, method="occlusion", baseline="mean")
    torch.testing.assert_close(found.values, same.values)


def test_the_logits_of_one_token_suffice_for_a_language_model():
    """One pass takes more rows, and gives the gradients of a pass through all tokens."""
    bundle = ch.load("everyday", device="cpu")
    about = float_input(bundle, "A man is standing in the")
    ids = torch.from_numpy(bundle.tokenizer().encode("A man is standing in the"))[None]
    assert about.answers == 1
    with torch.no_grad():
        torch.testing.assert_close(about.logits(about.x), bundle.model(ids)[:, -1])


def test_the_mean_embedding_is_that_of_the_whole_vocabulary():
    bundle = ch.load("en-de", device="cpu")  # whose embeddings are scaled
    about = float_input(bundle, "A dog runs.")
    with torch.no_grad():
        embed = bundle.model.encoder.embed
        every = embed(torch.arange(next(embed.parameters()).shape[0])[None])[0]
    torch.testing.assert_close(about.mean()[0, 1], every.mean(0), atol=1e-5, rtol=1e-4)
