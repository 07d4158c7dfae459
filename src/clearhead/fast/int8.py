"""Weights in 8 bits: a quarter of the memory to read, which is what a step on a CPU waits for.

Each output's weights are divided by a scale of its own and rounded to -127..127: per-channel, symmetric. What comes in
is not rounded to 8 bits, as it is usually done, but written as two bytes, high + low / 254, and both are multiplied in
one product of whole numbers, which is exact; so the weights' rounding is all there is, but for one part in 64,000 of
the largest input of a row.
"""

from __future__ import annotations

import copy
import warnings
from functools import cache
from typing import Any, NamedTuple, TypeVar

import torch
import torch.nn.functional as F
from jaxtyping import Float
from jaxtyping import Int8 as Bytes
from torch import Tensor, nn

from ..errors import InputError
from ..layers import Linear
from .products import Step, register_join

MOST = 127  # the largest number of a byte
FINE = 254  # parts of 1 that the lower byte counts: up to half of them, either way
TINY = 1e-30  # of a row of zeros
Module = TypeVar("Module", bound=nn.Module)


class Int8(nn.Module):
    """A linear map of rounded weights: x W' + b without gradients for W."""

    def __init__(self, weight: Bytes[Tensor, "o i"], scale: Float[Tensor, "o"], bias: Tensor | None) -> None:
        super().__init__()
        self.out_features, self.in_features = weight.shape
        self.scale, self.bias = scale, bias
        self.weight: Tensor | None = weight
        self.product = _product(weight)  # of whole numbers; None where this machine has none
        self.share: tuple[Int8, int] | None = None  # the larger map that this one is a part of, and where it begins

    @staticmethod
    @torch.no_grad()
    def of(layer: nn.Linear) -> Int8:
        """A linear map, its weights rounded."""
        weight = layer.weight.detach().float()
        scale = weight.abs().amax(1).clamp(min=TINY) / 127
        return Int8((weight / scale[:, None]).round().to(torch.int8), scale, layer.bias)

    @torch.no_grad()
    def numbers(self) -> Bytes[Tensor, "o i"]:
        """The rounded weights."""
        if self.share is not None:
            whole, start = self.share
            return whole.numbers()[start : start + self.out_features]
        assert self.weight is not None
        return self.weight

    def forward(self, x: Float[Tensor, "*b i"]) -> Float[Tensor, "*b o"]:
        if self.share is not None:
            whole, start = self.share
            return whole(x)[..., start : start + self.out_features]
        if self.product is None or torch.is_grad_enabled() or torch.compiler.is_compiling():
            weight = self.numbers().to(x.dtype) * self.scale[:, None].to(x.dtype)
            return F.linear(x, weight, self.bias)
        return self._many(x)

    def _many(self, x: Float[Tensor, "*b i"]) -> Float[Tensor, "*b o"]:
        assert self.product is not None
        y, step = _two_bytes(x.reshape(-1, self.in_features).float())
        rows = len(step)
        high, low, _ = self.product(y).split_with_sizes([rows, rows, 1])
        out = torch.add(high, low, alpha=1.0 / FINE).mul_(step).mul_(self.scale)
        out = out.to(x.dtype).view(*x.shape[:-1], self.out_features)
        return out if self.bias is None else out + self.bias

    def quick(self) -> Step:
        """The product without gradients, with the choice of the kernel made once."""
        return self.forward if self.product is None else self._many

    def _save_to_state_dict(self, *args: Any) -> None:
        raise InputError("a model of rounded weights is not saved: save the one that it was made of")

    def extra_repr(self) -> str:
        return f"in_features={self.in_features}, out_features={self.out_features}, bias={self.bias is not None}"


class JoinedInt8:
    """Several Int8 maps of one input as one product; the maps become parts of it."""

    def __init__(self, *maps: Int8) -> None:
        biases = [m.bias for m in maps]
        bias = None if biases[0] is None else torch.cat([b for b in biases if b is not None])
        self.whole = Int8(torch.cat([m.numbers() for m in maps]), torch.cat([m.scale for m in maps]), bias)
        start = 0
        for m in maps:
            m.weight = m.product = None
            m.share, start = (self.whole, start), start + m.out_features

    def joins(self, *maps: Int8) -> bool:
        """True if it is the product of these maps."""
        return all(m.share is not None and m.share[0] is self.whole for m in maps)

    def quick(self) -> Step:
        """The outputs of all maps, concatenated."""
        return self.whole.quick()


register_join(Int8, JoinedInt8, lambda m: (m.scale.device,))


def quantised(model: Module) -> Module:
    """A copy of a model whose linear maps have 8-bit weights; it shares everything else, such as embeddings."""
    memo: dict[int, Any] = {id(p): p for p in model.parameters()}
    memo |= {id(m): Int8.of(m) for m in model.modules() if type(m) is Linear}
    return copy.deepcopy(model, memo)


def _two_bytes(x: Float[Tensor, "r i"]) -> tuple[Float[Tensor, "n i"], Float[Tensor, "r 1"]]:
    """Rows as numbers of -127 .. 127: the higher bytes, the lower, and a row that has a byte's bounds.

    x = step (high + low / FINE). The product rounds the lower ones. Twenty operations would take longer here than
    the product does: so constants are tensors, and the rounding is that of large floats, which wakes no threads.
    """
    c = _constants()
    step = torch.addcmul(c.tiny, x.abs().amax(-1, keepdim=True), c.part)
    y = torch.div(x, step)
    high = torch.add(y, c.whole).sub_(c.whole)
    return torch.cat([high, y.sub_(high).mul_(c.fine), _bounds(x.shape[1])]), step


class _Constants(NamedTuple):
    tiny: Tensor
    part: Tensor
    fine: Tensor
    whole: Tensor  # floats of this size are whole numbers


@cache
def _constants() -> _Constants:
    values = (TINY, 1.0 / MOST, float(FINE), 1.5 * 2.0**23)
    return _Constants(*(torch.tensor(value, dtype=torch.float32, device="cpu") for value in values))


@cache
def _bounds(width: int) -> Tensor:
    """The row that tells the product of whole numbers what range they have."""
    row = torch.zeros(1, max(width, 2), dtype=torch.float32, device="cpu")  # whatever the defaults are when it is made
    row[0, 0], row[0, 1] = -128.0, 127.0
    return row[:, :width]


def _product(weight: Bytes[Tensor, "o i"]) -> Step | None:
    """The product of numbers of -128 .. 127, which it rounds, with such weights, by the quickest exact way.

    FBGEMM's reads its weights about twice as fast as oneDNN's; torch means to give it up. Both need a processor that
    multiplies bytes without overflow.
    """
    if weight.device.type != "cpu" or weight.shape[1] < 2 or not torch.cpu._is_vnni_supported():
        return None
    if hasattr(torch, "fbgemm_linear_int8_weight_fp32_activation"):
        return _fbgemm(weight)
    return _onednn(weight) if torch.backends.mkldnn.is_available() else None


def _fbgemm(weight: Tensor) -> Step:
    # It takes floats and rounds them to the range that it finds in them: that of the last row, so nothing is lost.
    run, pack = torch.fbgemm_linear_int8_weight_fp32_activation, torch.fbgemm_pack_quantized_matrix
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # it says once, each time torch starts, that it will go
        packed, sums, zeros = pack(weight), weight.sum(1, dtype=torch.int32), torch.zeros(weight.shape[0])
        run(_bounds(weight.shape[1]), weight, packed, sums, 1.0, 0, zeros)
    return lambda x: run(x, weight, packed, sums, 1.0, 0, zeros)


def _onednn(weight: Tensor) -> Step:
    packed, run = torch.ops.onednn.qlinear_prepack(weight, None), torch.ops.onednn.qlinear_pointwise.default
    ones, zeros = torch.ones(weight.shape[0]), torch.zeros(weight.shape[0], dtype=torch.int32)

    def product(x: Tensor) -> Tensor:
        rows = torch.add(x, 128.5).to(torch.uint8)  # rounded
        out: Tensor = run(rows, 1.0, 128, packed, ones, zeros, None, 1.0, 0, torch.float32, "none", [], "")
        return out

    return product
