"""Later tokens cannot change earlier outputs; padding and other rows of the batch cannot change any output."""

from functools import cache

import pytest
import torch
from drawn import normal, seeds, shared
from hypothesis import given
from hypothesis import strategies as st
from tower import WIDTH, Tower
from written_out import TIGHT

from clearhead.layers import POSITIONS, Mask

LOUD = 1e3  # size of garbage that no query may attend to
tower = cache(lambda kind, **block: Tower(kind, **block).double())


@pytest.mark.parametrize("window", [None, 1, 3])
@pytest.mark.parametrize("kind", POSITIONS)
@shared
@given(cut=st.integers(1, 6), seed=seeds)
def test_later_tokens_cannot_change_earlier_outputs(kind, window, cut, seed):
    model, mask = tower(kind, kv_heads=1), Mask(causal=True, window=window)
    x = normal(seed, 2, 7, WIDTH)
    other = torch.cat([x[:, :cut], LOUD * normal(seed + 1, 2, 7 - cut, WIDTH)], dim=1)
    before, after = model(x, mask=mask), model(other, mask=mask)
    torch.testing.assert_close(after[:, :cut], before[:, :cut], **TIGHT)
    torch.testing.assert_close(model(x[:, :cut], mask=mask), before[:, :cut], **TIGHT)
    assert not torch.allclose(after[:, cut:], before[:, cut:])


@pytest.mark.parametrize("kind", POSITIONS)
def test_earlier_outputs_have_no_gradient_in_later_tokens(kind):
    x = normal(0, 1, 5, WIDTH)
    jacobian = torch.autograd.functional.jacobian(lambda x: tower(kind)(x, mask=Mask(causal=True)), x)
    depends = jacobian[0, :, :, 0].abs().amax((1, 3)) > 0  # (output token, input token)
    assert torch.equal(depends, torch.ones(5, 5, dtype=torch.bool).tril())


def test_the_reach_of_windows_adds_up_over_the_depth():
    """Each block reaches window - 1 tokens back, so two blocks reach twice as far and no further."""
    x = normal(0, 1, 9, WIDTH)
    jacobian = torch.autograd.functional.jacobian(lambda x: tower("none")(x, mask=Mask(causal=True, window=3)), x)
    depends = jacobian[0, :, :, 0].abs().amax((1, 3)) > 0
    back = torch.arange(9)[:, None] - torch.arange(9)
    assert torch.equal(depends, (back >= 0) & (back <= 4))


@pytest.mark.parametrize("causal", [False, True])
@pytest.mark.parametrize("kind", POSITIONS)
@shared
@given(lengths=st.lists(st.integers(1, 7), min_size=3, max_size=3), seed=seeds)
def test_padding_on_the_right_and_other_rows_cannot_change_an_output(kind, causal, lengths, seed):
    model, x = tower(kind), normal(seed, 3, 7, WIDTH)
    padded = x.clone()
    for row, n in enumerate(lengths):
        padded[row, n:] = LOUD * normal(seed + row + 1, 7 - n, WIDTH)
    together = model(padded, mask=Mask(causal=causal, lengths=lengths))
    for row, n in enumerate(lengths):
        alone = model(x[row : row + 1, :n], mask=Mask(causal=causal))
        torch.testing.assert_close(together[row : row + 1, :n], alone, **TIGHT)


@pytest.mark.parametrize("kind", POSITIONS)
@shared
@given(lengths=st.lists(st.integers(1, 7), min_size=3, max_size=3), seed=seeds)
def test_padding_on_the_left_cannot_change_an_output(kind, lengths, seed):
    model, x = tower(kind), normal(seed, 3, 7, WIDTH)
    padded = LOUD * normal(seed + 1, 3, 7, WIDTH)
    for row, n in enumerate(lengths):
        padded[row, 7 - n :] = x[row, :n]
    before = 7 - torch.tensor(lengths)[:, None]  # tokens of padding
    column = torch.arange(7)
    mask = Mask(causal=True, allow=(column >= before)[:, None, None])
    together = model(padded, mask=mask, at=(column - before).clamp(min=0))
    for row, n in enumerate(lengths):
        alone = model(x[row : row + 1, :n], mask=Mask(causal=True))
        torch.testing.assert_close(together[row : row + 1, 7 - n :], alone, **TIGHT)


@given(lengths=st.lists(st.integers(1, 5), min_size=2, max_size=2), seed=seeds)
def test_padding_of_a_context_cannot_change_an_output(lengths, seed):
    model = tower("none", cross=True, context=8)
    x, context = normal(seed, 2, 7, WIDTH), normal(seed + 1, 2, 5, 8)
    padded = context.clone()
    for row, n in enumerate(lengths):
        padded[row, n:] = LOUD
    together = model(x, padded, context_mask=Mask(lengths=lengths))
    for row, n in enumerate(lengths):
        alone = model(x[row : row + 1], context[row : row + 1, :n])
        torch.testing.assert_close(together[row : row + 1], alone, **TIGHT)


@pytest.mark.parametrize("kind", POSITIONS)
@shared
@given(first=st.integers(1, 6), seed=seeds)
def test_documents_packed_in_a_row_equal_separate_rows(kind, first, seed):
    model, x = tower(kind), normal(seed, 1, 7, WIDTH)
    documents = (torch.arange(7) >= first).long()[None]
    at = torch.cat([torch.arange(first), torch.arange(7 - first)])
    packed = model(x, at=at, mask=Mask(causal=True, documents=documents))
    apart = [model(part, mask=Mask(causal=True)) for part in (x[:, :first], x[:, first:])]
    torch.testing.assert_close(packed, torch.cat(apart, dim=1), **TIGHT)
