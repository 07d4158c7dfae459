"""The log-sum-exp of a foreign model's attention without another pass over its scores.

torch's SDPA does not return it, but the operator that it calls does. That operator may answer instead of SDPA where it
has once given the same bits for a call of the same kind in this process.
"""

from __future__ import annotations

from collections.abc import Callable

import torch
from torch import Tensor

from ..layers.sdpa import kernel_with_lse
from .foreign_call import SDPACall

DEVICES = {"cuda"}  # where the statistics can use it: on a CPU they take their own
FROM = 256  # queries from which it pays; the lengths of shorter calls change at every decoding step
MOST = 4096  # kinds of calls that are remembered

_SAME: dict[tuple[object, ...], bool] = {}  # for each kind of call, whether the operator gives the bits of SDPA


def answer(call: SDPACall, sdpa: Callable[[], Tensor]) -> tuple[Tensor, Tensor | None]:
    """The output of a call, to the bit that of `sdpa`, and the log-sum-exp (b, h, q) of its scores if it is at hand.

    Args:
        call: The call.
        sdpa: Makes the call itself.
    """
    q, k, v = call.q, call.k, call.v
    plain = call.attn_mask is None and call.dropout == 0.0 and q.ndim == k.ndim == v.ndim == 4
    if not plain or q.device.type not in DEVICES or call.queries < FROM or 0 in (*q.shape, *k.shape, *v.shape):
        return sdpa(), None
    if torch.is_grad_enabled() and any(x.requires_grad for x in (q, k, v)):
        return sdpa(), None
    q, k, v = (x.to(call.dtype) for x in (q, k, v))
    choice = torch._fused_sdp_choice(q, k, v, None, 0.0, call.causal, scale=call.scale, enable_gqa=call.grouped)
    kind = (
        choice, q.device, q.dtype, call.causal, call.scale,
        *(part for x in (q, k, v) for part in (x.shape, x.stride())),
    )  # fmt: skip
    if _SAME.get(kind) is False:
        return sdpa(), None
    try:
        both = kernel_with_lse(choice, q, k, v, call.scale, call.causal)
    except RuntimeError:  # the operator does not take what SDPA takes, such as grouped heads
        both = None
    if kind not in _SAME:
        if len(_SAME) >= MOST:
            _SAME.clear()
        out = sdpa()
        _SAME[kind] = both is not None and torch.equal(out, both[0]) and out.stride() == both[0].stride()
        return out, both[1] if both is not None and _SAME[kind] else None
    return (sdpa(), None) if both is None else both
