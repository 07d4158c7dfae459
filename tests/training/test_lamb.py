"""LAMB against the algorithm of the paper, written out with numpy; layer decay against factors counted by hand."""

import numpy as np
import pytest
import torch
from torch import nn

import clearhead as ch
from clearhead.training.optim.lamb import Lamb
from clearhead.training.optim.optimisers import OptimConfig, Optimiser, layer_scales

LR, BETAS, EPS, DECAY = 0.01, (0.9, 0.95), 1e-6, 0.1


def written_out(w, grads, *, decay, adapts):
    """Algorithm 2 of You et al. 2020, one parameter in float64."""
    w, m, v = w.astype(np.float64), 0.0, 0.0
    for t, g in enumerate(grads, 1):
        m = BETAS[0] * m + (1 - BETAS[0]) * g
        v = BETAS[1] * v + (1 - BETAS[1]) * g * g
        r = (m / (1 - BETAS[0] ** t)) / (np.sqrt(v / (1 - BETAS[1] ** t)) + EPS) + decay * w
        ratio = np.linalg.norm(w) / np.linalg.norm(r) if adapts and np.linalg.norm(w) > 0 else 1.0
        w = w - LR * ratio * r
    return w


@pytest.mark.parametrize("shape", [(3, 5), (7,), (2, 3, 4)], ids=str)
@pytest.mark.parametrize("adapts", [True, False])
def test_updates_are_those_of_the_paper(shape, adapts):
    rng = np.random.default_rng(0)
    start, grads = 3 * rng.normal(size=shape), [rng.normal(size=shape) for _ in range(5)]
    p = nn.Parameter(torch.tensor(start))
    decay = DECAY if adapts else 0.0
    group = {"params": [p], "weight_decay": decay, "decays": adapts}
    optimiser = Lamb([group], LR, betas=BETAS, eps=EPS)
    for g in grads:
        p.grad = torch.tensor(g)
        optimiser.step()
    # The step is counted in float32, whose powers round at 1e-7.
    np.testing.assert_allclose(p.detach().numpy(), written_out(start, grads, decay=decay, adapts=adapts), rtol=2e-6)


def test_each_parameter_of_a_group_counts_its_own_steps_and_has_its_own_ratio():
    """The second one has a gradient only in every other step."""
    rng = np.random.default_rng(1)
    starts = [2 * rng.normal(size=(3, 5)), rng.normal(size=(4, 2))]
    grads = [[rng.normal(size=start.shape) for _ in range(6)] for start in starts]
    params = [nn.Parameter(torch.tensor(start)) for start in starts]
    optimiser = Lamb([{"params": params, "weight_decay": DECAY, "decays": True}], LR, betas=BETAS, eps=EPS)
    for step in range(6):
        params[0].grad = torch.tensor(grads[0][step])
        params[1].grad = None if step % 2 else torch.tensor(grads[1][step])
        optimiser.step()
    for p, start, seen in zip(params, starts, (grads[0], grads[1][::2]), strict=True):
        expected = written_out(start, seen, decay=DECAY, adapts=True)
        np.testing.assert_allclose(p.detach().numpy(), expected, rtol=2e-6)


def test_an_update_does_not_depend_on_the_scale_of_the_gradient_but_on_that_of_the_weights():
    lengths = []
    for weight, gradient in ((1.0, 1.0), (1.0, 100.0), (10.0, 1.0)):
        p = nn.Parameter(weight * torch.arange(1.0, 7.0).reshape(2, 3))
        before = p.detach().clone()
        p.grad = gradient * torch.ones_like(p)
        Lamb([p], LR, weight_decay=0.0, eps=1e-12).step()
        lengths.append(float((p.detach() - before).norm() / weight))
    assert lengths == pytest.approx([lengths[0]] * 3, rel=1e-5)


def test_a_matrix_of_zeros_moves():
    p = nn.Parameter(torch.zeros(2, 3))
    p.grad = torch.ones_like(p)
    Lamb([p], LR, weight_decay=0.1, eps=0.0).step()
    torch.testing.assert_close(p.detach(), torch.full((2, 3), -LR))


def test_matrices_adapt_and_biases_do_not():
    torch.manual_seed(0)
    model = nn.Linear(4, 3)
    before = {name: p.detach().clone() for name, p in model.named_parameters()}
    optimiser = Optimiser(model, OptimConfig(name="lamb", lr=LR, decay=0.0, clip=0.0, eps=1e-12), masters=False)
    for p in model.parameters():
        p.grad = torch.ones_like(p)
    optimiser.step()
    moved = {name: float((p.detach() - before[name]).norm()) for name, p in model.named_parameters()}
    assert moved["weight"] == pytest.approx(LR * float(before["weight"].norm()), rel=1e-5)
    assert moved["bias"] == pytest.approx(LR * 3**0.5, rel=1e-5)


FAMILIES = {
    "vit": {"size": 8, "patch": 4, "width": 12, "depth": 3, "heads": 3, "classes": 2},
    "resnet": {"width": 4, "depths": (1, 2), "classes": 2},
    "convnext": {"width": 4, "depths": (1, 1), "classes": 2},
}


@pytest.mark.parametrize("family", FAMILIES)
def test_lower_layers_have_smaller_factors(family):
    model = ch.build(family, **FAMILIES[family])
    scales = layer_scales(dict(model.named_parameters()), 0.5)
    assert {scales[name] for name in scales if name.startswith("head")} == {1.0}
    # A ConvNeXt halves its grid by a layer of its own: stages.1.0.
    assert min(scales.values()) == 0.5**4
    assert {scale for name, scale in scales.items() if name.startswith(("embed", "stem"))} == {0.5**4}
    steps = [scale for name, scale in scales.items()]
    assert steps == sorted(steps)  # parameters are named from input to output


def test_layers_of_a_stem_belong_to_the_layer_below():
    model = ch.build("vit", stem="resnet", **FAMILIES["vit"])
    scales = layer_scales(dict(model.named_parameters()), 0.5)
    assert {scale for name, scale in scales.items() if name.startswith("embed")} == {0.5**4}
    assert [scales[f"blocks.{i}.mlp.up.weight"] for i in range(3)] == [0.5**3, 0.5**2, 0.5]


def test_the_query_that_pools_tokens_is_above_all_layers():
    model = ch.build("vit", pool="attention", **FAMILIES["vit"])
    scales = layer_scales(dict(model.named_parameters()), 0.5, model.head_parts)
    assert (scales["pool_query"], scales["embed.project.weight"]) == (1.0, 0.5**4)


def test_factors_without_layers_are_one():
    assert layer_scales(["first.weight", "head.weight"], 0.5) == {"first.weight": 1.0, "head.weight": 1.0}


@pytest.mark.parametrize("name", ["sgd", "adamw", "muon", "lamb"])
def test_the_factor_scales_the_update(name):
    """The first update is in proportion to the learning rate, and so to the factor, also with a schedule."""
    runs = []
    for decay in (1.0, 0.5):
        torch.manual_seed(0)
        model = ch.build("vit", **FAMILIES["vit"])
        before = {n: p.detach().clone() for n, p in model.named_parameters()}
        config = OptimConfig(name=name, lr=1e-3, layer_decay=decay, decay=0.0, clip=0.0)
        optimiser = Optimiser(model, config, masters=False)
        torch.manual_seed(1)
        for p in model.parameters():
            p.grad = torch.randn_like(p)
        optimiser.step(0.3)
        runs.append({n: p.detach() - before[n] for n, p in model.named_parameters()})
    scales = layer_scales(runs[0], 0.5)
    for n, whole in runs[0].items():
        torch.testing.assert_close(runs[1][n], scales[n] * whole, rtol=1e-3, atol=2e-7)


def test_a_wrong_factor_is_refused():
    for value in (0.0, 1.1):
        with pytest.raises(ValueError, match=f"layer_decay={value}: expected a number above 0, at most 1"):
            OptimConfig(layer_decay=value)
