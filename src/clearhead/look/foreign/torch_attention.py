"""Calls of torch's own attention in the terms of this library: four axes, Mask and Bias.

SDPACall is a call of scaled_dot_product_attention; below are FlexAttention and nn.MultiheadAttention.
"""

from __future__ import annotations

import inspect
import math
from collections.abc import Callable
from dataclasses import dataclass
from functools import cached_property
from types import FunctionType
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from ...errors import InputError
from ...layers import Bias, Mask
from ...layers.sdpa import kernel_with_lse
from ..capture.tap import WatchTap, kept
from ..maps.attention_map import DENSE_LIMIT
from ..maps.call import DenseCall
from .heads import HEADS_AXIS


@dataclass(kw_only=True, eq=False)
class SDPACall:
    """One call of F.scaled_dot_product_attention, bound to the names of its arguments.

    Grouped heads come in three forms: keys and values are repeated, torch repeats them (`grouped`), or the query heads
    of each key head are packed: they stand where queries do, as transformers has it where one query is decoded.
    """

    q: Tensor
    k: Tensor
    v: Tensor
    attn_mask: Tensor | None = None
    dropout: float = 0.0
    causal: bool = False
    scale: float
    grouped: bool = False
    packed: int = 1  # query heads of each key head that stand on the axis of the queries

    @staticmethod
    def of(
        args: tuple[Any, ...], kwargs: dict[str, Any], packed: int = 1, heads: int = HEADS_AXIS
    ) -> SDPACall:
        """The call with these arguments, in which `heads` is the axis of the heads, moved to the usual axis."""
        call = _bind(*args, **kwargs)
        call.packed = packed
        # NesT and others: bring the axis of the heads to its usual place.
        if heads != HEADS_AXIS:
            axes = call.q.ndim
            call.q, call.k, call.v = (
                _heads_before_tokens(x, heads, axes) for x in (call.q, call.k, call.v)
            )
            if call.attn_mask is not None:
                call.attn_mask = _heads_before_tokens(call.attn_mask, heads, axes)
        return call

    @property
    def queries(self) -> int:
        """Number of queries."""
        return self.q.shape[-2] // self.packed

    @property
    def keys(self) -> int:
        """Number of keys."""
        return self.k.shape[-2]

    @cached_property
    def lead(self) -> torch.Size:
        """All axes of the output but the last two."""
        axes = 3 if self.grouped else 2  # grouped heads do not broadcast
        q, k, v = (x.shape[:-axes] for x in (self.q, self.k, self.v))
        lead = q
        if not q == k == v:
            lead = torch.broadcast_shapes(q, k, v)  # takes 30 us, more than the rest of a watch
        return lead + self.q.shape[-axes:-2]

    def four(self, x: Tensor) -> Tensor:
        """q, k, v or the output with axes (b, h, tokens, e): three axes have one head, more than four many rows.

        Of grouped heads the third axis from the end is that of the heads.
        """
        # Query heads on the axis of queries: the keys and values have one head each.
        if self.packed > 1:
            of_keys = x is self.k or x is self.v
            x = x.expand(*self.lead, *x.shape[-2:])
            if of_keys:
                return x
            return _unpacked(x)  # (b, g, n, e) -> (b, g * n, 1, e)
        if self.grouped:
            if x.ndim == 4 and x.shape[:1] == self.lead[:-1]:
                return x  # the tensor itself, which has a gradient
            x = x.expand(*self.lead[:-1], *x.shape[-3:])
            if x.ndim == 3:
                return x[None]
            return _four(x)
        if x.ndim == 4 and x.shape[:1] == self.lead[:-1]:
            shared = x.shape[1] == 1 and x is not self.q  # one key head of all queries stays one
            if x.shape[1] == self.lead[1] or shared:
                return x
        # Rows or heads of k and v may broadcast, as SDPA allows.
        return _four(x.expand(*self.lead, *x.shape[-2:]))

    @cached_property
    def inputs(self) -> tuple[Tensor, Tensor, Tensor]:
        """The queries, keys and values with four axes, (b, h, tokens, e)."""
        return self.four(self.q), self.four(self.k), self.four(self.v)

    def shaped(self, out: Tensor) -> Tensor:
        """An output with four axes in the shape that the call returns."""
        if len(self.lead) == 2 and self.packed == 1:
            return out
        return out.reshape(*self.lead, self.q.shape[-2], out.shape[-1])

    @cached_property
    def four_mask(self) -> Tensor | None:
        """The mask with up to four axes, broadcastable to (b, h, q, k)."""
        mask = self.attn_mask
        if mask is None:
            return None
        # The axes before the keys are (g, n), both of heads; one mask for all of them broadcasts.
        if self.packed > 1:
            same_for_heads = mask.ndim < 3 or mask.shape[-3] == 1
            same_for_queries = mask.ndim < 2 or mask.shape[-2] == 1
            if same_for_heads and same_for_queries:
                return mask
            heads = self.q.shape[1:3]  # (g, n): key heads, and query heads of each
            return _unpacked(mask.expand(*mask.shape[:-3], *heads, mask.shape[-1]))
        if self.q.ndim == 4 or mask.ndim <= 2:
            return mask
        if self.grouped and self.q.ndim == 3:
            return mask[None]
        if self.q.ndim > 4:
            mask = mask.expand(*self.lead, *mask.shape[-2:])
        return _four(mask)

    def allowed(self) -> Tensor | None:
        """Where the mask allows attention."""
        mask = self.four_mask
        # A mask of bools allows or forbids; an additive one forbids by its lowest numbers.
        if mask is None or mask.dtype == torch.bool:
            return mask
        return mask.detach() > torch.finfo(mask.dtype).min / 2

    def edited(self, sdpa: Callable[..., Tensor], q: Tensor, k: Tensor, v: Tensor) -> Tensor:
        """The output of the same call, in its shape, with other queries, keys and values, which have four axes."""
        if self.packed > 1:  # back to the form in which the heads stand where queries do
            q = self.shaped(q)
        mask = self.attn_mask
        old, new = (self.q, self.k, self.v), (q, k, v)
        # The usual case: the same sizes, and the call's own shape.
        if all(x.numel() == y.numel() for x, y in zip(old, new, strict=True)):
            q, k, v = (y.reshape(x.shape) for x, y in zip(old, new, strict=True))
        else:  # keys or values were broadcast over rows or heads
            q, k, v = (self._unbroadcast(y) for y in new)
            if mask is not None and mask.is_floating_point() and q.dtype == torch.float64:
                # a fused kernel, which takes only what is not broadcast, reads it as float64
                mask = mask.double()
        return sdpa(
            q, k, v, mask, self.dropout, self.causal, scale=self.scale, enable_gqa=self.grouped
        )

    def _unbroadcast(self, x: Tensor) -> Tensor:
        """q, k or v with four axes as they would be if their rows were not broadcast."""
        rows: tuple[int, ...] = (*self.lead[:-1], x.shape[1])
        if len(self.lead) < 2 and not self.grouped:  # three axes or fewer, of one head
            rows = self.lead
        return x.reshape(*rows, *x.shape[2:])

    def score(self, q: Tensor, k: Tensor) -> tuple[Tensor, Tensor, float]:
        """The score of `attend` that this call computes."""
        return q, k, self.scale

    @property
    def dtype(self) -> torch.dtype:
        """The dtype that the kernel computes with: the autocast dtype, or else the dtype of the arguments."""
        if self._casts:
            return torch.get_autocast_dtype(self.q.device.type)
        return self.q.dtype

    @property
    def mask_dtype(self) -> torch.dtype | None:
        """The dtype in which an additive mask is added: float32 to half-precision scores, unless autocast casts it."""
        if self._casts or self.attn_mask is None:
            return self.dtype
        return self.attn_mask.dtype

    @property
    def _casts(self) -> bool:
        """Whether autocast casts the arguments."""
        return torch.is_autocast_enabled(self.q.device.type) and self.q.dtype != torch.float64


def _bind(
    query: Tensor,
    key: Tensor,
    value: Tensor,
    attn_mask: Tensor | None = None,
    dropout_p: float = 0.0,
    is_causal: bool = False,
    scale: float | None = None,
    enable_gqa: bool = False,
) -> SDPACall:
    if query.is_nested:
        raise InputError(
            "attention over nested tensors cannot be edited: expected a padded batch and a mask"
        )
    # 1 / sqrt(e), Eq. 1 of Vaswani et al. 2017
    scale = max(1, query.shape[-1]) ** -0.5 if scale is None else float(scale)
    grouped = False  # as many key heads as query heads are not grouped, whatever the flag
    if enable_gqa and query.ndim > 2:
        grouped = not query.shape[-3] == key.shape[-3] == value.shape[-3]
    return SDPACall(
        q=query,
        k=key,
        v=value,
        attn_mask=attn_mask,
        dropout=dropout_p,
        causal=is_causal,
        scale=scale,
        grouped=grouped,
    )


def _four(x: Tensor) -> Tensor:
    """A tensor with four axes."""
    if x.ndim == 4:
        return x
    if x.ndim > 4:  # (b, windows, h, n, e)
        return x.flatten(0, -4)
    if x.ndim == 3:
        return x[:, None]
    return x[None, None]


def _heads_before_tokens(x: Tensor, heads: int, axes: int) -> Tensor:
    """`x` with `axes` axes, the head axis moved to -3."""
    return x.reshape((1,) * (axes - x.ndim) + tuple(x.shape)).movedim(heads, HEADS_AXIS)


def _unpacked(x: Tensor) -> Tensor:
    """Queries, an output or a mask (b, g, n, e) with the n query heads of each of g key heads as (b, g * n, 1, e)."""
    return x.flatten(-3, -2).unsqueeze(-2)


class Masks:
    """Masks and biases of the attention calls of one pass, copied once for all layers that share them.

    A copy lasts as long as the pass: meanwhile the original is held, so that its memory cannot become that of another
    mask, and a write to it is noticed by its version.
    """

    def __init__(self) -> None:
        self._copies: dict[tuple[Any, ...], tuple[Tensor, Tensor]] = {}

    def clear(self) -> None:
        """Forget all masks, when a pass begins or the watch ends."""
        self._copies.clear()

    def copy(self, mask: Tensor) -> Tensor:
        """A detached copy of a mask, the same one for the same mask."""
        if mask.is_inference():  # it has no version
            return mask.detach().clone()
        # the same memory, read in the same way, and not written to since
        key = (mask.data_ptr(), mask.shape, mask.stride(), mask.dtype, mask._version)
        # Masks are shared by layers, and a copy per layer would take their memory many times.
        if key not in self._copies:
            self._copies[key] = (mask, _compact(mask.detach()).clone())
        return self._copies[key][1]


def _compact(mask: Tensor) -> Tensor:
    """A view of a mask in which axes that are only expanded have size 1."""
    for axis in range(mask.ndim):
        # An expanded axis has the stride 0: one of its entries is enough.
        if mask.stride(axis) == 0 and mask.shape[axis] > 1:
            mask = mask.narrow(axis, 0, 1)
    return mask


def mask_and_bias(call: SDPACall, copy: Tensor | None, offset: int) -> tuple[Mask, Bias | None]:
    """The mask and the bias of a call, exactly.

    Args:
        call: The call.
        copy: Its mask, with up to four axes.
        offset: The position of the first query among the keys.
    """
    if call.causal:  # torch's flag places the first query at the first key
        return Mask(causal=True, offset=None if call.queries == call.keys else 0), None
    if copy is None:
        return Mask(offset=offset or None), None
    if copy.dtype == torch.bool:
        return Mask(offset=offset or None, allow=copy), None
    return Mask(offset=offset or None), Bias(dense=copy.to(call.mask_dtype))


def editable_mask_and_bias(call: SDPACall, offset: int) -> tuple[Mask, Bias | None]:
    """As mask_and_bias, but what an additive mask forbids moves to the mask, so that no edit of scores allows it.

    A query that -inf or the lowest number forbids every key attends to none; a kernel may spread the latter evenly.
    """
    additive = call.four_mask
    if additive is None or additive.dtype == torch.bool:
        return mask_and_bias(call, additive, offset)
    # Half of the lowest number, in case something was added to it.
    allowed = additive.detach() > torch.finfo(additive.dtype).min / 2
    bias = Bias(dense=additive.masked_fill(~allowed, 0.0).to(call.mask_dtype))
    return Mask(offset=offset or None, allow=allowed), bias


def first_position(queries: int, keys: int, allowed: Tensor | None, given: bool) -> int:
    """The position of the first query among the keys: where distances start, and whether a step continues a text.

    As many queries as keys are the same tokens. A mask whose last allowed key moves by one per query is causal, and
    its first query is at its last allowed key; so it is with a static cache, whose unused keys are masked. Without such
    a mask the keys are a cache that ends with the queries, unless the module was given them, as cross-attention is.

    Args:
        queries: Number of queries.
        keys: Number of keys.
        allowed: A mask, True where attention is allowed, with the axes queries and keys last.
        given: The module was called with as many tokens as there are keys.
    """
    # As many queries as keys, or keys made of the module's input: no keys came before.
    if queries == keys or given or 0 in (queries, keys):
        return 0
    # Without a mask the queries are taken as the last tokens.
    if allowed is None or allowed.is_meta:
        return max(0, keys - queries)
    # (q, k): whether any row and head may attend
    some = allowed.expand(*allowed.shape[:-2], queries, keys).reshape(-1, queries, keys).any(0)
    last = keys - 1 - some.flip(-1).int().argmax(-1)  # the last allowed key of each query
    # If the mask is causal, last_i - i is the same for all queries i; those without any key do not count.
    first, none = last - torch.arange(queries, device=last.device), ~some.any(-1)
    least, most = first.masked_fill(none, keys).min(), first.masked_fill(none, -queries).max()
    low, high = torch.stack([least, most]).tolist()  # one read of the device
    # The same shift for every query: a causal mask, whose shift is the position.
    if low == high >= 0:
        return int(low)
    if queries > 1:
        return 0
    return max(0, keys - queries)


# The log-sum-exp of a foreign model's attention without another pass over its scores.
#
# torch's SDPA does not return it, but the operator that it calls does. That operator may answer instead of SDPA where
# it has once given the same bits for a call of the same kind in this process.


DEVICES = {"cuda"}  # where the statistics can use it: on a CPU they take their own
FROM = 256  # queries from which it pays; the lengths of shorter calls change at every decoding step
MOST = 4096  # kinds of calls that are remembered

# for each kind of call, whether the operator gives the bits of SDPA
_SAME: dict[tuple[object, ...], bool] = {}


def output_and_lse(call: SDPACall, sdpa: Callable[[], Tensor]) -> tuple[Tensor, Tensor | None]:
    """The output of a call, bit-equal to `sdpa`, and the log-sum-exp (b, h, q) of its scores if available.

    Args:
        call: The call.
        sdpa: Makes the call itself.
    """
    q, k, v = call.q, call.k, call.v
    if not _has_lse(call):
        return sdpa(), None
    q, k, v = (x.to(call.dtype) for x in (q, k, v))
    choice = torch._fused_sdp_choice(
        q, k, v, None, 0.0, call.causal, scale=call.scale, enable_gqa=call.grouped
    )
    # What selects a kernel, and with it the bits of its result.
    kind = (
        choice, q.device, q.dtype, call.causal, call.scale,
        *(part for x in (q, k, v) for part in (x.shape, x.stride())),
    )  # fmt: skip
    # Known to differ: no second attempt.
    if _SAME.get(kind) is False:
        return sdpa(), None
    try:
        both = kernel_with_lse(choice, q, k, v, call.scale, call.causal)
    except RuntimeError:  # the operator does not take what SDPA takes, such as grouped heads
        both = None
    if kind in _SAME:
        if both is None:
            return (sdpa(), None)
        return both

    # The first call of its kind: both answer, and are compared.
    if len(_SAME) >= MOST:
        _SAME.clear()
    out = sdpa()
    _SAME[kind] = False
    if both is None:
        return out, None
    # The same bits and the same layout in memory, or later kernels would differ.
    _SAME[kind] = torch.equal(out, both[0]) and out.stride() == both[0].stride()
    if _SAME[kind]:
        return out, both[1]
    return out, None


def _has_lse(call: SDPACall) -> bool:
    """Whether the operator may stand for a call, and the call is long enough for it to pay."""
    every = (call.q, call.k, call.v)
    if call.q.device.type not in DEVICES or call.queries < FROM:
        return False
    # A mask selects other kernels, and dropout draws other numbers in each call.
    if call.attn_mask is not None or call.dropout != 0.0:
        return False
    if any(x.ndim != 4 or 0 in x.shape for x in every):
        return False
    # its result would have no gradient
    return not (torch.is_grad_enabled() and any(x.requires_grad for x in every))


# FlexAttention under a watch: it runs uncompiled, where it holds all scores, so its size is limited.


def check_flex(q: Tensor, k: Tensor, tap: WatchTap) -> None:
    """Raise if a call is too large to run uncompiled, or if its scores or weights are to be edited."""
    b, h, n, m = *q.shape[:3], k.shape[2]
    # Uncompiled FlexAttention holds all scores at once, (b, h, n, m).
    if b * h * n * m > DENSE_LIMIT:
        raise InputError(
            f"FlexAttention of {b} x {h} x {n} x {m} runs uncompiled while it is watched or edited and would hold "
            f"{b * h * n * m:,} scores, over the limit of {DENSE_LIMIT:,}: watch a shorter input, or the model with "
            "attn_implementation='sdpa', which has no such limit"
        )
    # The kernel is one operator from scores to output, inside of which nothing can be changed.
    if tap.explicit:
        raise InputError(
            "scores and weights of FlexAttention cannot be edited and have no gradients: use attn_implementation='sdpa'"
        )


def flex_weights(func: Callable[..., Any], q: Tensor, k: Tensor, rest: tuple[Any, ...]) -> Tensor:
    """The weights (b, h, q, k) of a call of FlexAttention: its output where the values are unit vectors, P I = P."""
    kind = torch.float64 if q.dtype == torch.float64 else torch.float32
    # P I = P: unit vectors as values return the weights themselves.
    units = torch.eye(k.shape[2], dtype=kind, device=k.device).expand(*k.shape[:2], -1, -1)
    weights: Tensor = func(q.detach().to(kind), k.detach().to(kind), units, *rest)[0]
    return weights


# nn.MultiheadAttention under a watch: its SDPA call is seen, and so are the weights that it computes itself.


SIGNATURE = inspect.signature(F.multi_head_attention_forward)


def _without_dispatch(function: Any) -> Callable[..., Any]:
    """A copy of a function of torch that does not hand itself over to an active mode: with one, it would recurse."""
    space = {**function.__globals__, "has_torch_function": lambda _: False}
    copy = FunctionType(
        function.__code__, space, function.__name__, function.__defaults__, function.__closure__
    )
    copy.__kwdefaults__ = function.__kwdefaults__
    return copy


multihead_forward = _without_dispatch(F.multi_head_attention_forward)


def uses_fast_path(module: nn.Module, query: Tensor, key: Tensor, value: Tensor) -> bool:
    """Whether torch would compute this call by its fused fast path if no mode were active."""
    return (
        torch.backends.mha.get_fastpath_enabled()
        and isinstance(module, nn.MultiheadAttention)
        # Self-attention of one tensor (b, t, d), in evaluation mode and without gradients.
        and query is key is value
        and query.ndim == 3
        and module.batch_first
        and not module.training
        and module.num_heads % 2 == 0
        and not torch.is_autocast_enabled(query.device.type)
        and not (torch.is_grad_enabled() and any(p.requires_grad for p in module.parameters()))
    )


class MultiheadSteps:
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
        # The first product has the scores, the second one the output.
        if self.weights is None:
            return self._scores(func, *args)
        v = self._passed("v", args[1])
        for listener in list(self.tap.listeners):
            weights = kept(self.weights, listener.grad and listener.explicit)
            listener.record_call(DenseCall(weights=weights))
        return self._three(self.tap.heads(self._four(func(args[0], v))))

    def _scores(self, func: Callable[..., Tensor], *args: Tensor) -> Tensor:
        """The product of queries and keys, plus a mask if there is one: (mask, q, k) or (q, k)."""
        *mask, q, k = args
        factor = math.sqrt(1.0 / float(q.shape[-1]))  # by which torch has scaled the queries
        # torch scales the queries before the product; listeners are shown the unscaled ones.
        plain = self._four(q) / factor
        edited = self.tap.passed("q", plain)
        if edited is not plain:  # else the bits stay those of torch
            q = self._three(edited) * factor
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
        """(b * h, n, e) as (b, h, n, e)."""
        return x.unflatten(0, (-1, self.heads))

    def _three(self, x: Tensor) -> Tensor:
        return x.flatten(0, 1)
