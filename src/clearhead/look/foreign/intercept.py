"""Sees the attention calls of torch while foreign models are watched or edited, and answers them with the same kernel.

A TorchFunctionMode is active in the thread of the `with`, and only there. The answer is the untouched call: its bits
are those of the model that is not watched.

Each function `answer_...` stands for some functions of torch (`HANDLERS`): it makes the call itself, and beside it
tells the watches and edits what they asked for.
"""

from __future__ import annotations

import sys
import threading
import warnings
from collections.abc import Callable, Sequence
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

from ...errors import Notice
from ...layers import attend
from ...layers.scores import repeat_heads
from ...models.hooks import Session
from ..capture.tap import WatchTap
from ..maps.call import DenseCall, LazyCall, full_precision
from .foreign_watch import Candidate, ForeignAttention, why_not_recorded
from .handwritten import UNMET, WRONG_AXES, Softmaxes
from .heads import HEADS_AXIS, heads_axis
from .module_stack import CallSite, Frame, user_level
from .steps import Position, position_of
from .torch_attention import (
    SIGNATURE,
    Masks,
    MultiheadSteps,
    SDPACall,
    check_flex,
    editable_mask_and_bias,
    flex_weights,
    mask_and_bias,
    multihead_forward,
    output_and_lse,
)


class Interception(TorchFunctionMode):
    """The attention calls of one thread, for all watches and edits of foreign models in it."""

    def __init__(self) -> None:
        super().__init__()
        self.foreign: list[ForeignAttention] = []
        self.masks = Masks()
        self.softmaxes = Softmaxes()
        # the call of nn.MultiheadAttention that computes weights now
        self.multihead: MultiheadSteps | None = None
        self._pass: object = None  # the pass that the masks belong to

    def __torch_function__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        handle = HANDLERS.get(func)
        # Functions without a handler are called as they are.
        if handle is not None:
            return handle(self, func, args, kwargs or {})
        if kwargs:
            return func(*args, **kwargs)
        return func(*args)

    def join(self, q: Tensor, k: Tensor) -> tuple[WatchTap, list[CallSite]]:
        """The tap of the attention call that happens now, and its site in each model that is watched or edited.

        Args:
            q: Its queries, or its weights; if they cannot be recorded, a Notice says so.
            k: Its keys, or its transposed weights.
        """
        tap, sites = WatchTap(), list[CallSite]()
        for foreign in list(self.foreign):
            # Each model has its own stack of modules, and its own address for this call.
            site = foreign.join(tap, q, k)
            if site is not None:
                sites.append(site)
        # Layers of one pass share their masks; the next pass has others.
        present = [(foreign.stack, foreign.stack.passes) for foreign in self.foreign]
        if present != self._pass:
            self.masks.clear()
            self._pass = present
        reason = why_not_recorded(q, k) if tap.listeners else ""
        # What cannot be read now is not recorded, and the model runs on.
        if reason:
            tap.listeners.clear()
            warnings.warn(
                f"an attention call of {sites[0].name} is not recorded: {reason}",
                Notice,
                stacklevel=user_level(sys._getframe()),
            )
        return tap, sites

    def heads_on_query_axis(self, q: Tensor, k: Tensor) -> int:
        """How many query heads of each key head the axis of the queries holds; 1: it holds queries, as usual.

        In a decoding step with grouped heads, transformers passes the one query (b, g * n, 1, e) as (b, g, n, e), with
        the n query heads of each of g key heads on the axis of the queries. This is certain if that view was seen.
        Otherwise the running module tells: it has n query heads for each key head, and g * n heads.

        Args:
            q: The queries of a call.
            k: The keys.
        """
        # Other shapes have no axis that could hold heads instead of queries.
        if not q.ndim == k.ndim == 4 or q.shape[1] != k.shape[1] or q.shape[2] == 1:
            return 1
        frames, (groups, queries) = self.frames(), q.shape[1:3]
        known = frozenset[int]().union(*(frame.heads for frame in frames))
        if groups in known:  # the heads stand where heads do
            return 1
        # transformers knows how many query heads share a key head.
        repeats = [getattr(frame.module, "num_key_value_groups", 1) for frame in frames]
        module_agrees = groups * queries in known and queries in repeats
        if module_agrees or self.softmaxes.one_query(q):
            return queries
        return 1

    def frames(self) -> list[Frame]:
        """The running module of each model that is watched or edited."""
        return [foreign.stack.frames[-1] for foreign in self.foreign if foreign.stack.frames]

    def stacks(self) -> list[list[Frame]]:
        """The running modules of each model that is watched or edited, outermost first."""
        return [foreign.stack.frames for foreign in self.foreign if foreign.stack.frames]

    def add_candidate(self, shape: torch.Size, reason: str, likely: bool) -> None:
        """Remember a softmax that is not taken as attention.

        Args:
            shape: The shape of the softmax.
            reason: Why it is not taken.
            likely: It is probably one of attention.
        """
        for foreign in self.foreign:
            what = f"a softmax of shape {tuple(shape)} was seen"
            foreign.add_candidate(Candidate(what, reason, likely))

    def add(self, foreign: ForeignAttention, session: Session) -> None:
        """Give attention calls to a watch or an edit until the session ends."""
        session.undo_with(partial(self._drop, foreign))
        foreign.follow(session)
        self.foreign.append(foreign)
        # Nested watches share one mode, which is pushed by the first.
        if self not in _get_current_function_mode_stack():
            _push_mode(self)

    def _drop(self, foreign: ForeignAttention) -> None:
        self.foreign[:] = [other for other in self.foreign if other is not foreign]
        # Another watch may be between a softmax and its product: what is remembered is its own, too.
        if self.foreign:
            return
        self._pass = None
        self.masks.clear()
        self.softmaxes = Softmaxes()
        if getattr(_THREAD, "interception", None) is self:
            _remove(self)  # from another thread it cannot be removed, and passes all calls on


_THREAD = threading.local()


def intercept(foreign: ForeignAttention, session: Session) -> None:
    """Give the attention calls of this thread to a watch or an edit until the session ends."""
    # An interception per thread, since torch's stack of modes belongs to one as well.
    if not hasattr(_THREAD, "interception"):
        _THREAD.interception = Interception()
    _THREAD.interception.add(foreign, session)


def _remove(mode: TorchFunctionMode) -> None:
    """Remove a mode from torch's stack, wherever in it: a `with` need not end in the order of its beginning."""
    modes = _get_current_function_mode_stack()
    if mode not in modes:
        return
    above = modes[modes.index(mode) + 1 :]
    # torch takes modes off the top only: those above go back on
    for _ in range(len(above) + 1):
        _pop_mode()
    for other in above:
        _push_mode(other)


# Attention that is one function of torch.


def answer_sdpa(mode: Interception, func: Callable[..., Tensor], args: Any, kwargs: Any) -> Tensor:
    """Answer F.scaled_dot_product_attention."""
    # Query and key may be given by position or by name.
    given = dict(zip(("query", "key"), args, strict=False)) | kwargs
    q, k = given["query"], given["key"]
    packed = mode.heads_on_query_axis(q, k)
    one_query = q if packed == 1 else q[:, :, :1]  # the others on this axis are heads
    tap, sites = mode.join(one_query, k)
    for site in sites:  # a softmax of the same module is then not its attention
        site.frame.fused = True
    # Nothing is wanted of this call: torch's own answer, untouched.
    if not tap.listeners and not tap.edits:
        return func(*args, **kwargs)
    axis = HEADS_AXIS
    if q.ndim > 4:
        known = frozenset[int]().union(*(site.frame.heads for site in sites))
        axis = heads_axis(q, known, sites[0].path)
    call = SDPACall.of(args, kwargs, packed, axis)

    rows, heads = call.inputs[0].shape[:2]
    for site in sites:
        site.check_heads(heads)
    at = position_of(sites, rows, call.queries, call.keys, call.allowed, call.causal)
    # Scores or weights are edited, or their gradients kept: no kernel has them.
    if tap.explicit:
        out = _explicit(call, tap, at)
    else:
        untouched = partial(_untouched, func, args, kwargs, axis)
        out = _fused(call, tap, at, func, untouched, mode.masks)
    out = call.shaped(out)
    if axis == HEADS_AXIS:
        return out
    return out.movedim(HEADS_AXIS, axis).contiguous()


def _untouched(func: Callable[..., Tensor], args: Any, kwargs: Any, axis: int) -> Tensor:
    """The output of a call as it is, its heads moved from `axis` to the usual axis."""
    out = func(*args, **kwargs)
    if axis == HEADS_AXIS:
        return out
    return out.movedim(axis, HEADS_AXIS)


def _explicit(call: SDPACall, tap: WatchTap, at: Position) -> Tensor:
    """The output (b, h, q, e) of a call, computed from its scores and weights, so that these can be edited."""
    q, k, v = (x.to(call.dtype) for x in call.inputs)
    # attend() expects as many key heads as value heads.
    if k.shape[1] != v.shape[1]:
        k, v = repeat_heads(k, q.shape[1]), repeat_heads(v, q.shape[1])
    # With an edit of scores in mind: what the mask forbids must stay forbidden.
    mask, bias = editable_mask_and_bias(call, at.offset)
    tap.first_key = at.first_key
    return attend(q, k, v, mask=mask, bias=bias, score=call.score, dropout=call.dropout, tap=tap)


def _fused(
    call: SDPACall,
    tap: WatchTap,
    at: Position,
    sdpa: Callable[..., Tensor],
    untouched: Callable[[], Tensor],
    masks: Masks,
) -> Tensor:
    """The output (b, h, q, e) of a call by torch's kernel, which is also what an unwatched model computes.

    Args:
        call: The call.
        tap: Its tap.
        at: Where its tokens are.
        sdpa: Torch's function, for edited inputs.
        untouched: Makes the call as it is.
        masks: Copies of the masks of this pass.
    """
    inputs = tap.inputs(*call.inputs)
    lse = None
    # A view has a gradient only if the kernel is given that view itself.
    unchanged = (call.q, call.k, call.v) if tap.grad else call.inputs
    # Edited inputs need a call of their own; statistics use a kernel's log-sum-exp.
    if any(x is not y for x, y in zip(unchanged, inputs, strict=True)):
        out = call.edited(sdpa, *inputs)
    elif tap.measures:
        out, lse = output_and_lse(call, untouched)
    else:
        out = untouched()
    if tap.listeners:  # what the kernel was given is recorded, after any edit
        # A copy of the mask serves all layers of the pass.
        copy = None if call.four_mask is None else masks.copy(call.four_mask)
        mask, bias = mask_and_bias(call, copy, at.offset)
        q, k = (x.detach().to(out.dtype) for x in inputs[:2])
        source = LazyCall(
            q=q,
            k=k,
            mask=mask,
            bias=bias,
            scale=call.scale,
            given=lse,
            copied=True,
            first_key=at.first_key,
        )
        tap.record(source)
    return tap.heads(call.four(out))


def answer_multihead(mode: Interception, func: Callable[..., Any], args: Any, kwargs: Any) -> Any:
    """Answer F.multi_head_attention_forward, which calls SDPA, or computes weights itself if they are asked for."""
    given = SIGNATURE.bind(*args, **kwargs)
    given.apply_defaults()
    for foreign in mode.foreign:
        foreign.notice_fast_path(*(given.arguments[name] for name in ("query", "key", "value")))
    # An attention inside of another one ends before it, so that the outer one comes back.
    before, mode.multihead = mode.multihead, None
    try:
        # With need_weights torch computes them step by step instead of calling SDPA.
        if given.arguments["need_weights"]:
            tap, _ = mode.join(given.arguments["query"], given.arguments["key"])
            if not tap.listeners and not tap.edits:
                return func(*args, **kwargs)
            mode.multihead = MultiheadSteps(tap, given.arguments["num_heads"])
        # torch leaves the mode while a handler runs: entered again, it sees what the function calls
        with mode:
            return multihead_forward(*args, **kwargs)
    finally:
        mode.multihead = before


def answer_flex(mode: Interception, func: Callable[..., Any], args: Any, kwargs: Any) -> Any:
    """Answer the operator behind flex_attention."""
    tap, sites = mode.join(args[0], args[1])
    if not tap.listeners and not tap.edits:
        return func(*args, **kwargs)
    q, k, v, *rest = args
    for site in sites:
        site.check_heads(q.shape[1])
    check_flex(q, k, tap)
    q, k, v = tap.inputs(q, k, v)
    out, *more = func(q, k, v, *rest, **kwargs)
    # Listeners need the weights: the same operator with unit vectors as values.
    if tap.listeners:
        with torch.no_grad(), full_precision(q.device):
            weights = flex_weights(func, q, k, tuple(rest))
        at = position_of(sites, q.shape[0], q.shape[2], k.shape[2], lambda: weights > 0)
        reason = "FlexAttention returns no scores; use attn_implementation='sdpa'"
        tap.leave_out(("scores",), reason)
        tap.record(DenseCall(weights=weights, offset=at.offset, first_key=at.first_key))
    return tap.heads(out), *more


# What attention that is written by hand is made of: products, a softmax, and what is between (handwritten.py).


FACTORS = ("input", "other", "mat2", "tensor2")  # how torch names the factors of its products


def answer_softmax(
    mode: Interception, func: Callable[..., Tensor], args: Any, kwargs: Any
) -> Tensor:
    """Answer softmax."""
    # A step of nn.MultiheadAttention, whose axes are known.
    if mode.multihead is not None:
        return mode.multihead.softmax(args[0], func, kwargs["dim"])
    out = func(*args, **kwargs)
    dim = kwargs.get("dim")
    if "dim" not in kwargs and len(args) > 1:
        dim = args[1]
    scores = args[0] if args else kwargs["input"]
    likely = mode.softmaxes.begin(mode.frames(), scores, out, dim)
    # What is taken as attention later was seen there, and this candidate is not named.
    mode.add_candidate(out.shape, UNMET if out.ndim in (3, 4) else WRONG_AXES, likely)
    return out


def answer_copy(mode: Interception, func: Callable[..., Tensor], args: Any, kwargs: Any) -> Tensor:
    """Answer dropout, casts and copies, which the weights of attention may pass through."""
    softmax = mode.softmaxes.of_weights(args[0]) if args else None
    if softmax is None:
        return func(*args, **kwargs)
    weights = args[0]
    # In place the old weights are overwritten: the copy keeps them for the record.
    if _in_place(func, args, kwargs):
        weights = weights.clone()
    out = func(*args, **kwargs)
    mode.softmaxes.passed(softmax, weights, out)
    return out


def _in_place(func: Any, args: Any, kwargs: Any) -> bool:
    """Whether dropout overwrites its input, as nn.Dropout(inplace=True) does."""
    if func is torch.dropout_ or kwargs.get("inplace"):
        return True
    return func is F.dropout and len(args) > 3 and bool(args[3])


def answer_view(mode: Interception, func: Callable[..., Tensor], args: Any, kwargs: Any) -> Tensor:
    """Answer views, which put the rows and heads of a tensor into one axis."""
    out = func(*args, **kwargs)
    if args:
        mode.softmaxes.reshaped(args[0], out)
    return out


def answer_index(mode: Interception, func: Callable[..., Any], args: Any, kwargs: Any) -> Any:
    """Answer indexing, which removes the weight of a sink."""
    out = func(*args, **kwargs)
    # The sink was put beside the scores as one more key, and its weight is dropped here.
    mode.softmaxes.sliced(args[0], out)
    return out


def answer_bmm(mode: Interception, func: Callable[..., Tensor], args: Any, kwargs: Any) -> Tensor:
    """Answer torch.bmm and torch.baddbmm, which nn.MultiheadAttention calls, too."""
    if mode.multihead is None:
        return answer_product(mode, func, args, kwargs)
    return mode.multihead.product(func, args)


def answer_product(
    mode: Interception, func: Callable[..., Tensor], args: Any, kwargs: Any
) -> Tensor:
    """Answer matrix products."""
    factors = (*args, *(kwargs[name] for name in FACTORS if name in kwargs))
    # Two factors and no options: weights @ values, or queries and keys.
    if len(factors) == len(args) + len(kwargs) == 2:
        return _weighted_sum(mode, func, factors)
    # Three factors, or options: not weights @ values, but baddbmm may multiply queries and keys.
    out = func(*args, **kwargs)
    x, y = kwargs.get("batch1"), kwargs.get("batch2")
    if len(args) == 3:
        x, y = args[1:]
    mode.softmaxes.multiplied(mode.frames(), x, y, out)
    return out


def answer_einsum(
    mode: Interception, func: Callable[..., Tensor], args: Any, kwargs: Any
) -> Tensor:
    """Answer torch.einsum."""
    equation, *factors = args
    # torch.einsum takes its operands as a list, too.
    if len(factors) == 1 and isinstance(factors[0], tuple | list):
        factors = list(factors[0])
    if len(factors) != 2 or kwargs:
        return func(*args, **kwargs)
    if mode.softmaxes.of_weights(factors[1]) is None:
        return _weighted_sum(mode, partial(func, equation), factors, equation)
    # The weights are the second factor: "bhkd,bhqk->bhqd" is read as "bhqk,bhkd->bhqd".
    values, _, rest = str(equation).partition(",")
    weights, arrow, out = rest.partition("->")
    swapped = f"{weights},{values}{arrow}{out}"
    return _weighted_sum(
        mode, lambda weights, v: func(equation, v, weights), factors[::-1], swapped
    )


def _weighted_sum(
    mode: Interception,
    func: Callable[..., Tensor],
    factors: Sequence[Any],
    equation: Any = None,
) -> Tensor:
    """Answer a product that is attention if its first factor is the weights of a softmax: see handwritten.py.

    Args:
        mode: The mode.
        func: Multiplies the two factors.
        factors: Perhaps weights and values.
        equation: That of torch.einsum; None: a matrix product.
    """
    softmaxes, (weights, v) = mode.softmaxes, factors
    softmax = softmaxes.of_weights(weights)
    layout = None
    if softmax is not None:
        layout = softmaxes.layout(softmax, mode.stacks(), weights, v, equation)
    # The product may be of scores, which a later softmax is recognised by.
    if softmax is None or layout is None:
        if softmax is not None:
            mode.add_candidate(weights.shape, softmaxes.reason, softmax.likely)
        out = func(weights, v)
        softmaxes.multiplied(mode.frames(), weights, v, out)
        return out
    whole = layout.four(weights, layout.weights)
    # Only the lengths of queries and keys are read from these two.
    tap, sites = mode.join(whole, whole.mT)
    return softmaxes.product(softmax, tap, sites, func, weights, v, layout)


# The functions of torch that are intercepted.
HANDLERS: dict[Any, Callable[..., Any]] = {
    F.scaled_dot_product_attention: answer_sdpa,
    torch.ops.aten.scaled_dot_product_attention.default: answer_sdpa,  # of an exported model
    F.multi_head_attention_forward: answer_multihead,
    torch.ops.higher_order.flex_attention: answer_flex,
    **dict.fromkeys((F.softmax, torch.softmax, Tensor.softmax), answer_softmax),
    **dict.fromkeys((torch.bmm, torch.baddbmm, Tensor.baddbmm), answer_bmm),
    **dict.fromkeys((torch.matmul, Tensor.matmul, Tensor.bmm), answer_product),
    torch.einsum: answer_einsum,
    **dict.fromkeys((F.dropout, torch.dropout, torch.dropout_), answer_copy),
    **dict.fromkeys((Tensor.to, Tensor.type_as, Tensor.type), answer_copy),
    **dict.fromkeys((Tensor.float, Tensor.half, Tensor.bfloat16, Tensor.double), answer_copy),
    **dict.fromkeys((Tensor.clone, torch.clone), answer_copy),
    **dict.fromkeys((Tensor.view, Tensor.reshape, torch.reshape), answer_view),
    **dict.fromkeys((Tensor.flatten, torch.flatten), answer_view),
    Tensor.__getitem__: answer_index,
}
