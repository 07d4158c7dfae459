"""Sees the attention calls of torch while foreign models are watched or edited, and answers them with the same kernel.

A TorchFunctionMode is active in the thread of the `with`, and only there. The answer is the untouched call: its bits
are those of the model that is not watched.
"""

from __future__ import annotations

import sys
import threading
import warnings
from collections.abc import Callable
from functools import partial
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor
from torch.overrides import (
    TorchFunctionMode,
    _get_current_function_mode_stack,
    _pop_mode,
    _push_mode,
)

from ...errors import InputError, Notice
from ...layers import attend
from ...layers.scores import repeat_heads
from ..capture.hooks import Session
from ..capture.tap import WatchTap
from ..maps.call import DenseCall, LazyCall, full_precision
from .foreign_watch import Foreign, Missed, why_not
from .handwritten import AXES, UNMET, Explicit
from .module_stack import Frame, Place, position_of, user_level
from .torch_attention import (
    HEADS_AXIS,
    SIGNATURE,
    ExplicitMultihead,
    Masks,
    SDPACall,
    answer,
    check_flex,
    editable_mask_and_bias,
    flex_weights,
    mask_and_bias,
    multihead_forward,
)

# Answers the functions of torch that attention written by hand is made of: softmaxes, products, what is between.


# the names of the factors of torch's matrix products
FACTORS = ("input", "other", "mat2", "tensor2")


def batched_product(
    mode: Interception, func: Callable[..., Tensor], args: Any, kwargs: Any
) -> Tensor:
    """Answer torch.bmm and torch.baddbmm."""
    if mode.multihead is None:
        return product(mode, func, args, kwargs)
    return mode.multihead.product(func, args)


def softmax(mode: Interception, func: Callable[..., Tensor], args: Any, kwargs: Any) -> Tensor:
    """Answer softmax."""
    if mode.multihead is not None:
        return mode.multihead.softmax(args[0], func, kwargs["dim"])
    out = func(*args, **kwargs)
    if "dim" in kwargs:
        dim = kwargs["dim"]
    elif len(args) > 1:
        dim = args[1]
    else:
        dim = None
    scores = args[0] if args else kwargs["input"]
    mode.missed(
        out.shape,
        UNMET if out.ndim in (3, 4) else AXES,
        mode.explicit.begin(mode.frames(), scores, out, dim),
    )
    return out


def pass_on(mode: Interception, func: Callable[..., Tensor], args: Any, kwargs: Any) -> Tensor:
    """Answer dropout, casts and copies, which the weights of attention may pass through."""
    found = mode.explicit.follow(args[0]) if args else None
    if found is not None and _in_place(func, args, kwargs):
        copy = args[0].clone()
    else:
        copy = None
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
    return func is torch.dropout_ or bool(
        kwargs.get("inplace") or (func is F.dropout and len(args) > 3 and args[3])
    )


def product(mode: Interception, func: Callable[..., Tensor], args: Any, kwargs: Any) -> Tensor:
    """Answer matrix products."""
    factors = (*args, *(kwargs[name] for name in FACTORS if name in kwargs))
    if len(factors) == len(args) + len(kwargs) == 2:
        return _weighted_sum(mode, func, factors)
    out = func(*args, **kwargs)
    # of baddbmm
    if len(args) == 3:
        x, y = args[1:]
    else:
        x, y = (kwargs.get("batch1"), kwargs.get("batch2"))
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
    return _weighted_sum(
        mode, lambda weights, v: func(equation, v, weights), factors[::-1], swapped
    )


def _weighted_sum(
    mode: Interception, func: Callable[..., Tensor], args: Any, equation: Any = None
) -> Tensor:
    """Answer a product that is attention if its first factor is the weights of a softmax: see explicit_call.py."""
    explicit, (weights, v) = mode.explicit, args
    found = explicit.follow(weights)
    if found is None:
        layout = None
    else:
        layout = explicit.layout(found, mode.stacks(), weights, v, equation)
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
    **dict.fromkeys(
        (F.dropout, torch.dropout, torch.dropout_, Tensor.to, Tensor.type_as, Tensor.type), pass_on
    ),
    **dict.fromkeys(
        (Tensor.float, Tensor.half, Tensor.bfloat16, Tensor.double, Tensor.clone, torch.clone),
        pass_on,
    ),
    Tensor.__getitem__: cut,
    **dict.fromkeys(
        (Tensor.view, Tensor.reshape, torch.reshape, Tensor.flatten, torch.flatten), reshape
    ),
    **dict.fromkeys((torch.matmul, Tensor.matmul, Tensor.bmm), product),
    torch.einsum: einsum,
}


class Interception(TorchFunctionMode):
    """The attention calls of one thread, for all watches and edits of foreign models in it."""

    def __init__(self) -> None:
        super().__init__()
        self.foreign: list[Foreign] = []
        self.masks = Masks()
        self.explicit = Explicit()
        # the call of nn.MultiheadAttention that computes weights now
        self.multihead: ExplicitMultihead | None = None
        self._pass: object = None  # the pass that the masks belong to

    def __torch_function__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        handle = HANDLERS.get(func)
        if handle is not None:
            return handle(self, func, args, kwargs or {})
        return func(*args, **kwargs) if kwargs else func(*args)

    def join(self, q: Tensor, k: Tensor) -> tuple[WatchTap, list[Place]]:
        """The tap of the attention call that happens now, and its place in each model that is watched or edited.

        Args:
            q: Its queries, or its weights; if they cannot be recorded, a Notice says so.
            k: Its keys, or its transposed weights.
        """
        tap, places = WatchTap(), list[Place]()
        for foreign in list(self.foreign):
            place = foreign.join(tap, q, k)
            if place is not None:
                places.append(place)
        present = [(foreign.running, foreign.running.passes) for foreign in self.foreign]
        if present != self._pass:
            self.masks.clear()
            self._pass = present
        reason = why_not(q, k) if tap.listeners else ""
        if reason:
            tap.listeners.clear()
            _notice_unrecorded(places[0], reason)
        return tap, places

    def packed(self, q: Tensor, k: Tensor) -> int:
        """How many query heads of each key head stand where queries do, as in one decoding step of transformers; or 1.

        That is certain if the queries are a reshape of one query per head. Otherwise the running module tells: it has
        as many query heads for each key head, and as many heads, as then are there.

        Args:
            q: The queries of a call.
            k: The keys.
        """
        if not q.ndim == k.ndim == 4 or q.shape[1] != k.shape[1] or q.shape[2] == 1:
            return 1
        frames, (groups, queries) = self.frames(), q.shape[1:3]
        known = frozenset[int]().union(*(frame.heads for frame in frames))
        shaped = groups * queries in known and any(
            getattr(frame.module, "num_key_value_groups", 1) == queries for frame in frames
        )
        if groups not in known and (shaped or self.explicit.one_query(q)):
            return queries
        return 1

    def frames(self) -> list[Frame]:
        """The running module of each model that is watched or edited."""
        return [foreign.running.frames[-1] for foreign in self.foreign if foreign.running.frames]

    def stacks(self) -> list[list[Frame]]:
        """The running modules of each model that is watched or edited, outermost first."""
        return [foreign.running.frames for foreign in self.foreign if foreign.running.frames]

    def missed(self, softmax: torch.Size, reason: str, likely: bool) -> None:
        """Remember a softmax that is not taken as attention, and why; `likely`: it is probably one of attention."""
        for foreign in self.foreign:
            foreign.miss(Missed(f"a softmax of shape {tuple(softmax)} was seen", reason, likely))

    def add(self, foreign: Foreign, session: Session) -> None:
        """Give attention calls to a watch or an edit until the session ends."""
        session.undo_with(partial(self._drop, foreign))
        foreign.follow(session)
        self.foreign.append(foreign)
        if self not in _get_current_function_mode_stack():
            _push_mode(self)

    def _drop(self, foreign: Foreign) -> None:
        self.foreign[:] = [other for other in self.foreign if other is not foreign]
        self._pass = None
        self.masks.clear()
        self.explicit = Explicit()
        if not self.foreign and getattr(_THREAD, "interception", None) is self:
            _remove(self)  # from another thread it cannot be removed, and passes all calls on


_THREAD = threading.local()


def intercept(foreign: Foreign, session: Session) -> None:
    """Give the attention calls of this thread to a watch or an edit until the session ends."""
    if not hasattr(_THREAD, "interception"):
        _THREAD.interception = Interception()
    _THREAD.interception.add(foreign, session)


def _remove(mode: TorchFunctionMode) -> None:
    """Remove a mode from torch's stack, wherever in it: a `with` need not end in the order of its beginning."""
    modes = _get_current_function_mode_stack()
    if mode not in modes:
        return
    above = modes[modes.index(mode) + 1 :]
    for _ in range(len(above) + 1):
        _pop_mode()
    for other in above:
        _push_mode(other)


def _notice_unrecorded(place: Place, reason: str) -> None:
    """Say that an attention call is not recorded."""
    if place.path:
        where = repr(place.path)
    else:
        where = f"this {type(place.frame.module).__name__}"
    warnings.warn(
        f"an attention call of {where} is not recorded: {reason}",
        Notice,
        stacklevel=user_level(sys._getframe()),
    )


def _sdpa(mode: Interception, func: Callable[..., Tensor], args: Any, kwargs: Any) -> Tensor:
    """Answer F.scaled_dot_product_attention."""
    q, k = (args[i] if i < len(args) else kwargs[name] for i, name in enumerate(("query", "key")))
    packed = mode.packed(q, k)
    tap, places = mode.join(q if packed == 1 else q[:, :, :1], k)
    for place in places:
        place.frame.fused = True
    if not tap.listeners and not tap.edits:
        return func(*args, **kwargs)
    axis = _heads_axis(places, q)
    call = SDPACall.of(args, kwargs, packed, axis)

    def kernel() -> Tensor:
        out = func(*args, **kwargs)
        if axis == HEADS_AXIS:
            return out
        return out.movedim(axis, HEADS_AXIS)

    def shaped(out: Tensor) -> Tensor:
        out = call.shaped(out)
        if axis == HEADS_AXIS:
            return out
        return out.movedim(HEADS_AXIS, axis).contiguous()

    mask = call.four_mask
    before = call.four(call.q), call.four(call.k), call.four(call.v)
    for place in places:
        place.check_heads(before[0].shape[1])
    at = position_of(places, before[0].shape[0], call.queries, call.keys, call.allowed, call.causal)
    if tap.explicit:
        q, k, v = (x.to(call.dtype) for x in before)
        if k.shape[1] != v.shape[1]:
            k, v = repeat_heads(k, q.shape[1]), repeat_heads(v, q.shape[1])
        which, bias = editable_mask_and_bias(call, at.offset)
        tap.first_key = at.first_key
        out = attend(
            q, k, v, mask=which, bias=bias, score=call.score, dropout=call.dropout, tap=tap
        )
        return shaped(out)
    after = tap.inputs(*before)
    lse = None
    # a view has a gradient only if the kernel is given it
    own = (call.q, call.k, call.v) if tap.grad else before
    if any(x is not y for x, y in zip(own, after, strict=True)):
        out = call.edited(func, *after)
    elif tap.measures:
        out, lse = answer(call, kernel)
    else:
        out = kernel()
    if tap.listeners:
        copy = None if mask is None else mode.masks.copy(mask)
        which, bias = mask_and_bias(call, copy, at.offset)
        q, k = (x.detach().to(out.dtype) for x in after[:2])
        tap.record(
            LazyCall(
                q=q,
                k=k,
                mask=which,
                bias=bias,
                scale=call.scale,
                given=lse,
                copied=True,
                first_key=at.first_key,
            )
        )
    return shaped(tap.heads(call.four(out)))


def _heads_axis(places: list[Place], q: Tensor) -> int:
    """Which axis of queries with more than four has the heads: NesT has them before its windows, others after them."""
    known = frozenset[int]().union(*(place.frame.heads for place in places))
    fitting = [axis - q.ndim for axis in range(1, q.ndim - 2) if q.shape[axis] in known]
    if q.ndim <= 4 or not fitting:
        return HEADS_AXIS
    if len(fitting) > 1:
        raise InputError(
            f"{places[0].path!r} calls attention with queries of shape {tuple(q.shape)}: which axis has its heads is "
            "not known, so that this attention can be neither watched nor edited"
        )
    return fitting[0]


def _multihead(mode: Interception, func: Callable[..., Any], args: Any, kwargs: Any) -> Any:
    """Answer F.multi_head_attention_forward, which calls SDPA, or computes weights itself if they are asked for."""
    given = SIGNATURE.bind(*args, **kwargs)
    given.apply_defaults()
    for foreign in mode.foreign:
        foreign.notice_fast_path(*(given.arguments[name] for name in ("query", "key", "value")))
    before, mode.multihead = mode.multihead, None
    try:
        if given.arguments["need_weights"]:
            tap, _ = mode.join(given.arguments["query"], given.arguments["key"])
            if not tap.listeners and not tap.edits:
                return func(*args, **kwargs)
            mode.multihead = ExplicitMultihead(tap, given.arguments["num_heads"])
        with mode:
            return multihead_forward(*args, **kwargs)
    finally:
        mode.multihead = before


def _flex(mode: Interception, func: Callable[..., Any], args: Any, kwargs: Any) -> Any:
    """Answer the operator behind flex_attention."""
    tap, places = mode.join(args[0], args[1])
    if not tap.listeners and not tap.edits:
        return func(*args, **kwargs)
    q, k, v, *rest = args
    for place in places:
        place.check_heads(q.shape[1])
    check_flex(q, k, tap)
    q, k, v = tap.inputs(q, k, v)
    out, *more = func(q, k, v, *rest, **kwargs)
    if tap.listeners:
        with torch.no_grad(), full_precision(q.device):
            weights = flex_weights(func, q, k, tuple(rest))
        at = position_of(places, q.shape[0], q.shape[2], k.shape[2], lambda: weights > 0)
        tap.withhold(("scores",), "FlexAttention returns no scores; use attn_implementation='sdpa'")
        tap.record(DenseCall(weights=weights, offset=at.offset, first_key=at.first_key))
    return tap.heads(out), *more


# The functions of torch that are intercepted.
HANDLERS: dict[Any, Callable[..., Any]] = {
    F.scaled_dot_product_attention: _sdpa,
    torch.ops.aten.scaled_dot_product_attention.default: _sdpa,  # of an exported model
    F.multi_head_attention_forward: _multihead,
    torch.ops.higher_order.flex_attention: _flex,
    **FUNCTIONS,
}
