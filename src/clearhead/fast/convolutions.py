"""Convolutions with their batch norms, and residual blocks of them, for inference on a CPU.

A batch norm in evaluation scales and shifts each channel by constants, which the weights of the convolution before it
can contain; the sum and the ReLU of a residual block are computed with its last convolution. The weights are kept in
oneDNN's own layout, so that they need not be laid out again for every image. A ResNet-50 takes two thirds of the time
(benchmarks/vision.py).
"""

from __future__ import annotations

from typing import Any
from weakref import WeakKeyDictionary

import torch
from jaxtyping import Float
from torch import Tensor, nn

from ..layers import ConvNorm, Residual
from ..layers.conv import conv_norm, residual
from ..layers.sdpa import traced
from ..models.hooks import hooked

PROBES = 32  # weights of a convolution that are compared with those that were folded


def folded(layer: ConvNorm, x: Float[Tensor, "b i height width"]) -> Float[Tensor, "b o y x"]:
    """The batch norm of a convolution of x, computed as one convolution where that is possible."""
    if _can_fold(layer, x) and not hooked(layer):
        return _convolve(layer, x)
    return conv_norm(layer, x)


def folded_residual(
    block: Residual, x: Float[Tensor, "b i height width"]
) -> Float[Tensor, "b o y x"]:
    """A residual block, each of whose steps is one convolution with its batch norm, sum and ReLU where possible."""
    layers: list[Any] = list(block.layers)
    steps = [*layers]
    if block.shortcut is not None:
        steps.append(block.shortcut)
    if not all(_can_fold(step, x) for step in steps) or hooked(block):
        # one layer that cannot be folded, or is hooked: all run as modules
        return residual(block, x)
    y = x
    for layer in layers[:-1]:
        # convolution, batch norm and ReLU in one pass over the image
        y = _convolve(layer, y, relu=True)
    # the last convolution adds the residual before its ReLU: Eq. 1 and 2 of He et al. 2016
    residual_input = x
    if block.shortcut is not None:
        # without a ReLU, which comes after the sum
        residual_input = _convolve(block.shortcut, x)
    return _convolve(layers[-1], y, relu=True, add=residual_input)


def _convolve(
    layer: ConvNorm, x: Tensor, *, relu: bool = False, add: Tensor | None = None
) -> Tensor:
    """The folded convolution of x, plus `add`, through a ReLU: one call of oneDNN."""
    own = _FOLDED.get(layer)
    if own is None or not own.matches(layer):
        # folded at the first call, and again after weights were loaded or trained
        own = _FOLDED[layer] = _Folded(layer, x)
    conv = layer.conv
    how = (own.weight, own.bias, conv.padding, conv.stride, conv.dilation, conv.groups)
    activation = "relu" if relu else "none"
    x = x.contiguous(memory_format=torch.channels_last)  # the layout of the folded weights
    pointwise = torch.ops.mkldnn._convolution_pointwise
    if add is None:
        out: Tensor = pointwise(x, *how, activation, [], "")
        return out
    add = add.contiguous(memory_format=torch.channels_last)
    out = pointwise.binary(x, add, *how, "add", 1.0, activation, [], None)
    return out


def _can_fold(layer: ConvNorm, x: Tensor) -> bool:
    """True if oneDNN computes the same: in evaluation, without gradients, of float32 on a CPU."""
    conv, norm = layer.conv, layer.norm
    if torch.is_grad_enabled() or traced() or torch.is_autocast_enabled("cpu"):
        return False
    if norm.training or x.ndim != 4 or x.numel() == 0:
        # in training a batch norm uses the batch, and its constants change
        return False
    # a subclass may compute something else
    if type(layer) is not ConvNorm or type(conv) is not nn.Conv2d:
        return False
    if type(norm) is not nn.BatchNorm2d:
        return False
    for tensor in (x, *_parts(layer)):
        if tensor is None or tensor.dtype != torch.float32 or tensor.device.type != "cpu":
            return False
    return torch.backends.mkldnn.is_available()


def _parts(layer: ConvNorm) -> tuple[Tensor | None, ...]:
    """The tensors that the folded weights are computed from."""
    norm = layer.norm
    return layer.conv.weight, norm.weight, norm.bias, norm.running_mean, norm.running_var


class _Folded:
    """A convolution's weights and bias with its batch norm folded in, and a sample that shows when they are stale."""

    def __init__(self, layer: ConvNorm, x: Tensor) -> None:
        conv, norm = layer.conv, layer.norm
        assert norm.running_var is not None
        assert norm.running_mean is not None
        # (W x - mean) scale + bias = (scale W) x + (bias - mean scale)
        scale = norm.weight * (norm.running_var + norm.eps).rsqrt()
        weight = conv.weight * scale[:, None, None, None]
        weight = weight.contiguous(memory_format=torch.channels_last)
        self.bias = norm.bias - norm.running_mean * scale
        how = (conv.padding, conv.stride, conv.dilation, conv.groups)
        self.weight = torch.ops.mkldnn._reorder_convolution_weight(weight, *how, list(x.shape))
        self.probe = _probe(layer)

    def matches(self, layer: ConvNorm) -> bool:
        """True if neither the batch norm nor a sample of the convolution's weights have changed."""
        return torch.equal(_probe(layer), self.probe)


def _probe(layer: ConvNorm) -> Tensor:
    """All numbers of the batch norm, and some of the convolution's weights: comparing all would take too long."""
    weight, *rest = (part.detach() for part in _parts(layer) if part is not None)
    flat = weight.reshape(-1)
    return torch.cat([flat[:: max(1, flat.numel() // PROBES)], *rest])


_FOLDED: WeakKeyDictionary[ConvNorm, _Folded] = WeakKeyDictionary()
