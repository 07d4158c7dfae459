"""Attribution: what every method of `saliency` returns, and the gradient that most of them take."""

from __future__ import annotations

from dataclasses import dataclass

import torch
import torch.nn.functional as F
from jaxtyping import Float
from torch import Tensor

from ..structure import first_tensor
from ..targets import Target
from ..watch import watch
from .float_input import FloatInput, differentiable


@dataclass(frozen=True, kw_only=True, eq=False)
class Attribution:
    """The saliency of one input before it is described."""

    values: Tensor  # (height, width) or (t,)
    # before it was reduced: per channel (c, height, width) or (t, d), or on the grid of a layer (y, x)
    whole: Tensor
    layer: str | None = None  # the layer that it was taken at
    layers: list[str] | None = None  # the layers whose attention was multiplied
    # integrated gradients: sum of the attributions - change of the score
    completeness: float | None = None
    complete: bool = True  # whether that is small beside the change


def summed(explained: FloatInput, x: Tensor) -> Tensor:
    """The sum over the channels of an image (c, height, width), or over the width of embeddings (t, d)."""
    if explained.kind == "image":
        # (c, height, width) -> (height, width)
        return x.sum(0)
    return x.sum(1)


def magnitude(explained: FloatInput, x: Tensor) -> Tensor:
    """The largest absolute value over the channels of an image (Simonyan et al. 2014), or their sum over the width."""
    if explained.kind == "image":
        # A pixel counts as much as its strongest channel.
        return x.abs().amax(0)
    return x.abs().sum(1)


def gradients(
    explained: FloatInput, target: Target, rows: Float[Tensor, "n *s"]
) -> Float[Tensor, "n *s"]:
    """The gradient of the target's score at each of several rows; parameters get none."""
    with differentiable(explained.model):
        x = rows.detach().clone().requires_grad_()
        # Rows do not interact: the gradient of the sum is each row's own gradient.
        score = target.score(explained.logits(x)).sum()
        (slopes,) = torch.autograd.grad(score, x)
    return slopes


def layer_gradient(explained: FloatInput, target: Target, address: str) -> tuple[Tensor, Tensor]:
    """The output of a module (or its input, at an address that ends in .input), and the gradient of the score there."""
    with differentiable(explained.model):
        # The input requires a gradient, so that every layer is in the graph, even if it is frozen.
        x = explained.x.detach().clone().requires_grad_()
        with watch(explained.model, address, grad=True) as tape:
            score = target.score(explained.logits(x)).sum()
        # A module that runs several times is read at its last call.
        record = first_tensor(tape.calls(address)[-1])
        (slope,) = torch.autograd.grad(score, record, allow_unused=True)
    if slope is None:  # the score does not depend on the module
        slope = torch.zeros_like(record)
    return record.detach(), slope


def enlarged(grid: Float[Tensor, "y x"], size: tuple[int, int]) -> Float[Tensor, "height width"]:
    """A map of a layer's grid in the resolution of the image (bilinear)."""
    # interpolate expects (b, c, y, x).
    return F.interpolate(grid[None, None], size=size, mode="bilinear", align_corners=False)[0, 0]
