"""The readout and its cross-entropy in one, so that the logits of a large vocabulary are never held whole in float32.

loss = - sum over counted tokens of ln softmax(W x)[target]. For a chunk of tokens at a time the logits are
computed, turned in place into their own gradient softmax - onehot, and spent on the gradients of x and W: what
stays is the size of x and of W. The gradients are thus ready when the loss is, and backward only scales them.
"""

from __future__ import annotations

import torch
import torch.nn.functional as F
from jaxtyping import Float, Int
from torch import Tensor

IGNORED = -100  # the target of a token that does not count
ROOM = 1 << 32  # bytes of logits at a time on an accelerator ...
CACHE = 1 << 22  # ... and on a CPU, where they stay in cache


def linear_cross_entropy(
    x: Float[Tensor, "*n d"],
    weight: Float[Tensor, "v d"],
    targets: Int[Tensor, "*n"],
    *,
    smoothing: float = 0.0,
) -> Float[Tensor, ""]:
    """The summed cross-entropy of softmax(x W') against `targets`, in float32 or better.

    With `smoothing` a share of each target is spread evenly over the vocabulary (Szegedy et al. 2016, section 7).
    """
    x, targets = x.reshape(-1, x.shape[-1]), targets.reshape(-1)
    if torch.is_grad_enabled() and (x.requires_grad or weight.requires_grad):
        loss: Tensor = _spent(x, weight, targets, smoothing)[0]
        return loss
    return measured(x, weight, targets, smoothing=smoothing)[0]


@torch.no_grad()
def measured(
    x: Float[Tensor, "*n d"],
    weight: Float[Tensor, "v d"],
    targets: Int[Tensor, "*n"],
    *,
    smoothing: float = 0.0,
) -> tuple[Float[Tensor, ""], Int[Tensor, ""]]:
    """The summed cross-entropy, and how many counted targets were the likeliest token: for evaluation."""
    x, targets = x.reshape(-1, x.shape[-1]), targets.reshape(-1)
    loss = torch.zeros((), dtype=_wide(x), device=x.device)
    right = torch.zeros((), dtype=torch.long, device=x.device)
    part = _rows(x, weight) if x.device.type == "cpu" else -(-_rows(x, weight) // 8)  # these logits are float32
    for rows, wanted in zip(x.split(part), targets.split(part), strict=True):
        logits = (rows @ weight.T).to(_wide(x))
        loss += F.cross_entropy(logits, wanted, ignore_index=IGNORED, label_smoothing=smoothing, reduction="sum")
        right += (logits.argmax(-1) == wanted).sum()
    return loss, right


@torch.library.custom_op(
    "clearhead::linear_cross_entropy",
    mutates_args=(),
    schema="(Tensor x, Tensor weight, Tensor targets, float smoothing) -> (Tensor, Tensor, Tensor)",
)
def _spent(x: Tensor, weight: Tensor, targets: Tensor, smoothing: float) -> tuple[Tensor, Tensor, Tensor]:
    """The summed loss and its gradients, chunk by chunk."""
    rows = _rows(x, weight)
    loss = torch.zeros((), dtype=_wide(x), device=x.device)
    dx, dw = torch.empty_like(x), None
    for start in range(0, x.shape[0], rows):
        part, wanted = x[start : start + rows], targets[start : start + rows]
        logits = part @ weight.T
        loss += _turn(logits, wanted, smoothing)
        torch.mm(logits, weight, out=dx[start : start + rows])
        dw = _add(dw, logits, part, whole=x.shape[0] <= rows)
    return loss, dx, torch.zeros_like(weight) if dw is None else dw.to(weight.dtype)


@_spent.register_fake
def _(x: Tensor, weight: Tensor, targets: Tensor, smoothing: float) -> tuple[Tensor, Tensor, Tensor]:
    return x.new_empty((), dtype=_wide(x)), torch.empty_like(x), torch.empty_like(weight)


def _keep(ctx: torch.autograd.function.FunctionCtx, inputs: tuple[object, ...], output: tuple[Tensor, ...]) -> None:
    ctx.save_for_backward(output[1], output[2])
    ctx.set_materialize_grads(False)


def _scale(ctx: torch.autograd.function.FunctionCtx, *grads: Tensor | None) -> tuple[Tensor | None, ...]:
    dx, dw = ctx.saved_tensors  # type: ignore[attr-defined]
    g = grads[0]
    if grads[1] is not None or grads[2] is not None:
        raise RuntimeError("linear_cross_entropy has no second derivative: its gradients are numbers, not functions")
    return (None, None, None, None) if g is None else (dx * g, dw * g, None, None)


_spent.register_autograd(_scale, setup_context=_keep)


def _wide(x: Tensor) -> torch.dtype:
    """The type in which a sum of exponentials is taken."""
    return torch.float64 if x.dtype == torch.float64 else torch.float32


def _rows(x: Tensor, weight: Tensor) -> int:
    """How many tokens at a time, in even parts."""
    room = (CACHE if x.device.type == "cpu" else ROOM) // (weight.shape[0] * x.element_size())
    parts = -(-x.shape[0] // max(room, 64))
    return max(-(-x.shape[0] // max(parts, 1)), 1)


def _add(dw: Tensor | None, logits: Tensor, part: Tensor, whole: bool) -> Tensor:
    """dw + logits' x, summed over chunks in float32."""
    if whole or logits.dtype == torch.float64:
        new = logits.T @ part
        return new if dw is None else dw.add_(new)
    if logits.is_cuda and logits.dtype != torch.float32:
        return (
            torch.mm(logits.T, part, out_dtype=torch.float32) if dw is None
            else torch.addmm(dw, logits.T, part, out_dtype=torch.float32, out=dw)
        )  # fmt: skip
    if dw is None:
        return (logits.T @ part).float()
    return dw.addmm_(logits.T, part) if logits.dtype == torch.float32 else dw.add_(logits.T @ part)


def _turn(logits: Float[Tensor, "n v"], targets: Int[Tensor, "n"], smoothing: float) -> Float[Tensor, ""]:
    """Logits into the gradient of their loss, in place; returns the summed loss."""
    if logits.is_cuda and logits.dtype != torch.float64:
        from .loss_kernel import turn

        return turn(logits, targets, smoothing, IGNORED)
    v = logits.shape[1]
    counted = targets != IGNORED
    wanted = targets.where(counted, 0)[:, None]
    exact = logits.to(_wide(logits))
    lse = exact.logsumexp(-1)
    loss = lse - (1 - smoothing) * exact.gather(1, wanted)[:, 0]
    if smoothing:
        loss = loss - smoothing * exact.mean(-1)
    p = exact.sub_(lse[:, None]).exp_()
    if smoothing:
        p -= smoothing / v
    p.scatter_add_(1, wanted, torch.full_like(wanted, smoothing - 1, dtype=p.dtype))
    p.mul_(counted[:, None])
    if p is not logits:
        logits.copy_(p)
    return loss.where(counted, 0.0).sum()
