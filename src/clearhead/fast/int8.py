"""8-bit weights: a decode step on a CPU takes as long as reading its weights, and these are a quarter of the size.

The weights of each output are divided by a scale of their own and rounded to -127..127: per-channel and symmetric.
Inputs are not rounded to 8 bits, as is usual, but written as two bytes, high + low / 254. One integer product, which
is exact, multiplies both. So the only error is the rounding of the weights, up to 1 / 64,000 of a row's largest input.
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
FINE = 254  # units of the lower byte in 1: it holds up to half of them, with either sign
TINY = 1e-30  # the scale of a row of zeros
Module = TypeVar("Module", bound=nn.Module)


class Int8(nn.Module):
    """A linear map with 8-bit weights: x W' + b without gradients for W.

    Args:
        weight: The rounded weights.
        scale: What each output's weights are multiplied by.
        bias: Added to the output, in full precision.

    Examples:
        >>> layer = torch.nn.Linear(8, 4)
        >>> x = torch.randn(2, 8)
        >>> torch.allclose(Int8.of(layer)(x), layer(x), atol=0.05)
        True
    """

    def __init__(
        self, weight: Bytes[Tensor, "o i"], scale: Float[Tensor, "o"], bias: Tensor | None
    ) -> None:
        super().__init__()
        self.out_features, self.in_features = weight.shape
        self.scale, self.bias = scale, bias
        self.weight: Tensor | None = weight
        self.product = _product(weight)  # of integers; None if this machine has no fast one
        # the joined map that this one is part of, and its first output
        self.share: tuple[Int8, int] | None = None

    @staticmethod
    @torch.no_grad()
    def of(layer: nn.Linear) -> Int8:
        """Round the weights of a linear map."""
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
            # the weights in the dtype of x: slower, but with a gradient of x
            weight = self.numbers().to(x.dtype) * self.scale[:, None].to(x.dtype)
            return F.linear(x, weight, self.bias)
        return self._many(x)

    def _many(self, x: Float[Tensor, "*b i"]) -> Float[Tensor, "*b o"]:
        assert self.product is not None
        y, step = _two_bytes(x.reshape(-1, self.in_features).float())  # (2 r + 1, i), (r, 1)
        rows = len(step)
        high, low, _ = self.product(y).split_with_sizes([rows, rows, 1])
        # x W' = step scale (high + low / FINE) W'
        out = torch.add(high, low, alpha=1.0 / FINE).mul_(step).mul_(self.scale)
        out = out.to(x.dtype).view(*x.shape[:-1], self.out_features)
        if self.bias is not None:
            out = out + self.bias
        return out

    def quick(self) -> Step:
        """The product without gradients, with the choice of the kernel made once."""
        if self.product is None:
            return self.forward
        return self._many

    def _save_to_state_dict(self, *args: Any) -> None:
        raise InputError(
            "a model with rounded weights is not saved: expected the model that it was made from"
        )

    def extra_repr(self) -> str:
        return f"in_features={self.in_features}, out_features={self.out_features}, bias={self.bias is not None}"


class JoinedInt8:
    """Several Int8 maps of one input as one product; the maps become views of it."""

    def __init__(self, *maps: Int8) -> None:
        biases = [m.bias for m in maps if m.bias is not None]  # of all maps, or of none
        bias = torch.cat(biases) if biases else None
        numbers = torch.cat([m.numbers() for m in maps])
        self.whole = Int8(numbers, torch.cat([m.scale for m in maps]), bias)
        start = 0
        for m in maps:
            m.weight = m.product = None  # the memory of the copy is freed
            # its outputs are a slice of the joined product's
            m.share = (self.whole, start)
            start += m.out_features

    def joins(self, *maps: Int8) -> bool:
        """True if this is the product of these maps."""
        return all(m.share is not None and m.share[0] is self.whole for m in maps)

    def quick(self) -> Step:
        """The outputs of all maps, concatenated."""
        return self.whole.quick()


register_join(Int8, JoinedInt8, lambda m: (m.scale.device,))


def quantised(model: Module) -> Module:
    """Return a copy of a model whose linear maps have 8-bit weights; all other parameters are shared with it.

    Args:
        model: The model; it does not change.

    Examples:
        >>> model = clearhead.build("gpt", vocab=11, context=16, width=8, depth=1, heads=2).eval()
        >>> small = quantised(model)
        >>> small.embed.table is model.embed.table, small.head.weight.dtype
        (True, torch.int8)
    """
    # deepcopy takes from its memo what is shared, and what stands for a map
    memo: dict[int, Any] = {id(p): p for p in model.parameters()}
    memo |= {id(m): Int8.of(m) for m in model.modules() if type(m) is Linear}
    return copy.deepcopy(model, memo)


def _two_bytes(x: Float[Tensor, "r i"]) -> tuple[Float[Tensor, "n i"], Float[Tensor, "r 1"]]:
    """Rows as integers of -127..127: the higher bytes, the lower bytes, and a row with the bounds of a byte.

    x = step (high + low / FINE). The product rounds the lower bytes. Twenty operations would take longer than the
    product itself: so constants are tensors, and rounding is done by adding a large float, which starts no threads.

    The integers of a row with NaN or infinity do not count, because its step is not finite. If there are other rows,
    they become 0: a NaN would change the range of numbers that FBGEMM finds, and so the products of all rows.
    """
    c = _constants()
    step = torch.addcmul(c.tiny, x.abs().amax(-1, keepdim=True), c.part)  # (r, 1): max |x| / 127
    y = torch.div(x, step)
    if len(y) > 1:
        # a single row may keep its NaN: there is no other row to spoil
        y.nan_to_num_(0.0)
    high = torch.add(y, c.whole).sub_(c.whole)  # rounded
    # what the higher byte leaves, at most half a unit of it
    low = y.sub_(high).mul_(c.fine)
    return torch.cat([high, low, _bounds(x.shape[1])]), step


class _Constants(NamedTuple):
    """The constants of `_two_bytes` as tensors."""

    tiny: Tensor
    part: Tensor
    fine: Tensor
    whole: Tensor  # floats of this size are integers


@cache
def _constants() -> _Constants:
    values = (TINY, 1.0 / MOST, float(FINE), 1.5 * 2.0**23)
    return _Constants(*(torch.tensor(value, dtype=torch.float32, device="cpu") for value in values))


@cache
def _bounds(width: int) -> Tensor:
    """A row with the least and the largest byte, from which the product of integers takes their range."""
    # dtype and device are given, because torch's defaults may be others when it is made
    row = torch.zeros(1, max(width, 2), dtype=torch.float32, device="cpu")
    row[0, 0], row[0, 1] = -128.0, 127.0
    return row[:, :width]


def _product(weight: Bytes[Tensor, "o i"]) -> Step | None:
    """The fastest exact product of numbers of -128..127, which it rounds, with such weights; None if there is none.

    FBGEMM's reads its weights about twice as fast as oneDNN's, but torch has announced its removal. Both need a
    processor that multiplies bytes without overflow (VNNI).
    """
    if weight.device.type != "cpu" or weight.shape[1] < 2 or not torch.cpu._is_vnni_supported():
        return None
    if hasattr(torch, "fbgemm_linear_int8_weight_fp32_activation"):
        return _fbgemm(weight)
    if torch.backends.mkldnn.is_available():
        return _onednn(weight)
    return None


def _fbgemm(weight: Tensor) -> Step:
    """FBGEMM's product. It rounds floats to the range of its input, which the row of bounds fixes: nothing is lost."""
    run = torch.fbgemm_linear_int8_weight_fp32_activation
    sums, zeros = weight.sum(1, dtype=torch.int32), torch.zeros(weight.shape[0])
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # it warns once per process that it will be removed
        packed = torch.fbgemm_pack_quantized_matrix(weight)
        run(_bounds(weight.shape[1]), weight, packed, sums, 1.0, 0, zeros)
    return lambda x: run(x, weight, packed, sums, 1.0, 0, zeros)


def _onednn(weight: Tensor) -> Step:
    """oneDNN's product, which takes bytes of 0..255 that stand for -128..127."""
    packed = torch.ops.onednn.qlinear_prepack(weight, None)
    run = torch.ops.onednn.qlinear_pointwise.default
    ones, zeros = torch.ones(weight.shape[0]), torch.zeros(weight.shape[0], dtype=torch.int32)
    # the scale and zero of the output, its dtype, and no activation
    output: tuple[Any, ...] = (1.0, 0, torch.float32, "none", [], "")

    def product(x: Tensor) -> Tensor:
        rows = torch.add(x, 128.5).to(torch.uint8)  # rounded
        out: Tensor = run(rows, 1.0, 128, packed, ones, zeros, None, *output)
        return out

    return product
