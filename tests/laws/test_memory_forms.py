"""The composite memory with forgetting: its recurrent, parallel and written-out forms agree."""

import pytest
import torch
from drawn import normal, seeds
from hypothesis import given
from hypothesis import strategies as st
from torch import Tensor
from written_out import TIGHT

from clearhead.layers import Memory

B, T, D = 2, 7, 6


def make(learned: bool, gamma: float | list[float], heads: int = 3) -> Memory:
    return Memory(D, heads, gamma=gamma, learned=learned).double()


def stepped(memory: Memory, x: Tensor, state: Tensor | None = None) -> Tensor:
    out = []
    for token in x.unbind(1):
        state = memory.step(token, state)
        out.append(state)
    return torch.stack(out, dim=1)


gammas = st.floats(0.01, 0.999) | st.lists(st.floats(0.01, 0.999), min_size=3, max_size=3)


@given(seed=seeds, gamma=gammas, learned=st.booleans(), chunk=st.integers(1, T + 2), carried=st.booleans())
def test_the_parallel_form_equals_the_recurrent_one(seed, gamma, learned, chunk, carried):
    memory, x = make(learned, gamma), normal(seed, B, T, D)
    state = normal(seed + 1, B, D) if carried else None
    torch.testing.assert_close(memory(x, state, chunk=chunk), stepped(memory, x, state), **TIGHT)


@given(seed=seeds, gamma=gammas, learned=st.booleans(), chunk=st.integers(1, T + 2))
def test_the_parallel_form_equals_the_sum_written_out(seed, gamma, learned, chunk):
    memory, x = make(learned, gamma), normal(seed, B, T, D)
    rate = torch.tensor(gamma, dtype=torch.float64).expand(3).repeat_interleave(2)  # a head has width two
    W, b = memory.value.weight, memory.value.bias
    want = torch.stack([sum(rate ** (t - i) * (x[:, i] @ W.T + b) for i in range(t + 1)) for t in range(T)], dim=1)
    # A learned gamma is stored as its logit, in float32 when it was built.
    near = {"rtol": 1e-4, "atol": 1e-4} if learned else TIGHT
    torch.testing.assert_close(memory(x, chunk=chunk), want, **near)


@given(seed=seeds, cut=st.integers(1, T - 1), chunk=st.integers(1, T))
def test_a_text_can_be_continued_from_its_state(seed, cut, chunk):
    memory, x = make(True, [0.3, 0.9, 0.99]), normal(seed, B, T, D)
    whole = memory(x)
    first = memory(x[:, :cut], chunk=chunk)
    torch.testing.assert_close(torch.cat([first, memory(x[:, cut:], first[:, -1])], dim=1), whole, **TIGHT)


@given(seed=seeds, chunk=st.integers(1, T))
def test_gamma_one_forgets_nothing(seed, chunk):
    memory, x = make(False, 1.0), normal(seed, B, T, D)
    torch.testing.assert_close(memory(x, chunk=chunk), memory.value(x).cumsum(1), **TIGHT)


@pytest.mark.parametrize("chunk", [1, 3, 128])
@given(seed=seeds, gamma=gammas, carried=st.booleans())
def test_both_forms_give_gamma_the_same_gradient(chunk, seed, gamma, carried):
    memory, x, toward = make(True, gamma), normal(seed, B, T, D), normal(seed + 1, B, T, D)
    state = normal(seed + 2, B, D) if carried else None
    leaves = list(memory.parameters())
    parallel = torch.autograd.grad(memory(x, state, chunk=chunk), leaves, toward)
    recurrent = torch.autograd.grad(stepped(memory, x, state), leaves, toward)
    for have, want in zip(parallel, recurrent, strict=True):
        torch.testing.assert_close(have, want, rtol=1e-8, atol=1e-9)
    assert (parallel[[name for name, _ in memory.named_parameters()].index("rate")] != 0).all()


def test_a_token_fades_with_age_however_large_it_is():
    memory = make(False, 0.5, heads=1)
    torch.nn.init.eye_(memory.value.weight)
    torch.nn.init.zeros_(memory.value.bias)
    x = torch.zeros(1, 5, D, dtype=torch.float64)
    x[0, 0, 0] = 16.0
    assert memory(x)[0, :, 0].tolist() == pytest.approx([16.0, 8.0, 4.0, 2.0, 1.0])
