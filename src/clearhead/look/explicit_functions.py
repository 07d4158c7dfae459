"""Answers the functions of torch that attention written by hand is made of: softmaxes, products, what is between."""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, Any

import torch
import torch.nn.functional as F
from torch import Tensor

from .explicit_call import AXES, UNMET

if TYPE_CHECKING:
    from .intercept import Interception

FACTORS = ("input", "other", "mat2", "tensor2")  # the names of the factors of torch's matrix products


def batched_product(mode: Interception, func: Callable[..., Tensor], args: Any, kwargs: Any) -> Tensor:
    """Answer torch.bmm and torch.baddbmm."""
    return product(mode, func, args, kwargs) if mode.multihead is None else mode.multihead.product(func, args)


def softmax(mode: Interception, func: Callable[..., Tensor], args: Any, kwargs: Any) -> Tensor:
    """Answer softmax."""
    if mode.multihead is not None:
        return mode.multihead.softmax(args[0], func, kwargs["dim"])
    out = func(*args, **kwargs)
    dim = kwargs["dim"] if "dim" in kwargs else args[1] if len(args) > 1 else None
    scores = args[0] if args else kwargs["input"]
    mode.missed(out.shape, UNMET if out.ndim in (3, 4) else AXES, mode.explicit.begin(mode.frames(), scores, out, dim))
    return out


def pass_on(mode: Interception, func: Callable[..., Tensor], args: Any, kwargs: Any) -> Tensor:
    """Answer dropout, casts and copies, which the weights of attention may pass through."""
    found = mode.explicit.follow(args[0]) if args else None
    copy = args[0].clone() if found is not None and _in_place(func, args, kwargs) else None
    out = func(*args, **kwargs)
    if found is not None:
        mode.explicit.passed(found, args[0] if copy is None else copy, out)
    return out


def reshape(mode: Interception, func: Callable[..., Tensor], args: Any, kwargs: Any) -> Tensor:
    """Answer views, which put the rows and heads of a tensor into one axis."""
    out = func(*args, **kwargs)
    if args:
        mode.explicit.reshaped(args[0], out)
    return out


def cut(mode: Interception, func: Callable[..., Any], args: Any, kwargs: Any) -> Any:
    """Answer indexing, which removes the weight of a sink."""
    out = func(*args, **kwargs)
    mode.explicit.sliced(args[0], out)
    return out


def _in_place(func: Any, args: Any, kwargs: Any) -> bool:
    """Whether dropout overwrites its input, as nn.Dropout(inplace=True) does."""
    return func is torch.dropout_ or bool(kwargs.get("inplace") or (func is F.dropout and len(args) > 3 and args[3]))


def product(mode: Interception, func: Callable[..., Tensor], args: Any, kwargs: Any) -> Tensor:
    """Answer matrix products."""
    factors = (*args, *(kwargs[name] for name in FACTORS if name in kwargs))
    if len(factors) == len(args) + len(kwargs) == 2:
        return _weighted_sum(mode, func, factors)
    out = func(*args, **kwargs)
    x, y = args[1:] if len(args) == 3 else (kwargs.get("batch1"), kwargs.get("batch2"))  # of baddbmm
    mode.explicit.multiplied(mode.frames(), x, y, out)
    return out


def einsum(mode: Interception, func: Callable[..., Tensor], args: Any, kwargs: Any) -> Tensor:
    """Answer torch.einsum."""
    equation, *factors = args
    if len(factors) == 1 and isinstance(factors[0], tuple | list):
        factors = list(factors[0])
    if len(factors) != 2 or kwargs:
        return func(*args, **kwargs)
    if mode.explicit.follow(factors[1]) is None:
        return _weighted_sum(mode, lambda weights, v: func(equation, weights, v), factors, equation)
    values, _, rest = str(equation).partition(",")  # the weights are the second factor
    weights, arrow, out = rest.partition("->")
    swapped = f"{weights},{values}{arrow}{out}"
    return _weighted_sum(mode, lambda weights, v: func(equation, v, weights), factors[::-1], swapped)


def _weighted_sum(mode: Interception, func: Callable[..., Tensor], args: Any, equation: Any = None) -> Tensor:
    """Answer a product that is attention if its first factor is the weights of a softmax: see explicit_call.py."""
    explicit, (weights, v) = mode.explicit, args
    found = explicit.follow(weights)
    layout = None if found is None else explicit.layout(found, mode.stacks(), weights, v, equation)
    if found is None or layout is None:
        if found is not None:
            mode.missed(weights.shape, explicit.reason, found.likely)
        out = func(weights, v)
        explicit.multiplied(mode.frames(), weights, v, out)
        return out
    whole = layout.four(weights, layout.weights)
    tap, places = mode.join(whole, whole.mT)
    return explicit.product(found, tap, places, func, weights, v, layout)


FUNCTIONS: dict[Any, Callable[..., Any]] = {
    **dict.fromkeys((torch.bmm, torch.baddbmm, Tensor.baddbmm), batched_product),
    **dict.fromkeys((F.softmax, torch.softmax, Tensor.softmax), softmax),
    **dict.fromkeys((F.dropout, torch.dropout, torch.dropout_, Tensor.to, Tensor.type_as, Tensor.type), pass_on),
    **dict.fromkeys((Tensor.float, Tensor.half, Tensor.bfloat16, Tensor.double, Tensor.clone, torch.clone), pass_on),
    Tensor.__getitem__: cut,
    **dict.fromkeys((Tensor.view, Tensor.reshape, torch.reshape, Tensor.flatten, torch.flatten), reshape),
    **dict.fromkeys((torch.matmul, Tensor.matmul, Tensor.bmm), product),
    torch.einsum: einsum,
}
