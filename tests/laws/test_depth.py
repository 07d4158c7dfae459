"""Depth: how large outputs grow, what normalisation does about it, and the block of the lecture."""

import pytest
import torch
import written_out
from drawn import normal
from written_out import TIGHT

import clearhead
from clearhead.layers import Block, Stack, make_norm


def outputs(stack: Stack, x: torch.Tensor, pattern: str) -> list[torch.Tensor]:
    with clearhead.watch(stack, pattern) as tape:
        stack(x)
    return [tape[name] for name in tape.names]


def test_the_numbers_of_the_lecture():
    stack = Stack(1000, 2, connect="plain").double()
    for layer in stack.layers:
        torch.nn.init.constant_(layer.weight, 0.01)
        torch.nn.init.zeros_(layer.bias)
    first, second = outputs(stack, torch.ones(1, 1000, dtype=torch.float64), "layers.*")
    torch.testing.assert_close(first, torch.full_like(first, 10.0))
    torch.testing.assert_close(second, torch.full_like(second, 100.0))


@pytest.mark.parametrize("weight", [0.1, 3.0])
def test_the_outputs_of_normalised_layers_have_size_one_at_any_depth(weight):
    x = normal(0, 4, 64, dtype=torch.float32)
    stacks = {}
    for norm in ("none", "layer"):
        torch.manual_seed(0)
        stack = Stack(64, 40, connect="plain", norm=norm)
        for layer in stack.layers:
            torch.nn.init.normal_(layer.weight, std=weight * 64**-0.5)  # sizes grow by about `weight`
            torch.nn.init.zeros_(layer.bias)
        stacks[norm] = [float(out.square().mean().sqrt()) for out in outputs(stack, x, "norms.*")]
    assert all(0.99 < size < 1.01 for size in stacks["layer"])
    first, *_, last = stacks["none"]
    assert last < 1e-20 * first if weight < 1 else last > 1e10 * first


def test_layer_norm_of_equal_numbers_is_zero():
    norm, rms = make_norm("layer", 1000), make_norm("rms", 1000)
    for size in (1.0, 10.0, 100.0):
        assert not norm(torch.full((1, 1000), size)).any()
        torch.testing.assert_close(rms(torch.full((1, 1000), size)), torch.ones(1, 1000))


def test_layer_norm_equals_its_formula():
    """With 1/d in the mean, and inside the root of the deviation."""
    x, eps = normal(0, 3, 5), 1e-5
    mean = x.sum(-1, keepdim=True) / 5
    variance = (x - mean).square().sum(-1, keepdim=True) / 5
    out = make_norm("layer", 5, eps=eps).double()(x)
    torch.testing.assert_close(out, (x - mean) / (variance + eps).sqrt(), **TIGHT)


def test_the_block_of_the_lecture():
    torch.manual_seed(0)
    block = Block(12, 3, order="post", mlp="leaky_relu", hidden=12).double()
    for norm in (block.attn_norm, block.mlp_norm):  # so that a missing scale or shift shows
        torch.nn.init.normal_(norm.weight)
        torch.nn.init.normal_(norm.bias)
    x = normal(1, 2, 7, 12)

    def linear(layer, x):
        return x @ layer.weight.T + layer.bias

    def attn(x):
        q, k, v = (
            linear(part, x).unflatten(-1, (3, 4)).transpose(1, 2)
            for part in (block.attn.query, block.attn.key, block.attn.value)
        )
        return linear(block.attn.out, written_out.attention(q, k, v).transpose(1, 2).flatten(2))

    def mlp(x):
        hidden = linear(block.mlp.up, x)
        return linear(block.mlp.down, torch.where(hidden > 0, hidden, 0.01 * hidden))

    def norm(layer, x):
        x = x - x.mean(-1, keepdim=True)
        return x / (x.square().mean(-1, keepdim=True) + 1e-5).sqrt() * layer.weight + layer.bias

    z = norm(block.attn_norm, attn(x) + x)
    want = norm(block.mlp_norm, mlp(z) + z)
    torch.testing.assert_close(block(x), want, **TIGHT)


@pytest.mark.parametrize("connect", ["plain", "dense", "residual"])
def test_connections_equal_their_formulas(connect):
    torch.manual_seed(0)
    stack, x = Stack(5, 3, connect=connect, activation="tanh").double(), normal(0, 2, 5)
    z, history = x, [x]
    for layer in stack.layers:
        seen = torch.cat(history, dim=-1) if connect == "dense" else z
        new = torch.tanh(seen @ layer.weight.T + layer.bias)
        z = z + new if connect == "residual" else new
        history.append(z)
    last = torch.cat(history, dim=-1) if connect == "dense" else z
    torch.testing.assert_close(stack(x), last @ stack.readout.weight.T + stack.readout.bias)
