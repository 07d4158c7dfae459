"""Moving averages of weights: their values, temporary use by a network, and networks of averages."""

import pytest
import torch
from torch import nn
from trainings import go, recipe

from clearhead.training.checkpoints import Checkpoint
from clearhead.training.ema import EMA, EMANetwork
from clearhead.training.optim.optimisers import OptimConfig, Optimiser


def model(dtype=torch.float32):
    torch.manual_seed(0)
    return nn.Sequential(nn.Linear(3, 5), nn.BatchNorm1d(5), nn.Linear(5, 2)).to(dtype)


def step(optimiser, seed):
    torch.manual_seed(seed)
    for p in optimiser.parameters.values():
        p.grad = torch.randn_like(p)
    optimiser.step(1.0)


def copies(tensors):
    return {n: x.detach().clone() for n, x in tensors.items()}


@pytest.mark.parametrize("masters", [False, True])
def test_averages_equal_the_formula(masters):
    optimiser = Optimiser(model(torch.bfloat16 if masters else torch.float32), OptimConfig(lr=0.05), masters=masters)
    average = EMA(optimiser.weights(), optimiser.parameters)
    hand = {n: w.detach().double() for n, w in optimiser.weights().items()}
    for i in range(5):
        step(optimiser, i)
        average.update(0.7)
        hand = {n: 0.7 * a + 0.3 * optimiser.weights()[n].detach().double() for n, a in hand.items()}
    for name, value in average.values.items():
        assert value.dtype == torch.float32
        torch.testing.assert_close(value.double(), hand[name], rtol=1e-5, atol=1e-6)


@pytest.mark.parametrize("masters", [False, True])
def test_a_network_runs_with_its_averages_and_its_own_weights_are_restored(masters):
    optimiser = Optimiser(model(torch.bfloat16 if masters else torch.float32), OptimConfig(lr=0.05), masters=masters)
    average = EMA(optimiser.weights(), optimiser.parameters)
    step(optimiser, 0)
    average.update(0.7)
    before, values = copies(optimiser.parameters), copies(average.values)
    with average.running():
        for n, p in optimiser.parameters.items():
            assert torch.equal(p, values[n].to(p.dtype))
        assert not torch.equal(optimiser.parameters["0.weight"], before["0.weight"])
    with pytest.raises(KeyError), average.running():
        raise KeyError
    assert all(torch.equal(p, before[n]) for n, p in optimiser.parameters.items())
    assert all(torch.equal(x, values[n]) for n, x in average.values.items())


def test_an_average_network_receives_averages_and_buffers():
    source, teacher = model(), model()
    optimiser = Optimiser(source, OptimConfig(lr=0.05), masters=False)
    average = EMANetwork(optimiser.weights(), source, teacher)
    x = torch.randn(4, 3)
    for i in range(3):
        source.train()(x)  # moves the running means
        step(optimiser, i)
        average.update(0.5)
    for n, p in teacher.named_parameters():
        assert torch.equal(p, average.values[n])
        assert not torch.equal(p, dict(source.named_parameters())[n])
    assert torch.equal(teacher[1].running_mean, source[1].running_mean)
    assert not torch.equal(teacher.eval()(x), source.eval()(x))


@pytest.mark.parametrize("ema", [0.999, 0.4])
def test_the_average_of_a_training_warms_up(tmp_path, ema):
    """In step t the decay is min(ema, (1 + t) / (10 + t)), also after the training has been resumed."""
    table = recipe(optim__ema=ema, schedule__shape="constant", run__save_every=1, run__keep=9)
    go(table, tmp_path, "steps=5")
    go(table, tmp_path, "steps=9")
    checkpoints = [Checkpoint(tmp_path / f"checkpoints/step-{t + 1:08d}") for t in range(9)]
    name = "norm.weight"
    average = checkpoints[0].read(f"model/average/{name}").double()
    for t, checkpoint in enumerate(checkpoints[1:], start=1):
        decay = min(ema, (1 + t) / (10 + t))
        average = decay * average + (1 - decay) * checkpoint.read(f"model/weight/{name}").double()
        near = {"rtol": 1e-5, "atol": 1e-6}
        torch.testing.assert_close(checkpoint.read(f"model/average/{name}").double(), average, **near)
