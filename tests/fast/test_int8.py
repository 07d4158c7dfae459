"""8-bit weights: the product of integers is exact, and the error of the rounding is bounded and small."""

import copy

import pytest
import torch
import torch.nn.functional as F
from torch import nn

import clearhead as ch
from clearhead.fast import CpuDecoder, Int8, int8, quantised
from clearhead.fast.products import join
from clearhead.layers import Linear

SHAPES = [(5, 2), (1, 7), (7, 5), (64, 64), (33, 129), (300, 257)]
vnni = pytest.mark.skipif(not torch.cpu._is_vnni_supported(), reason="needs a processor that multiplies bytes (VNNI)")
WAYS = {
    "fastest": lambda q: q.product,
    "oneDNN": lambda q: int8._onednn(q.weight),
    "without a fast product": lambda q: None,
}


def layer(out: int, width: int, bias: bool = True) -> Linear:
    torch.manual_seed(0)
    return Linear(width, out, bias=bias)


@vnni
@pytest.mark.parametrize("way", WAYS)
@pytest.mark.parametrize("bias", [True, False])
@pytest.mark.parametrize("shape", SHAPES, ids=str)
@torch.no_grad()
def test_the_product_is_that_of_the_rounded_weights(shape, bias, way):
    """Inputs have two bytes: the error is half a part in 127 x 254 of a row's largest, times the sum of its weights."""
    made = layer(*shape, bias=bias)
    rounded = Int8.of(made)
    rounded.product = WAYS[way](rounded)
    x = torch.randn(3, 4, shape[1]) * torch.tensor([1e-6, 1.0, 1e6])[:, None, None]
    x[1, 2] = 0.0
    weight = rounded.numbers().double() * rounded.scale.double()[:, None]
    oracle = F.linear(x.double(), weight, None if made.bias is None else made.bias.double())
    room = (
        0.51 / (127 * 254) * x.abs().amax(-1, keepdim=True) * weight.abs().sum(1)
        + 1e-5 * oracle.abs()
        + 1e-6 * (x != 0).any()
    )
    assert bool(((rounded(x) - oracle).abs() <= room).all())


@pytest.mark.parametrize("shape", SHAPES, ids=str)
@torch.no_grad()
def test_the_rounding_error_of_a_weight_is_half_a_step_at_most(shape):
    made = layer(*shape)
    rounded = Int8.of(made)
    step = made.weight.abs().amax(1, keepdim=True) / 127
    assert bool(((rounded.numbers() * rounded.scale[:, None] - made.weight).abs() <= 0.5001 * step).all())
    assert int(rounded.numbers().abs().max()) == 127


@vnni
@torch.no_grad()
def test_every_number_of_two_bytes_is_represented_exactly():
    parts = int8.MOST * int8.FINE
    y = torch.arange(-parts, parts + 1).float()[None]
    rows, step = int8._two_bytes(y)
    assert torch.equal(rows[0], rows[0].round())
    assert rows[:2].abs().max() <= int8.MOST
    assert torch.equal((int8.FINE * rows[0] + rows[1].round()), y[0])
    assert step.item() == pytest.approx(int8.FINE)


@vnni
@pytest.mark.parametrize("way", WAYS)
@pytest.mark.parametrize("at", [0, 3, 63])
@pytest.mark.parametrize("row", [0, 1, 2])
@pytest.mark.parametrize("bad", [torch.nan, torch.inf, -torch.inf])
@torch.no_grad()
def test_nan_and_infinity_in_a_row_stay_in_that_row(bad, row, at, way):
    rounded, x = Int8.of(layer(64, 64)), torch.randn(3, 64)
    rounded.product = WAYS[way](rounded)
    expected = rounded(x)
    x[row, at] = bad
    out = rounded(x)
    others = [i for i in range(3) if i != row]
    assert torch.equal(out[others], expected[others])
    assert not out[row].isfinite().any()
    assert not rounded(x[row]).isfinite().any()


def test_the_input_gets_gradients():
    rounded, x = Int8.of(layer(7, 5)), torch.randn(3, 5, requires_grad=True)
    rounded(x).sum().backward()
    weight = rounded.numbers() * rounded.scale[:, None]
    torch.testing.assert_close(x.grad, weight.sum(0).expand(3, 5))


@torch.no_grad()
def test_joined_int8_maps_compute_the_same():
    maps = [Int8.of(layer(n, 6)) for n in (4, 3, 7)]
    x = torch.randn(2, 6)
    apart = [m(x) for m in maps]
    whole = join(*maps)
    torch.testing.assert_close(whole.quick()(x), torch.cat(apart, dim=-1))
    torch.testing.assert_close([m(x) for m in maps], apart)  # each still works alone
    assert join(maps[0], Linear(6, 2)) is None


def gpt(**more):
    torch.manual_seed(0)
    sizes = {"vocab": 50, "width": 32, "depth": 2, "heads": 4, "context": 64, **more}
    return ch.build("gpt", **sizes).eval()


LLAMA = {"positions": "rotary", "kv_heads": 2, "norm": "rms", "mlp": "swiglu", "bias": False, "tied": False}


@pytest.mark.parametrize("more", [{}, LLAMA], ids=["gpt2", "llama"])
@torch.no_grad()
def test_decoding_with_rounded_weights_equals_the_forward_pass(more):
    made = gpt(**more)
    rounded = quantised(made)
    ids = torch.randint(0, 50, (2, 12))
    state = rounded.start({}, 2, limit=12)
    decoder = CpuDecoder.of(rounded, state)
    assert decoder is not None
    steps = [rounded.step(ids[:, :5], state)[0], *(decoder.step(part, state) for part in ids[:, 5:].split(1, dim=1))]
    steps = torch.cat(steps, dim=1)
    torch.testing.assert_close(steps, rounded(ids), rtol=0.0, atol=2e-4)
    near = (rounded(ids) - made(ids)).abs().max() / made(ids).std()
    assert 0 < near < 0.1
    again = copy.deepcopy(rounded)
    torch.testing.assert_close(again(ids), rounded(ids), rtol=0.0, atol=2e-4)


@torch.no_grad()
def test_quantising_does_not_change_the_original_and_shares_its_embeddings():
    made = gpt()
    before, ids = {n: p.clone() for n, p in made.named_parameters()}, torch.randint(0, 50, (1, 5))
    logits = made(ids)
    rounded = quantised(made)
    assert rounded.embed.table is made.embed.table
    assert not [m for m in rounded.modules() if isinstance(m, nn.Linear)]
    assert torch.equal(made(ids), logits)
    assert all(torch.equal(p, before[n]) for n, p in made.named_parameters())
    assert isinstance(made.head, Linear)
    with pytest.raises(ValueError, match="rounded weights is not saved"):
        rounded.state_dict()


def test_rounding_hardly_changes_the_loss_of_a_trained_model():
    """Rounding changes the loss by less than 0.01 nats: the perplexity by less than one per cent."""
    text = torch.tensor([(i * i + 3 * i) % 17 + (i % 5) for i in range(2000)])
    made = gpt(context=64)
    optimiser = torch.optim.AdamW(made.parameters(), lr=3e-3)
    for step in range(150):
        at = (step * 37) % 1850
        x = torch.stack([text[at + 5 * r : at + 5 * r + 33] for r in range(8)])
        loss = F.cross_entropy(made(x[:, :-1]).flatten(0, 1), x[:, 1:].flatten())
        optimiser.zero_grad()
        loss.backward()
        optimiser.step()
    x = torch.stack([text[40 * r : 40 * r + 65] for r in range(40)])
    with torch.no_grad():
        losses = [
            float(F.cross_entropy(m(x[:, :-1]).flatten(0, 1), x[:, 1:].flatten())) for m in (made, quantised(made))
        ]
    assert losses[0] < 2.0  # of ln 50 = 3.9
    assert abs(losses[1] - losses[0]) < 0.01


@torch.no_grad()
def test_an_encoder_can_be_quantised():
    torch.manual_seed(0)
    made = ch.build("bert", vocab=20, width=32, depth=1, heads=4, context=16, answer="class", classes=3).eval()
    ids, lengths = torch.randint(0, 20, (2, 9)), torch.tensor([9, 4])
    torch.testing.assert_close(quantised(made)(ids, lengths=lengths), made(ids, lengths=lengths), rtol=0.0, atol=0.02)


@vnni
@torch.no_grad()
def test_cached_constants_do_not_depend_on_the_default_dtype_of_the_first_call():
    rounded, x = Int8.of(layer(8, 12)), torch.randn(2, 12)
    want = rounded(x)
    int8._constants.cache_clear()
    int8._bounds.cache_clear()
    torch.set_default_dtype(torch.float64)
    try:
        assert torch.equal(rounded(x), want)
    finally:
        torch.set_default_dtype(torch.float32)
