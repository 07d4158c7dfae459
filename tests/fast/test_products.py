"""Fast products of linear maps, alone and joined: they equal the usual product, and are used only where allowed."""

import copy
import gc

import pytest
import torch
from torch import nn

import clearhead as ch
from clearhead.fast import accelerate, hooked, products
from clearhead.fast.products import Joined, join
from clearhead.layers import MLP, Attention, Linear, Mask
from clearhead.layers.norm import RMSNorm


@pytest.fixture(autouse=True)
def small(monkeypatch):
    monkeypatch.setattr(products, "LARGE", 8)


@pytest.mark.parametrize("bias", [True, False])
@pytest.mark.parametrize("shape", [(5,), (1, 5), (1, 1, 5), (3, 5), (2, 3, 5), (0, 5), (700, 5)])
@pytest.mark.parametrize("out", [1, 7, 64, 101])
def test_an_accelerated_linear_map_equals_the_usual_product(shape, out, bias):
    torch.manual_seed(0)
    layer, x = accelerate(Linear(5, out, bias=bias)), torch.randn(shape)
    oracle = nn.functional.linear(
        x.double(), layer.weight.double(), None if layer.bias is None else layer.bias.double()
    )
    with torch.no_grad():
        torch.testing.assert_close(layer(x).double(), oracle, rtol=1e-5, atol=1e-5)
    torch.testing.assert_close(layer(x).double(), oracle, rtol=1e-5, atol=1e-5)


def test_a_transposed_input_gives_the_usual_product():
    layer, x = accelerate(Linear(5, 101)), torch.randn(5, 4).T
    with torch.no_grad():
        torch.testing.assert_close(layer(x), nn.functional.linear(x, layer.weight, layer.bias))


def test_gradients_other_dtypes_and_small_maps_use_the_usual_product():
    layer = accelerate(Linear(5, 101))
    x = torch.randn(3, 5)
    assert not products.takes_fast_product(x, layer.weight)  # gradients are enabled
    with torch.no_grad():
        assert products.takes_fast_product(x, layer.weight)
        assert products.takes_fast_product(x[:1], layer.weight)
        assert not products.takes_fast_product(x.double(), layer.weight.double())
        assert not products.takes_fast_product(x, Linear(5, 1).weight)
        assert not products.takes_fast_product(torch.randn(products.FEW + 1, 5), layer.weight)
    x.requires_grad_()
    layer(x).sum().backward()
    torch.testing.assert_close(x.grad, layer.weight.sum(0).expand(3, 5))


def test_linear_is_initialised_as_torch_does():
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
@torch.no_grad()
def test_a_joined_product_is_the_concatenation_of_the_products(shape, bias):
    maps, x = three(bias), torch.randn(shape)
    before = [m.weight.clone() for m in maps]
    whole = join(*maps)
    assert all(torch.equal(m.weight, w) for m, w in zip(maps, before, strict=True))
    torch.testing.assert_close(whole.quick()(x), torch.cat(alone(maps, x), dim=-1))


@torch.no_grad()
def test_a_joined_product_follows_updates_in_place_and_is_made_again_after_a_move():
    maps, x = three(), torch.randn(2, 5)
    whole = join(*maps)
    assert join(*maps) is whole
    maps[1].weight.mul_(2.0)  # in place, as an optimiser does
    assert whole.joins(*maps)
    assert not whole.joins(*maps[:2])
    torch.testing.assert_close(whole.quick()(x), torch.cat(alone(maps, x), dim=-1))
    maps[0].weight.data = maps[0].weight.data * 3.0  # a new storage, as when a model is moved
    assert not whole.joins(*maps)
    again = join(*maps)
    assert again is not whole
    torch.testing.assert_close(again.quick()(x), torch.cat(alone(maps, x), dim=-1))


def test_joined_maps_get_gradients_and_their_copies_are_independent():
    maps, x = three(), torch.randn(2, 5)
    join(*maps)
    torch.cat([m(x) for m in maps], dim=-1).sum().backward()
    for m in maps:
        torch.testing.assert_close(m.weight.grad, x.sum(0).expand(m.out_features, 5))
    twins = copy.deepcopy(maps)
    with torch.no_grad():
        expected = alone(maps, x)
        for twin in twins:
            twin.weight.zero_()
        torch.testing.assert_close(alone(maps, x), expected)


@pytest.mark.parametrize(
    "maps",
    [(Linear(5, 2), None), (Linear(5, 2), Linear(4, 2)), (Linear(5, 2), nn.Linear(5, 2)), (Linear(5, 2),),
     (Linear(5, 2), Linear(5, 2, bias=False)), (Linear(5, 2), Linear(5, 2, dtype=torch.float64))],
)  # fmt: skip
def test_maps_that_differ_are_not_joined(maps):
    assert join(*maps) is None


@pytest.mark.parametrize("what", ["the weight", "the bias", "a view", "the module"])
def test_maps_that_share_a_weight_or_a_bias_are_not_joined(what):
    maps = [Linear(5, 4) for _ in range(3)]
    assert isinstance(join(*maps), Joined)  # neighbours in one storage do not count as shared
    if what == "the weight":
        maps[1].weight = maps[0].weight
    elif what == "the bias":
        maps[2].bias = maps[0].bias
    elif what == "a view":
        maps[1].weight = nn.Parameter(maps[0].weight.data)
    else:
        maps[1] = maps[0]
    assert join(*maps) is None


def test_a_joined_product_is_freed_with_its_maps():
    maps = three()
    assert isinstance(join(*maps), Joined)
    before = len(products._JOINED)
    del maps
    gc.collect()
    assert len(products._JOINED) < before


@pytest.mark.parametrize("shape", [(12,), (1, 12), (2, 1, 12), (3, 12)])
def test_the_fast_rms_norm_of_a_few_rows_equals_torchs(shape, monkeypatch):
    monkeypatch.setattr(products, "SMALL_NORM", 24)
    torch.manual_seed(0)
    layer, x = accelerate(RMSNorm(12, eps=1e-3)), torch.randn(shape) * 3 + 1
    torch.nn.init.normal_(layer.weight)
    expected = layer(x)  # with gradients: torch's own norm
    with torch.no_grad():
        torch.testing.assert_close(layer(x), expected)
        assert layer(torch.full((1, 12), torch.nan)).isnan().all()
        torch.testing.assert_close(layer.double()(x.double()), expected.double())


@pytest.mark.parametrize("options", [{}, {"kv_heads": 1}, {"bias": "qkv"}, {"project": "q=k"}], ids=str)
@torch.no_grad()
def test_an_accelerated_attention_and_mlp_compute_the_same(options):
    torch.manual_seed(0)
    layer, mlp, x = Attention(12, 3, **options), MLP(12, 7, kind="swiglu"), torch.randn(2, 4, 12)
    expected = layer(x, mask=Mask(causal=True)), mlp(x)
    accelerate(nn.ModuleList([layer, mlp]))
    torch.testing.assert_close((layer(x, mask=Mask(causal=True)), mlp(x)), expected)
    torch.testing.assert_close(copy.deepcopy(mlp).double()(x.double()), expected[1].double())


@pytest.mark.parametrize("kind", ["forward", "pre", "global", "tap", "edit"])
def test_hooked_sees_every_kind_of_hook_and_nothing_else(kind):
    made = ch.build("gpt", vocab=5, width=8, depth=1, heads=2, context=4)
    assert not hooked(made)
    if kind == "forward":
        handle = made.blocks[0].mlp.up.register_forward_hook(lambda *_: None)
    elif kind == "pre":
        handle = made.blocks[0].register_forward_pre_hook(lambda *_: None)
    elif kind == "global":
        handle = nn.modules.module.register_module_forward_hook(lambda *_: None)
    else:
        how = ch.watch(made, "blocks.0.attn.entropy") if kind == "tap" else ch.edit(made, {"blocks.0": lambda x: x})
        with how:
            made(torch.ones(1, 2, dtype=torch.long))
            assert hooked(made)
            assert not hooked(made.head)
        assert not hooked(made)
        return
    assert hooked(made)
    handle.remove()
    assert not hooked(made)
