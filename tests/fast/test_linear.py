"""The linear map by another product, alone and with its neighbours: the same numbers, and only where it may."""

import copy

import pytest
import torch
from torch import nn

from clearhead.layers import MLP, Attention, Linear, Mask, Together, linear


@pytest.fixture(autouse=True)
def small(monkeypatch):
    monkeypatch.setattr(linear, "LARGE", 8)


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
    assert not linear._other(x, layer.weight)  # a gradient may be asked for
    with torch.no_grad():
        assert linear._other(x, layer.weight)
        assert linear._other(x[:1], layer.weight)
        assert not linear._other(x.double(), layer.weight.double())
        assert not linear._other(x, Linear(5, 1).weight)
        assert not linear._other(torch.randn(linear.FEW + 1, 5), layer.weight)
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


def three(bias: bool = True) -> list[Linear]:
    torch.manual_seed(0)
    return [Linear(5, n, bias=bias) for n in (4, 3, 7)]


def alone(maps: list[Linear], x: torch.Tensor) -> list[torch.Tensor]:
    return [nn.functional.linear(x, m.weight, m.bias) for m in maps]


@pytest.mark.parametrize("bias", [True, False])
@pytest.mark.parametrize("shape", [(1, 1, 5), (2, 3, 5), (0, 2, 5)])
def test_together_they_say_what_each_says(shape, bias):
    maps, x = three(bias), torch.randn(shape)
    before = [m.weight.clone() for m in maps]
    whole = Together(*maps)
    assert all(torch.equal(m.weight, w) for m, w in zip(maps, before, strict=True))
    with torch.no_grad():
        for said, expected in zip(whole(x), alone(maps, x), strict=True):
            torch.testing.assert_close(said, expected)
            assert said.shape == expected.shape


def test_what_is_done_to_one_of_them_is_heard():
    maps, x = three(), torch.randn(2, 5)
    whole = Together(*maps)
    with torch.no_grad():
        maps[1].weight.mul_(2.0)  # in place: an optimiser's step
        assert whole.holds
        torch.testing.assert_close(whole(x)[1], alone(maps, x)[1])
        maps[0].weight.data = maps[0].weight.data * 3.0  # elsewhere: a model that is moved
        assert not whole.holds
        for said, expected in zip(whole(x), alone(maps, x), strict=True):
            torch.testing.assert_close(said, expected)
        maps[2].register_forward_hook(lambda module, given, out: out + 1.0)
        torch.testing.assert_close(Together(*maps)(x)[2], alone(maps, x)[2] + 1.0)


def test_gradients_reach_each_of_them():
    maps, x = three(), torch.randn(2, 5)
    torch.cat(Together(*maps)(x), dim=-1).sum().backward()
    for m in maps:
        torch.testing.assert_close(m.weight.grad, x.sum(0).expand(m.out_features, 5))


@pytest.mark.parametrize(
    "maps",
    [(Linear(5, 2), None), (Linear(5, 2), Linear(4, 2)), (Linear(5, 2), nn.Linear(5, 2)), (Linear(5, 2),),
     (Linear(5, 2), Linear(5, 2, bias=False)), (Linear(5, 2), Linear(5, 2, dtype=torch.float64))],
)  # fmt: skip
def test_what_is_not_alike_stays_apart(maps):
    assert not Together.can(*maps)


@pytest.mark.parametrize(
    "options", [{}, {"kv_heads": 1}, {"bias": "qkv"}, {"project": "q=k"}, {"project": "none"}], ids=str
)
@torch.no_grad()
def test_a_joined_attention_answers_alike_and_its_copy_is_its_own(options):
    torch.manual_seed(0)
    layer, x = Attention(12, 3, **options), torch.randn(2, 4, 12)
    expected = layer(x, mask=Mask(causal=True))
    layer.join()
    assert (layer.together is None) == ("project" in options)
    torch.testing.assert_close(layer(x, mask=Mask(causal=True)), expected)
    twin = copy.deepcopy(layer)
    for p in twin.parameters():
        p.zero_()
    torch.testing.assert_close(layer(x, mask=Mask(causal=True)), expected)
    names = {name for name, _ in layer.named_parameters()}
    assert ("out.bias" in names) == (options.get("bias") != "qkv")
    assert ("query.bias" in names) == (options.get("project") != "none")


@torch.no_grad()
def test_a_joined_mlp_answers_alike():
    torch.manual_seed(0)
    layer, x = MLP(5, 7, kind="swiglu"), torch.randn(2, 5)
    expected = layer(x)
    layer.join()
    assert layer.together is not None
    torch.testing.assert_close(layer(x), expected)
    layer.double()
    torch.testing.assert_close(layer(x.double()), expected.double())
