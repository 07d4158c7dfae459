"""torch's scaled_dot_product_attention (SDPA): the choice of its backend, its log-sum-exp, and NaN inputs."""

from __future__ import annotations

from collections.abc import Callable
from threading import Lock
from typing import Any, TypeVar

import torch
import torch.nn.functional as F
from jaxtyping import Float
from torch import Tensor
from torch.backends import cuda
from torch.nn.attention import SDPBackend

from .scores import repeat_heads

CUDNN_FROM = 513  # queries from which cuDNN may be used without gradients
STRETCH = 32  # keys; the CPU kernel takes 512 at a time
Result = TypeVar("Result")


def sdpa(
    q: Float[Tensor, "b h q e"],
    k: Float[Tensor, "b g k e"],
    v: Float[Tensor, "b g k e"],
    mask: Tensor | None,
    scale: float,
    dropout: float,
    causal: bool = False,
) -> Float[Tensor, "b h q e"]:
    """Return softmax(scale q k' + mask) v by torch's SDPA.

    Args:
        q: queries.
        k: keys; each of the g key heads serves h / g query heads.
        v: values.
        mask: booleans (True: attend) or a bias, broadcastable to (b, h, q, k).
        scale: factor of the scores.
        dropout: share of the weights dropped.
        causal: allow only keys up to the query's own index; not together with a mask.
    """
    grouped = q.shape[1] != k.shape[1]
    if grouped and mask is not None and q.is_cuda:  # no CUDA kernel takes both groups and a mask
        # (b, g, k, e) -> (b, h, k, e)
        k, v = repeat_heads(k, q.shape[1]), repeat_heads(v, q.shape[1])
        grouped = False
    how: dict[str, Any] = {
        "dropout_p": dropout,
        "is_causal": causal,
        "scale": scale,
        "enable_gqa": grouped,
    }
    if _avoids_cudnn(q, k, v, mask):
        out = _CUDNN.without(F.scaled_dot_product_attention, q, k, v, mask, **how)
    else:
        out = F.scaled_dot_product_attention(q, k, v, mask, **how)
    if mask is None:
        return _restore_nan(q, k, out, causal)
    return out


def sdpa_with_lse(
    q: Float[Tensor, "b h q e"],
    k: Float[Tensor, "b g k e"],
    v: Float[Tensor, "b g k f"],
    scale: float,
    causal: bool,
) -> tuple[Float[Tensor, "b h q f"], Float[Tensor, "b h q"]] | None:
    """Return what `sdpa` returns without a mask, to the bit, and the log-sum-exp of each query's scores.

    SDPA does not return the log-sum-exp, but the operators that it calls do. So we ask which one it would choose, and
    call that. None if that operator returns no log-sum-exp, if SDPA would pad or repeat its inputs first, and under
    autocast, which casts the inputs of SDPA but not those of the operators.
    """
    same = q.shape[:2] == k.shape[:2] and q.shape[-1] == v.shape[-1]
    empty = 0 in (*q.shape, *k.shape)
    if not same or empty or torch.is_autocast_enabled(q.device.type):
        return None
    # which backend SDPA would take for these inputs
    if _avoids_cudnn(q, k, v):
        choice = _CUDNN.without(torch._fused_sdp_choice, q, k, v, None, 0.0, causal, scale=scale)
    else:
        choice = torch._fused_sdp_choice(q, k, v, None, 0.0, causal, scale=scale)
    both = kernel_with_lse(choice, q, k, v, scale, causal)
    if both is None or q.device.type != "cpu":
        return both
    return _restore_nan(q, k, both[0], causal), both[1]


def kernel_with_lse(
    choice: int,
    q: Float[Tensor, "b h q e"],
    k: Float[Tensor, "b g k e"],
    v: Float[Tensor, "b g k f"],
    scale: float,
    causal: bool,
) -> tuple[Float[Tensor, "b h q f"], Float[Tensor, "b h q"]] | None:
    """Return the output and the log-sum-exp of the kernel that SDPA has chosen; None if that returns none.

    Args:
        choice: the backend, as torch._fused_sdp_choice returns it.
        q: queries.
        k: keys.
        v: values.
        scale: factor of the scores.
        causal: allow only keys up to the query's own index.
    """
    # the operators differ in what else they return, and in how they take a mask and dropout
    ops = torch.ops.aten
    if choice == SDPBackend.FLASH_ATTENTION.value and q.device.type == "cpu":
        out, lse = ops._scaled_dot_product_flash_attention_for_cpu(
            q, k, v, 0.0, causal, scale=scale
        )
        return out, lse
    if choice == SDPBackend.CUDNN_ATTENTION.value:
        out, lse, *_ = ops._scaled_dot_product_cudnn_attention(
            q, k, v, None, True, 0.0, causal, False, scale=scale
        )
        return out, lse.reshape(q.shape[:3])
    if choice == SDPBackend.FLASH_ATTENTION.value and q.is_cuda and q.shape[-1] % 8 == 0:
        # SDPA pads other head dimensions before it calls this operator
        out, lse, *_ = ops._scaled_dot_product_flash_attention(
            q, k, v, 0.0, causal, False, scale=scale
        )
        return out, lse
    return None


def traced() -> bool:
    """Whether tensors have no values to read or keep: inside torch.compile, torch.export or a torch.func transform."""
    return torch.compiler.is_compiling() or torch._C._are_functorch_transforms_active()


def cudnn_pays(queries: int, gradient: bool) -> bool:
    """Whether cuDNN may be used on a GPU: in training, and for many queries.

    cuDNN compiles a plan for every new shape, which takes about 35 ms on an H200, a hundred times as long as a short
    call. In training shapes repeat, and with many queries its speed makes up for it; in decoding and for short prompts
    of ragged batches shapes change at every step.
    """
    return gradient or queries >= CUDNN_FROM


def _avoids_cudnn(q: Tensor, k: Tensor, v: Tensor, mask: Tensor | None = None) -> bool:
    """Whether to keep SDPA from choosing cuDNN; a compiled graph has few shapes, so it is left to choose."""
    if not q.is_cuda or traced():
        return False
    trained = q.requires_grad or k.requires_grad or v.requires_grad
    if mask is not None:
        trained = trained or mask.requires_grad
    gradient = torch.is_grad_enabled() and trained
    return not cudnn_pays(q.shape[2], gradient)


class _CudnnSwitch:
    """torch's process-wide switch of SDPA's cuDNN backend, shared by all threads that need it off for a call."""

    def __init__(self) -> None:
        self._lock, self._calls, self._turned_off = Lock(), 0, False

    def without(self, call: Callable[..., Result], *args: Any, **kwargs: Any) -> Result:
        """Return call(*args, **kwargs), during which SDPA does not choose cuDNN."""
        # the first caller turns it off, the last one on again
        with self._lock:
            if self._calls == 0:
                # cuDNN stays on for a caller who has disabled the other fused backends.
                others = cuda.flash_sdp_enabled() or cuda.mem_efficient_sdp_enabled()
                self._turned_off = others and cuda.cudnn_sdp_enabled()
                if self._turned_off:
                    cuda.enable_cudnn_sdp(False)
            self._calls += 1
        try:
            return call(*args, **kwargs)
        finally:
            with self._lock:
                self._calls -= 1
                if self._calls == 0 and self._turned_off:
                    cuda.enable_cudnn_sdp(True)


_CUDNN = _CudnnSwitch()


def _restore_nan(q: Tensor, k: Tensor, out: Tensor, causal: bool) -> Tensor:
    """Return NaN for queries whose scores are all NaN: the CPU kernel takes them for masked ones and returns zeros."""
    if q.device.type != "cpu" or 0 in (*q.shape, *k.shape):
        return out
    # The kernel's output shows NaN keys, unless all keys of a stretch that it takes at a time are NaN: where a few
    # queries attend to many keys, it is enough to test one key of each stretch.
    if causal or q.shape[2] > 16:
        tested = k.detach()
    else:
        tested = k.detach()[:, :, ::STRETCH]
    if not traced() and not (q.detach().sum() + tested.sum()).isnan():
        return out
    # whether each query (b, h, q) sees a NaN: in itself, or in a key that it attends to
    nan_keys = k.isnan().any(-1).repeat_interleave(q.shape[1] // k.shape[1], dim=1)  # (b, h, k)
    if causal:  # a query attends to the keys up to its own
        last = torch.arange(q.shape[2], device=q.device).clamp(max=k.shape[2] - 1)
        # (b, h, k) -> (b, h, q): a NaN key spoils its own and every later query
        nan_keys = (nan_keys.cumsum(-1) > 0)[..., last]
    else:
        # (b, h, k) -> (b, h, 1): every query attends to every key
        nan_keys = nan_keys.any(-1, keepdim=True)
    sees_nan = q.isnan().any(-1) | nan_keys
    return torch.where(sees_nan[..., None], float("nan"), out)
