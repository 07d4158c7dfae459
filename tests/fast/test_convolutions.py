"""A convolution with its batch norm folded in equals both, and follows every change of them."""

import copy

import pytest
import torch

import clearhead as ch
from clearhead.fast import accelerate, convolutions
from clearhead.layers import ConvNorm, Residual


@pytest.fixture
def folds(monkeypatch):
    """The layers that were folded."""
    made, usual = [], convolutions._Folded

    def counted(layer, x):
        made.append(layer)
        return usual(layer, x)

    monkeypatch.setattr(convolutions, "_Folded", counted)
    return made


def layer(inputs=6, outputs=8, kernel=3, **options):
    torch.manual_seed(0)
    made = ConvNorm(inputs, outputs, kernel, **options).eval()
    for x in (made.norm.weight, made.norm.bias, made.norm.running_mean):
        torch.nn.init.normal_(x)
    torch.nn.init.uniform_(made.norm.running_var, 0.1, 3.0)
    return made


@pytest.mark.parametrize(
    ("options", "size"),
    [({}, (7, 9)), ({"stride": 2}, (8, 8)), ({"kernel": 1}, (1, 1)), ({"outputs": 6, "groups": 6}, (5, 5))],
)
def test_a_folded_convolution_equals_its_two_steps(options, size, folds):
    plain = layer(**options)
    fast, x = accelerate(copy.deepcopy(plain)), torch.randn(3, 6, *size)
    with torch.no_grad():
        torch.testing.assert_close(fast(x), plain.double()(x.double()).float(), atol=2e-5, rtol=1e-5)
        other = torch.randn(2, 6, size[0] + 3, size[1] + 1)  # the same weights, laid out for another size
        torch.testing.assert_close(fast(other), plain(other.double()).float(), atol=2e-5, rtol=1e-5)
    assert folds == [fast]


@pytest.mark.parametrize("part", ["conv.weight", "norm.weight", "norm.bias", "norm.running_mean", "norm.running_var"])
def test_a_change_of_the_weights_reaches_the_folded_convolution(part):
    fast, x = accelerate(layer()), torch.randn(1, 6, 5, 5)
    with torch.no_grad():
        before = fast(x)
        fast.get_parameter(part).data.mul_(1.5) if "running" not in part else fast.get_buffer(part).mul_(1.5)
        after = fast(x)
        expected = fast.norm(fast.conv(x))
    assert not torch.allclose(before, after, atol=1e-3)
    torch.testing.assert_close(after, expected, atol=2e-5, rtol=1e-5)


def test_gradients_training_hooks_and_other_dtypes_use_both_steps(folds):
    fast, x = accelerate(layer()), torch.randn(1, 6, 5, 5)
    fast(x).sum().backward()
    assert fast.conv.weight.grad is not None
    with torch.no_grad():
        copy.deepcopy(fast).train()(x)
        copy.deepcopy(fast).double()(x.double())
        seen = []
        with fast.norm.register_forward_hook(lambda *_: seen.append(True)):
            fast(x)
        assert seen == [True]
        assert folds == []
        fast(x)
    assert folds == [fast]


def test_a_loaded_resnet_computes_the_same_and_can_be_watched_inside():
    torch.manual_seed(0)
    model = ch.build("resnet", stem="small", width=8, depths=(1, 1), classes=5).eval()
    images = torch.randn(2, 3, 16, 16)
    with torch.no_grad():
        expected = model(images)
        fast = ch.Bundle(copy.deepcopy(model)).model
        torch.testing.assert_close(fast(images), expected, atol=1e-5, rtol=1e-5)
        with ch.watch(fast, "stages.1.0.layers.0.norm") as tape:
            torch.testing.assert_close(fast(images), expected, atol=1e-5, rtol=1e-5)
        assert tape["stages.1.0.layers.0.norm"].shape == (2, 16, 8, 8)


@pytest.mark.parametrize("kind", ["basic", "bottleneck"])
@pytest.mark.parametrize("stride", [1, 2])
def test_a_folded_residual_block_equals_its_steps_and_hooks_see_every_layer(kind, stride, folds):
    plain = Residual(8, 2 if kind == "bottleneck" else 8, kind=kind, stride=stride).eval()
    for module in plain.modules():
        if isinstance(module, torch.nn.BatchNorm2d):
            torch.nn.init.normal_(module.weight)
            torch.nn.init.normal_(module.running_mean)
    fast, x = accelerate(copy.deepcopy(plain)), torch.randn(2, 8, 7, 7)
    seen = []
    with torch.no_grad():
        given = x.clone()
        torch.testing.assert_close(fast(x), plain(x), atol=1e-5, rtol=1e-5)
        assert torch.equal(x, given)
        count = len(folds)
        assert count == len(fast.layers) + (fast.shortcut is not None)
        with fast.layers[0].register_forward_hook(lambda module, args, out: seen.append(out)):
            torch.testing.assert_close(fast(x), plain(x), atol=1e-5, rtol=1e-5)
        torch.testing.assert_close(seen[0], plain.layers[0](x), atol=1e-5, rtol=1e-5)  # before its ReLU
