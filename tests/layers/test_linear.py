"""The linear map by another product: the same numbers, and only where it may."""

import pytest
import torch
from torch import nn

from clearhead.layers import Linear, linear


@pytest.fixture(autouse=True)
def small(monkeypatch):
    monkeypatch.setattr(linear, "LARGE", 8)
    monkeypatch.setattr(linear, "HUGE", 32)


@pytest.mark.parametrize("bias", [True, False])
@pytest.mark.parametrize("shape", [(5,), (1, 5), (1, 1, 5), (3, 5), (2, 3, 5), (0, 5), (700, 5)])
@pytest.mark.parametrize("out", [1, 7, 64, 101])
def test_it_is_the_linear_map(shape, out, bias):
    torch.manual_seed(0)
    layer, x = Linear(5, out, bias=bias), torch.randn(shape)
    oracle = nn.functional.linear(
        x.double(), layer.weight.double(), None if layer.bias is None else layer.bias.double()
    )
    with torch.no_grad():
        torch.testing.assert_close(layer(x).double(), oracle, rtol=1e-5, atol=1e-5)
    torch.testing.assert_close(layer(x).double(), oracle, rtol=1e-5, atol=1e-5)


def test_a_transposed_input_is_fine():
    layer, x = Linear(5, 101), torch.randn(5, 4).T
    with torch.no_grad():
        torch.testing.assert_close(layer(x), nn.functional.linear(x, layer.weight, layer.bias))


def test_gradients_other_types_and_small_maps_take_the_usual_product():
    layer = Linear(5, 101)
    x = torch.randn(3, 5)
    assert not layer._few(x)  # a gradient may be asked for
    with torch.no_grad():
        assert layer._few(x)
        assert not layer._few(x.double())
        assert not Linear(5, 1)._few(x)
        assert not layer._few(torch.randn(1000, 5))
        assert layer._few(x[:1])
        assert not Linear(5, 5)._few(x[:1])
    x.requires_grad_()
    layer(x).sum().backward()
    torch.testing.assert_close(x.grad, layer.weight.sum(0).expand(3, 5))


def test_it_is_a_linear_layer_like_any_other():
    torch.manual_seed(0)
    ours = Linear(5, 7)
    torch.manual_seed(0)
    theirs = nn.Linear(5, 7)
    assert isinstance(ours, nn.Linear)
    assert torch.equal(ours.weight, theirs.weight)
    assert torch.equal(ours.bias, theirs.bias)
