"""Products of linear maps for inference on a CPU: the fastest kernel that this machine has, for one map or several.

With few rows, torch's usual product uses only part of the memory bandwidth: oneDNN's takes as little as a third of its
time, and a single row is fastest as several MKL products, each with a block of the weights (benchmarks/translate.py).
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from itertools import pairwise
from typing import Any
from weakref import WeakKeyDictionary

import torch
import torch.nn.functional as F
from jaxtyping import Float
from torch import Tensor, nn

from ..layers import ConvNorm, Linear, Residual
from ..layers.norm import RMSNorm
from .convolutions import folded, folded_residual

LARGE = 1 << 18  # weights from which the choice of a kernel matters
FEW = 4096  # rows up to which it matters
BLOCKS = 8  # blocks of weights in which the product of a single row is computed
PACKED_ROWS = 32  # rows for which packed weights are laid out
SMALL_NORM = 1 << 13  # numbers up to which the number of operations decides how long a norm takes
Step = Callable[[Tensor], Tensor]


def accelerate(model: nn.Module) -> nn.Module:
    """Set the fastest kernels for a model's linear maps, norms and convolutions, in place; returns the model.

    They are used only on a CPU, in float32 and without gradients: in training, under torch.compile, on other devices
    and in other dtypes the modules compute as before.

    Args:
        model: The model; it is changed in place.

    Examples:
        >>> layer = clearhead.layers.Linear(1024, 1024)
        >>> x = torch.randn(1, 1024)
        >>> expected = layer(x)
        >>> with torch.no_grad():
        ...     torch.allclose(accelerate(layer)(x), expected, atol=1e-5)
        True
    """
    # each kind of module has one replaceable function (see layers.Linear)
    for module in model.modules():
        if isinstance(module, Linear):
            # set on the instance: other models keep the class's own function
            module.product = product
        elif isinstance(module, RMSNorm):
            module.normalise = rms_norm
        elif type(module) is ConvNorm:
            module.compute = folded
        elif type(module) is Residual:
            module.compute = folded_residual
    return model


def product(
    x: Float[Tensor, "*b i"], weight: Float[Tensor, "o i"], bias: Tensor | None
) -> Float[Tensor, "*b o"]:
    """x W' + b, by the kernel that is fastest for these shapes."""
    if not takes_fast_product(x, weight):
        return F.linear(x, weight, bias)
    if x.numel() == weight.shape[1] and _in_blocks(weight):
        return _Blocks(weight, bias)(x)
    out: Tensor = torch.ops.mkldnn._linear_pointwise(x, weight, bias, "none", [], "")
    return out


def takes_fast_product(x: Tensor, weight: Tensor) -> bool:
    """True if oneDNN or MKL can compute x W' and is faster than torch's usual product."""
    if torch.is_grad_enabled() or torch.compiler.is_compiling() or weight.numel() < LARGE:
        return False
    dtypes = x.dtype == weight.dtype == torch.float32 and type(weight) in (Tensor, nn.Parameter)
    if not dtypes or x.device.type != "cpu" or not torch.backends.mkldnn.is_available():
        return False
    few_rows = 0 < x.numel() <= FEW * x.shape[-1]
    return few_rows and not torch.is_autocast_enabled("cpu")


def rms_norm(
    x: Float[Tensor, "*b d"], shape: tuple[int, ...], weight: Tensor | None, eps: float | None
) -> Float[Tensor, "*b d"]:
    """F.rms_norm, computed for a few rows on a CPU in one operation instead of torch's eight.

    The layer norm of [x, -x] is its RMS norm, because its mean is 0.
    """
    eager = not torch.is_grad_enabled() and not torch.compiler.is_compiling()
    small = x.device.type == "cpu" and x.dtype == torch.float32 and x.numel() <= SMALL_NORM
    if weight is None or weight.dtype != torch.float32 or not eager or not small:
        return F.rms_norm(x, shape, weight, eps)
    # layer_norm([x, -x]) = [x, -x] / rms(x): mean 0, and the variance is the mean of the squares
    d = x.shape[-1]
    both = torch.layer_norm(torch.cat([x, -x], dim=-1), (2 * d,), None, None, eps or 0.0)
    return both.narrow(-1, 0, d) * weight


def quick_product(weight: Float[Tensor, "o i"], bias: Tensor | None) -> Step:
    """`product` with these weights, whose kernel is chosen once, for steps without gradients."""
    if not takes_fast_product(weight[:1], weight):
        return lambda x: F.linear(x, weight, bias)
    pointwise, none = torch.ops.mkldnn._linear_pointwise.default, list[float]()
    if not _in_blocks(weight):
        # no MKL, or too few outputs for blocks: oneDNN multiplies single rows as well
        return lambda x: pointwise(x, weight, bias, "none", none, "")
    blocks, inputs = _Blocks(weight, bias), weight.shape[1]

    def step(x: Tensor) -> Tensor:
        if x.numel() == inputs:  # a single row
            return blocks(x)
        out: Tensor = pointwise(x, weight, bias, "none", none, "")
        return out

    return step


def _in_blocks(weight: Tensor) -> bool:
    """True if the product of a single row can be computed in blocks of weights."""
    if not torch.backends.mkl.is_available():
        return False
    return weight.is_contiguous() and weight.shape[0] >= BLOCKS


class _Blocks:
    """The product of a single row: a product for each of several equal blocks of outputs, and one for the remainder."""

    def __init__(self, weight: Float[Tensor, "o i"], bias: Float[Tensor, "o"] | None) -> None:
        o, i = weight.shape
        n = min(max(BLOCKS, torch.get_num_threads()), o)
        even = o // n * n  # outputs that divide into n blocks
        self.shape = (n, i, 1)
        self.weight = weight[:even].view(n, -1, i)
        self.bias = rest_bias = None
        if bias is not None:
            # (n, o / n, 1), as the blocks of outputs
            self.bias, rest_bias = bias[:even].view(n, -1, 1), bias[even:]
        self.rest = None if even == o else (weight[even:], rest_bias)

    def __call__(self, x: Float[Tensor, "*b i"]) -> Float[Tensor, "*b o"]:
        # a transposed row, not a column: MKL chooses its kernel by the strides
        column = x.reshape(1, -1).mT.expand(self.shape)  # (n, i, 1)
        if self.bias is None:
            out = torch.bmm(self.weight, column)
        else:
            out = torch.baddbmm(self.bias, self.weight, column)
        out = out.view(*x.shape[:-1], -1)  # (n, o / n, 1) -> (..., o)
        if self.rest is None:
            return out
        return torch.cat([out, F.linear(x, *self.rest)], dim=-1)


class Joined:
    """Several Linear maps of one input as one product: their weights are views of one storage.

    The maps keep working, and an update of their weights in place changes the product too. There is no reference to
    the maps, so that the product is freed with them.
    """

    def __init__(self, *maps: Linear) -> None:
        with torch.no_grad():
            self.weight = _side_by_side([m.weight for m in maps])
            self.bias: Tensor | None = None
            if maps[0].bias is not None:
                self.bias = _side_by_side([m.bias for m in maps])
        self._addresses = _addresses(maps)

    def joins(self, *maps: Linear) -> bool:
        """True if this is the product of these maps: their weights are still the views that it made."""
        return _addresses(maps) == self._addresses

    def quick(self) -> Step:
        """The outputs of all maps, concatenated."""
        return quick_product(self.weight, self.bias)


def _addresses(maps: Sequence[Linear]) -> list[int]:
    """The memory addresses of the weights and biases of maps, which identify the tensors."""
    return [x.data_ptr() for x in _tensors(maps)]


def _tensors(maps: Sequence[Any]) -> list[Tensor]:
    """The weights and biases of maps."""
    return [x for m in maps for x in (m.weight, m.bias) if x is not None]


_JOINED: WeakKeyDictionary[nn.Module, Any] = WeakKeyDictionary()  # by the first of the maps


def join(*maps: Any) -> Any | None:
    """Join maps of one input into one product, or return the one they are joined in; None if they cannot be joined.

    This moves the maps' weights into one storage; their values do not change. Maps that share a weight or a bias are
    not joined: it would have two places in that storage, and an update in place would reach only one of them.
    """
    if len(maps) < 2 or any(type(m) not in _JOINS for m in maps):
        return None
    # all of one type, width, dtype and device, and all with a bias or all without
    kinds = set()
    for m in maps:
        _, alike = _JOINS[type(m)]
        kinds.add((type(m), m.in_features, m.bias is None, *alike(m)))
    if len(kinds) != 1:
        return None
    joined = _JOINED.get(maps[0])
    if joined is None or not joined.joins(*maps):
        if _overlap(_tensors(maps)):
            return None
        # joined again, if the weights were moved or replaced since
        make, _ = _JOINS[type(maps[0])]
        joined = _JOINED[maps[0]] = make(*maps)
    return joined


def _overlap(tensors: list[Tensor]) -> bool:
    """True if two tensors share memory, as tied weights do."""
    # sorted by where they begin, each must end before the next begins
    ranges = sorted((x.data_ptr(), x.data_ptr() + x.nbytes) for x in tensors if x.numel())
    # only neighbours of the sorted ranges need to be compared
    return any(end > start for (_, end), (start, _) in pairwise(ranges))


def register_join(
    kind: type, joined: Callable[..., Any], alike: Callable[[Any], tuple[Any, ...]]
) -> None:
    """Register a type of map for `join`: the class of its joined product, and what all joined maps must share."""
    _JOINS[kind] = (joined, alike)


_JOINS: dict[type, tuple[Callable[..., Any], Callable[[Any], tuple[Any, ...]]]] = {}
register_join(Linear, Joined, lambda m: (m.weight.dtype, m.weight.device, type(m.weight.data)))


def _side_by_side(parts: list[Tensor]) -> Tensor:
    """Copy tensors into one storage, of which each of them becomes a view."""
    whole = torch.cat([part.data for part in parts])
    views = whole.split([part.shape[0] for part in parts])
    for part, view in zip(parts, views, strict=True):
        part.data = view
    return whole


def quick(m: Any) -> Step:
    """The product of a Linear, a Joined or an Int8, whose kernel is chosen once."""
    if isinstance(m, nn.Linear):
        return quick_product(m.weight, m.bias)
    return m.quick()


def quick_packed(m: Any) -> Step:
    """`quick`, with packed weights for steps of several rows, which are then as fast as a single row.

    The packed copy is made at the first step of more than one row, takes as much memory again, is kept as long as the
    map, and its products are rounded differently. Each call of this function checks that the copy is up to date.
    """
    step = quick(m)
    if not isinstance(m, Linear | Joined) or not takes_fast_product(m.weight[:1], m.weight):
        return step
    inputs, bias, packed = m.weight.shape[1], m.bias, list[Tensor]()
    pointwise, none = torch.ops.mkldnn._linear_pointwise.default, list[float]()

    def many(x: Tensor) -> Tensor:
        if not inputs < x.numel() <= FEW * inputs:  # a single row, or very many
            return step(x)
        if not packed:
            # checked once per decoder: weights do not change while it decodes
            copy = _PACKED.get(m)
            if copy is None or not copy.matches(m.weight):
                copy = _PACKED[m] = _Packed(m.weight)
            packed.append(copy.weight)
        out: Tensor = pointwise(x, packed[0], bias, "none", none, "")
        return out

    return many


class _Packed:
    """Weights in oneDNN's layout, with a fingerprint of the weights that they were copied from."""

    def __init__(self, weight: Float[Tensor, "o i"]) -> None:
        # weights are compared by one product: a copy to compare with would need as much memory
        # again
        self.probe = torch.randn(1, weight.shape[1], generator=torch.Generator().manual_seed(0))
        self.fingerprint = product(self.probe, weight, None)
        self.weight = torch.ops.mkldnn._reorder_linear_weight(weight, PACKED_ROWS)

    def matches(self, weight: Float[Tensor, "o i"]) -> bool:
        """True if a fixed random input still gives the same product (a cheap fingerprint of the weights)."""
        return torch.equal(product(self.probe, weight, None), self.fingerprint)


_PACKED: WeakKeyDictionary[Any, _Packed] = WeakKeyDictionary()
