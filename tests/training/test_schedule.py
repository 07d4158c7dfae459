"""Every schedule equals torch's scheduler or the paper's formula."""

import math

import pytest
import torch

from clearhead.training.optim.schedule import SHAPES, ScheduleConfig, lr_share


def torch_rates(make, steps):
    """The learning rates of a torch scheduler, as shares of the peak."""
    optimiser = torch.optim.SGD([torch.zeros(1)], lr=1.0)
    scheduler, rates = make(optimiser), []
    for _ in range(steps):
        rates.append(optimiser.param_groups[0]["lr"])
        optimiser.step()
        scheduler.step()
    return rates


def ours(config, steps, first=0):
    return [lr_share(config, step, steps) for step in range(first, steps)]


@pytest.mark.parametrize("final", [0.0, 0.1, 1.0])
def test_cosine_equals_torchs_scheduler(final):
    make = lambda o: torch.optim.lr_scheduler.CosineAnnealingLR(o, T_max=23, eta_min=final)  # noqa: E731
    assert ours(ScheduleConfig(final=final), 23) == pytest.approx(torch_rates(make, 23), abs=1e-12)


def test_linear_equals_torchs_scheduler():
    make = lambda o: torch.optim.lr_scheduler.LinearLR(o, 1.0, 0.2, total_iters=17)  # noqa: E731
    assert ours(ScheduleConfig(shape="linear", final=0.2), 17) == pytest.approx(torch_rates(make, 17), abs=1e-12)


def test_inverse_sqrt_is_equation_3_of_the_transformer_paper():
    """lrate = d^-0.5 min(n^-0.5, n w^-1.5), n from 1, divided by its peak, as torch's LambdaLR applies it."""
    w, width = 7, 512
    rate = lambda n: width**-0.5 * min(n**-0.5, n * w**-1.5)  # noqa: E731
    make = lambda o: torch.optim.lr_scheduler.LambdaLR(o, lambda k: rate(k + 1) / rate(w))  # noqa: E731
    config = ScheduleConfig(shape="inverse-sqrt", warmup=w)
    assert ours(config, 40) == pytest.approx(torch_rates(make, 40), abs=1e-12)
    assert lr_share(config, w - 1, 40) == 1.0


def test_warmup_rises_linearly_and_shifts_the_decay():
    for shape in SHAPES:
        config = ScheduleConfig(shape=shape, warmup=5)
        assert ours(config, 20)[:5] == pytest.approx([0.2, 0.4, 0.6, 0.8, 1.0])
    assert ours(ScheduleConfig(warmup=5), 20, 5) == ours(ScheduleConfig(), 15)
    assert ours(ScheduleConfig(shape="constant", warmup=5), 20, 5) == [1.0] * 15


@pytest.mark.parametrize("shape", ["cosine", "linear"])
def test_the_decay_ends_at_its_final_value(shape):
    config = ScheduleConfig(shape=shape, final=0.0, warmup=3)
    assert lr_share(config, 3, 10) == 1.0
    assert lr_share(config, 9, 10) > 0  # the last step still learns
    assert lr_share(config, 10, 10) == pytest.approx(0.0)
    assert lr_share(config, 99, 10) == pytest.approx(0.0)  # and does not rise again
    assert lr_share(ScheduleConfig(shape=shape, warmup=30), 4, 5) == pytest.approx(5 / 30)  # a run cut short
    assert math.isfinite(lr_share(ScheduleConfig(shape=shape, warmup=5), 5, 5))


@pytest.mark.parametrize(
    ("fields", "message"),
    [
        ({"shape": "cosin"}, "'cosin'.*cosine, linear"),
        ({"warmup": -1}, "warmup=-1"),
        ({"final": 1.5}, "final=1.5"),
        ({"shape": "inverse-sqrt"}, "warmup of 1"),
    ],
)
def test_invalid_schedules_are_refused(fields, message):
    with pytest.raises(ValueError, match=message):
        ScheduleConfig(**fields)
    with pytest.raises(ValueError, match="step=-1"):
        lr_share(ScheduleConfig(), -1, 10)
