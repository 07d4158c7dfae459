"""The linear map, by whichever product of this machine is quickest for it, alone or with its neighbours."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any
from weakref import WeakKeyDictionary

import torch
import torch.nn.functional as F
from jaxtyping import Float
from torch import Tensor, nn

LARGE = 1 << 18  # weights from which a product is worth a choice
FEW = 4096  # rows up to which it is
PARTS = 8  # that the weights of a single row's product are read in
ROWS = 32  # that the order of copied weights is best for
Step = Callable[[Tensor], Tensor]


class Linear(nn.Linear):
    """x W' + b. A CPU that is asked for no gradient takes oneDNN's product, and for a single row MKL's of many parts.

    The usual one leaves most of the memory's speed unused: for a few rows it takes up to three times as long, and for
    one row four times: only in parts are the weights read as fast as the memory gives them (benchmarks/translate.py).
    """

    def forward(self, x: Float[Tensor, "*b i"], said: Float[Tensor, "*b o"] | None = None) -> Float[Tensor, "*b o"]:
        """`said` is the answer, where a product for several maps has given it: only hooks are left to be called."""
        return product(x, self.weight, self.bias) if said is None else said

    def quick(self) -> Step:
        """The same, with the choice made: for steps without gradients, as long as the weights stay where they are."""
        return quick_product(self.weight, self.bias)

    def beside(self, *others: Linear) -> Laid:
        """This one's weights and others', laid side by side."""
        return Laid(self, *others)

    def lies(self) -> tuple[Any, ...]:
        """What must be the same of all that are laid side by side."""
        return self.weight.dtype, self.weight.device, type(self.weight.data)


def product(x: Float[Tensor, "*b i"], weight: Float[Tensor, "o i"], bias: Tensor | None) -> Float[Tensor, "*b o"]:
    """x W' + b."""
    if _other(x, weight):
        if x.numel() == weight.shape[1] and _in_parts(weight):
            return _Parts(weight, bias)(x)
        out: Tensor = torch.ops.mkldnn._linear_pointwise(x, weight, bias, "none", [], "")
        return out
    return F.linear(x, weight, bias)


def quick_product(weight: Float[Tensor, "o i"], bias: Tensor | None) -> Step:
    """`product` with these weights, the choice made."""
    if not _other(weight[:1], weight):
        return lambda x: F.linear(x, weight, bias)
    other, nothing = torch.ops.mkldnn._linear_pointwise.default, list[float]()
    if not _in_parts(weight):
        return lambda x: other(x, weight, bias, "none", nothing, "")
    parts, inputs = _Parts(weight, bias), weight.shape[1]
    return lambda x: parts(x) if x.numel() == inputs else other(x, weight, bias, "none", nothing, "")


def _in_parts(weight: Tensor) -> bool:
    return torch.backends.mkl.is_available() and weight.is_contiguous() and weight.shape[0] >= PARTS


class _Parts:
    """The product of a single row: the outputs in equal parts, each a product of its own, and what is left over."""

    def __init__(self, weight: Float[Tensor, "o i"], bias: Float[Tensor, "o"] | None) -> None:
        o, i = weight.shape
        n = min(max(PARTS, torch.get_num_threads()), o)
        whole = o // n * n
        self.shape, self.bias = (n, i, 1), None if bias is None else bias[:whole].view(n, -1, 1)
        self.weight = weight[:whole].view(n, -1, i)
        self.rest = None if whole == o else (weight[whole:], None if bias is None else bias[whole:])

    def __call__(self, x: Float[Tensor, "*b i"]) -> Float[Tensor, "*b o"]:
        column = x.reshape(1, -1).mT.expand(self.shape)  # a row turned, not a column: by its strides MKL chooses
        out = torch.bmm(self.weight, column) if self.bias is None else torch.baddbmm(self.bias, self.weight, column)
        out = out.view(*x.shape[:-1], -1)
        return out if self.rest is None else torch.cat([out, F.linear(x, *self.rest)], dim=-1)


def quick_many(m: Any) -> Step:
    """m.quick(), for many steps of a few rows: with a copy of the weights in the order in which oneDNN reads them.

    Made at the first step of more than one row, it takes as much memory again, and as long as some twenty steps; it
    stays with the map. Whether it is still a copy is asked anew by each call of this. It rounds as it likes.
    """
    m = m.whole if isinstance(m, Together) else m
    step: Step = m.quick()
    if not isinstance(m, Linear | Laid) or not _other(m.weight[:1], m.weight):
        return step
    inputs, bias, found = m.weight.shape[1], m.bias, list[Tensor]()
    other, nothing = torch.ops.mkldnn._linear_pointwise.default, list[float]()

    def many(x: Tensor) -> Tensor:
        if not inputs < x.numel() <= FEW * inputs:
            return step(x)
        if not found:
            known = _PACKED.get(m)
            if known is None or not known.holds(m.weight):
                known = _PACKED[m] = _Packed(m.weight)
            found.append(known.weight)
        out: Tensor = other(x, found[0], bias, "none", nothing, "")
        return out

    return many


class _Packed:
    """A copy of weights that can tell, as fast as they are read, whether they have changed."""

    def __init__(self, weight: Float[Tensor, "o i"]) -> None:
        self.question = torch.randn(1, weight.shape[1], generator=torch.Generator().manual_seed(0))
        self.answer = product(self.question, weight, None)
        self.weight = torch.ops.mkldnn._reorder_linear_weight(weight, ROWS)

    def holds(self, weight: Float[Tensor, "o i"]) -> bool:
        """Whether they answer a question of no meaning as they did."""
        return torch.equal(product(self.question, weight, None), self.answer)


_PACKED: WeakKeyDictionary[Any, _Packed] = WeakKeyDictionary()


def _other(x: Tensor, weight: Tensor) -> bool:
    """Whether the other product may be taken, and pays."""
    if torch.is_grad_enabled() or torch.compiler.is_compiling() or weight.numel() < LARGE:
        return False
    plain = x.dtype == weight.dtype == torch.float32 and type(weight) in (Tensor, nn.Parameter)
    here = x.device.type == "cpu" and torch.backends.mkldnn.is_available()
    return plain and here and 0 < x.numel() <= FEW * x.shape[-1] and not torch.is_autocast_enabled("cpu")


class Together:
    """Several linear maps of one input as one product: their weights lie side by side in one storage.

    The maps stay what they are, and what changes their weights in place changes the product. A map that was given
    other weights, or was moved, ends it: each then answers for itself.
    """

    def __init__(self, *maps: Any) -> None:
        self.maps, self.sizes = maps, [m.out_features for m in maps]
        with torch.no_grad():
            self.whole = maps[0].beside(*maps[1:])

    @staticmethod
    def can(*maps: Any) -> bool:
        """Whether these can be one product: maps of one input, of one kind, all with a bias or none."""
        if len(maps) < 2 or any(m is None or not hasattr(m, "beside") for m in maps):
            return False
        return len({(type(m), m.in_features, m.bias is None, *m.lies()) for m in maps}) == 1

    @property
    def holds(self) -> bool:
        """Whether the weights still lie where they were laid."""
        return bool(self.whole.holds)

    @property
    def weight(self) -> Tensor:
        """Of all of them, one under the other."""
        found: Tensor = self.whole.weight
        return found

    @property
    def bias(self) -> Tensor | None:
        """Of all of them, one after the other."""
        found: Tensor | None = self.whole.bias
        return found

    def __call__(self, x: Float[Tensor, "*b i"]) -> list[Tensor]:
        """What each of them says to x."""
        if torch.is_grad_enabled() or torch.compiler.is_compiling() or not self.holds:
            return [m(x) for m in self.maps]
        parts = self.whole(x).split(self.sizes, -1)
        return [
            m(x, said=part) if m._forward_hooks or m._forward_pre_hooks else part
            for m, part in zip(self.maps, parts, strict=True)
        ]

    def quick(self) -> Step:
        """All that they say to x, side by side, with the choice made."""
        step: Step = self.whole.quick()
        return step


class Laid:
    """The weights of several linear maps in one storage."""

    def __init__(self, *maps: Linear) -> None:
        self.maps = maps
        self.weight = _side_by_side([m.weight for m in maps])
        self.bias = None if maps[0].bias is None else _side_by_side([m.bias for m in maps])
        self.places = self._places()

    @property
    def holds(self) -> bool:
        return self._places() == self.places

    def __call__(self, x: Float[Tensor, "*b i"]) -> Float[Tensor, "*b o"]:
        return product(x, self.weight, self.bias)

    def quick(self) -> Step:
        return quick_product(self.weight, self.bias)

    def _places(self) -> list[int]:
        found = [m.weight.data_ptr() for m in self.maps]
        return found if self.bias is None else [*found, *(m.bias.data_ptr() for m in self.maps)]


def _side_by_side(parts: list[Tensor]) -> Tensor:
    whole = torch.cat([part.data for part in parts])
    for part, view in zip(parts, whole.split([part.shape[0] for part in parts]), strict=True):
        part.data = view
    return whole
