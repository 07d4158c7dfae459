"""nn.MultiheadAttention under a watch: its SDPA call is seen, and so are the weights that it computes itself."""

from __future__ import annotations

import inspect
import math
from collections.abc import Callable
from types import FunctionType
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from .call import DenseCall
from .tap import WatchTap, own

SIGNATURE = inspect.signature(F.multi_head_attention_forward)


def _without_dispatch(function: Any) -> Callable[..., Any]:
    """A copy of a function of torch that does not hand itself over to an active mode: with one, it would recurse."""
    space = {**function.__globals__, "has_torch_function": lambda _: False}
    copy = FunctionType(function.__code__, space, function.__name__, function.__defaults__, function.__closure__)
    copy.__kwdefaults__ = function.__kwdefaults__
    return copy


multihead_forward = _without_dispatch(F.multi_head_attention_forward)


def uses_fast_path(module: nn.Module, query: Tensor, key: Tensor, value: Tensor) -> bool:
    """Whether torch would compute this call by its fused fast path if no mode were active."""
    return (
        torch.backends.mha.get_fastpath_enabled()
        and isinstance(module, nn.MultiheadAttention)
        and query is key is value
        and query.ndim == 3
        and module.batch_first
        and not module.training
        and module.num_heads % 2 == 0
        and not torch.is_autocast_enabled(query.device.type)
        and not (torch.is_grad_enabled() and any(p.requires_grad for p in module.parameters()))
    )


class ExplicitMultihead:
    """The steps of one call with need_weights=True: torch multiplies queries and keys, takes the softmax, multiplies.

    Args:
        tap: The tap of the call.
        heads: Number of heads.
    """

    def __init__(self, tap: WatchTap, heads: int) -> None:
        self.tap, self.heads = tap, heads
        self.weights: Tensor | None = None
        for listener in tap.listeners:
            listener.begin()

    def product(self, func: Callable[..., Tensor], args: tuple[Any, ...]) -> Tensor:
        """torch.bmm or torch.baddbmm: of queries and keys, or of weights and values."""
        if self.weights is not None:
            v = self._passed("v", args[1])
            for listener in list(self.tap.listeners):
                listener.record_call(DenseCall(weights=own(self.weights, listener.grad and listener.explicit)))
            return self._three(self.tap.heads(self._four(func(args[0], v))))
        *mask, q, k = args
        factor = math.sqrt(1.0 / float(q.shape[-1]))  # by which torch has scaled the queries
        plain = self._four(q) / factor
        edited = self.tap.passed("q", plain)
        q = q if edited is plain else self._three(edited) * factor
        scores = func(*mask, q, self._passed("k", k.mT).mT)
        edited = self._passed("scores", scores)
        return edited.masked_fill(scores.isneginf(), float("-inf"))  # no edit allows a masked key

    def softmax(self, scores: Tensor, func: Callable[..., Tensor], dim: int) -> Tensor:
        """The weights of the scores."""
        self.weights = self.tap.edited("weights", self._four(func(scores, dim=dim)))
        return self._three(self.weights)

    def _passed(self, leaf: str, x: Tensor) -> Tensor:
        return self._three(self.tap.passed(leaf, self._four(x)))

    def _four(self, x: Tensor) -> Tensor:
        return x.unflatten(0, (-1, self.heads))

    def _three(self, x: Tensor) -> Tensor:
        return x.flatten(0, 1)
