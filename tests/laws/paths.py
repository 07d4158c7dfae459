"""The code paths of attend, and the output and gradients of a function."""

from contextlib import contextmanager

import pytest
import torch
from drawn import Size, normal
from torch import Tensor

import clearhead.layers.fused as kernels
from clearhead.layers import Tap

PATHS = ("fused", "bands", "explicit", "module")


class Explicit(Tap):
    explicit = True


def score_matrix(q: Tensor, k: Tensor) -> Tensor:
    """The scaled score as a module would compute it: the scores themselves."""
    return q @ k.repeat_interleave(q.shape[1] // k.shape[1], dim=1).mT * q.shape[-1] ** -0.5


@contextmanager
def path(name: str):
    """Yield the arguments of attend that make it take this path."""
    with pytest.MonkeyPatch.context() as patch:
        if name == "bands":
            patch.setattr(kernels, "SMALL", 0)
            patch.setattr(kernels, "BAND", 2)
        yield {"explicit": {"tap": Explicit()}, "module": {"score": score_matrix}}.get(name, {})


def tensors(seed: int, size: Size, e: int, w: int, dtype: torch.dtype) -> list[Tensor]:
    b, h, g, q, k = size
    shapes = [(b, h, q, e), (b, g, k, e), (b, g, k, w), (b, h, q, w)]
    return [normal(seed + i, *shape, dtype=dtype) for i, shape in enumerate(shapes)]


def output_and_gradients(function, inputs: list[Tensor], toward: Tensor) -> list[Tensor]:
    """The output of a function, and the gradients of (output * toward).sum() in each input."""
    inputs = [x.detach().clone().requires_grad_() for x in inputs]
    out = function(*inputs)
    return [out.detach(), *torch.autograd.grad(out, inputs, toward.to(out.dtype))]
