"""The FLOPs of a training step, and blocks by their names: blocks.* and stages.*."""

import pytest
import torch
import torch.nn.functional as F
from torch import nn
from trainings import Grid, GridConfig

from clearhead import build
from clearhead.data import make_data
from clearhead.training import probes
from clearhead.training.distributed import blocks, recompute
from clearhead.training.logs import training_flops
from clearhead.training.objectives import objective_class

pytestmark = pytest.mark.usefixtures("own_models")


class Images:
    """A minimal dataset for an objective."""

    sizes, keys, classes, qualities, unit = {"classes": 3}, ("images", "labels"), ("a", "b", "c"), {}, "images"


def objective(model, name="classification", data=None):
    kind = objective_class(name)
    return kind(kind.Config(), {"model": model}, data or Images())


def pictures(rows=3, size=8):
    return {"images": torch.randn(rows, 3, size, size), "labels": torch.zeros(rows, dtype=torch.long)}


def test_convolutions_and_products_are_counted():
    model = Grid(GridConfig(classes=3, attention=False))
    t = 1 + 4  # the class token and 2 x 2 patches
    row = 2 * (4 * (3 * 4 * 4) * 12 + t * (12 * 3) * 12 + 12 * 3)
    assert training_flops(objective(model), pictures()) == pytest.approx(3 * 3 * row)


def test_attention_is_counted_as_two_full_products():
    without, model = Grid(GridConfig(classes=3, attention=False)), Grid(GridConfig(classes=3))
    t, d = 5, 12
    block = 2 * t * d * d * (4 + 2 * 4) + 2 * (2 * t * t * d)
    found = training_flops(objective(model), pictures()) - training_flops(objective(without), pictures())
    assert found == pytest.approx(3 * 3 * block)


def test_a_language_model_has_six_operations_per_weight_and_token():
    data = make_data("reverse", {"rows": 4}, seed=0)
    model = build("gpt", vocab=data.sizes["vocab"], context=64, width=32, depth=2, heads=2)
    batch = {name: torch.from_numpy(x) for name, x in data.batch(0).items()}
    found = training_flops(objective(model, "next-token", data), batch)
    tokens = batch["ids"].numel()
    weights = sum(p.numel() for n, p in model.named_parameters() if p.ndim == 2 and "positions" not in n)
    attention = 12 * 2 * 32 * batch["ids"].shape[1] * tokens
    assert found == pytest.approx(6 * weights * tokens + attention, rel=1e-6)


def test_recomputation_is_not_counted():
    model = Grid(GridConfig(classes=3))
    plain = training_flops(objective(model), pictures())
    recompute(model)
    assert training_flops(objective(model), pictures()) == plain


def test_blocks_and_stages_are_the_repeated_parts():
    assert [name for name, _ in blocks(Grid(GridConfig()))] == ["stages.0.0", "blocks.0"]


def test_stages_are_recomputed_with_the_same_gradients():
    model, x = Grid(GridConfig(classes=3)), pictures()
    loss = lambda: F.cross_entropy(model(x["images"]), x["labels"])  # noqa: E731
    plain = torch.autograd.grad(loss(), list(model.parameters()))
    calls = []
    model.stages[0][0][0].register_forward_hook(lambda *_: calls.append(1))
    recompute(model)
    again = torch.autograd.grad(loss(), list(model.parameters()))
    assert len(calls) == 2  # forward, and again in the backward pass
    torch.testing.assert_close(again, plain)


def test_probes_cover_stages_and_heads():
    model, x = Grid(GridConfig(classes=3)), pictures()
    found = probes.activations(objective(model), model, x)
    assert {"stages.0.0", "blocks.0", "blocks.0.attn.entropy", "blocks.0.attn.sink"} <= found.keys()
    with torch.no_grad():
        expected = model.stages[0][0](model.patches(x["images"]).mT).square().mean().sqrt()
    assert found["stages.0.0"] == pytest.approx(float(expected), rel=1e-5)
    norms = probes.gradients(model, {n: torch.ones_like(p) for n, p in model.named_parameters()})
    assert set(norms) == {"stages.0.0", "blocks.0", "rest"}
    conv = model.stages[0][0][0]
    assert isinstance(conv, nn.Conv1d)
    assert norms["stages.0.0"] == pytest.approx((conv.weight.numel() + conv.bias.numel()) ** 0.5)
