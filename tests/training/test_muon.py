"""Muon equals torch.optim.Muon, and its iteration a singular value decomposition in float64."""

import math

import pytest
import torch

from clearhead.training.optim.muon import QUINTIC, Muon, orthogonalise

SHAPES = [(7, 5), (5, 7), (7, 5), (6, 6), (1, 9)]


def quintic(singular):
    a, b, c = QUINTIC
    for _ in range(5):
        singular = a * singular + b * singular**3 + c * singular**5
    return singular


@pytest.mark.parametrize("shape", [(5, 9), (9, 5), (6, 6), (3, 5, 9), (2, 3, 9, 5)])
def test_the_iteration_changes_only_singular_values(shape):
    """In exact arithmetic the result is U p(S) V^T, where p applies the quintic five times."""
    x = torch.randn(shape, dtype=torch.float64, generator=torch.Generator().manual_seed(0))
    U, S, Vh = torch.linalg.svd(x, full_matrices=False)
    S = quintic(S / x.norm(dim=(-2, -1), keepdim=True).squeeze(-1))
    torch.testing.assert_close(orthogonalise(x), U @ torch.diag_embed(S) @ Vh, rtol=1e-9, atol=1e-9)
    torch.testing.assert_close(orthogonalise(x.float()).double(), orthogonalise(x), rtol=1e-4, atol=1e-5)
    assert orthogonalise(x.float()).dtype == torch.float32


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_singular_values_become_nearly_one(dtype):
    x = torch.randn(24, 64, generator=torch.Generator().manual_seed(0)) * 1e-3
    singular = torch.linalg.svdvals(orthogonalise(x, dtype=dtype).double())
    assert singular.min() > 0.65
    assert singular.max() < 1.25


def test_a_zero_matrix_stays_zero():
    assert not orthogonalise(torch.zeros(3, 4)).any()


def trained(make, steps=6):
    """Parameters after some steps on fixed gradients."""
    gen = torch.Generator().manual_seed(0)
    params = [torch.randn(shape, generator=gen) for shape in SHAPES]
    optimiser = make(params)
    for _ in range(steps):
        for p in params:
            p.grad = torch.randn(p.shape, generator=gen)
        optimiser.step()
    return params


@pytest.mark.parametrize("momentum", [0.0, 0.95])
def test_updates_equal_those_of_torch_muon(momentum):
    """Both iterate in bfloat16; torch also rounds before it normalises, so updates of about 0.01 agree to 1%."""
    options = {"lr": 0.05, "weight_decay": 0.3, "momentum": momentum}
    theirs = trained(lambda p: torch.optim.Muon(p, **options, adjust_lr_fn="match_rms_adamw"))
    ours = trained(lambda p: Muon(p, **options, dtype=torch.bfloat16))
    start = trained(lambda p: Muon(p, **options), steps=0)
    for a, b, s in zip(ours, theirs, start, strict=True):
        assert (a - b).norm() < 0.02 * (b - s).norm()


def test_updates_equal_the_formula_in_float64():
    lr, decay, momentum = 0.05, 0.3, 0.9

    class KVState(torch.optim.Optimizer):
        def __init__(self, params):
            super().__init__(params, {})
            self.buffers = [torch.zeros_like(p) for p in params]

        def step(self):
            for p, buffer in zip(self.param_groups[0]["params"], self.buffers, strict=True):
                buffer.mul_(momentum).add_(p.grad)
                update = orthogonalise((p.grad + momentum * buffer).double()).float()
                p.mul_(1 - lr * decay).sub_(lr * 0.2 * math.sqrt(max(p.shape)) * update)

    ours = trained(lambda p: Muon(p, lr=lr, weight_decay=decay, momentum=momentum))
    for a, b in zip(ours, trained(KVState), strict=True):
        torch.testing.assert_close(a, b, rtol=1e-4, atol=1e-5)


def test_a_closure_is_called_and_a_missing_gradient_is_skipped():
    p, still = torch.randn(3, 4, requires_grad=True), torch.randn(3, 4, requires_grad=True)
    before = still.detach().clone()
    optimiser = Muon([p, still], lr=0.1)

    def closure():
        loss = (p**2).sum()
        loss.backward()
        return loss

    first = (p**2).sum().item()
    assert optimiser.step(closure).item() == pytest.approx(first)
    assert (p**2).sum().item() < first
    assert torch.equal(still, before)


def test_parameters_that_are_not_matrices_are_refused():
    with pytest.raises(ValueError, match=r"shape \(3,\)"):
        Muon([torch.zeros(3)])


@pytest.mark.cuda
@pytest.mark.skipif(not torch.cuda.is_available(), reason="no CUDA device")
def test_updates_on_a_gpu_equal_those_on_the_cpu():
    x = torch.randn(3, 64, 200, device="cuda")
    singular = torch.linalg.svdvals(orthogonalise(x))
    assert singular.min() > 0.6
    assert singular.max() < 1.3
