"""The angles of rotary positions are computed once for all layers, and never for positions that have changed."""

import pytest
import torch
from torch import Tensor

from clearhead.layers import Rotary

E, T = 4, 5


def turned(rotary: Rotary, at: Tensor) -> Tensor:
    x = torch.ones(1, 1, T, E)
    return rotary.turn(x, x, at)[0]


@pytest.fixture
def rotary() -> Rotary:
    return Rotary(E)


def test_all_layers_share_the_angles_of_a_step(rotary):
    at = torch.arange(T)
    assert rotary.angles(at, torch.float32)[0] is rotary.angles(at, torch.bfloat16)[0]
    assert rotary.angles(at, torch.float32)[0] is not rotary.angles(at.clone(), torch.float32)[0]
    assert rotary.angles(at, torch.float64)[0].dtype == torch.float64


@pytest.mark.parametrize("inference", [False, True], ids=["", "inference mode"])
def test_the_angles_follow_a_write_to_the_positions(rotary, inference):
    with torch.inference_mode(inference):
        at = torch.arange(T)
        before = turned(rotary, at)
        at += 3
        after = turned(rotary, at)
        assert torch.equal(after, turned(Rotary(E), torch.arange(3, T + 3)))
        assert not torch.equal(after, before)


def test_positions_that_were_used_in_inference_mode_can_be_trained_with(rotary):
    """Inference tensors cannot be saved for a backward pass."""
    at, x = torch.arange(T), torch.ones(1, 1, T, E, requires_grad=True)
    with torch.inference_mode():
        turned(rotary, at)
    rotary.turn(x, x, at)[0].sum().backward()
    assert x.grad.any()
