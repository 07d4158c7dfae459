"""Attention without positions is permutation-equivariant; with positions it is not."""

from functools import cache

import pytest
import torch
from drawn import normal, seeds, shared
from hypothesis import given
from hypothesis import strategies as st
from tower import HEADS, WIDTH, Tower
from written_out import TIGHT

import clearhead
from clearhead.layers import POSITIONS, PROJECTIONS, Attention, attend

ORDER = torch.tensor([2, 0, 1, 5, 3, 6, 4])  # neither a shift nor a mirror image, to which some kinds are invariant
tower = cache(lambda kind, **block: Tower(kind, **block).double())


def test_the_permutation_matrix_of_the_lecture():
    P = torch.tensor([[0.0, 1.0, 0.0], [1.0, 0.0, 0.0], [0.0, 0.0, 1.0]])
    x = torch.tensor([[3.0], [4.0], [5.0]])
    assert (P @ x).flatten().tolist() == [4.0, 3.0, 5.0]
    attention = Attention(1)
    torch.testing.assert_close(attention((P @ x)[None])[0], P @ attention(x[None])[0])


@pytest.mark.parametrize("project", PROJECTIONS)
@given(order=st.permutations(range(7)), seed=seeds)
def test_permuted_tokens_permute_outputs_along_one_axis_and_scores_along_both(project, order, seed):
    attention = Attention(WIDTH, HEADS, project=project).double()
    P, x = torch.eye(7, dtype=torch.float64)[list(order)], normal(seed, 2, 7, WIDTH)

    def inside(x):
        with clearhead.watch(attention, "q", "k", "v", "scores", "weights") as tape:
            y = attention(x)
        return [tape[name] for name in ("q", "k", "v")] + [y], [tape["scores"], tape["weights"].dense()]

    (rows, squares), (moved_rows, moved_squares) = inside(x), inside(P @ x)
    for before, after in zip(rows, moved_rows, strict=True):
        torch.testing.assert_close(after, P @ before, **TIGHT)
    for before, after in zip(squares, moved_squares, strict=True):
        torch.testing.assert_close(after, P @ before @ P.T, **TIGHT)


@given(order=st.permutations(range(7)), seed=seeds)
def test_the_output_of_a_query_does_not_depend_on_the_order_of_the_keys(order, seed):
    q, k, v = normal(seed, 2, 6, 1, 3), normal(seed + 1, 2, 2, 7, 3), normal(seed + 2, 2, 2, 7, 5)
    order = list(order)
    torch.testing.assert_close(attend(q, k[:, :, order], v[:, :, order]), attend(q, k, v), **TIGHT)


@pytest.mark.parametrize("kind", POSITIONS)
def test_only_positions_break_the_symmetry(kind):
    x = normal(0, 2, 7, WIDTH)
    moved = (tower(kind)(x[:, ORDER]) - tower(kind)(x)[:, ORDER]).abs().max()
    assert moved < 1e-11 if kind == "none" else moved > 1e-2


@pytest.mark.parametrize("kind", POSITIONS)
@shared
@given(order=st.permutations(range(7)), seed=seeds)
def test_tokens_permuted_together_with_their_positions_are_equivariant(kind, order, seed):
    x, order = normal(seed, 2, 7, WIDTH), torch.tensor(order)
    torch.testing.assert_close(tower(kind)(x[:, order], at=order), tower(kind)(x)[:, order], **TIGHT)
    rows = torch.stack([order, torch.arange(7)])  # one row permuted, the other not
    both = torch.stack([x[0, order], x[1]])
    want = tower(kind)(x)
    torch.testing.assert_close(tower(kind)(both, at=rows), torch.stack([want[0, order], want[1]]), **TIGHT)


@pytest.mark.parametrize("kind", POSITIONS)
@pytest.mark.parametrize("block", [{}, {"order": "post", "norm": "rms", "mlp": "swiglu"}], ids=str)
def test_tokens_influence_each_other_only_through_attention(kind, block):
    model, x = tower(kind, **block), normal(0, 1, 5, WIDTH)

    def dependence() -> torch.Tensor:
        """How strongly output token i depends on input token j, (5, 5)."""
        jacobian = torch.autograd.functional.jacobian(model, x)[0, :, :, 0]  # (t, d, t, d)
        return jacobian.abs().amax((1, 3))

    assert (dependence() > 0).all()
    with clearhead.edit(model, {"**.heads": clearhead.look.silence(range(HEADS))}):
        alone = dependence()
    assert (alone.diagonal() > 0).all()
    assert not alone.fill_diagonal_(0.0).any()
