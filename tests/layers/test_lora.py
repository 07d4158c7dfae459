"""LoRA layers: the update and its gradients, merging, and what they must not compute."""

import copy
import subprocess
import sys

import pytest
import torch
import torch.nn.functional as F
from torch import nn

import clearhead as ch
from clearhead.errors import InputError
from clearhead.fast import CpuDecoder
from clearhead.layers import Linear
from clearhead.layers.lora import GROUPS, MAPS, LoraLinear, adapters, add_adapters, choose_maps, merge_adapters
from clearhead.training.distributed import recompute
from clearhead.weights import Bundle

IDS = torch.randint(0, 11, (2, 7), generator=torch.Generator().manual_seed(1))


def gpt(**more):
    torch.manual_seed(0)
    sizes = {"vocab": 11, "context": 8, "width": 12, "depth": 2, "heads": 3, "kv_heads": 3, "mlp": "swiglu"}
    return ch.build("gpt", **sizes | more)


def randomise(model):
    for lora in adapters(model).values():
        nn.init.normal_(lora.lora_a, std=0.3)
        nn.init.normal_(lora.lora_b, std=0.3)
    return model


def adapted(maps="all", **more):
    model = gpt(**more)
    add_adapters(model, maps, rank=3)
    return randomise(model)


def written_out(layer, x):
    """The formula, by autograd."""
    return F.linear(x, layer.weight, layer.bias) + layer.lora_scale * (x @ layer.lora_a.T) @ layer.lora_b.T


@pytest.mark.parametrize("bias", [True, False])
def test_the_update_and_its_gradients_are_the_formulas(bias):
    torch.manual_seed(0)
    layer = LoraLinear.convert(Linear(5, 3, bias=bias).double(), rank=2, scale=0.7)
    nn.init.normal_(layer.lora_b)
    x = torch.randn(2, 7, 5, dtype=torch.float64, requires_grad=True)
    inputs = (x, layer.lora_a, layer.lora_b)
    given = torch.randn(2, 7, 3, dtype=torch.float64)
    out, expected = layer(x), written_out(layer, x)
    torch.testing.assert_close(out, expected)
    ours, theirs = (torch.autograd.grad(y, inputs, given) for y in (out, expected))
    torch.testing.assert_close(ours, theirs)
    assert torch.autograd.gradcheck(lambda x, a, b: _apply(layer, x, a, b), inputs)
    assert torch.autograd.gradgradcheck(lambda x, a, b: _apply(layer, x, a, b), inputs)


def _apply(layer, x, a, b):
    from clearhead.layers.lora import _LowRank

    return _LowRank.apply(x, layer.weight, layer.bias, a, b, layer.lora_scale)


def test_no_gradient_of_a_frozen_weight_is_computed():
    """Counted by the products of a backward pass: with dW there would be one of the weight's shape."""
    from torch.utils._python_dispatch import TorchDispatchMode

    shapes = []

    class Products(TorchDispatchMode):
        def __torch_dispatch__(self, func, types, args=(), kwargs=None):
            out = func(*args, **kwargs or {})
            if func.overloadpacket in (torch.ops.aten.mm, torch.ops.aten.addmm_):
                shapes.append(tuple(out.shape))
            return out

    layer = LoraLinear.convert(Linear(50, 30), rank=2)
    x = torch.randn(7, 50, requires_grad=True)
    loss = layer(x).sum()
    with Products():
        loss.backward()
    assert (30, 50) not in shapes
    assert (50, 30) not in shapes
    assert sorted(shapes) == sorted([(7, 2), (7, 50), (7, 50), (2, 50), (2, 30)])
    assert layer.weight.grad is None
    assert layer.lora_b.grad is not None


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
def test_merged_equals_unmerged(dtype):
    model = adapted().to(dtype)
    apart = model(IDS)
    together = merge_adapters(copy.deepcopy(model))
    assert {type(m) for m in together.modules() if isinstance(m, nn.Linear)} == {Linear}
    assert together.state_dict().keys() == gpt().state_dict().keys()
    assert (apart - gpt().to(dtype)(IDS)).abs().max() > 0.01
    torch.testing.assert_close(together(IDS), apart, rtol=1e-5, atol=1e-5)


def test_words_choose_the_maps_of_blocks_and_nothing_else():
    model = gpt()
    assert len(choose_maps(model, "all")) == 2 * 7
    assert set(choose_maps(model, ("q", "mlp"), skip=["blocks.0"])) == {
        f"blocks.1.{name}" for name in ("attn.query", "mlp.gate", "mlp.up", "mlp.down")
    }
    translator = ch.build("transformer", vocab=5, width=12, depth=1, heads=3)
    assert "decoder.blocks.0.cross.key" in choose_maps(translator, "attention")
    assert set(GROUPS["all"]) == set(MAPS)
    with pytest.raises(InputError, match=r"maps='attn': expected some of .*attention"):
        choose_maps(model, "attn")
    with pytest.raises(InputError, match="has no such linear maps"):
        choose_maps(ch.build("deep", width=3, depth=2), "all")


def test_dropout_acts_on_the_update_only():
    torch.manual_seed(0)
    layer = LoraLinear.convert(Linear(40, 3), rank=2, dropout=0.5)
    x = torch.randn(5, 40)
    assert torch.equal(layer(x), F.linear(x, layer.weight, layer.bias))  # B is 0
    nn.init.normal_(layer.lora_b)
    assert not torch.allclose(layer(x), written_out(layer, x))
    torch.testing.assert_close(layer.eval()(x), written_out(layer, x))


def gradients(model, ids=IDS):
    model.zero_grad()
    model(ids).square().sum().backward()
    return {name: p.grad for name, p in model.named_parameters() if p.grad is not None}


def test_recomputed_blocks_give_the_same_gradients():
    model = adapted()
    expected = gradients(model)
    assert expected.keys() == {name for name, _ in model.named_parameters() if ".lora_" in name}
    recompute(model)
    torch.testing.assert_close(gradients(model), expected)


COMPILED = """
import torch, clearhead as ch
from clearhead.layers.lora import add_adapters
torch.manual_seed(0)
model = ch.build("gpt", vocab=11, context=8, width=12, depth=1, heads=3, mlp="swiglu")
for lora in add_adapters(model, rank=3).values():
    torch.nn.init.normal_(lora.lora_b)
ids = torch.randint(0, 11, (2, 7))
gradients = []
for run in (model, torch.compile(model, backend="aot_eager", fullgraph=True)):
    model.zero_grad()
    run(ids).square().sum().backward()
    gradients.append({n: p.grad for n, p in model.named_parameters() if p.grad is not None})
torch.testing.assert_close(*gradients)
print(len(gradients[0]))
"""


def test_a_compiled_model_gives_the_same_gradients_in_one_graph():
    """In a process of its own: the checker of shapes that tests install cannot be traced."""
    done = subprocess.run([sys.executable, "-c", COMPILED], capture_output=True, text=True, check=False)
    assert done.stdout.strip() == "14", done.stderr


def test_watching_and_editing_see_the_adapted_maps():
    model = adapted().eval()
    with torch.no_grad():
        expected = model(IDS)
        with ch.watch(model, "blocks.0.attn.query", "blocks.1.attn.weights") as tape:
            assert torch.equal(model(IDS), expected)
        assert tape["blocks.0.attn.query"].shape == (2, 7, 12)
        with ch.edit(model, {"blocks.1.attn.heads": ch.look.silence([0])}):
            assert not torch.allclose(model(IDS), expected)


@pytest.mark.parametrize("maps", ["all", "o", "down"])
def test_fast_decoding_does_not_skip_adapters(maps):
    model = adapted(maps).eval()
    with torch.no_grad():
        assert CpuDecoder.of(model, model.start({}, rows=1, limit=8)) is None
        assert CpuDecoder.of(gpt().eval(), gpt().start({}, rows=1, limit=8)) is not None
    together = merge_adapters(copy.deepcopy(model))
    words = ch.tokens.Characters("abcdefghijk")
    a, b = (ch.generate(Bundle(m, words), "abba", max_new=3, top_k=1).text for m in (model, together))
    assert a == b


def test_adapters_may_be_kept_in_float32_beside_bfloat16_weights():
    model = adapted().bfloat16()
    for lora in adapters(model).values():
        lora.lora_a.data, lora.lora_b.data = lora.lora_a.data.float(), lora.lora_b.data.float()
    apart = model(IDS)
    assert apart.dtype == torch.bfloat16
    torch.testing.assert_close(merge_adapters(model)(IDS), apart, rtol=0.05, atol=0.05)


def test_each_map_has_its_own_random_numbers():
    a, b, other = gpt(), gpt(), gpt()
    add_adapters(a, "all", rank=2, seed=1)
    add_adapters(b, "q", rank=2, seed=1)
    add_adapters(other, "q", rank=2, seed=2)
    name = "blocks.1.attn.query.lora_a"
    assert torch.equal(a.get_parameter(name), b.get_parameter(name))
    assert not torch.equal(a.get_parameter(name), other.get_parameter(name))
    assert not torch.equal(b.get_parameter(name), b.get_parameter("blocks.0.attn.query.lora_a"))


def test_a_bias_that_is_trained_gets_its_gradient():
    layer = LoraLinear.convert(Linear(5, 4), rank=2)
    layer.bias.requires_grad_(True)
    x = torch.randn(3, 5)
    layer(x).sum().backward()
    assert torch.equal(layer.bias.grad, torch.full((4,), 3.0))
    assert layer.weight.grad is None


@pytest.mark.filterwarnings("ignore::DeprecationWarning:torch")  # of torch.func.jvp itself
def test_transforms_of_torch_func():
    torch.manual_seed(0)
    layer = LoraLinear.convert(Linear(5, 4), rank=2).double()
    torch.nn.init.normal_(layer.lora_b)
    x, v = torch.randn(3, 5, dtype=torch.float64), torch.randn(3, 5, dtype=torch.float64)
    whole = layer.weight + layer.update()

    def plain(x):
        return torch.nn.functional.linear(x, whole, layer.bias)

    torch.testing.assert_close(torch.func.vmap(layer)(x), plain(x))
    torch.testing.assert_close(torch.func.jvp(layer, (x,), (v,)), torch.func.jvp(plain, (x,), (v,)))
    one, other = (torch.func.grad(lambda x, f=f: f(x).square().sum())(x) for f in (layer, plain))
    torch.testing.assert_close(one, other)
