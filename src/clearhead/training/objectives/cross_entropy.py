"""Fused output layer and cross-entropy, which never holds all logits of a large vocabulary in memory.

loss = - sum over tokens of ln softmax(W x)[target], where the logits W x may be capped. For one chunk of tokens at a
time the logits are computed, replaced in place by their gradient softmax - onehot, and multiplied into the gradients of
x and W. So memory is of the size of x and W. The gradients are computed in the forward pass, and the backward pass only
scales them.
"""

from __future__ import annotations

import torch
import torch.nn.functional as F
from jaxtyping import Float, Int
from torch import Tensor

IGNORED = -100  # target of a token without loss
ROOM = 1 << 32  # bytes of logits per chunk on an accelerator
CACHE = 1 << 22  # bytes of logits per chunk on a CPU, so that they fit into its cache


def linear_cross_entropy(
    x: Float[Tensor, "*n d"],
    weight: Float[Tensor, "v d"],
    targets: Int[Tensor, "*n"],
    *,
    smoothing: float = 0.0,
    cap: float | None = None,
) -> Float[Tensor, ""]:
    """The summed cross-entropy of softmax(x W') against `targets`, in float32 or better.

    With `smoothing` a share of each target is spread evenly over the vocabulary (Szegedy et al. 2016, section 7). With
    `cap` the logits are cap * tanh(x W' / cap).
    """
    x, targets = x.reshape(-1, x.shape[-1]), targets.reshape(-1)
    if torch.is_grad_enabled() and (x.requires_grad or weight.requires_grad):
        loss: Tensor = _loss_and_gradients(
            x, weight, targets, smoothing, cap or 0.0, weight.requires_grad
        )[0]
        return loss
    return measured(x, weight, targets, smoothing=smoothing, cap=cap)[0]


@torch.no_grad()
def measured(
    x: Float[Tensor, "*n d"],
    weight: Float[Tensor, "v d"],
    targets: Int[Tensor, "*n"],
    *,
    smoothing: float = 0.0,
    cap: float | None = None,
) -> tuple[Float[Tensor, ""], Int[Tensor, ""]]:
    """The summed cross-entropy and the number of correct predictions, without gradients, for evaluation."""
    x, targets = x.reshape(-1, x.shape[-1]), targets.reshape(-1)
    loss = torch.zeros((), dtype=_wide(x), device=x.device)
    correct = torch.zeros((), dtype=torch.long, device=x.device)
    part = _rows(x, weight)
    if x.device.type != "cpu":  # logits in float32, their softmax and copies need more memory
        part = -(-part // 8)
    for rows, wanted in zip(x.split(part), targets.split(part), strict=True):
        # (n, v) of this chunk alone
        logits = (rows @ weight.T).to(_wide(x))
        _cap_logits(logits, cap or 0.0)
        loss += F.cross_entropy(
            logits, wanted, ignore_index=IGNORED, label_smoothing=smoothing, reduction="sum"
        )
        correct += (logits.argmax(-1) == wanted).sum()
    return loss, correct


@torch.library.custom_op(
    "clearhead::linear_cross_entropy",
    mutates_args=(),
    schema="(Tensor x, Tensor weight, Tensor targets, float smoothing, float cap, bool learned)"
    " -> (Tensor, Tensor, Tensor)",
)
def _loss_and_gradients(
    x: Tensor, weight: Tensor, targets: Tensor, smoothing: float, cap: float, learned: bool
) -> tuple[Tensor, Tensor, Tensor]:
    """The summed loss and its gradients with respect to x and weight (empty unless it is learned), chunk by chunk."""
    # without a gradient of W a chunk needs more rows to be worth its product
    rows = _rows(x, weight, least=64 if learned else 256)
    loss = torch.zeros((), dtype=_wide(x), device=x.device)
    dx, dw = torch.empty_like(x), None
    for start in range(0, x.shape[0], rows):
        part, wanted = x[start : start + rows], targets[start : start + rows]
        logits = part @ weight.T  # (n, v)
        slope = _cap_logits(logits, cap)
        loss += _logits_to_gradient(logits, wanted, smoothing)
        # from here on `logits` holds dL/dz: dx = dL/dz W and dW = dL/dz^T x
        if slope is not None:
            # the chain rule through the cap
            logits *= slope
        torch.mm(logits, weight, out=dx[start : start + rows])
        if learned:
            dw = _add(dw, logits, part, whole=x.shape[0] <= rows)
    if not learned:
        return loss, dx, weight.new_empty(0)
    return loss, dx, torch.zeros_like(weight) if dw is None else dw.to(weight.dtype)


@_loss_and_gradients.register_fake
def _(
    x: Tensor, weight: Tensor, targets: Tensor, smoothing: float, cap: float, learned: bool
) -> tuple[Tensor, Tensor, Tensor]:
    dw = torch.empty_like(weight) if learned else weight.new_empty(0)
    return x.new_empty((), dtype=_wide(x)), torch.empty_like(x), dw


def _save_gradients(
    ctx: torch.autograd.function.FunctionCtx, inputs: tuple[object, ...], output: tuple[Tensor, ...]
) -> None:
    # the forward pass has computed them already
    ctx.save_for_backward(output[1], output[2])
    ctx.learned = inputs[5]  # type: ignore[attr-defined]
    ctx.set_materialize_grads(False)


def _scale_gradients(
    ctx: torch.autograd.function.FunctionCtx, *grads: Tensor | None
) -> tuple[Tensor | None, ...]:
    dx, dw = ctx.saved_tensors  # type: ignore[attr-defined]
    g = grads[0]
    if grads[1] is not None or grads[2] is not None:
        raise RuntimeError(
            "linear_cross_entropy has no second derivative: its gradients are constants for autograd"
        )
    if g is None:
        # nothing depends on the loss
        return (None,) * 6
    return dx * g, dw * g if ctx.learned else None, None, None, None, None  # type: ignore[attr-defined]


_loss_and_gradients.register_autograd(_scale_gradients, setup_context=_save_gradients)


def _cap_logits(logits: Float[Tensor, "n v"], cap: float) -> Float[Tensor, "n v"] | None:
    """Replace logits by cap * tanh(logits / cap), in place; returns the derivative. A cap of 0 is none: None."""
    if not cap:
        return None
    t = torch.tanh(logits / cap)
    torch.mul(t, cap, out=logits)
    return 1.0 - t * t  # d (c tanh(z / c)) / dz


def _wide(x: Tensor) -> torch.dtype:
    """The dtype of sums of exponentials."""
    return torch.float64 if x.dtype == torch.float64 else torch.float32


def _rows(x: Tensor, weight: Tensor, least: int = 64) -> int:
    """The number of tokens per chunk, `least` or more if there are as many; chunks are of equal size."""
    room = (CACHE if x.device.type == "cpu" else ROOM) // (weight.shape[0] * x.element_size())
    # equal chunks rather than full ones and a rest: compiled and cached products have one shape
    parts = -(-x.shape[0] // max(room, least))
    return max(-(-x.shape[0] // max(parts, 1)), 1)


def _add(dw: Tensor | None, logits: Tensor, part: Tensor, whole: bool) -> Tensor:
    """Add logits^T x of a chunk to the gradient of the weight, in float32."""
    if whole or logits.dtype == torch.float64:
        new = logits.T @ part
        # one chunk, or float64: no wider accumulator is needed
        return new if dw is None else dw.add_(new)
    # bfloat16 products that cuBLAS adds in float32; a CPU has no such product
    if logits.is_cuda and logits.dtype != torch.float32:
        if dw is None:
            # the first chunk starts the sum
            return torch.mm(logits.T, part, out_dtype=torch.float32)
        return torch.addmm(dw, logits.T, part, out_dtype=torch.float32, out=dw)
    if dw is None:
        return (logits.T @ part).float()
    if logits.dtype == torch.float32:
        # product and sum in one call
        return dw.addmm_(logits.T, part)
    return dw.add_(logits.T @ part)


def _logits_to_gradient(
    logits: Float[Tensor, "n v"], targets: Int[Tensor, "n"], smoothing: float
) -> Float[Tensor, ""]:
    """Replace logits by the gradient of their loss, in place; returns the summed loss."""
    if logits.is_cuda and logits.dtype != torch.float64:
        from .cross_entropy_kernel import logits_to_gradient

        return logits_to_gradient(logits, targets, smoothing, IGNORED)
    v = logits.shape[1]
    counted = targets != IGNORED
    wanted = targets.where(counted, 0)[:, None]  # (n, 1)
    exact = logits.to(_wide(logits))
    # loss = logsumexp(z) - (1 - s) z_target - s mean(z)
    lse = exact.logsumexp(-1)
    loss = lse - (1 - smoothing) * exact.gather(1, wanted)[:, 0]
    if smoothing:
        # the share s of the target is spread evenly over all v tokens
        loss = loss - smoothing * exact.mean(-1)
    # its gradient softmax(z) - (1 - s) onehot - s / v, in the memory of z
    p = exact.sub_(lse[:, None]).exp_()
    if smoothing:
        p -= smoothing / v
    p.scatter_add_(1, wanted, torch.full_like(wanted, smoothing - 1, dtype=p.dtype))
    p.mul_(counted[:, None])
    if p is not logits:
        # `exact` was a wider copy: round the gradient back to the dtype of the logits
        logits.copy_(p)
    return loss.where(counted, 0.0).sum()
